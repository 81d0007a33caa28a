//! There is one owner of a connection request, and of an id.

use rdma::cm::{ConnectRequest, Id};
use rdma::Rc;

fn copy<T: Clone>() {}

fn main() {
    copy::<ConnectRequest<Rc>>();
    copy::<Id<Rc>>();
}
