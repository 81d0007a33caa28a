//! Options of ids, and memberships in multicast groups.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use rdma_sys::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, ibv_gid, ibv_path_data, ibv_qp_type, rdma_cm_id,
    rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask, rdma_cm_mc_join_flags,
};

use super::channel::Membership;
use super::entry::Role;
use super::id::{self, look};
use super::service::Service;
use super::{address, events, wire};
use crate::engine::Errno;
use crate::verbs::errno::minus_one;

/// `rdma_set_option`.
pub(super) unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    let (level, name) = (u32::try_from(level).unwrap_or(u32::MAX), u32::try_from(optname).unwrap_or(u32::MAX));
    // SAFETY: C's promises about the id and the value.
    minus_one(unsafe { set(id, level, name, optval, optlen) })
}

/// Reads the value of an option.
///
/// # Safety
///
/// `value` is valid for reads of `len` bytes.
unsafe fn value<T: Copy>(value: *const c_void, len: usize) -> Result<T, Errno> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise, and the length is right; the callers' types are integers.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// # Safety
///
/// C's promises about the id and the value.
pub(super) unsafe fn set(
    id: *mut rdma_cm_id,
    level: u32,
    name: u32,
    data: *const c_void,
    len: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let key = unsafe { id::get(id) }?.subject.key;
    let service = Service::get()?;
    match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
            // SAFETY: the caller's promise.
            let tos: u8 = unsafe { value(data, len) }?;
            service.with(|state| state.entry(key).map(|entry| entry.options.traffic_class = tos))
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            // SAFETY: the caller's promise.
            let reuse: c_int = unsafe { value(data, len) }?;
            service.with(|state| {
                let entry = state.entry(key)?;
                let before = matches!(entry.role, Role::Idle);
                if !before && (reuse == 0 || matches!(entry.role, Role::Listening { .. })) {
                    return Err(Errno::INVAL);
                }
                entry.options.reuse = reuse != 0;
                Ok(())
            })
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            // SAFETY: the caller's promise.
            let only: c_int = unsafe { value(data, len) }?;
            service.with(|state| {
                let entry = state.entry(key)?;
                if !matches!(entry.role, Role::Idle | Role::Bound(_)) {
                    return Err(Errno::INVAL);
                }
                entry.options.only_family = Some(only != 0);
                Ok(())
            })
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            // SAFETY: the caller's promise.
            let timeout: u8 = unsafe { value(data, len) }?;
            service.with(|state| {
                let entry = state.entry(key)?;
                if entry.is_datagram() || timeout > 31 {
                    return Err(Errno::INVAL);
                }
                entry.options.ack_timeout = Some(timeout);
                Ok(())
            })
        }
        // The path is what it is on one host: that it is given says that it need not be looked for.
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
            if data.is_null() || len == 0 || len % size_of::<ibv_path_data>() != 0 {
                return Err(Errno::INVAL);
            }
            service.with(|state| state.entry(key)?.resolve_route())
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// `rdma_join_multicast`.
pub(super) unsafe extern "C" fn join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: C's promises about the id and the address.
    minus_one(unsafe { join(id, addr, false, context) })
}

/// `rdma_join_multicast_ex`.
pub(super) unsafe extern "C" fn join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    type Mask = rdma_cm_join_mc_attr_mask;
    const ALL: u32 = Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0 | Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0;
    // SAFETY: C's promise: valid for reads.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return minus_one(Err(Errno::INVAL)) };
    if attr.comp_mask >= Mask::RDMA_CM_JOIN_MC_ATTR_RESERVED.0 {
        return minus_one(Err(Errno(libc::ENOTSUP)));
    }
    if attr.comp_mask & ALL != ALL || attr.join_flags >= rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_RESERVED.0 {
        return minus_one(Err(Errno::INVAL));
    }
    let send_only = attr.join_flags == rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0;
    // SAFETY: C's promises about the id and the address.
    minus_one(unsafe { join(id, attr.addr, send_only, context) })
}

/// # Safety
///
/// C's promises about the id and the address.
unsafe fn join(id: *mut rdma_cm_id, addr: *const sockaddr, send_only: bool, context: *mut c_void) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let key = unsafe { id::get(id) }?.subject.key;
    // SAFETY: the caller's promise.
    let group = unsafe { address::read(addr) }?;
    let membership = Membership::new(context, send_only, address::multicast_gid(&group));
    Service::get()?.with(|state| {
        let event = |entry: &super::entry::Entry| wire::joined(entry, &membership);
        state.entry(key)?.join(group, &membership, event)
    })?;
    // SAFETY: the caller's promise.
    unsafe { events::complete(id) }
}

/// `rdma_leave_multicast`: waits until the group's event, if it was taken, is acknowledged.
pub(super) unsafe extern "C" fn leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: C's promises about the id and the address.
    minus_one(unsafe { leave(id, addr) })
}

/// # Safety
///
/// C's promises about the id and the address.
unsafe fn leave(id: *mut rdma_cm_id, addr: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let key = unsafe { id::get(id) }?.subject.key;
    // SAFETY: the caller's promise.
    let group = unsafe { address::read(addr) }?;
    let (membership, lid) = Service::get()?.with(|state| {
        let entry = state.entry(key)?;
        let membership = entry.leave(&group)?;
        let lid = wire::multicast_lid();
        Ok::<_, Errno>((membership, lid))
    })?;
    let qp = look!(id, qp);
    if !qp.is_null() && !membership.send_only && look!(id, qp_type) == ibv_qp_type::IBV_QPT_UD {
        let mgid = ibv_gid { raw: membership.mgid };
        // SAFETY: the id's own queue pair; the group is read during the call only.
        let _never_attached = unsafe { (crate::ibverbs().ibv_detach_mcast)(qp, &raw const mgid, lid) };
    }
    membership.ledger.settle();
    Ok(())
}
