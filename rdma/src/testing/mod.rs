//! A test provider: objects live in memory, calls fail on demand, and the test makes completions.
//!
//! Each test thread has a world of its own: the calls that shall fail, the calls made, and the
//! number of living objects. No data is transferred: a test inspects the posted requests
//! ([`posted`]) and makes the completions ([`complete`]).
//!
//! # Safety
//!
//! 1. Every object is a `Box` whose first field is the C structure, so a pointer to the structure
//!    is a pointer to the object. The create function of this table makes it and the destroy
//!    function frees it, and both are called as libibverbs demands.
//! 2. Data that changes after creation is behind a `Mutex`.

#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod cm;
mod data_path;
mod datagrams;
mod objects;
mod random;
mod srq;
mod table;
pub(crate) mod waker;
mod world;

#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use data_path::{complete, disarm, fail_post, flood, pending, posted, raise, unfail_post};
#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use datagrams::{groups_of, handle_of, live_handles};
#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use objects::Posted;
#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use random::{Random, run_random};
#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use srq::posted_to_srq;
#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use world::{BadWr, DmaBuf, NO_REASON, calls, dma_bufs, fail, live, set_port_down};

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, ErrorKind};

/// A device with two ports: the first is down; the second is active, on Ethernet, with three GIDs.
pub(crate) fn device() -> Device {
    Device::list_of(&table::TABLE, false).unwrap().remove(0)
}

/// An open context of [`device`].
pub(crate) fn context() -> Context {
    device().open().unwrap()
}

/// Lets the provider fail a call without a reason while `errno` is that of an earlier error, and
/// asserts that the error of the call names no reason.
pub(crate) fn fails_silently<T, E: Into<Error>>(operation: &'static str, call: impl FnOnce() -> Result<T, E>) {
    fail(operation, NO_REASON);
    nix::errno::Errno::EEXIST.set();
    let error: Error = call().err().unwrap().into();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Unknown, None), "{operation}");
    assert!(error.to_string().ends_with("the provider failed without saying why"), "{error}");
}
