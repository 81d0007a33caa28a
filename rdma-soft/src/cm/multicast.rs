//! Multicast: ids join and leave groups.

use std::ffi::c_void;

use rdma_sys::{rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask as Mask, rdma_cm_mc_join_flags};

use super::address::{self, Addr};
use super::calls::Done;
use super::channel::Membership;
use super::{events, path, report};
use crate::engine::Errno;
use crate::verbs::call::{Argument, Handle, In};

/// `rdma_join_multicast`.
pub(super) fn join(id: Handle<rdma_cm_id>, addr: Addr, context: *mut c_void) -> Done {
    join_as(&id, &addr, false, context)
}

/// `rdma_join_multicast_ex`.
pub(super) fn join_ex(id: Handle<rdma_cm_id>, attr: In<rdma_cm_join_mc_attr_ex>, context: *mut c_void) -> Done {
    const ALL: u32 = Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0 | Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0;
    let attr = attr.get()?;
    if attr.comp_mask >= Mask::RDMA_CM_JOIN_MC_ATTR_RESERVED.0 {
        return Err(Errno(libc::ENOTSUP).into());
    }
    if attr.comp_mask & ALL != ALL || attr.join_flags >= rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_RESERVED.0 {
        return Err(Errno::INVAL.into());
    }
    let send_only = attr.join_flags == rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0;
    // SAFETY: `from_c` requires null, or an address that is valid for its family: promise 2 for the
    // attributes.
    join_as(&id, &unsafe { Addr::from_c(attr.addr) }, send_only, context)
}

fn join_as(id: &Handle<rdma_cm_id>, addr: &Addr, send_only: bool, context: *mut c_void) -> Done {
    let (id, group) = (id.get()?, addr.get()?);
    let membership = Membership::new(context, send_only, address::gid_of(&group));
    id.with_entry(|entry| entry.join(group, membership, report::joined))?;
    Ok(events::complete(id)?)
}

/// `rdma_leave_multicast`: waits until C has acknowledged the join event, if C took it.
pub(super) fn leave(id: Handle<rdma_cm_id>, addr: Addr) -> Done {
    let (id, group) = (id.get()?, addr.get()?);
    let membership = id.with_entry(|entry| entry.leave(&group))?;
    if let Some(qp) = id.qp().filter(|_| !membership.send_only && id.is_datagram()) {
        let _never_attached = qp.set_attached(false, membership.mgid, path::multicast_lid());
    }
    membership.ledger.settle();
    Ok(())
}
