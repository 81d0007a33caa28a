//! A reserved slot is one request's.

async fn start(qp: &mut rdma::aio::QueuePair<rdma::Rc>, one: rdma::Buffer, two: rdma::Buffer) {
    let slot = qp.reserve().await.unwrap();
    let _first = slot.start(rdma::op::Send::new(one));
    let _second = slot.start(rdma::op::Send::new(two));
}

fn main() {}
