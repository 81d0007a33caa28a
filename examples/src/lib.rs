//! Shared code of this package's programs: spawning local ranks, meeting over TCP, a small
//! collectives library over RDMA writes, and tables in the formats of perftest and nccl-tests.
//!
//! All code here is safe and uses the public API of [`rdma`]: if an RDMA program needed `unsafe`,
//! this package would not compile.
#![forbid(unsafe_code)]

pub mod address;
pub mod bootstrap;
pub mod cli;
pub mod cm_time;
pub mod collective_program;
pub mod collectives;
pub mod connect;
pub mod device;
pub mod devinfo;
mod environment;
pub mod exposed_table;
pub mod failure;
pub mod file_copy;
mod files;
#[cfg(feature = "cuda")]
pub mod gpu_bw;
#[cfg(feature = "cuda")]
pub mod gpu_doctor;
pub mod kv;
mod launcher;
pub mod load;
pub mod message;
#[cfg(test)]
mod numbers;
pub mod output;
mod peer_text;
pub mod pingpong;
pub mod placement;
pub mod plan;
pub mod progress;
pub mod rpc;
pub mod rping;
pub mod service;
mod statistics;
pub mod table;
pub mod training;
pub mod tune;
mod wait;

pub use failure::{Failure, run};
