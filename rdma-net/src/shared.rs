//! What the connections of a driver share: the device, and what they tell the driver.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma::aio::{Bell, DriverOptions, Reactor};
use rdma::{CompletionQueue, Context, Error, ErrorKind, EventTap, PortState, ProtectionDomain, Result, Verb};

use super::failure::Failure;
use super::load::Load;
use super::options::NodeOptions;
use super::protocol::Hello;
use super::read_buffers::ReadBuffers;

/// Completions of one turn: few, so that tasks answer some messages while the peer sends others,
/// and use what was received while it is in a cache.
const BUDGET: usize = 32;

/// A protection domain, and the buffers of it that are kept for long messages.
#[derive(Clone)]
pub(super) struct Domain {
    pub(super) pd: ProtectionDomain,
    pub(super) read_buffers: Arc<ReadBuffers>,
}

impl Domain {
    pub(super) fn new(context: &Context) -> Result<Self> {
        Ok(Self { pd: context.alloc_pd()?, read_buffers: Arc::default() })
    }

    /// The same protection domain, with buffers of its own: drivers share no lock.
    fn of_another_driver(&self) -> Self {
        Self { pd: self.pd.clone(), read_buffers: Arc::default() }
    }
}

/// The part of a node that the connections of one driver share.
pub(super) struct Shared {
    pub(super) options: NodeOptions,
    /// The domain of all connections, unless each has its own.
    pub(super) domain: Domain,
    pub(super) cq: CompletionQueue,
    /// The asynchronous events of the device.
    pub(super) device_events: EventTap,
    /// Wakes the driver.
    pub(super) bell: Bell,
    pub(super) load: Arc<Load>,
    notes: Mutex<Notes>,
}

/// What the driver has been told.
#[derive(Default)]
struct Notes {
    next_deadline: Option<Instant>,
    /// Connections that have ended and are to be disconnected.
    ended: Vec<u32>,
}

impl Shared {
    /// With the reactor of driver `number` of `drivers`. `events` is the descriptor of its events.
    pub(super) fn new(
        domain: &Domain,
        options: &NodeOptions,
        (number, drivers): (u32, u32),
        events: BorrowedFd<'_>,
    ) -> Result<(Self, Reactor)> {
        let context = &domain.pd.context();
        let entries = options.completions(drivers, context.device_attr().max_cqe());
        // The first driver has the vector of the options, and an error if there is none.
        let vector = match number {
            0 => options.completion_vector,
            _ => options.completion_vector.wrapping_add(number) % context.completion_vectors().max(1),
        };
        let driving =
            DriverOptions::new().depth(entries).completion_vector(vector).strategy(options.strategy).budget(BUDGET);
        let reactor = Reactor::new(context, &driving.yields(Duration::ZERO))?;
        let device_events = EventTap::new(context)?;
        reactor.watch(events)?;
        reactor.watch(&device_events)?;
        let (cq, bell) = (reactor.completion_queue().clone(), reactor.bell());
        let (options, domain) = (options.clone(), domain.of_another_driver());
        let (load, notes) = (Arc::default(), Mutex::default());
        Ok((Self { options, domain, cq, device_events, bell, load, notes }, reactor))
    }

    /// The failure of a connection whose queue pair is at a port: while the port is down, no peer
    /// can answer.
    pub(super) fn judge(&self, failure: Failure, port: u8) -> Failure {
        if !failure.is_silence() {
            return failure;
        }
        match self.domain.pd.context().port_attr(port) {
            Ok(port) if matches!(port.state(), PortState::ACTIVE | PortState::ACTIVE_DEFER) => failure,
            Ok(_) => Error::new(Verb::QueryPort, ErrorKind::PortDown).into(),
            Err(error) => error.into(),
        }
    }

    /// The domain of a new connection.
    pub(super) fn connection_domain(&self) -> Result<Domain> {
        if self.options.separate_domains { Domain::new(&self.domain.pd.context()) } else { Ok(self.domain.clone()) }
    }

    /// The HELLO of a connection that shares receives, or does not.
    pub(super) fn hello(&self, shares: bool) -> Hello {
        let context = self.domain.pd.context();
        let (limits, capabilities) = (context.device_attr(), context.capabilities());
        let has_reads = limits.max_qp_rd_atom() > 0 && limits.max_qp_init_rd_atom() > 0;
        let reads = has_reads && !capabilities.read_needs_exposed_sink;
        self.options.hello(reads, capabilities.write_with_immediate, shares)
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the driver by a time.
    pub(super) fn note_deadline(&self, at: Instant) {
        let mut notes = self.lock();
        if notes.next_deadline.is_none_or(|next| at < next) {
            notes.next_deadline = Some(at);
            drop(notes);
            self.bell.ring();
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.lock().next_deadline
    }

    /// Whether something is due; the caller does all that is, and notes the next deadlines.
    pub(super) fn take_due(&self, now: Instant) -> bool {
        self.lock().next_deadline.take_if(|next| *next <= now).is_some()
    }

    /// Tells the driver that a connection has ended.
    pub(super) fn note_end(&self, key: u32) {
        self.lock().ended.push(key);
        self.bell.ring();
    }

    /// Takes the connections that have ended.
    pub(super) fn take_ended(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().ended)
    }
}
