//! Multicast: attaching queue pairs to groups and detaching them.

use rdma_sys::{ibv_gid, ibv_qp};

use super::call::{BytesConst, Done, Handle};
use crate::engine::Gid;
use crate::node::Node;

/// `ibv_attach_mcast`. Ignores the LID of the group: switches route by it, and this device has no
/// switch.
pub(super) fn attach_mcast(qp: Handle<ibv_qp>, gid: BytesConst<ibv_gid>, _lid: u16) -> Done {
    Node::get()?.attach(qp.get()?.id(), Gid(gid.0.get()?))
}

/// `ibv_detach_mcast`.
pub(super) fn detach_mcast(qp: Handle<ibv_qp>, gid: BytesConst<ibv_gid>, _lid: u16) -> Done {
    Node::get()?.detach(qp.get()?.id(), Gid(gid.0.get()?))
}
