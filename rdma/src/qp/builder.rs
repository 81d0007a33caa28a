//! Making a queue pair.

use std::marker::PhantomData;
use std::sync::Arc;

use rdma_sys::ibv_qp_cap;

use super::recv::RecvQueue;
use super::ring::Attached;
use super::send::{SendLimits, SendQueue};
use super::{PreparedQueuePair, QpInner, QueuePair, Rc, Transport, Ud, datagram};
use crate::cq::CompletionQueue;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::handle::Handle;
use crate::pd::{PdInner, ProtectionDomain};

/// How to make a [`QueuePair`].
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
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
    pub(crate) signal_all: bool,
    pub(crate) transport: PhantomData<T>,
}

impl ProtectionDomain {
    /// Starts a reliable connected queue pair: the same as [`QueuePair::builder`](crate::QueuePair::builder).
    pub fn queue_pair(&self) -> QpBuilder<Rc> {
        QpBuilder::new(self)
    }

    /// Starts a datagram queue pair: the same as [`QueuePair::datagram`].
    pub fn datagram_queue_pair(&self) -> QpBuilder<Ud> {
        QpBuilder::new(self)
    }
}

impl<T: Transport> QpBuilder<T> {
    pub(crate) fn new(pd: &ProtectionDomain) -> Self {
        Self {
            pd: pd.clone(),
            send_cq: None,
            recv_cq: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
            signal_all: false,
            transport: PhantomData,
        }
    }

    /// Where sends complete.
    pub fn send_cq(mut self, cq: &CompletionQueue) -> Self {
        self.send_cq = Some(cq.clone());
        self
    }

    /// Where receives complete.
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.recv_cq = Some(cq.clone());
        self
    }

    /// Where both complete.
    pub fn cq(self, cq: &CompletionQueue) -> Self {
        self.send_cq(cq).recv_cq(cq)
    }

    /// How many sends can be outstanding; 16 if not said.
    pub fn max_send_wr(mut self, count: u32) -> Self {
        self.max_send_wr = count;
        self
    }

    /// How many receives can be outstanding; 16 if not said.
    pub fn max_recv_wr(mut self, count: u32) -> Self {
        self.max_recv_wr = count;
        self
    }

    /// From how many pieces a send can gather; 1 if not said.
    pub fn max_send_sge(mut self, count: u32) -> Self {
        self.max_send_sge = count;
        self
    }

    /// Over how many pieces a receive can scatter; 1 if not said.
    pub fn max_recv_sge(mut self, count: u32) -> Self {
        self.max_recv_sge = count;
        self
    }

    /// How many bytes a send can carry inline; 0 if not said.
    pub fn max_inline_data(mut self, bytes: u32) -> Self {
        self.max_inline_data = bytes;
        self
    }

    /// Whether every send makes a completion, asked for or not; no, if not said.
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    pub(crate) fn cap(&self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge.max(1),
            max_recv_sge: self.max_recv_sge.max(1),
            max_inline_data: self.max_inline_data,
        }
    }

    /// Creates the queue pair.
    ///
    /// Reserves room for all its requests in its completion queues, so that they cannot overrun.
    ///
    /// # Errors
    ///
    /// `NoCompletionQueue`; `CompletionQueueTooSmall` with the numbers; `InvalidInput` for more than the device can do;
    /// `NotSupported` for datagrams on iWARP; `OutOfMemory`.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedQueuePair<T>> {
        let none = Error::new(Operation::CreateQp, ErrorKind::NoCompletionQueue);
        let send_cq = &self.send_cq.as_ref().ok_or(none)?.inner;
        let recv_cq = &self.recv_cq.as_ref().ok_or(none)?.inner;
        let pd: &Arc<Handle<PdInner>> = &self.pd.inner;
        let cap = self.cap();
        // Before locks are taken and memory is allocated for them.
        pd.context.check(Operation::CreateQp)?;
        if T::IS_DATAGRAM && pd.context.is_iwarp() {
            return Err(Error::new(Operation::CreateQp, ErrorKind::NotSupported));
        }
        let device = pd.context.device_attr.as_raw();
        let limit = |device: i32| u32::try_from(device).unwrap_or(0).max(1);
        let (max_wr, max_sge) = (limit(device.max_qp_wr), limit(device.max_sge));
        if cap.max_send_wr.max(cap.max_recv_wr) > max_wr || cap.max_send_sge.max(cap.max_recv_sge) > max_sge {
            return Err(Error::new(Operation::CreateQp, ErrorKind::InvalidInput));
        }
        let send_ring = Attached::new(send_cq, cap.max_send_wr, cap.max_send_sge)?;
        let recv_ring = Attached::new(recv_cq, cap.max_recv_wr, cap.max_recv_sge)?;
        let control = QpInner::create(pd, send_cq, recv_cq, T::TYPE, cap, self.signal_all)?;
        let limits = SendLimits {
            max_sge: cap.max_send_sge,
            max_inline: control.cap.max_inline_data,
            signal_all: self.signal_all,
            is_iwarp: pd.context.is_iwarp(),
            max_message: datagram::LONGEST,
        };
        let send = SendQueue::new(control.raw, send_ring, pd, limits);
        let recv = RecvQueue::new(control.raw, recv_ring, pd, cap.max_recv_sge);
        Ok(PreparedQueuePair::new(QueuePair { control, send, recv, transport: PhantomData }))
    }
}
