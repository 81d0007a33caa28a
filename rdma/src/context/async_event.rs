//! Asynchronous events of a device, a port or a queue, outside of any request.
//!
//! # Safety
//!
//! 1. Pointers in an event are valid until it is acknowledged. They are read before that, and only
//!    identities are returned.

use std::time::Duration;

use rdma_sys::{ibv_async_event, ibv_event_type};

use super::Context;
use crate::error::{Error, Result, Verb};
use crate::types::{CqId, SrqId, c_enum};
use crate::wait::{self, Deadline};

c_enum! {
    /// The kind of an asynchronous event.
    #[doc(alias = "ibv_event_type")]
    AsyncEventKind(u32) {
        /// A completion queue overran or broke.
        CQ_ERR = ibv_event_type::IBV_EVENT_CQ_ERR.0, "completion queue error";
        /// A queue pair broke and cannot report this in a completion.
        QP_FATAL = ibv_event_type::IBV_EVENT_QP_FATAL.0, "queue pair fatal error";
        /// A peer sent an invalid request.
        QP_REQ_ERR = ibv_event_type::IBV_EVENT_QP_REQ_ERR.0, "invalid request from the peer";
        /// A peer violated the rights of a region or queue pair.
        QP_ACCESS_ERR = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR.0, "access violation by the peer";
        /// A message arrived on a queue pair that is ready to receive only.
        COMM_EST = ibv_event_type::IBV_EVENT_COMM_EST.0, "communication established";
        /// A send queue is drained.
        SQ_DRAINED = ibv_event_type::IBV_EVENT_SQ_DRAINED.0, "send queue drained";
        /// A queue pair moved to its alternate path.
        PATH_MIG = ibv_event_type::IBV_EVENT_PATH_MIG.0, "path migrated";
        /// A queue pair could not move to its alternate path.
        PATH_MIG_ERR = ibv_event_type::IBV_EVENT_PATH_MIG_ERR.0, "path migration failed";
        /// The device failed.
        DEVICE_FATAL = ibv_event_type::IBV_EVENT_DEVICE_FATAL.0, "device fatal error";
        /// A port became active.
        PORT_ACTIVE = ibv_event_type::IBV_EVENT_PORT_ACTIVE.0, "port active";
        /// A port lost its link.
        PORT_ERR = ibv_event_type::IBV_EVENT_PORT_ERR.0, "port error";
        /// A port's LID changed.
        LID_CHANGE = ibv_event_type::IBV_EVENT_LID_CHANGE.0, "LID change";
        /// A port's P_Key table changed.
        PKEY_CHANGE = ibv_event_type::IBV_EVENT_PKEY_CHANGE.0, "P_Key change";
        /// The port has another subnet manager.
        SM_CHANGE = ibv_event_type::IBV_EVENT_SM_CHANGE.0, "subnet manager change";
        /// A shared receive queue broke.
        SRQ_ERR = ibv_event_type::IBV_EVENT_SRQ_ERR.0, "shared receive queue error";
        /// A shared receive queue fell below its limit.
        SRQ_LIMIT_REACHED = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED.0, "shared receive queue limit reached";
        /// A queue pair in the error state took its last receive from a shared receive queue.
        QP_LAST_WQE_REACHED = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED.0, "last receive taken";
        /// The subnet manager asks for new registrations.
        CLIENT_REREGISTER = ibv_event_type::IBV_EVENT_CLIENT_REREGISTER.0, "client reregister";
        /// A port's GID table changed.
        GID_CHANGE = ibv_event_type::IBV_EVENT_GID_CHANGE.0, "GID change";
        /// A work queue broke.
        WQ_FATAL = ibv_event_type::IBV_EVENT_WQ_FATAL.0, "work queue fatal error";
        /// A device's speed changed.
        DEVICE_SPEED_CHANGE = ibv_event_type::IBV_EVENT_DEVICE_SPEED_CHANGE.0, "device speed change";
    }
}

/// The object that an asynchronous event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventSource {
    /// The device.
    Device,
    /// A port, by its number.
    Port(u8),
    /// A queue pair, by its number. The queue pair may be gone by now.
    QueuePair(u32),
    /// A completion queue. The queue may be gone by now.
    CompletionQueue(CqId),
    /// A shared receive queue. The queue may be gone by now.
    SharedReceiveQueue(SrqId),
    /// An object of a kind that this version of the crate does not create.
    Other,
}

/// An asynchronous event. It is already acknowledged, so it does not block destroying an object.
#[doc(alias = "ibv_async_event")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// The kind of event.
    pub kind: AsyncEventKind,
    /// The object that the event is about.
    pub source: EventSource,
}

