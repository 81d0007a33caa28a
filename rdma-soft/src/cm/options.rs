//! Options of ids. Numbers cite C's promises in [`super`].

use std::ffi::{c_int, c_void};

use rdma_sys::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, ibv_path_data, rdma_cm_id,
};

use super::calls::{bytes, on};
use super::entry::{Entry, Role};
use super::id::Id;
use crate::engine::Errno;

/// `rdma_set_option`.
pub(super) unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    let (level, name) = (u32::try_from(level).unwrap_or(u32::MAX), u32::try_from(optname).unwrap_or(u32::MAX));
    // SAFETY: `bytes` wants null or so many bytes: promise 2.
    let value = unsafe { bytes(optval, optlen) };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| set(id, level, name, value)) }
}

pub(super) fn set(id: Id<'_>, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
    let byte = || value.try_into().map(u8::from_ne_bytes).map_err(|_| Errno::INVAL);
    let flag = || value.try_into().map(|bytes| c_int::from_ne_bytes(bytes) != 0).map_err(|_| Errno::INVAL);
    id.with_entry(|entry| match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
            entry.options.traffic_class = byte()?;
            Ok(())
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => set_reuse(entry, flag()?),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            let only = flag()?;
            if !matches!(entry.role, Role::Idle | Role::Bound(_)) {
                return Err(Errno::INVAL);
            }
            entry.options.only_family = Some(only);
            Ok(())
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            let timeout = byte()?;
            if entry.is_datagram() || timeout > 31 {
                return Err(Errno::INVAL);
            }
            entry.options.ack_timeout = Some(timeout);
            Ok(())
        }
        // The path is what it is on one host: that it is given says that it need not be looked for.
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
            let whole = !value.is_empty() && value.len() % size_of::<ibv_path_data>() == 0;
            if whole { entry.resolve_route() } else { Err(Errno::INVAL) }
        }
        _ => Err(Errno(libc::ENOSYS)),
    })
}

fn set_reuse(entry: &mut Entry, reuse: bool) -> Result<(), Errno> {
    if !entry.is_idle() && (!reuse || matches!(entry.role, Role::Listening { .. })) {
        return Err(Errno::INVAL);
    }
    entry.options.reuse = reuse;
    Ok(())
}
