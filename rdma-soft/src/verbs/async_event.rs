//! Asynchronous events: what happened to an object without a request that could complete.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::{ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_context, ibv_event_type};

use super::errno::minus_one;
use super::events::AsyncElement;
use super::{context, cq, qp};

/// `ibv_get_async_event`.
pub(super) unsafe extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: C's promise about the context.
    minus_one(unsafe { context::get(context) }.and_then(|state| {
        let (event_type, element) = state.events().wait(|event| {
            // From here to its acknowledgement the object cannot be destroyed.
            event.element.report();
            (event.event_type, event.element)
        })?;
        let element = match element {
            AsyncElement::Cq(cq) => ibv_async_event__bindgen_ty_1 { cq: cq.address() },
            AsyncElement::Qp(qp) => ibv_async_event__bindgen_ty_1 { qp: qp.address() },
        };
        // SAFETY: C's promise: valid for writes.
        unsafe { event.write(ibv_async_event { element, event_type }) };
        Ok(())
    }))
}

/// `ibv_ack_async_event`.
pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    type E = ibv_event_type;
    // SAFETY: C's promise: an event that `get_async_event` wrote.
    let event = unsafe { event.read() };
    match event.event_type {
        E::IBV_EVENT_CQ_ERR => {
            // SAFETY: the event's type says which field it has.
            let address = unsafe { event.element.cq };
            // SAFETY: an object with an event that is not acknowledged is alive (`events`, invariant 1).
            if let Ok(state) = unsafe { cq::get(address) } {
                state.entry().async_events.acknowledge(1, |completed| {
                    // SAFETY: in bounds of the live object; no reference is made.
                    let counter = unsafe { &raw mut (*address).async_events_completed };
                    // SAFETY: aligned and valid as long as the object is; C only reads it.
                    unsafe { AtomicU32::from_ptr(counter) }.store(completed, Ordering::Relaxed);
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
            // SAFETY: the event's type says which field it has.
            let address = unsafe { event.element.qp };
            // SAFETY: an object with an event that is not acknowledged is alive (`events`, invariant 1).
            if let Ok(state) = unsafe { qp::get(address) } {
                state.entry().async_events.acknowledge(1, |completed| {
                    // SAFETY: in bounds of the live object; no reference is made.
                    let counter = unsafe { &raw mut (*address).events_completed };
                    // SAFETY: aligned and valid as long as the object is; C only reads it.
                    unsafe { AtomicU32::from_ptr(counter) }.store(completed, Ordering::Relaxed);
                });
            }
        }
        _ => {}
    }
}
