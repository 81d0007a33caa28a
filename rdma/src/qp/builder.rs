//! Creation of queue pairs.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use rdma_sys::ibv_qp_cap;

use super::recv::RecvQueue;
use super::send::{LONGEST_DATAGRAM, SendLimits, SendQueue};
use super::srq::{SharedReceiveQueue, SrqInner, SrqPoster, SrqUse};
use super::transport::Transport;
use super::{PreparedQueuePair, QpInner, QueuePair, scatter};
use crate::cq::{Attached, CompletionQueue};
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::handle::Handle;
use crate::pd::{PdInner, ProtectionDomain};

/// Configuration of a new [`QueuePair`].
///
/// # Sizing
///
/// A request occupies a slot of its queue until its completion has been polled. An unsignaled
/// request does so until the completion of a later signaled request has been polled. This can be
/// long after the device has done the work. Three delays add up:
///
/// * An unsignaled send stays until the next signaled one completes. The queue itself signals one
///   after half of its depth, so up to half of the depth may be occupied by sends that are done.
/// * A receive can overtake the completion of the send that caused it: the peer's answer may arrive
///   before its acknowledgement. A server that answers each request as it arrives can have more
///   answers outstanding than its clients have requests.
/// * A request whose completion has been fetched but not polled yet still occupies its slot.
///
/// For a peer that awaits answers to at most `n` requests, if each receive is posted again before
/// its answer is sent:
///
/// | sends | `max_send_wr` | `max_recv_wr` |
/// | --- | --- | --- |
/// | all signaled | `2 * n` | `n` |
/// | mostly unsignaled | `4 * n` | `n` |
///
/// This makes `QueueFull` rare but not impossible: [`room`](crate::SendQueue::room) returns the
/// number of requests that can be posted now, and
/// [`post_send_or_wait`](QueuePair::post_send_or_wait) waits for a free slot.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use rdma::{DeviceSelector, QueuePair};
/// let context = rdma::open(&DeviceSelector::Any)?.context;
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(64)?;
/// let prepared = QueuePair::builder(&pd).cq(&cq).max_send_wr(32).max_recv_wr(32).build()?;
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Debug, Clone)]
#[must_use]
pub struct QpBuilder<T: Transport> {
    pub(crate) pd: ProtectionDomain,
    pub(crate) send_cq: Option<CompletionQueue>,
    pub(crate) recv_cq: Option<CompletionQueue>,
    pub(super) max_send_wr: Option<u32>,
    pub(super) max_recv_wr: Option<u32>,
    pub(super) max_send_sge: Option<u32>,
    pub(super) max_recv_sge: Option<u32>,
    pub(crate) max_inline_data: u32,
    pub(crate) signal_all: bool,
    pub(super) srq: Option<SharedReceives>,
    pub(crate) transport: PhantomData<T>,
}

/// A shared receive queue in a configuration.
#[derive(Clone)]
pub(super) struct SharedReceives(pub(super) Arc<Handle<SrqInner>>);

impl fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedReceiveQueue")
    }
}

impl<T: Transport> QpBuilder<T> {
    pub(crate) fn new(pd: &ProtectionDomain) -> Self {
        Self {
            pd: pd.clone(),
            send_cq: None,
            recv_cq: None,
            max_send_wr: None,
            max_recv_wr: None,
            max_send_sge: None,
            max_recv_sge: None,
            max_inline_data: 0,
            signal_all: false,
            srq: None,
            transport: PhantomData,
        }
    }

    setters! {
        /// The completion queue of sends.
        send_cq(cq: &CompletionQueue) = Some(cq.clone());

        /// The completion queue of receives.
        recv_cq(cq: &CompletionQueue) = Some(cq.clone());

        /// The number of sends that can be outstanding; 16 by default. [How many a program
        /// needs](Self#sizing).
        max_send_wr(count: u32) = Some(count);

        /// The number of receives that can be outstanding; 16 by default. [How many a program
        /// needs](Self#sizing).
        max_recv_wr(count: u32) = Some(count);

        /// The number of segments that a send can gather from; 1 by default.
        max_send_sge(count: u32) = Some(count);

        /// The number of segments that a receive can scatter to; 1 by default.
        max_recv_sge(count: u32) = Some(count);

        /// The number of bytes that a send can carry inline; 0 by default.
        max_inline_data(bytes: u32) = bytes;

        /// Whether every send generates a completion, even if it is unsignaled; false by default.
        signal_all(all: bool) = all;
    }

