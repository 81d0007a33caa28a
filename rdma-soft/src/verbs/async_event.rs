//! Asynchronous events: changes of a CQ, QP or SRQ that no completion reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::{ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_context, ibv_event_type};

use super::attr::PORT;
use super::call::{Argument, Handle, In, MinusOne, Next, Out};
use super::events::AsyncEvent;
use super::object::counter;

/// `ibv_get_async_event`.
pub(super) fn get_async_event(context: Handle<ibv_context>, event: Out<ibv_async_event>) -> Result<(), MinusOne> {
    let events = context.get()?.events();
    // C could not acknowledge an event that it does not get.
    event.check()?;
    show(events.wait(take)?, &event)
}

/// `ibv_get_async_event` up to its read(2) of the context's descriptor, or after it: see [`Next`].
pub(super) fn next_async_event(
    context: Handle<ibv_context>,
    event: Out<ibv_async_event>,
    reads: u32,
) -> Result<Next, MinusOne> {
    let events = context.get()?.events();
    event.check()?;
    if reads == 0 {
        return Ok(Next::Read);
    }
    let Some(taken) = events.take_after(reads, take)? else { return Ok(Next::Read) };
    show(taken, &event)?;
    Ok(Next::Done)
}

/// Counts an event. Called under the queue's lock: until C acknowledges the event, destroying its
/// object waits.
fn take(event: AsyncEvent) -> AsyncEvent {
    if let Some(object) = &event.object {
        object.async_events.report();
    }
    event
}

/// Writes an event for C.
fn show(AsyncEvent { event_type, object }: AsyncEvent, event: &Out<ibv_async_event>) -> Result<(), MinusOne> {
    let Some(object) = object else {
        let element = ibv_async_event__bindgen_ty_1 { port_num: i32::from(PORT) };
        return Ok(event.write(ibv_async_event { element, event_type })?);
    };
    let element = match event_type {
        ibv_event_type::IBV_EVENT_CQ_ERR => ibv_async_event__bindgen_ty_1 { cq: object.address() },
        ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED => ibv_async_event__bindgen_ty_1 { srq: object.address() },
        _ => ibv_async_event__bindgen_ty_1 { qp: object.address() },
    };
    Ok(event.write(ibv_async_event { element, event_type })?)
}

/// `ibv_ack_async_event`.
pub(super) fn ack_async_event(event: In<ibv_async_event>) {
    type E = ibv_event_type;
    let Ok(event) = event.get() else { return };
    match event.event_type {
        E::IBV_EVENT_CQ_ERR => {
            // SAFETY: reading a union field requires it to be initialised: `get_async_event` writes
            // this field for this event type, and C passes the event back unchanged (promise 2).
            let address = unsafe { event.element.cq };
            // SAFETY: `from_c` requires an object that is alive during the call: this one has an
            // unacknowledged event (`events`, invariant 1).
            if let Ok(cq) = unsafe { Handle::from_c(address) }.get() {
                // Cloned because another thread may free the object as soon as all its events are
                // acknowledged.
                let entry = Arc::clone(cq.entry());
                entry.async_events.acknowledge(1, |completed| {
                    counter!(cq, async_events_completed: AtomicU32).store(completed, Ordering::Relaxed);
                });
            }
        }
        E::IBV_EVENT_SRQ_LIMIT_REACHED | E::IBV_EVENT_SRQ_ERR => {
            // SAFETY: reading a union field requires it to be initialised: `get_async_event` writes
            // this field for this event type, and C passes the event back unchanged (promise 2).
            let address = unsafe { event.element.srq };
            // SAFETY: `from_c` requires an object that is alive during the call: this one has an
            // unacknowledged event (`events`, invariant 1).
            if let Ok(srq) = unsafe { Handle::from_c(address) }.get() {
                // Cloned because another thread may free the object as soon as all its events are
                // acknowledged.
                let entry = Arc::clone(srq.entry());
                entry.async_events.acknowledge(1, |completed| {
                    counter!(srq, events_completed: AtomicU32).store(completed, Ordering::Relaxed);
                });
            }
        }
        E::IBV_EVENT_QP_FATAL
        | E::IBV_EVENT_QP_REQ_ERR
        | E::IBV_EVENT_QP_ACCESS_ERR
        | E::IBV_EVENT_COMM_EST
        | E::IBV_EVENT_SQ_DRAINED
        | E::IBV_EVENT_PATH_MIG
        | E::IBV_EVENT_PATH_MIG_ERR
        | E::IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: reading a union field requires it to be initialised: `get_async_event` writes
            // this field for this event type, and C passes the event back unchanged (promise 2).
            let address = unsafe { event.element.qp };
            // SAFETY: `from_c` requires an object that is alive during the call: this one has an
            // unacknowledged event (`events`, invariant 1).
            if let Ok(qp) = unsafe { Handle::from_c(address) }.get() {
                // Cloned because another thread may free the object as soon as all its events are
                // acknowledged.
                let entry = Arc::clone(qp.entry());
                entry.async_events.acknowledge(1, |completed| {
                    counter!(qp, qp_base.events_completed: AtomicU32).store(completed, Ordering::Relaxed);
                });
            }
        }
        _ => {}
    }
}
