//! The world of one test: the calls that shall fail, the calls made, and the living objects.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};

use rdma_sys::{ibv_qp_attr, ibv_qp_init_attr, ibv_srq_attr};

/// The state of one test's provider.
#[derive(Default)]
pub(crate) struct World {
    faults: HashMap<&'static str, VecDeque<i32>>,
    calls: Vec<&'static str>,
    live: HashMap<&'static str, isize>,
    pub(crate) post_fault: Option<(usize, i32, BadWr)>,
    pub(crate) dma_bufs: Vec<DmaBuf>,
    /// The access flags of each call of `ibv_reg_mr`.
    pub(crate) accesses: Vec<i32>,
    /// The addresses of calls of `ibv_reg_mr_iova` and `ibv_reg_mr_iova2`.
    pub(crate) iovas: Vec<u64>,
    pub(crate) port_is_down: bool,
    /// The names of the devices beside `fake0`.
    pub(crate) more_devices: Vec<&'static str>,
    pub(crate) datagrams: Datagrams,
    /// What `ibv_modify_qp` was given, with the mask, in order.
    pub(crate) modified: Vec<(ibv_qp_attr, u32)>,
    /// What the queries of queue pairs and of shared receive queues answer instead of the truth.
    pub(crate) qp_answer: Option<(ibv_qp_attr, ibv_qp_init_attr)>,
    pub(crate) srq_answer: Option<ibv_srq_attr>,
}

/// The arguments of a call of `ibv_reg_dmabuf_mr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaBuf {
    /// Where the region begins in the dma-buf.
    pub offset: u64,
    /// The length of the region.
    pub length: usize,
    /// The address by which the device knows the region.
    pub iova: u64,
    /// The descriptor of the dma-buf.
    pub fd: i32,
    /// The flags of the region's access.
    pub access: i32,
}

/// The request that a failing post reports as bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadWr {
    /// The first request that was not taken, as the interface demands.
    Chain,
    /// NULL.
    Null,
    /// A request that is not in the chain.
    Alien,
}

/// The test provider's state of address handles.
#[derive(Default)]
pub(crate) struct Datagrams {
    /// The numbers of the living address handles; a number is used once.
    pub(crate) handles: BTreeSet<u32>,
    pub(crate) next: u32,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

pub(crate) fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(f)
}

/// Makes the next call of an operation fail. Several failures of one operation queue up.
pub fn fail(operation: &'static str, errno: i32) {
    world(|world| world.faults.entry(operation).or_default().push_back(errno));
}

/// Takes the port that is active down, or up again. No event tells of it.
pub fn set_port_down(is_down: bool) {
    world(|world| world.port_is_down = is_down);
}

/// Lists a device beside `fake0` from now on. Its name is no other test's: what opens a device once
/// for the process would find the one of another test.
pub fn add_device(name: &'static str) {
    world(|world| world.more_devices.push(name));
}

/// The calls made so far.
#[must_use]
pub fn calls() -> Vec<&'static str> {
    world(|world| world.calls.clone())
}

/// The dma-bufs that were to be registered, in order.
#[must_use]
pub fn dma_bufs() -> Vec<DmaBuf> {
    world(|world| world.dma_bufs.clone())
}

/// The access flags of the calls of `ibv_reg_mr` and its like in this thread, oldest first.
#[must_use]
pub fn accesses() -> Vec<i32> {
    world(|world| world.accesses.clone())
}

/// The addresses for the device of the calls that name one (`ibv_reg_mr_iova2`), in this thread,
/// oldest first.
#[must_use]
pub fn iovas() -> Vec<u64> {
    world(|world| world.iovas.clone())
}

/// The attributes that `ibv_modify_qp` was given in successful calls, each with its mask, in order.
#[must_use]
pub fn modified() -> Vec<(ibv_qp_attr, u32)> {
    world(|world| world.modified.clone())
}

/// Sets what every `ibv_query_qp` answers from now on, whatever is true; `None` ends it.
pub fn answer_query_qp(answer: Option<(ibv_qp_attr, ibv_qp_init_attr)>) {
    world(|world| world.qp_answer = answer);
}

/// Sets what every `ibv_query_srq` answers from now on, whatever is true; `None` ends it.
pub fn answer_query_srq(answer: Option<ibv_srq_attr>) {
    world(|world| world.srq_answer = answer);
}

/// How many objects of a kind are alive.
#[must_use]
pub fn live(kind: &'static str) -> isize {
    world(|world| world.live.get(kind).copied().unwrap_or(0))
}

/// Records a call, and returns the errno with which it shall fail, or 0.
pub(crate) fn called(operation: &'static str) -> i32 {
    world(|world| {
        world.calls.push(operation);
        world.faults.get_mut(operation).and_then(VecDeque::pop_front).unwrap_or(0)
    })
}

pub(crate) fn born(kind: &'static str) {
    world(|world| *world.live.entry(kind).or_default() += 1);
}

pub(crate) fn died(kind: &'static str) {
    world(|world| *world.live.entry(kind).or_default() -= 1);
}

/// In place of an `errno`, for [`fail`]: the call fails and leaves `errno` as it was.
pub const NO_REASON: i32 = -1;

/// Sets `errno`, unless the number is [`NO_REASON`].
pub(crate) fn set_errno(errno: i32) {
    if errno == NO_REASON {
        return;
    }
    // SAFETY: __errno_location has no requirements.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the write requires a valid place that no other thread uses: this thread's errno.
    unsafe { *place = errno };
}
