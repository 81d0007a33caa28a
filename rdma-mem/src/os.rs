//! Calls that only Linux has, for Linux. `os/elsewhere.rs` takes the place of this file on other
//! systems, where all of them fail.

use std::ffi::CStr;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use memmap2::{Advice, MmapMut, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MRemapFlags, MmapAdvise, madvise, mremap};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

/// Seals of a memfd.
pub(crate) type Seals = SealFlag;

/// Seals that fix the size.
pub(crate) const SIZE_SEALS: Seals = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// The seal that fixes the seals.
pub(crate) const SEAL_SEAL: Seals = SealFlag::F_SEAL_SEAL;

/// The seal that forbids writes, except through mappings that exist.
pub(crate) const WRITE_SEAL: Seals = SealFlag::F_SEAL_FUTURE_WRITE;

/// `MFD_NOEXEC_SEAL`, which `nix` lacks.
const NO_EXEC: MFdFlags = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);

/// Makes an empty memfd that takes seals. It can never be executed, if the kernel knows that seal.
pub(crate) fn memfd(name: &CStr) -> nix::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    match memfd_create(name, flags | NO_EXEC) {
        Err(Errno::EINVAL) => memfd_create(name, flags),
        made => made,
    }
}

/// Allocates the pages of the first `size` bytes of a file, and makes the file that long.
pub(crate) fn fallocate(fd: &OwnedFd, size: libc::off_t) -> nix::Result<()> {
    nix::fcntl::fallocate(fd, FallocateFlags::empty(), 0, size)
}

/// Adds seals to a memfd.
pub(crate) fn add_seals(fd: &OwnedFd, seals: Seals) -> nix::Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(seals)).map(drop)
}

/// The seals of a file; none if it takes none.
pub(crate) fn seals(fd: BorrowedFd<'_>) -> Seals {
    Seals::from_bits_retain(fcntl(fd, FcntlArg::F_GET_SEALS).unwrap_or(0))
}

/// Whether a file is of ordinary pages, and not of huge ones.
pub(crate) fn is_tmpfs(fd: BorrowedFd<'_>) -> nix::Result<bool> {
    Ok(fstatfs(fd)?.filesystem_type() == TMPFS_MAGIC)
}

/// Moves `len` bytes of pages to another address, in the place of the pages there, in one step.
///
/// # Safety
///
/// `from` is the start of a mapping of `len` bytes, which no code needs afterwards. `to` is the
/// start of another, whose addresses stay valid, but whose contents no code needs.
pub(crate) unsafe fn move_pages(from: NonNull<u8>, len: usize, to: NonNull<u8>) -> nix::Result<()> {
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: mremap requires that no code needs the mapping that it moves, or the one that it
    // replaces: this function's condition.
    unsafe { mremap(from.cast(), len, len, flags, Some(to.cast())) }.map(drop)
}

/// Makes the kernel zero a mapping in every forked child.
pub(crate) fn wipe_in_children(page: &mut MmapMut) -> nix::Result<()> {
    let start = NonNull::from(&mut **page).cast();
    // SAFETY: madvise requires a range of whole pages that may be wiped in a child: the range is
    // the mapping, which nobody else uses: the reference to it is exclusive.
    unsafe { madvise(start, page.len(), MmapAdvise::MADV_WIPEONFORK) }
}

/// Takes a mapping out of every child that is forked from now on.
pub(crate) fn hide_from_children(map: &MmapRaw) -> io::Result<()> {
    map.advise(Advice::DontFork)
}

/// Prefers huge pages for a mapping.
pub(crate) fn prefer_huge_pages(map: &MmapRaw) -> io::Result<()> {
    map.advise(Advice::HugePage)
}

/// Allocates the pages of a part of a mapping, ready to be written.
pub(crate) fn populate(map: &MmapRaw, offset: usize, len: usize) -> io::Result<()> {
    map.advise_range(Advice::PopulateWrite, offset, len)
}

/// Sends bytes of a record, and descriptors with the first of them; returns the number of bytes.
pub(crate) fn send_some(socket: &UnixStream, bytes: &[u8], fds: &[RawFd]) -> nix::Result<usize> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None)
}

/// What recvmsg has stored.
#[derive(Debug)]
pub(crate) struct Message {
    /// Number of bytes.
    pub(crate) len: usize,
    /// Number of bytes of control messages.
    pub(crate) control_len: usize,
    /// `MSG_TRUNC`, `MSG_CTRUNC`.
    pub(crate) flags: libc::c_int,
}

/// Receives bytes and control messages. With `never_waits` the call does not wait, whatever the
/// socket's flags.
///
/// Not through `nix`, which answers a truncated list of descriptors with an error and leaks the
/// descriptors that the kernel has made.
pub(crate) fn recvmsg(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    control: &mut [usize],
    never_waits: bool,
) -> io::Result<Message> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeroed requires a type for which all zeroes is a value: msghdr consists of integers
    // and pointers.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // The type depends on the C library.
    message.msg_controllen = size_of_val(control) as _;
    let flags = libc::MSG_CMSG_CLOEXEC | if never_waits { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: recvmsg writes within the buffers that `message` names, which live and have the
    // lengths given there.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    Ok(Message { len, control_len: message.msg_controllen as usize, flags: message.msg_flags })
}
