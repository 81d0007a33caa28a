//! A provider and a librdmacm in memory, for unit tests: calls fail on demand, and the test makes
//! completions and events.
//!
//! Each test thread has a world of its own: the calls that shall fail, the calls made, and the
//! number of living objects. No data is transferred: a test inspects the posted requests
//! ([`posted`]) and makes the completions ([`complete`]).
//!
//! The unit tests of `rdma` are a copy of `rdma` whose types differ from those of the crate that
//! feature `pair` names. They list the device by the function tables, [`ibverbs`] and [`rdmacm`].
//!
//! # Safety
//!
//! 1. Every object is a `Box` whose first field is the C structure, so a pointer to the structure
//!    is a pointer to the object. The create function of this table makes it and the destroy
//!    function frees it, and both are called as libibverbs demands. Tests give pointers to living
//!    objects of this provider only.
//! 2. Data that changes after creation is behind a `Mutex`.

#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "tests give pointers to living objects (1)")]
#![allow(clippy::missing_panics_doc, reason = "a panic is a test that fails")]

pub mod cm;
mod data_path;
mod datagrams;
mod objects;
#[cfg(feature = "pair")]
mod pair;
mod random;
mod srq;
mod table;
pub mod waker;
mod world;

use rdma_sys::{Ibverbs, RdmaCm};

pub use data_path::{complete, disarm, fail_post, flood, pending, posted, raise, unfail_post};
pub use datagrams::{groups_of, handle_of, live_handles};
pub use objects::Posted;
#[cfg(feature = "pair")]
pub use pair::{Pair, context, join, pair};
pub use random::{Random, run_random};
pub use srq::posted_to_srq;
pub use world::{
    BadWr, DmaBuf, NO_REASON, accesses, add_device, answer_query_qp, answer_query_srq, calls, dma_bufs, fail, iovas,
    live, modified, set_port_down,
};

/// The functions of the provider, which lists one device, `fake0`, and those of [`add_device`].
///
/// A device has two ports: the first is down; the second is active, on Ethernet, with three GIDs.
#[must_use]
pub fn ibverbs() -> &'static Ibverbs {
    &table::TABLE
}

/// The functions of the librdmacm ([`cm`]).
#[must_use]
pub fn rdmacm() -> &'static RdmaCm {
    &cm::TABLE
}
