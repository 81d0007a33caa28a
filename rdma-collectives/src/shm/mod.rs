//! Shared memory between the ranks of a host.
//!
//! A tensor is a segment of its rank, which the other ranks have mapped to read. Each rank reads
//! its peers' elements where they lie, writes its own memory alone, and counts its progress in
//! lines that the others read. Operands that are overwritten at once are copied first (`staging`).
//! If some ranks are on other hosts, the segments are also registered with a device, which sends
//! from them: a message is copied once, into memory of its receiver.

// Files: `host` and `meet` (the ranks, and how they meet), `clock` (counters of progress), `links`
// and `mail` (messages), `direct` and `all_reduce` (collectives without schedules), `staging`,
// `trials` (which stores each rank uses), `methods` (which way two ranks reduce in place), `slice`.

mod all_reduce;
mod clock;
mod direct;
mod host;
mod links;
mod mail;
mod meet;
mod methods;
mod slice;
mod staging;
mod trials;

pub(super) use all_reduce::AllReduce;
pub(super) use direct::{DirectReads, reads_directly};
pub(super) use host::{Host, SharedTensor};
pub(super) use links::{HostLinks, UNCUT};
pub(super) use slice::HostSlice;

/// A failure of an operation on shared memory.
fn failed(error: impl std::fmt::Display) -> crate::Error {
    crate::Error::new(format!("shared memory: {error}"))
}

#[cfg(test)]
mod tests;
