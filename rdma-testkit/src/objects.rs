//! The objects of the test provider. Numbers cite the invariants of the crate.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::sync::Mutex;

use rdma_sys::*;

use super::world::{born, called, died, set_errno};

#[repr(C)]
pub(crate) struct FakeContext {
    pub(crate) base: ibv_context,
    pub(crate) events: Mutex<VecDeque<ibv_async_event>>,
}

#[repr(C)]
pub(crate) struct FakeChannel {
    pub(crate) base: ibv_comp_channel,
    pub(crate) events: Mutex<VecDeque<usize>>,
}

#[repr(C)]
pub(crate) struct FakeCq {
    pub(crate) base: ibv_cq,
    pub(crate) state: Mutex<CqState>,
}

#[repr(C)]
pub(crate) struct FakeQp {
    pub(crate) base: ibv_qp,
    pub(crate) state: Mutex<QpState>,
}

pub(crate) fn boxed<T, B>(kind: &'static str, value: T) -> *mut B {
    born(kind);
    Box::into_raw(Box::new(value)).cast()
}

/// # Safety
///
/// `raw` was made by [`boxed`] with the same `T` and is not used again.
pub(crate) unsafe fn unboxed<T, B>(kind: &'static str, raw: *mut B) {
    died(kind);
    // SAFETY: from_raw requires a pointer that into_raw returned, once: this function's contract
    // (1).
    drop(unsafe { Box::from_raw(raw.cast::<T>()) });
}

/// Records the call of a function that returns a pointer: sets errno, and says whether to fail.
pub(crate) fn fails(operation: &'static str) -> bool {
    let errno = called(operation);
    set_errno(errno);
    errno != 0
}

pub(crate) fn eventfd() -> c_int {
    // SAFETY: eventfd has no requirements.
    unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

pub(crate) fn ring(fd: c_int) {
    // SAFETY: eventfd_write requires an eventfd.
    unsafe { libc::eventfd_write(fd, 1) };
}

#[derive(Default)]
pub(crate) struct CqState {
    pub(crate) completions: VecDeque<ibv_wc>,
    /// A completion that is returned again and again while there is no other.
    pub(crate) flood: Option<ibv_wc>,
    pub(crate) armed: bool,
}

#[derive(Default)]
pub(crate) struct QpState {
    pub(crate) attr: Option<ibv_qp_attr>,
    /// What the queue pair was created with.
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sq_sig_all: c_int,
    pub(crate) posted: Vec<Posted>,
    /// The multicast groups that the queue pair is attached to.
    pub(crate) groups: Vec<(Ipv6Addr, u16)>,
}

/// A request that the provider took.
#[derive(Debug, Clone)]
pub struct Posted {
    /// The number by which its completion names it.
    pub wr_id: u64,
    /// Whether it is a receive.
    pub recv: bool,
    /// The opcode of a send.
    pub opcode: u32,
    /// The flags of a send.
    pub flags: u32,
    /// Its memory.
    pub sges: Vec<ibv_sge>,
    /// For a datagram: the number of its address handle, the destination queue pair and the Q_Key.
    pub to: Option<(u32, u32, u32)>,
}
