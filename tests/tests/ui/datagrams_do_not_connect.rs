//! A datagram queue pair does not connect, and a connection cannot become ready without a peer.

fn connect(qp: rdma::InitializedQueuePair<rdma::transport::Ud>, remote: &rdma::Endpoint) {
    let _qp = qp.connect(remote, &rdma::ConnectOptions::new());
}

fn ready(qp: rdma::InitializedQueuePair<rdma::transport::Rc>) {
    let _qp = qp.ready();
}

fn main() {}
