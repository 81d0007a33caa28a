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
mod table;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use data_path::{BadWr, Posted, complete, disarm, fail_post, flood, pending, posted, raise, unfail_post};
#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use datagrams::{groups_of, handle_of, live_handles};

use crate::context::Context;
use crate::device::Device;

/// The state of one test's provider.
#[derive(Default)]
pub(super) struct World {
    faults: HashMap<&'static str, VecDeque<i32>>,
    calls: Vec<&'static str>,
    live: HashMap<&'static str, isize>,
    post_fault: Option<(usize, i32, BadWr)>,
    dma_bufs: Vec<DmaBuf>,
    datagrams: datagrams::Datagrams,
}

/// The arguments of a call of `ibv_reg_dmabuf_mr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DmaBuf {
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) iova: u64,
    pub(crate) fd: i32,
    pub(crate) access: i32,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(f)
}

/// A device with two ports: the first is down; the second is active, on Ethernet, with three GIDs.
pub(crate) fn device() -> Device {
    Device::list_of(&table::TABLE, false).unwrap().remove(0)
}

/// An open context of [`device`].
pub(crate) fn context() -> Context {
    device().open().unwrap()
}

/// Makes the next call of an operation fail. Several failures of one operation queue up.
pub(crate) fn fail(operation: &'static str, errno: i32) {
    world(|world| world.faults.entry(operation).or_default().push_back(errno));
}

/// The calls made so far.
pub(crate) fn calls() -> Vec<&'static str> {
    world(|world| world.calls.clone())
}

/// The dma-bufs that were to be registered, in order.
pub(crate) fn dma_bufs() -> Vec<DmaBuf> {
    world(|world| world.dma_bufs.clone())
}

/// How many objects of a kind are alive.
pub(crate) fn live(kind: &'static str) -> isize {
    world(|world| world.live.get(kind).copied().unwrap_or(0))
}

/// Records a call, and returns the errno with which it shall fail, or 0.
fn called(operation: &'static str) -> i32 {
    world(|world| {
        world.calls.push(operation);
        world.faults.get_mut(operation).and_then(VecDeque::pop_front).unwrap_or(0)
    })
}

fn born(kind: &'static str) {
    world(|world| *world.live.entry(kind).or_default() += 1);
}

fn died(kind: &'static str) {
    world(|world| *world.live.entry(kind).or_default() -= 1);
}

fn set_errno(errno: i32) {
    // SAFETY: __errno_location has no requirements.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the write wants a valid place that no other thread uses: this thread's errno.
    unsafe { *place = errno };
}
