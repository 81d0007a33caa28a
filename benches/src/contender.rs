//! The contenders of the comparisons, one per module: the software device and its competitors.

mod all_reduce;
mod cache_line;
mod copy;
mod copy_twice;
mod message_rate;
mod perftest;
mod rdma_memory;
mod rdma_send;
mod rdma_sleep;
mod rdma_write;
mod tcp;
mod tcp_frames;
mod tcp_messages;
mod tcp_stream;
mod tls_stream;
mod ucx;
mod unix;
mod with_a_host;

pub use all_reduce::{AllReduce, AllReduceOfMany, SocketRing};
pub use cache_line::CacheLine;
pub use copy::{Copy, Method, Target};
pub use copy_twice::CopyTwice;
pub use message_rate::{MESSAGES, MessageRate};
pub use perftest::{Perftest, Test as PerftestProgram};
pub use rdma_memory::RdmaMemory;
pub use rdma_send::RdmaSend;
pub use rdma_sleep::RdmaSleep;
pub use rdma_write::RdmaWrite;
pub use tcp::TcpSpin;
pub use tcp_frames::{Placement, TcpFrames};
pub use tcp_messages::TcpMessages;
pub use tcp_stream::TcpWrites;
pub use tls_stream::TlsWrites;
pub use ucx::{Test, Ucx};
pub use unix::{Kind, UnixSleep};
pub use with_a_host::WithAHost;

/// How the two sides of a comparison sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// In the call that takes the message or its event.
    InCall,
    /// In poll(2), before that call.
    InPoll,
}

impl Sleep {
    /// Both ways.
    pub const ALL: [Self; 2] = [Self::InCall, Self::InPoll];
}
