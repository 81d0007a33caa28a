//! Each step of bring-up consumes the queue pair: the earlier state cannot be used again.

fn twice(qp: rdma::InitializedQueuePair<rdma::transport::Rc>, remote: rdma::Endpoint) {
    let options = rdma::ConnectOptions::new();
    let _first = qp.connect(&remote, &options);
    let _second = qp.connect(&remote, &options);
}

fn main() {}
