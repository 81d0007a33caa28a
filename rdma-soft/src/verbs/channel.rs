//! `ibv_comp_channel`: completion channels, which deliver the events of completion queues.

use std::ffi::c_void;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use super::Errno;
use super::call::{Handle, Made, MinusOne, Out};
use super::context::{Child, ContextState};
use super::events::{CompletionEvents, Entry, cq_context};
use super::object::{Object, Public, counter};
use crate::node::{Interrupted, Node, Waiter, wake_waiter};

/// Private part of a completion channel.
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

impl Child for ibv_comp_channel {
    const ORDER: u8 = 4;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    fn end(object: &Object<Self>, _node: &Node) -> Result<(), Errno> {
        if users(object).load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }

    /// Does nothing: the application may still poll the channel's descriptor, so it stays open.
    fn force_end(_object: &Object<Self>, _node: &Node) {}
}

/// The channel's public `refcnt`: the number of completion queues that use it.
pub(super) fn users(channel: &Object<ibv_comp_channel>) -> &AtomicI32 {
    counter!(channel, refcnt: AtomicI32)
}

/// `ibv_create_comp_channel`.
pub(super) fn create_comp_channel(ibv_context: Handle<ibv_context>) -> Made<ibv_comp_channel> {
    let context = ibv_context.get()?;
    let events = Arc::new(CompletionEvents::new()?);
    let public = ibv_comp_channel { context: ibv_context.raw(), fd: events.raw_fd(), refcnt: 0 };
    Ok(context.create(public, ChannelState { events, context: Arc::clone(context) }))
}

/// `ibv_get_cq_event`.
pub(super) fn get_cq_event(
    channel: Handle<ibv_comp_channel>,
    cq: Out<*mut ibv_cq>,
    context: Out<*mut c_void>,
) -> Result<(), MinusOne> {
    let state = channel.get()?;
    let address = wait(&state.events, Node::get()?)?;
    cq.write(address)?;
    // SAFETY: `cq_context` requires a live CQ: this one has a reported, unacknowledged event
    // (`events`, invariant 1).
    Ok(context.write(unsafe { cq_context(address) })?)
}

/// Takes the next event and counts it. Returns the address of its CQ.
fn wait(events: &CompletionEvents, node: &'static Node) -> io::Result<*mut ibv_cq> {
    // Counts the event under the channel's lock: until C acknowledges it, destroying the CQ waits.
    let take = |entry: Arc<Entry>| {
        entry.completions.report();
        entry.address()
    };
    let Some(reception) = events.receive() else { return events.wait(take) };
    let Some(waiter) = Waiter::new(node) else {
        drop(reception);
        return events.wait(take);
    };
    loop {
        waiter.work();
        if let Some(address) = reception.take(take) {
            waiter.resume();
            return Ok(address);
        }
        waiter.prepare_to_sleep();
        let slept = if reception.may_sleep(wake_waiter) { waiter.sleep() } else { Ok(()) };
        reception.stay_awake();
        if slept == Err(Interrupted) {
            return reception.take(take).ok_or_else(|| io::Error::from_raw_os_error(libc::EINTR));
        }
    }
}
