//! What the software device is compared with, and the device itself: one module per contender.

mod cache_line;
mod copy;
mod tcp;

pub use cache_line::CacheLine;
pub use copy::{CrossProcessWrite, Memcpy, Target};
pub use tcp::TcpSpin;
