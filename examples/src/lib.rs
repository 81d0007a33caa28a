//! What the programs of this package share: spawning local ranks, meeting over TCP, a small
//! collectives library over RDMA writes, and the tables that perftest and nccl-tests have made
//! familiar.
//!
//! Everything here is safe code over the public API of [`rdma`]: if a program on RDMA needed
//! `unsafe`, this package would not compile.
#![forbid(unsafe_code)]

pub mod address;
pub mod bootstrap;
pub mod cli;
pub mod cm_time;
pub mod collectives;
pub mod connect;
pub mod device;
pub mod devinfo;
mod environment;
pub mod failure;
mod launcher;
pub mod pingpong;
pub mod placement;
pub mod progress;
pub mod rping;
mod statistics;
pub mod table;
mod wait;

pub use failure::{Failure, run};
