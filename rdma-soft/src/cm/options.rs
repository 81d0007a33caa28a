//! Options of an id: `rdma_set_option`.

use std::ffi::c_int;

use rdma_sys::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, ibv_path_data, rdma_cm_id,
};

use super::calls::Done;
use super::entry::{Entry, Role};
use super::id::Id;
use crate::engine::Errno;
use crate::verbs::call::{Data, Handle};

/// `rdma_set_option`.
pub(super) fn set_option(id: Handle<rdma_cm_id>, level: c_int, name: c_int, value: Data, len: usize) -> Done {
    let unsigned = |value| u32::try_from(value).unwrap_or(u32::MAX);
    // SAFETY: `List::get` requires the length that C passed beside the pointer: `len`.
    Ok(set(id.get()?, unsigned(level), unsigned(name), unsafe { value.0.get(len) })?)
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
        // One host has only one path, so setting a path only marks the route as resolved.
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
