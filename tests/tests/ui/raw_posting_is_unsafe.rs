//! Posting raw requests is unsafe: they carry unchecked addresses.

fn post(qp: &mut rdma::RawQueuePair<rdma::transport::Rc>, wr: &mut rdma_sys::ibv_send_wr) {
    let _posted = qp.post_send(wr);
}

fn main() {}