impl Context {
    /// Waits for the next asynchronous event; returns `None` after the timeout. Without a timeout,
    /// waits forever.
    ///
    /// An [`EventTap`](crate::EventTap) sees all events too, and takes none away: up to 256
    /// that it has taken wait here.
    ///
    /// # Errors
    ///
    /// Errors of the provider.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// use std::time::Duration;
    /// use rdma::AsyncEventKind;
    ///
    /// while let Some(event) = context.next_event(Some(Duration::from_millis(1)))? {
    ///     if event.kind == AsyncEventKind::DEVICE_FATAL {
    ///         return Err("the device has failed".into());
    ///     }
    ///     println!("{} at {:?}", event.kind, event.source);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(event) = self.try_next_event()? {
                return Ok(Some(event));
            }
            let fds = [Some(self.inner.events.own()), self.inner.sharing.bell()];
            // Readable does not mean that an event is there: another thread may take it first.
            if !wait::any_readable(Verb::GetAsyncEvent, fds, deadline)? || deadline.is_over() {
                return self.try_next_event();
            }
        }
    }

    /// Takes an asynchronous event if one is pending.
    ///
    /// # Errors
    ///
    /// Errors of the provider.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// use std::os::fd::AsFd;
    ///
    /// // For an event loop: `descriptor` is readable while events wait.
    /// let descriptor = context.as_fd();
    /// assert!(context.try_next_event()?.is_none());
    /// # let _ = descriptor;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_next_event(&self) -> Result<Option<AsyncEvent>> {
        self.inner.check(Verb::GetAsyncEvent)?;
        self.inner.sharing.next_for_program(|| self.take_event())
    }

    /// Takes the provider's next event.
    pub(super) fn take_event(&self) -> Result<Option<AsyncEvent>> {
        let mut raw = ibv_async_event::default();
        // SAFETY: ibv_get_async_event requires an open context, which `self` keeps open, and space
        // for an event; the context's descriptor is non-blocking.
        let call = || unsafe { (self.inner.table.ibv_get_async_event)(self.as_raw(), &raw mut raw) };
        if let Err(error) = Error::check(Verb::GetAsyncEvent, call) {
            return error.or_nothing();
        }
        let event = AsyncEvent { kind: AsyncEventKind::from_raw(raw.event_type.0), source: source(&raw) };
        // SAFETY: ibv_ack_async_event requires a taken event that is acknowledged once: only here.
        unsafe { (self.inner.table.ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }
}

fn source(raw: &ibv_async_event) -> EventSource {
    match AsyncEventKind::from_raw(raw.event_type.0) {
        AsyncEventKind::CQ_ERR => {
            // SAFETY: a union read requires the member that was written: this kind of event carries
            // a queue.
            let cq = unsafe { raw.element.cq };
            // SAFETY: the read requires a live queue: valid until acknowledged (1); the field is
            // constant.
            let name = unsafe { (*cq).cq_context };
            EventSource::CompletionQueue(CqId(name.addr() as u64))
        }
        AsyncEventKind::SRQ_ERR | AsyncEventKind::SRQ_LIMIT_REACHED => {
            // SAFETY: a union read requires the member that was written: these kinds carry a shared
            // receive queue.
            let srq = unsafe { raw.element.srq };
            // SAFETY: the read requires a live queue: valid until acknowledged (1); the field is
            // constant.
            let name = unsafe { (*srq).srq_context };
            EventSource::SharedReceiveQueue(SrqId(name.addr() as u64))
        }
        AsyncEventKind::QP_FATAL
        | AsyncEventKind::QP_REQ_ERR
        | AsyncEventKind::QP_ACCESS_ERR
        | AsyncEventKind::COMM_EST
        | AsyncEventKind::SQ_DRAINED
        | AsyncEventKind::PATH_MIG
        | AsyncEventKind::PATH_MIG_ERR
        | AsyncEventKind::QP_LAST_WQE_REACHED => {
            // SAFETY: a union read requires the member that was written: these kinds carry a queue
            // pair.
            let qp = unsafe { raw.element.qp };
            // SAFETY: the read requires a live queue pair: valid until acknowledged (1); the field
            // is constant.
            EventSource::QueuePair(unsafe { (*qp).qp_num })
        }
        AsyncEventKind::PORT_ACTIVE
        | AsyncEventKind::PORT_ERR
        | AsyncEventKind::LID_CHANGE
        | AsyncEventKind::PKEY_CHANGE
        | AsyncEventKind::SM_CHANGE
        | AsyncEventKind::CLIENT_REREGISTER
        | AsyncEventKind::GID_CHANGE => {
            // SAFETY: a union read requires the member that was written: these kinds carry a port's
            // number.
            EventSource::Port(u8::try_from(unsafe { raw.element.port_num }).unwrap_or(0))
        }
        AsyncEventKind::DEVICE_FATAL | AsyncEventKind::DEVICE_SPEED_CHANGE => EventSource::Device,
        _ => EventSource::Other,
    }
}
