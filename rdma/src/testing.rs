//! The device of `rdma-testkit`, for unit tests.

pub(crate) use rdma_testkit::*;

use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::ibv_qp;

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::types::Gid;

/// Sets a flag at its end, so that threads that run until it is set end though the test panics.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The devices of the provider in memory.
pub(crate) fn devices() -> Result<Vec<Device>> {
    // SAFETY: list_of_tables requires tables whose functions keep the contracts of the C libraries,
    // and a connection manager that knows the objects of these verbs: both are rdma-testkit's.
    unsafe { Device::list_of_tables(ibverbs(), rdmacm()) }
}

/// A device with two ports: the first is down; the second is active, on Ethernet, with three GIDs.
pub(crate) fn device() -> Device {
    devices().unwrap().remove(0)
}

/// An open context of [`device`].
pub(crate) fn context() -> Context {
    device().open().unwrap()
}

/// The groups that a queue pair is attached to.
pub(crate) fn groups_of(qp: *mut ibv_qp) -> Vec<(Gid, u16)> {
    rdma_testkit::groups_of(qp).into_iter().map(|(gid, lid)| (gid.into(), lid)).collect()
}

/// Lets the provider fail a call without a reason while `errno` is that of an earlier error, and
/// asserts that the error of the call names no reason.
pub(crate) fn fails_silently<T, E: Into<Error>>(
    operation: &'static str,
    call: impl FnOnce() -> std::result::Result<T, E>,
) {
    fail(operation, NO_REASON);
    nix::errno::Errno::EEXIST.set();
    let error: Error = call().err().unwrap().into();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Unknown, None), "{operation}");
    assert!(error.to_string().ends_with("the provider failed without saying why"), "{error}");
}
