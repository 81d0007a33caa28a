//! A shared receive queue has one handle that posts.
use rdma::SharedReceiveQueue;

fn two(receives: &SharedReceiveQueue) -> SharedReceiveQueue {
    receives.clone()
}

fn main() {}
