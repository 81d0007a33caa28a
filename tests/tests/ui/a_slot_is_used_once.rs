//! A reserved slot is one request's.

async fn start(qp: &mut rdma::aio::QueuePair<rdma::transport::Rc>, one: rdma::Buffer, two: rdma::Buffer) {
    let slot = qp.reserve().await.unwrap();
    let _first = slot.start(rdma::op::send(one));
    let _second = slot.start(rdma::op::send(two));
}

fn main() {}
