//! Other crates cannot implement a transport: unsafe code relies on the constants of each one.

enum Mine {}

impl rdma::transport::Transport for Mine {
    const TYPE: rdma_sys::ibv_qp_type = rdma_sys::ibv_qp_type::IBV_QPT_UD;
    const IS_DATAGRAM: bool = false;
    type Start = ();
}

fn main() {}
