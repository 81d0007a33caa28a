//! A work queue has one owner that posts to it: the halves of a queue pair are not copied.

use rdma::transport::Rc;

fn two(send: &rdma::OwnedSendHalf<Rc>, recv: &rdma::aio::RecvHalf<Rc>) {
    let _send: rdma::OwnedSendHalf<Rc> = send.clone();
    let _recv: rdma::aio::RecvHalf<Rc> = recv.clone();
}

fn main() {}
