//! Event channels and the events queued on them.

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_sys::{ibv_ah_attr, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel};

use super::wire::Terms;
use crate::engine::Errno;
use crate::verbs::call::Own;
use crate::verbs::event_queue::EventQueue;
use crate::verbs::events::Ledger;
use crate::verbs::object::{Object, Public};

/// The connection manager's part of an event channel.
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

    /// Queues an event; drops it if its id is destroyed.
    pub(super) fn push(&self, pending: Pending) {
        self.queue.offer(pending, |pending| pending.target.ledger.is_open());
    }
}

impl Public for rdma_event_channel {
    const MARK: u64 = 0x636d_5f63_6861_6e6e;
    type Private = Arc<Channel>;
}

/// Makes the channel object for C.
pub(super) fn publish(channel: Arc<Channel>) -> *mut rdma_event_channel {
    Object::create(rdma_event_channel { fd: channel.raw_fd() }, channel)
}

/// The part of an id that its events hold: the key of its entry, C's pointer, and the counts of
/// events that C has taken and acknowledged.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) key: u64,
    /// C's pointer to the id; null until the object is made.
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

/// A membership in a multicast group; shared by the id's entry and the join event.
#[derive(Debug)]
pub(super) struct Membership {
    /// The application's pointer, which the join event returns.
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

/// An event in a channel's queue.
#[derive(Debug)]
pub(super) struct Pending {
    /// The id of the event; the listener for a connection request.
    pub(super) target: Arc<Target>,
    pub(super) code: rdma_cm_event_type,
    pub(super) status: i32,
    /// The new id of a connection request.
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

/// An event that is counted as taken: destroying its id waits until the event is acknowledged.
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

/// Parameters of a connection, from a peer or from the application.
#[derive(Clone, Debug, Default)]
pub(super) struct Conn {
    pub(super) retry_count: u8,
    pub(super) terms: Terms,
}

impl Conn {
    /// The parameters in C form, without the private data.
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

/// Parameters of a datagram event: how to reach a UD queue pair or a multicast group.
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

/// The connection manager's part of an event that C has taken: its private data, and the id and
/// membership whose ledgers count its acknowledgement.
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
    // Last step: a thread that waits in `rdma_destroy_id` may free the id now.
    taken.target.ledger.acknowledge(1, |_| ());
    Ok(())
}
