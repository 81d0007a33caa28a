//! The objects of the test provider. Numbers cite the invariants of [`super`].

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Mutex;

use rdma_sys::*;

use super::world::{born, called, died, set_errno};

#[repr(C)]
pub(super) struct FakeContext {
    pub(super) base: ibv_context,
    pub(super) events: Mutex<VecDeque<ibv_async_event>>,
}

#[repr(C)]
pub(super) struct FakeChannel {
    pub(super) base: ibv_comp_channel,
    pub(super) events: Mutex<VecDeque<usize>>,
}

#[repr(C)]
pub(super) struct FakeCq {
    pub(super) base: ibv_cq,
    pub(super) state: Mutex<CqState>,
}

#[repr(C)]
pub(super) struct FakeQp {
    pub(super) base: ibv_qp,
    pub(super) state: Mutex<QpState>,
}

pub(super) fn boxed<T, B>(kind: &'static str, value: T) -> *mut B {
    born(kind);
    Box::into_raw(Box::new(value)).cast()
}

/// # Safety
///
/// `raw` was made by [`boxed`] with the same `T` and is not used again.
pub(super) unsafe fn unboxed<T, B>(kind: &'static str, raw: *mut B) {
    died(kind);
    // SAFETY: from_raw wants a pointer that into_raw returned, once: this function's contract (1).
    drop(unsafe { Box::from_raw(raw.cast::<T>()) });
}

/// Records the call of a function that returns a pointer: sets errno, and says whether to fail.
pub(super) fn fails(operation: &'static str) -> bool {
    let errno = called(operation);
    set_errno(errno);
    errno != 0
}

pub(super) fn eventfd() -> c_int {
    // SAFETY: eventfd has no requirements.
    unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

pub(super) fn ring(fd: c_int) {
    // SAFETY: eventfd_write wants an eventfd.
    unsafe { libc::eventfd_write(fd, 1) };
}

#[derive(Default)]
pub(super) struct CqState {
    pub(super) completions: VecDeque<ibv_wc>,
    /// A completion that is returned again and again while there is no other.
    pub(super) flood: Option<ibv_wc>,
    pub(super) armed: bool,
}

#[derive(Default)]
pub(super) struct QpState {
    pub(super) attr: Option<ibv_qp_attr>,
    pub(super) posted: Vec<Posted>,
    /// The multicast groups that the queue pair is attached to.
    pub(super) groups: Vec<(crate::Gid, u16)>,
}

/// A request that the provider took.
#[derive(Debug, Clone)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) recv: bool,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) sges: Vec<ibv_sge>,
    /// For a datagram: the number of its address handle, the destination queue pair and the Q_Key.
    pub(crate) to: Option<(u32, u32, u32)>,
}
