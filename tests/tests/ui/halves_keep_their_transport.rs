//! A half of a connection cannot replace a half of a datagram queue pair.

fn swap(a: &mut rdma::QueuePair<rdma::transport::Rc>, b: &mut rdma::QueuePair<rdma::transport::Ud>) {
    let (mut send_a, _) = a.split_mut();
    let (mut send_b, _) = b.split_mut();
    std::mem::swap(&mut send_a, &mut send_b);
}

fn main() {}
