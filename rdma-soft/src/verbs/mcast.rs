//! Multicast: queue pairs in groups.

use rdma_sys::{ibv_gid, ibv_qp};

use super::call::{BytesConst, Done, Handle};
use crate::engine::Gid;
use crate::node::Node;

/// `ibv_attach_mcast`. The local identifier is InfiniBand's way to route to the group; nothing is
/// routed here.
pub(super) fn attach_mcast(qp: Handle<ibv_qp>, gid: BytesConst<ibv_gid>, _lid: u16) -> Done {
    Node::get()?.attach(qp.get()?.id(), Gid(gid.0.get()?))
}

/// `ibv_detach_mcast`.
pub(super) fn detach_mcast(qp: Handle<ibv_qp>, gid: BytesConst<ibv_gid>, _lid: u16) -> Done {
    Node::get()?.detach(qp.get()?.id(), Gid(gid.0.get()?))
}
