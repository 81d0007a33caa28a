//! Memberships of ids in multicast groups. Numbers cite C's promises in [`super`].

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use rdma_sys::{rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask as Mask, rdma_cm_mc_join_flags};

use super::calls::on;
use super::channel::Membership;
use super::id::Id;
use super::{address, events, path, report};
use crate::engine::Errno;
use crate::verbs::errno::minus_one;

/// `rdma_join_multicast`.
pub(super) unsafe extern "C" fn join(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int {
    // SAFETY: `join_as` asks for promises 1 and 2.
    unsafe { join_as(id, addr, false, context) }
}

/// `rdma_join_multicast_ex`.
pub(super) unsafe extern "C" fn join_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const ALL: u32 = Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0 | Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0;
    // SAFETY: `as_ref` wants null or a pointer for reads: promise 2.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return minus_one(Err(Errno::INVAL)) };
    if attr.comp_mask >= Mask::RDMA_CM_JOIN_MC_ATTR_RESERVED.0 {
        return minus_one(Err(Errno(libc::ENOTSUP)));
    }
    if attr.comp_mask & ALL != ALL || attr.join_flags >= rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_RESERVED.0 {
        return minus_one(Err(Errno::INVAL));
    }
    let send_only = attr.join_flags == rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0;
    // SAFETY: `join_as` asks for promises 1 and 2.
    unsafe { join_as(id, attr.addr, send_only, context) }
}

/// # Safety
///
/// C's promises 1 and 2 about the id and the address.
unsafe fn join_as(id: *mut rdma_cm_id, addr: *const sockaddr, send_only: bool, context: *mut c_void) -> c_int {
    // SAFETY: `read` wants null or an address as its family says: promise 2.
    let group = unsafe { address::read(addr) };
    let join = |id: Id<'_>| {
        let group = group?;
        let membership = Membership::new(context, send_only, address::gid_of(&group));
        id.with_entry(|entry| entry.join(group, membership, report::joined))?;
        events::complete(id)
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, join) }
}

/// `rdma_leave_multicast`: waits until the group's event, if it was taken, is acknowledged.
pub(super) unsafe extern "C" fn leave(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: `read` wants null or an address as its family says: promise 2.
    let group = unsafe { address::read(addr) };
    let leave = |id: Id<'_>| {
        let group = group?;
        let membership = id.with_entry(|entry| entry.leave(&group))?;
        if let Some(qp) = id.qp().filter(|_| !membership.send_only && id.is_datagram()) {
            let _never_attached = qp.set_attached(false, membership.mgid, path::multicast_lid());
        }
        membership.ledger.settle();
        Ok(())
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, leave) }
}
