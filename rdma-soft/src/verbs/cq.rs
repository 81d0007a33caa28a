//! `ibv_cq`: completion queues.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};

use super::Errno;
use super::channel;
use super::context::{self, Child, ContextState};
use super::cq_ex::{self, Poller};
use super::errno::{pointer, status};
use super::events::CqEntry;
use super::object::{Object, Public};
use crate::engine::{CqId, limits};
use crate::node::Node;

/// What the device keeps about a completion queue.
#[derive(Debug)]
pub(crate) struct CqState {
    id: CqId,
    entry: Arc<CqEntry>,
    context: Arc<ContextState>,
    channel: AtomicPtr<ibv_comp_channel>,
    poller: Poller,
}

impl CqState {
    pub(crate) fn id(&self) -> CqId {
        self.id
    }

    pub(crate) fn entry(&self) -> &Arc<CqEntry> {
        &self.entry
    }

    pub(crate) fn poller(&self) -> &Poller {
        &self.poller
    }

    pub(crate) fn is_of(&self, context: &Arc<ContextState>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

/// Every queue is an extended one: the plain structure is the beginning of the extended.
impl Public for ibv_cq_ex {
    const MARK: u64 = 0x0063_715f_6371_5f63;
    type Private = CqState;
}

/// Finds the queue behind a pointer from C.
///
/// # Safety
///
/// As for [`Object::get`].
pub(crate) unsafe fn get<'a>(cq: *mut ibv_cq) -> Result<&'a CqState, Errno> {
    // SAFETY: the caller's promise; a queue of ours is an extended one.
    unsafe { Object::get(cq.cast::<ibv_cq_ex>()) }.map(Object::private)
}

/// Makes a queue.
///
/// # Safety
///
/// C's promises about the context and the channel.
pub(crate) unsafe fn create(
    ibv_context: *mut ibv_context,
    depth: u32,
    user: *mut c_void,
    ibv_channel: *mut ibv_comp_channel,
    vector: u32,
) -> Result<*mut ibv_cq_ex, Errno> {
    // SAFETY: the caller's promise.
    let context = unsafe { context::get(ibv_context) }?;
    if depth == 0 || depth > limits::MAX_CQE || vector != 0 {
        return Err(Errno::INVAL);
    }
    let events = if ibv_channel.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        let channel = unsafe { channel::get(ibv_channel) }?;
        if !channel.is_of(context) {
            return Err(Errno::INVAL);
        }
        Some(Arc::clone(channel.events()))
    };
    let entry = CqEntry::new(events, Arc::clone(context.events()));
    let id = Node::get()?.with(|engine| engine.create_cq(depth, entry.token()))?;
    let public = ibv_cq_ex {
        context: ibv_context,
        channel: ibv_channel,
        cq_context: user,
        handle: id.0,
        cqe: c_int::try_from(depth).unwrap_or(c_int::MAX),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..cq_ex::slots()
    };
    let state = CqState {
        id,
        entry: Arc::clone(&entry),
        context: Arc::clone(context),
        channel: AtomicPtr::new(ibv_channel),
        poller: Poller::default(),
    };
    let cq = Object::create(public, state);
    entry.announce(cq.cast());
    if !ibv_channel.is_null() {
        // SAFETY: found alive above.
        unsafe { channel::users(ibv_channel) }.fetch_add(1, Ordering::Relaxed);
    }
    context.adopt(Child::Cq(cq));
    Ok(cq)
}

/// `ibv_create_cq`.
pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let (Ok(depth), Ok(vector)) = (u32::try_from(cqe), u32::try_from(vector)) else {
        return pointer(Err(Errno::INVAL));
    };
    // SAFETY: C's promises about the context and the channel.
    pointer(unsafe { create(context, depth, user, channel, vector) }).cast()
}

/// `ibv_resize_cq`.
pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: C's promise about the queue.
    status(unsafe { get(cq) }.and_then(|state| {
        let depth = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
        if depth == 0 || depth > limits::MAX_CQE {
            return Err(Errno::INVAL);
        }
        Node::get()?.with(|engine| engine.resize_cq(state.id, depth))?;
        // SAFETY: the live object's own field, which C only reads.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    }))
}

/// `ibv_destroy_cq`: waits, as libibverbs does, until every event that was read is acknowledged.
pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: C's promise about the queue.
    status(unsafe { get(cq) }.and_then(|state| {
        Node::get()?.with(|engine| engine.destroy_cq(state.id))?;
        state.entry.close();
        state.entry.settle();
        let ibv_channel = state.channel.load(Ordering::Relaxed);
        if !ibv_channel.is_null() {
            // SAFETY: a channel with users cannot be destroyed.
            unsafe { channel::users(ibv_channel) }.fetch_sub(1, Ordering::Relaxed);
        }
        state.context.disown(cq);
        // SAFETY: C's promise: nobody uses a queue that is being freed; `state` is not used below.
        unsafe { Object::free(cq.cast::<ibv_cq_ex>()) }
    }))
}

/// Ends a queue whose context is closed.
///
/// # Safety
///
/// As for [`Object::get`].
pub(super) unsafe fn abandon(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise.
    if let (Ok(object), Ok(node)) = (unsafe { Object::get(cq) }, Node::get()) {
        let state = object.private();
        // Busy only with what could not be ended either.
        let _destroyed = node.with(|engine| engine.destroy_cq(state.id));
        state.entry.close();
        object.abandon();
    }
}

/// The context's `poll_cq`.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: C's promise about the queue.
    let polled = unsafe { get(cq) }.and_then(|state| {
        let Ok(entries) = usize::try_from(entries) else { return Err(Errno::INVAL) };
        if entries == 0 {
            return Ok(0);
        }
        // SAFETY: C's promise: room for `entries` completions, which nobody else uses during the call. They may be
        // uninitialised: they are only written to, and no bit pattern is invalid for their fields.
        let out = unsafe { slice::from_raw_parts_mut(wc, entries) };
        Node::get()?.poll_cq(state.id, out)
    });
    match polled {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(errno) => -errno.0,
    }
}

/// The context's `req_notify_cq`.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: C's promise about the queue.
    status(unsafe { get(cq) }.and_then(|state| {
        let node = Node::get()?;
        node.with(|engine| engine.arm_cq(state.id, solicited_only != 0))?;
        // The next thing that this thread does may be to sleep on the channel.
        node.settle();
        Ok(())
    }))
}

/// One completion, for the extended interface.
pub(crate) fn poll_one(state: &CqState) -> Result<Option<ibv_wc>, Errno> {
    let mut wc = ibv_wc::default();
    let count = Node::get()?.poll_cq(state.id, slice::from_mut(&mut wc))?;
    Ok((count == 1).then_some(wc))
}
