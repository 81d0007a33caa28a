//! Memory that is registered while it is borrowed ends with the call: it is neither returned nor
//! swapped with that of another call.

fn escape(pd: &rdma::ProtectionDomain, bytes: &mut [u8]) {
    let _lent = pd.register_scoped(bytes, |memory| memory.lend(..));
}

fn swap(pd: &rdma::ProtectionDomain, a: &mut [u8], b: &mut [u8]) {
    let _ended = pd.register_scoped(a, |outer| pd.register_scoped(b, |inner| std::mem::swap(outer, inner)));
}

fn post(pd: &rdma::ProtectionDomain, qp: &mut rdma::QueuePair<rdma::transport::Rc>, bytes: &mut [u8]) {
    let _posted = pd.register_scoped(bytes, |memory| drop(qp.post_send(rdma::op::send(memory.lend(..)))));
}

fn main() {}
