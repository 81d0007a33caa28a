//! Multicast: queue pairs in groups.

use std::ffi::c_int;

use rdma_sys::{ibv_gid, ibv_qp};

use super::errno::status;
use super::{Errno, qp};
use crate::engine::Gid;
use crate::node::Node;

/// The group behind a pointer from C.
///
/// # Safety
///
/// C's promise: valid for reads of a GID, aligned or not.
unsafe fn group(gid: *const ibv_gid) -> Gid {
    // SAFETY: the caller's promise.
    Gid(unsafe { gid.cast::<[u8; 16]>().read_unaligned() })
}

/// `ibv_attach_mcast`. The local identifier is InfiniBand's way to route to the group; nothing is routed here.
pub(super) unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _: u16) -> c_int {
    if gid.is_null() {
        return Errno::INVAL.0;
    }
    // SAFETY: C's promise.
    let gid = unsafe { group(gid) };
    // SAFETY: C's promise about the queue pair.
    status(unsafe { qp::get(qp) }.and_then(|shared| Node::get()?.attach(shared.id(), gid)))
}

/// `ibv_detach_mcast`.
pub(super) unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _: u16) -> c_int {
    if gid.is_null() {
        return Errno::INVAL.0;
    }
    // SAFETY: C's promise.
    let gid = unsafe { group(gid) };
    // SAFETY: C's promise about the queue pair.
    status(unsafe { qp::get(qp) }.and_then(|shared| Node::get()?.detach(shared.id(), gid)))
}
