//! A future's memory comes back once: the future is not cloned.

fn twice(sent: rdma::aio::InFlight<rdma::Buffer>) {
    let _other = sent.clone();
}

fn main() {}
