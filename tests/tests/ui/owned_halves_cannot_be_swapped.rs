//! An owned half stays with its queue pair: a swapped half would outlive its device object.

fn swap(one: &mut rdma::OwnedSendHalf<rdma::transport::Rc>, other: &mut rdma::OwnedSendHalf<rdma::transport::Rc>) {
    std::mem::swap(&mut **one, &mut **other);
}

fn main() {}