    /// Takes receives from a queue that other queue pairs share, instead of from a queue of the
    /// queue pair's own; `max_recv_wr` and `max_recv_sge` then do not apply. The queue must be of
    /// the same protection domain.
    pub fn shared_receives(mut self, queue: &SharedReceiveQueue<T>) -> Self {
        self.srq = Some(SharedReceives(Arc::clone(queue.inner())));
        self
    }

    /// As [`shared_receives`](Self::shared_receives), from a queue that several threads post to.
    pub fn shared_receives_of(mut self, queue: &SrqPoster<T>) -> Self {
        self.srq = Some(SharedReceives(Arc::clone(queue.inner())));
        self
    }

    /// The completion queue of both sends and receives.
    pub fn cq(self, cq: &CompletionQueue) -> Self {
        self.send_cq(cq).recv_cq(cq)
    }

    pub(crate) fn cap(&self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.max_send_wr.unwrap_or(16),
            max_recv_wr: self.max_recv_wr.unwrap_or(16),
            max_send_sge: self.max_send_sge.unwrap_or(1).max(1),
            max_recv_sge: self.max_recv_sge.unwrap_or(1).max(1),
            max_inline_data: self.max_inline_data,
        }
    }

    /// Creates the queue pair.
    ///
    /// Reserves entries for all its requests in its completion queues, so that these cannot
    /// overrun.
    ///
    /// # Errors
    ///
    /// `NoCompletionQueue` if no completion queue was set; `CompletionQueueTooSmall`, with the
    /// needed and the free number of entries; `InvalidInput` for more than the device supports, or
    /// a shared receive queue of another domain;
    /// `NotSupported` for datagrams and unreliable connections on iWARP; `OutOfMemory`.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedQueuePair<T>> {
        let none = Error::new(Verb::CreateQp, ErrorKind::NoCompletionQueue);
        let send_cq = &self.send_cq.as_ref().ok_or(none)?.inner;
        let recv_cq = &self.recv_cq.as_ref().ok_or(none)?.inner;
        let pd: &Arc<Handle<PdInner>> = &self.pd.inner;
        let cap = self.cap();
        // Check first, before locks are taken and memory is allocated.
        pd.context.check(Verb::CreateQp)?;
        if !T::is_supported(&pd.context.capabilities()) {
            return Err(Error::new(Verb::CreateQp, ErrorKind::NotSupported));
        }
        let device = pd.context.device_attr.as_raw();
        let limit = |device: i32| u32::try_from(device).unwrap_or(0).max(1);
        let (max_wr, max_sge) = (limit(device.max_qp_wr), limit(device.max_sge));
        if cap.max_send_wr.max(cap.max_recv_wr) > max_wr || cap.max_send_sge.max(cap.max_recv_sge) > max_sge {
            return Err(Error::new(Verb::CreateQp, ErrorKind::InvalidInput));
        }
        let send_ring = Attached::new(send_cq, cap.max_send_wr, cap.max_send_sge)?;
        let (recv_ring, srq) = match &self.srq {
            None => (Attached::new(recv_cq, cap.max_recv_wr, cap.max_recv_sge)?, None),
            Some(SharedReceives(srq)) => (Attached::unused(recv_cq)?, Some(SrqUse::new(srq, pd, recv_cq)?)),
        };
        let control = QpInner::create(pd, send_cq, recv_cq, srq, T::TYPE, cap, self.signal_all)?;
        let granted = ibv_qp_cap { max_inline_data: control.cap.max_inline_data, ..cap };
        Ok(PreparedQueuePair::new(assemble(control, (send_ring, recv_ring), granted, self.signal_all)))
    }
}

/// Puts a queue pair together from its C object and the rings of its queues. `cap` says how many
/// segments and bytes of inline data a request may have.
pub(super) fn assemble<T: Transport>(
    control: QpInner,
    (send_ring, recv_ring): (Attached, Attached),
    cap: ibv_qp_cap,
    signal_all: bool,
) -> QueuePair<T> {
    let pd = &control.pd;
    let processor_writes = scatter::processor_writes(&pd.context);
    let limits = SendLimits {
        max_sge: cap.max_send_sge,
        max_inline: cap.max_inline_data,
        signal_all,
        // Other code may have asked the provider for this whether or not all requests are signaled.
        processor_writes: processor_writes && (signal_all || control.is_foreign),
        capabilities: pd.context.capabilities(),
        max_message: LONGEST_DATAGRAM,
    };
    let send = SendQueue::new(control.raw, send_ring, pd, limits);
    let mut recv = RecvQueue::new(control.raw, recv_ring, pd, cap.max_recv_sge, processor_writes);
    if control.has_srq() {
        recv.set_shared();
    }
    QueuePair { control, send, recv, transport: PhantomData }
}
