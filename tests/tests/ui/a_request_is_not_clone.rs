//! A connection request, like every identifier, has a single owner.

use rdma::cm::{ConnectRequest, Id};
use rdma::transport::Rc;

fn copy<T: Clone>() {}

fn main() {
    copy::<ConnectRequest<Rc>>();
    copy::<Id<Rc>>();
}
