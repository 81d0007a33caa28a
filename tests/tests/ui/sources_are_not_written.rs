//! Memory that nobody writes cannot be the destination of a receive or of a read.

fn receive(qp: &mut rdma::QueuePair<rdma::transport::Rc>, source: rdma::SourceSlice) {
    let _posted = qp.post_recv(source, 0);
}

fn read(source: rdma::SourceSlice, remote: rdma::RemoteSlice) {
    let _request = rdma::op::read(source, remote);
}

fn change(source: &mut rdma::SourceSlice) {
    source[0] = 1;
}

fn main() {}
