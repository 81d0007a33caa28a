//! `ibv_cq`: completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};

use super::Errno;
use super::call::{Done, Handle, Made};
use super::channel;
use super::context::{COMPLETION_VECTORS, Child, ContextState};
use super::events::Entry;
use super::gate::Gate;
use super::object::{Object, Pointee, Public, counter, set_field};
use super::pd::ParentUse;
use crate::engine::{CqId, Time, limits};
use crate::node::Node;
use crate::os;

/// The completion whose fields the `ibv_wc_read_*` functions return.
#[derive(Default)]
pub(super) struct Current {
    pub(super) wc: ibv_wc,
    /// Zero in a queue without timestamps.
    pub(super) time: Time,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "wr_id {:#x}", self.wc.wr_id)
    }
}

/// What the extended interface asks for.
#[derive(Debug, Default)]
pub(super) struct Extras {
    /// Whether completions have timestamps.
    pub(super) has_times: bool,
    /// The parent domain through which the queue was made.
    pub(super) parent: Option<ParentUse>,
}

/// Private part of a completion queue.
#[derive(Debug)]
pub(crate) struct CqState {
    id: CqId,
    entry: Arc<Entry>,
    context: Arc<ContextState>,
    channel: AtomicPtr<ibv_comp_channel>,
    pub(super) extras: Extras,
    /// Held by one poll of the extended interface at a time, from `start_poll` to `end_poll`.
    pub(super) current: Gate<Current>,
}

impl CqState {
    pub(crate) fn id(&self) -> CqId {
        self.id
    }

    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    pub(crate) fn is_of(&self, context: &Arc<ContextState>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

/// Every completion queue is an `ibv_cq_ex`, of which the plain `ibv_cq` is the beginning.
impl Public for ibv_cq_ex {
    const MARK: u64 = 0x0063_715f_6371_5f63;
    type Private = CqState;
}

/// An `ibv_cq` of this device is the beginning of an `ibv_cq_ex`.
impl Pointee for ibv_cq {
    type Object = ibv_cq_ex;

    #[inline]
    fn object(pointer: *mut Self) -> *mut ibv_cq_ex {
        pointer.cast()
    }
}

impl Child for ibv_cq_ex {
    const ORDER: u8 = 2;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    fn end(object: &Object<Self>, node: &Node) -> Result<(), Errno> {
        node.with(|engine| engine.destroy_cq(object.id))
    }

    fn close(object: &Object<Self>) {
        object.entry.close();
    }

    /// As in libibverbs, destroying waits until C has acknowledged every event that it read.
    fn settle(object: &Object<Self>) {
        object.entry.settle();
        let channel = object.channel.load(Ordering::Relaxed);
        // SAFETY: `Object::get` requires null or a live channel: this CQ is counted in the
        // channel's `refcnt` until the line below, and a channel with users cannot be destroyed.
        if let Ok(channel) = unsafe { Object::get(channel) } {
            channel::users(channel).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Creates a completion queue; `EINVAL` for a depth of 0 or more than `MAX_CQE`, or a vector that
/// the context has not.
pub(super) fn create(
    ibv_context: &Handle<ibv_context>,
    depth: u32,
    user: *mut c_void,
    ibv_channel: &Handle<ibv_comp_channel>,
    vector: u32,
    extras: Extras,
) -> Made<ibv_cq_ex> {
    let context = ibv_context.get()?;
    if depth == 0 || depth > limits::MAX_CQE || vector >= u32::from(COMPLETION_VECTORS) {
        return Err(Errno::INVAL);
    }
    let channel = if ibv_channel.raw().is_null() { None } else { Some(ibv_channel.get()?) };
    if channel.is_some_and(|channel| !channel.is_of(context)) {
        return Err(Errno::INVAL);
    }
    let entry = Entry::new(channel.map(|channel| Arc::clone(channel.events())), Arc::clone(context.events()));
    let id = Node::get()?.with(|engine| {
        let id = engine.create_cq(depth, entry.token())?;
        let kept = if extras.has_times { engine.keep_times(id, os::now) } else { Ok(()) };
        // Fails only for a queue that does not exist.
        kept.inspect_err(|_| _ = engine.destroy_cq(id)).map(|()| id)
    })?;
    let public = ibv_cq_ex {
        context: ibv_context.raw(),
        channel: ibv_channel.raw(),
        cq_context: user,
        handle: id.0,
        cqe: c_int::try_from(depth).unwrap_or(c_int::MAX),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..(context.tables.cq)()
    };
    let state = CqState {
        id,
        entry: Arc::clone(&entry),
        context: Arc::clone(context),
        channel: AtomicPtr::new(ibv_channel.raw()),
        extras,
        current: Gate::default(),
    };
    let cq = context.create(public, state);
    entry.announce(cq);
    if let Some(channel) = channel {
        channel::users(channel).fetch_add(1, Ordering::Relaxed);
    }
    Ok(cq)
}

/// `ibv_create_cq`.
pub(super) fn create_cq(
    context: Handle<ibv_context>,
    cqe: c_int,
    user: *mut c_void,
    channel: Handle<ibv_comp_channel>,
    vector: c_int,
) -> Made<ibv_cq> {
    let unsigned = |value| u32::try_from(value).map_err(|_| Errno::INVAL);
    create(&context, unsigned(cqe)?, user, &channel, unsigned(vector)?, Extras::default()).map(<*mut ibv_cq_ex>::cast)
}

/// `ibv_resize_cq`.
pub(super) fn resize_cq(cq: Handle<ibv_cq>, cqe: c_int) -> Done {
    let state = cq.get()?;
    let depth = u32::try_from(cqe).map_err(|_| Errno::INVAL)?;
    if depth == 0 || depth > limits::MAX_CQE {
        return Err(Errno::INVAL);
    }
    Node::get()?.with(|engine| engine.resize_cq(state.id, depth))?;
    set_field!(state, cqe, cqe);
    Ok(())
}

/// `ibv_ack_cq_events`.
pub(super) fn ack_cq_events(cq: Handle<ibv_cq>, events: c_uint) {
    if let Ok(state) = cq.get() {
        // Cloned because another thread may free the CQ as soon as all its events are acknowledged.
        let entry = Arc::clone(&state.entry);
        entry.completions.acknowledge(events, |completed| {
            counter!(state, comp_events_completed: AtomicU32).store(completed, Ordering::Relaxed);
        });
    }
}

/// The context's `poll_cq`.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: `Object::get` requires null or a live CQ: promise 1.
    let polled = unsafe { Object::get(ibv_cq::object(cq)) }.and_then(|state| {
        let Ok(entries) = usize::try_from(entries) else { return Err(Errno::INVAL) };
        if entries == 0 {
            return Ok(0);
        }
        if wc.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `from_raw_parts_mut` requires `entries` values that nobody else uses, and no null
        // pointer: promise 2, and the check. C may pass uninitialised values: `Node::poll_cq` only
        // writes to them, and no bit pattern is invalid for their fields.
        let out = unsafe { slice::from_raw_parts_mut(wc, entries) };
        Node::get()?.poll_cq(state.id, out)
    });
    match polled {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(errno) => -errno.0,
    }
}

/// The context's `req_notify_cq`.
pub(super) fn req_notify_cq(cq: Handle<ibv_cq>, solicited_only: c_int) -> Done {
    let state = cq.get()?;
    let node = Node::get()?;
    node.with(|engine| engine.arm_cq(state.id, solicited_only != 0))?;
    // The calling thread may sleep on the channel next, instead of polling.
    node.prepare_to_sleep();
    Ok(())
}
