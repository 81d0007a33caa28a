//! Exported functions that are in neither table of `rdma-sys`: libibverbs' headers do not declare
//! them for programs.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::fs::File;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::slice;

use rdma_sys::{ibv_context, ibv_gid_entry, ibv_gid_type};

use crate::cancel::Pending;

/// The type of a GID in sysfs: RoCE v1, or InfiniBand.
const SYSFS_IB_ROCE_V1: c_uint = 0;
/// The type of a GID in sysfs: RoCE v2.
const SYSFS_ROCE_V2: c_uint = 1;

/// Files of a software device that sysfs has for other devices.
const DEVICE_FILES: [(&str, &str); 3] =
    [("board_id", "soft"), ("fw_ver", env!("CARGO_PKG_VERSION")), ("hca_type", "rdma-soft")];

/// The folder where sysfs is mounted.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of a device's sysfs folder, without its last line's end. Returns the length of the
/// string in `buf`, or -1, also if the string does not fit.
///
/// # Safety
///
/// `dir` and `file` are null or C strings, and `buf` is null or has space for `size` bytes.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() {
        return -1;
    }
    // SAFETY: `from_ptr` requires a C string, by this function's condition and the check.
    let dir = unsafe { CStr::from_ptr(dir) };
    // SAFETY: as for `dir`.
    let file = unsafe { CStr::from_ptr(file) };
    // The file is read by system calls that are cancellation points.
    let _pending = Pending::new();
    let Some(text) = sysfs_file(dir.to_bytes(), file.to_bytes(), size) else { return -1 };
    // SAFETY: the slice requires `size` bytes that nobody else uses during the call, by this
    // function's condition and the check; they need no value.
    let room = unsafe { slice::from_raw_parts_mut(buf.cast::<MaybeUninit<u8>>(), size) };
    let len = text.len();
    for (to, from) in room.iter_mut().zip(text.into_iter().chain([0])) {
        to.write(from);
    }
    c_int::try_from(len).unwrap_or(-1)
}

/// The text of a file, if it is shorter than `size` bytes.
fn sysfs_file(dir: &[u8], file: &[u8], size: usize) -> Option<Vec<u8>> {
    let path = [dir, file].join(&b'/');
    let mut text = Vec::new();
    if let Ok(opened) = File::open(OsStr::from_bytes(&path)) {
        // A file need not end.
        opened.take(size as u64).read_to_end(&mut text).ok()?;
        if text.last() == Some(&b'\n') {
            text.pop();
        }
    } else {
        let below = dir.strip_prefix(b"/sys/class/infiniband/")?;
        let device = below.split(|byte| *byte == b'/').next()?;
        let is_ours = rdma_soft::device_names().iter().any(|name| name.as_bytes() == device);
        let known = DEVICE_FILES.iter().find(|(name, _)| is_ours && name.as_bytes() == file)?;
        text.extend(known.1.as_bytes());
    }
    Some(text).filter(|text| text.len() < size)
}

/// The type of a GID table entry. Returns 0, or -1 with the reason in `errno`.
///
/// # Safety
///
/// `context` is null or an open context, and `gid_type` is null or valid for writes.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    if gid_type.is_null() {
        crate::unsupported::set_errno(libc::EINVAL);
        return -1;
    }
    let mut entry = ibv_gid_entry::default();
    // SAFETY: the verb requires null or an open context, by this function's condition, and space
    // for an entry, which is a local.
    let errno = unsafe { crate::VERBS.ibv_query_gid_ex(context, u32::from(port_num), index, &raw mut entry, 0) };
    let found = match errno {
        0 if entry.gid_type == ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0 => SYSFS_ROCE_V2,
        // An empty entry has the type 0 in sysfs.
        0 | libc::ENODATA => SYSFS_IB_ROCE_V1,
        errno => {
            crate::unsupported::set_errno(errno);
            return -1;
        }
    };
    // SAFETY: the write requires a valid pointer, by this function's condition and the check.
    unsafe { *gid_type = found };
    0
}
