//! A datagram queue pair has no peer to connect to, and a connection is not ready without one.

fn connect(qp: rdma::InitializedQueuePair<rdma::Ud>, remote: &rdma::Endpoint) {
    let _qp = qp.connect(remote, &rdma::ConnectOptions::new());
}

fn ready(qp: rdma::InitializedQueuePair<rdma::Rc>) {
    let _qp = qp.ready();
}

fn main() {}
