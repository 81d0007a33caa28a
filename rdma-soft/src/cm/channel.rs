//! Event channels, and the events on their way to the application.

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_sys::{ibv_ah_attr, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel};

use super::message::Terms;
use crate::engine::Errno;
use crate::verbs::call::Own;
use crate::verbs::event_queue::EventQueue;
use crate::verbs::events::Ledger;
use crate::verbs::object::{Object, Public};

/// The manager's part of an event channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(super) queue: EventQueue<Pending>,
}

impl Channel {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { queue: EventQueue::new()? }))
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.queue.raw_fd()
    }

    /// Queues an event, unless its id is gone.
    pub(super) fn push(&self, pending: Pending) {
        self.queue.offer(pending, |pending| pending.target.ledger.is_open());
    }
}

impl Public for rdma_event_channel {
    const MARK: u64 = 0x636d_5f63_6861_6e6e;
    type Private = Arc<Channel>;
}

/// Makes the object that C holds.
pub(super) fn publish(channel: Arc<Channel>) -> *mut rdma_event_channel {
    Object::create(rdma_event_channel { fd: channel.raw_fd() }, channel)
}

/// An id, as events know it: the pointer that C has, and the count of events that C has taken and
/// not acknowledged.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) key: u64,
    /// Null until C has the id.
    object: AtomicPtr<rdma_cm_id>,
    pub(super) ledger: Ledger,
}

impl Target {
    pub(super) fn new(key: u64) -> Arc<Self> {
        Arc::new(Self { key, object: AtomicPtr::new(ptr::null_mut()), ledger: Ledger::default() })
    }

    pub(super) fn object(&self) -> *mut rdma_cm_id {
        self.object.load(Ordering::Acquire)
    }

    pub(super) fn set_object(&self, id: *mut rdma_cm_id) {
        self.object.store(id, Ordering::Release);
    }
}

/// A membership in a multicast group, as events know it.
#[derive(Debug)]
pub(super) struct Membership {
    /// The application's pointer, which comes back in the event.
    context: AtomicPtr<c_void>,
    pub(super) send_only: bool,
    pub(super) mgid: [u8; 16],
    pub(super) ledger: Ledger,
}

impl Membership {
    pub(super) fn new(context: *mut c_void, send_only: bool, mgid: [u8; 16]) -> Arc<Self> {
        Arc::new(Self { context: AtomicPtr::new(context), send_only, mgid, ledger: Ledger::default() })
    }

    pub(super) fn context(&self) -> *mut c_void {
        self.context.load(Ordering::Relaxed)
    }
}

/// An event that waits to be taken.
#[derive(Debug)]
pub(super) struct Pending {
    /// The event's id; of a request, the listener.
    pub(super) target: Arc<Target>,
    pub(super) code: rdma_cm_event_type,
    pub(super) status: i32,
    /// The new id that a request brings.
    pub(super) new: Option<Arc<Target>>,
    pub(super) body: Body,
}

/// The parameters of an event.
#[derive(Debug)]
pub(super) enum Body {
    None,
    Conn(Conn),
    Datagram(Datagram),
    Multicast(Arc<Membership>, Box<Datagram>),
    Arg(u64),
}

/// An event that is counted as taken: until it is acknowledged its id is not destroyed.
#[derive(Debug)]
pub(super) struct Reported(pub(super) Pending);

impl Pending {
    /// Counts the event as taken. Called under the queue's lock.
    pub(super) fn report(self) -> Reported {
        self.target.ledger.report();
        if let Body::Multicast(membership, _) = &self.body {
            membership.ledger.report();
        }
        Reported(self)
    }
}

/// Parameters of a connection: in an event, or as the application gives them.
#[derive(Clone, Debug, Default)]
pub(super) struct Conn {
    pub(super) retry_count: u8,
    pub(super) terms: Terms,
}

impl Conn {
    /// As C has them, without the private data.
    pub(super) fn public(&self) -> rdma_conn_param {
        let terms = &self.terms;
        rdma_conn_param {
            private_data: ptr::null(),
            private_data_len: 0,
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            flow_control: terms.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: terms.rnr_retry_count,
            srq: terms.srq.into(),
            qp_num: terms.qp_num,
        }
    }
}

/// A datagram service's address, in an event.
#[derive(Clone, Default)]
pub(super) struct Datagram {
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) qp_num: u32,
    pub(super) qkey: u32,
    pub(super) private: Vec<u8>,
}

impl std::fmt::Debug for Datagram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datagram").field("qp_num", &self.qp_num).field("qkey", &self.qkey).finish_non_exhaustive()
    }
}

/// The manager's part of an event that C has taken: the ledgers of its acknowledgement, and its
/// private data.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(super) target: Arc<Target>,
    pub(super) membership: Option<Arc<Membership>>,
    pub(super) private: Vec<u8>,
}

impl Public for rdma_cm_event {
    const MARK: u64 = 0x636d_5f65_7665_6e74;
    type Private = Taken;
}

/// `rdma_ack_cm_event`.
pub(super) fn acknowledge(event: Own<rdma_cm_event>) -> Result<(), Errno> {
    let taken = event.take()?;
    if let Some(membership) = taken.membership {
        membership.ledger.acknowledge(1, |_| ());
    }
    // The last: a thread that waits for it may free the id now.
    taken.target.ledger.acknowledge(1, |_| ());
    Ok(())
}
