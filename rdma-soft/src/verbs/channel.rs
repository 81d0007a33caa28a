//! `ibv_comp_channel`: completion channels, which deliver the events of completion queues.

use std::ffi::c_void;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use super::Errno;
use super::call::{Handle, Made, MinusOne, Next, Out};
use super::context::{Child, ContextState};
use super::events::{CompletionEvents, Entry, cq_context};
use super::object::{Object, Public, counter};
use crate::node::{Node, Waiter, Wake, wake_waiter};

/// Time after which a thread that may be cancelled sleeps in read(2), which a cancellation ends.
const CANCELLATION_DELAY: Duration = Duration::from_millis(100);
/// Number of rings without an event after which such a thread sleeps in read(2).
const CANCELLATION_RINGS: u32 = 64;

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
    let events = &channel.get()?.events;
    check(&cq, &context)?;
    let found = attend(events, Node::get()?, None)?;
    show(found.map_or_else(|| events.wait(take), Ok)?, &cq, &context)
}

/// `ibv_get_cq_event` up to its read(2) of the channel's descriptor, or after it: see
/// [`Next`].
pub(super) fn next_cq_event(
    channel: Handle<ibv_comp_channel>,
    cq: Out<*mut ibv_cq>,
    context: Out<*mut c_void>,
    reads: u32,
) -> Result<Next, MinusOne> {
    let events = &channel.get()?.events;
    check(&cq, &context)?;
    let found = match reads {
        0 => attend(events, Node::get()?, Some(CANCELLATION_DELAY))?,
        reads => events.take_after(reads, take)?,
    };
    let Some(address) = found else { return Ok(Next::Read) };
    show(address, &cq, &context)?;
    Ok(Next::Done)
}

/// Fails for a null pointer, before an event is taken that C could not acknowledge.
fn check(cq: &Out<*mut ibv_cq>, context: &Out<*mut c_void>) -> Result<(), Errno> {
    cq.check()?;
    context.check()
}

/// Writes the CQ of an event for C.
fn show(address: *mut ibv_cq, cq: &Out<*mut ibv_cq>, context: &Out<*mut c_void>) -> Result<(), MinusOne> {
    cq.write(address)?;
    // SAFETY: `cq_context` requires a live CQ: this one has a reported, unacknowledged event
    // (`events`, invariant 1).
    Ok(context.write(unsafe { cq_context(address) })?)
}

/// Counts an event and returns the address of its CQ. Called under the channel's lock: until C
/// acknowledges the event, destroying the CQ waits.
fn take(entry: Arc<Entry>) -> *mut ibv_cq {
    entry.completions.report();
    entry.address()
}

/// Takes the next event, while this thread waits in place of the agent. `None` if the thread shall
/// wait for the channel's descriptor instead: at once, or, with a limit, after a sleep of that
/// length or many rings without an event.
fn attend(events: &CompletionEvents, node: &'static Node, limit: Option<Duration>) -> io::Result<Option<*mut ibv_cq>> {
    let Some(reception) = events.receive() else { return Ok(None) };
    let Some(waiter) = Waiter::new(node) else { return Ok(None) };
    let mut rings = 0;
    loop {
        waiter.work();
        if let Some(address) = reception.take(take) {
            waiter.resume();
            return Ok(Some(address));
        }
        if limit.is_some() && rings == CANCELLATION_RINGS {
            waiter.prepare_to_sleep();
            return Ok(None);
        }
        rings += 1;
        waiter.prepare_to_sleep();
        let wake = if reception.may_sleep(wake_waiter) { waiter.sleep(limit) } else { Wake::Rung };
        reception.stay_awake();
        match wake {
            Wake::Rung => {}
            Wake::TimedOut => return Ok(reception.take(take)),
            Wake::Interrupted => {
                return reception.take(take).map(Some).ok_or_else(|| io::Error::from_raw_os_error(libc::EINTR));
            }
        }
    }
}
