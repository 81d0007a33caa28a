//! The halves of a queue pair stay with it: a swapped half would outlive its device object.

fn swap(a: &mut rdma::QueuePair<rdma::transport::Rc>, b: &mut rdma::QueuePair<rdma::transport::Rc>) {
    let ((mut first, _), (mut second, _)) = (a.split_mut(), b.split_mut());
    std::mem::swap(&mut *first, &mut *second);
}

fn main() {}
