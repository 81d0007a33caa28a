//! `ibv_comp_channel` and `ibv_cq`'s events: who waits for completions, and the acknowledgement of
//! what was read.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use super::context::{self, Child, ContextState};
use super::errno::{minus_one, pointer, status};
use super::events::{CompletionEvents, cq_context};
use super::object::{Object, Public};
use super::{Errno, cq};
use crate::node::Node;

/// What the device keeps about a completion channel.
#[derive(Debug)]
pub(crate) struct ChannelState {
    events: Arc<CompletionEvents>,
    context: Arc<ContextState>,
}

impl ChannelState {
    pub(crate) fn events(&self) -> &Arc<CompletionEvents> {
        &self.events
    }

    pub(crate) fn is_of(&self, context: &Arc<ContextState>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

impl Public for ibv_comp_channel {
    const MARK: u64 = 0x6368_616e_6e65_6c73;
    type Private = ChannelState;
}

/// Finds the channel behind a pointer from C.
///
/// # Safety
///
/// As for [`Object::get`].
pub(crate) unsafe fn get<'a>(channel: *mut ibv_comp_channel) -> Result<&'a ChannelState, Errno> {
    // SAFETY: the caller's promise.
    unsafe { Object::get(channel) }.map(Object::private)
}

/// The public count of the completion queues of a channel.
///
/// # Safety
///
/// `channel` is a live object of this device.
pub(crate) unsafe fn users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
    // SAFETY: in bounds of the live object; no reference is made.
    let count = unsafe { &raw mut (*channel).refcnt };
    // SAFETY: aligned and valid as long as the object is, and the device only uses it as an atomic.
    unsafe { AtomicI32::from_ptr(count) }
}

/// `ibv_create_comp_channel`.
pub(super) unsafe extern "C" fn create_comp_channel(ibv_context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: C's promise about the context.
    pointer(unsafe { context::get(ibv_context) }.and_then(|context| {
        let events = Arc::new(CompletionEvents::new()?);
        let public = ibv_comp_channel { context: ibv_context, fd: events.raw_fd(), refcnt: 0 };
        let channel = Object::create(public, ChannelState { events, context: Arc::clone(context) });
        context.adopt(Child::Channel(channel));
        Ok(channel)
    }))
}

/// `ibv_destroy_comp_channel`.
pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: C's promise about the channel.
    status(unsafe { get(channel) }.and_then(|state| {
        Node::get()?;
        // SAFETY: `get` found it alive.
        if unsafe { users(channel) }.load(Ordering::Relaxed) != 0 {
            return Err(Errno::BUSY);
        }
        state.context.disown(channel);
        // SAFETY: C's promise: nobody uses a channel that is being freed; `state` is not used
        // below.
        unsafe { Object::free(channel) }
    }))
}

/// `ibv_get_cq_event`.
pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: C's promise about the channel.
    minus_one(unsafe { get(channel) }.and_then(|state| {
        Node::get()?;
        let address = state.events.wait(|entry| {
            // From here to its acknowledgement the queue cannot be destroyed.
            entry.completions.report();
            entry.address()
        })?;
        // SAFETY: C's promise: valid for writes.
        unsafe { cq.write(address) };
        // SAFETY: `address` is alive: its event is reported and not acknowledged (`events`,
        // invariant 1).
        let user = unsafe { cq_context(address) };
        // SAFETY: C's promise: valid for writes.
        unsafe { context.write(user) };
        Ok(())
    }))
}

/// `ibv_ack_cq_events`.
pub(super) unsafe extern "C" fn ack_cq_events(ibv_cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: C's promise about the queue.
    if let Ok(state) = unsafe { cq::get(ibv_cq) } {
        state.entry().completions.acknowledge(events, |completed| {
            // SAFETY: in bounds of the live object; no reference is made.
            let counter = unsafe { &raw mut (*ibv_cq).comp_events_completed };
            // SAFETY: aligned and valid as long as the object is; C only reads it.
            unsafe { AtomicU32::from_ptr(counter) }.store(completed, Ordering::Relaxed);
        });
    }
}
