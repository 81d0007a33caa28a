//! What the software device is compared with, and the device itself: one module per contender.

mod cache_line;
mod copy;
mod rdma_send;
mod rdma_write;
mod tcp;

pub use cache_line::CacheLine;
pub use copy::{CrossProcessWrite, Memcpy, Target};
pub use rdma_send::RdmaSend;
pub use rdma_write::RdmaWrite;
pub use tcp::TcpSpin;
