//! Memory of a datagram in a scope must outlive the scope; a local of the body does not.

fn lend(qp: &mut rdma::QueuePair<rdma::transport::Ud>, poller: &mut rdma::Poller, to: &rdma::AddressHandle, pd: &rdma::ProtectionDomain) {
    let _result = qp.scope(poller, std::time::Duration::from_secs(1), |scope| {
        let buffer = pd.allocate(8).unwrap();
        let _posted = scope.post_send(rdma::op::send(buffer.lend(..)).to(to, 5, 6)).map_err(|refused| refused.error());
    });
}

fn main() {}
