//! The transport of an identifier decides which operations it has.

use rdma::cm::{Id, Membership};
use rdma::QueuePair;
use rdma::transport::{Rc, Ud};

fn join(id: &Id<Rc>) {
    let _joined = id.join_multicast("239.1.1.1:0".parse().unwrap(), Membership::Full);
}

fn disconnect(id: &Id<Ud>, qp: &QueuePair<Rc>) {
    let _disconnected = id.disconnect(qp);
}

fn main() {}
