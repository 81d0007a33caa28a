//! The contenders of the comparisons, one per module: the software device and its competitors.

mod cache_line;
mod copy;
mod message_rate;
mod rdma_memory;
mod rdma_send;
mod rdma_write;
mod tcp;
mod ucx;

pub use cache_line::CacheLine;
pub use copy::{Copy, Method, Target};
pub use message_rate::{MESSAGES, MessageRate};
pub use rdma_memory::RdmaMemory;
pub use rdma_send::RdmaSend;
pub use rdma_write::RdmaWrite;
pub use tcp::TcpSpin;
pub use ucx::{Test, Ucx};
