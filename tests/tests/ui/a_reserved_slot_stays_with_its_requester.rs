//! A slot that a task reserved is for one request, and for its own queue pair.

use rdma::aio::{Requester, ReservedSlot};
use rdma::transport::Rc;

async fn keep(requester: Requester<Rc>) -> ReservedSlot<'static, Rc> {
    requester.reserve().await.unwrap()
}

async fn twice(requester: &Requester<Rc>, one: rdma::Buffer, two: rdma::Buffer) {
    let slot = requester.reserve().await.unwrap();
    let _first = slot.start(rdma::op::send(one));
    let _second = slot.start(rdma::op::send(two));
}

fn main() {}
