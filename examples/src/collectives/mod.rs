//! Collectives over RDMA writes.

pub mod element;
pub mod pattern;
pub mod schedule;
pub mod wait;
