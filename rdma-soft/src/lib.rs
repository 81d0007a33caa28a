//! A software RDMA device: libibverbs in Rust, between the processes of one host.

pub mod engine;
mod link;
mod node;
mod verbs;

pub use verbs::{ibverbs, is_soft};
