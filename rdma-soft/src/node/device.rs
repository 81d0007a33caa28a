//! [`Node`]: the engine behind its lock, and the parts of the device that have locks of their own.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_mem::SharedMemory;
use rdma_sys::ibv_wc;

use super::faults;
use super::remote::{Prepared, Remote};
use super::source::Source;
use super::state::{Sink, State};
use crate::engine::{
    Area, CopyEnd, CopyId, CqId, DIRECTORY_LEN, Engine, EngineConfig, Errno, Gid, Host, PeerId, QpId, Slot, Time,
};
use crate::link::Link;
use crate::link::handshake::Local;
use crate::link::hello::Identity;
use crate::link::slot::{self, Listener};
use crate::link::stream::Stream;
use crate::log::log;
use crate::os;
use crate::os::event_loop::EventLoop;
use crate::os::lock::Lock;
use crate::os::socket::Socket;
use crate::os::wait_set::WaitSet;

/// Default capacity of each ring in bytes.
const RING_CAPACITY: usize = 4 << 20;

/// The longest wait for copies of foreign memory.
const COPY_PATIENCE: Duration = Duration::from_secs(10);

/// The longest wait for datagrams to be sent. The engine gives up a destination that it cannot
/// reach after a second.
const DATAGRAM_PATIENCE: Duration = Duration::from_millis(1200);

/// A process with which a handshake is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// A process of this host, by its id.
    Near(i32),
    /// A process of another host, by its first slot, or by the slot by which it is called first.
    Far(PeerId),
}

/// This process's part in a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Opener,
    Acceptor,
}

/// The handshakes under way.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// This process's part in each handshake, by the other process.
    pub(super) parts: Lock<HashMap<Who, Part>>,
    /// Slots by which processes of other hosts are called, beside their first ones. This lock is
    /// taken before the state's.
    pub(super) further: Lock<Vec<((Host, Identity), Slot)>>,
    /// Number of handshakes under way that peers began.
    pub(super) accepting: AtomicUsize,
}

/// This process's software device.
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) state: Mutex<State>,
    /// Notified when a copy of foreign memory has ended.
    copied: Condvar,
    /// The directory of regions and queue pairs, which peers map.
    directory: Arc<SharedMemory>,
    /// The agent's event loop.
    pub(super) event_loop: Arc<EventLoop>,
    /// The links' bells, for the thread that waits in place of the agent.
    pub(super) wait_set: Arc<WaitSet>,
    /// Held by the thread that waits in place of the agent. This lock is taken before all others.
    pub(super) waiter: Mutex<()>,
    /// The slots of this process. While this lock is held, the state's lock is never taken.
    pub(super) listeners: Lock<Vec<Listener>>,
    /// Handshakes under way. This lock is taken before the state's.
    pub(super) meetings: Meetings,
    /// The multicast groups that this process has joined, and the sockets whose names announce
    /// them. This lock is taken before the state's.
    pub(super) memberships: Lock<HashMap<Gid, Socket>>,
    /// What reaches other hosts, if the environment asks for it.
    pub(crate) remote: Option<Remote>,
}

impl Node {
    /// Makes a node without an agent, which listens for other hosts if that is prepared.
    pub(super) fn new(prepared: Option<Prepared>) -> os::Result<Self> {
        let (event_loop, wait_set) = (Arc::new(EventLoop::new()?), Arc::new(WaitSet::new()?));
        let directory = Arc::new(SharedMemory::new(DIRECTORY_LEN)?);
        // SAFETY: Area::new requires mapped, readable and writable bytes for the life of the owner,
        // accessed only atomically in this process: the directory is DIRECTORY_LEN bytes of shared
        // memory that live as long as the owner, and only the engine accesses them.
        let area = unsafe { Area::new(directory.as_ptr(), DIRECTORY_LEN, Arc::clone(&directory) as _) };
        let seed = [u64::from_ne_bytes(os::random()?), u64::from_ne_bytes(os::random()?)];
        let listener = claim(&event_loop, 0)?;
        let slot = listener.slot;
        let remote = prepared.map(|prepared| Remote::start(slot, prepared)).transpose()?;
        log!(DEBUG, slot = slot.0, "software RDMA device starts");
        let mut engine =
            Engine::new(EngineConfig { slot, seed, directory: Some(area), keys_are_secret: remote.is_some() });
        engine.set_faults(faults::from_environment().ok().flatten().as_ref());
        let state = State::new(engine, slot, Arc::clone(&event_loop), Arc::clone(&wait_set), ring_capacity());
        Ok(Self {
            state: Mutex::new(state),
            copied: Condvar::new(),
            directory,
            event_loop,
            wait_set,
            waiter: Mutex::default(),
            listeners: Lock::new(vec![listener]),
            meetings: Meetings::default(),
            memberships: Lock::default(),
            remote,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the function that receives the engine's events.
    pub(crate) fn set_sink(&self, sink: Sink) {
        self.lock().set_sink(sink);
    }

    /// Calls the engine, then sends the frames and reports the events of the call.
    #[inline]
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R {
        let mut state = self.lock();
        let result = call(&mut state.engine);
        state.after_call();
        result
    }

    /// Waits until a datagram queue pair has sent its requests, for 1.2 s at most.
    pub(crate) fn send_datagrams(&self, qp: QpId) {
        let has_unsent = |engine: &mut Engine| engine.has_unsent_datagrams(qp);
        if !self.with(has_unsent) {
            return;
        }
        let deadline = Instant::now() + DATAGRAM_PATIENCE;
        while self.with_drained(has_unsent) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Like [`with`](Self::with), but handles all inbound frames first: frames that arrived before
    /// a change of a queue pair's state must be handled before the change.
    pub(crate) fn with_drained<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R {
        let mut state = self.lock();
        state.drain_fully();
        let result = call(&mut state.engine);
        state.after_call();
        result
    }

    /// Like [`with_drained`](Self::with_drained), again after each end of a copy as long as copies
    /// are running (`is_running` of the error), for 10 s at most. Returns the last result.
    pub(crate) fn with_copies_ended<R, E>(
        &self,
        is_running: impl Fn(&E) -> bool,
        mut call: impl FnMut(&mut Engine) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut deadline = None;
        let mut state = self.lock();
        loop {
            state.drain_fully();
            let result = call(&mut state.engine);
            state.after_call();
            if !matches!(&result, Err(error) if is_running(error)) {
                return result;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + COPY_PATIENCE);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                log!(WARN, "a copy of foreign memory does not end; what it uses cannot be given back");
                return result;
            }
            state = self.copied.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Tells the engine that a copy has ended.
    pub(crate) fn handle_copied(&self, copy: CopyId, end: CopyEnd) {
        self.with(|engine| engine.handle_copied(copy, end));
        self.copied.notify_all();
    }

    /// Polls a completion queue, and makes progress if it is empty.
    ///
    /// # Errors
    ///
    /// The errors of `Engine::poll_cq`.
    #[inline(always)]
    pub(crate) fn poll_cq(&self, cq: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        self.lock().poll_cq(cq, out)
    }

    /// Polls one completion of a queue with times, with its time; makes progress if it is empty.
    ///
    /// # Errors
    ///
    /// The errors of `Engine::poll_cq`.
    pub(crate) fn poll_timed(&self, cq: CqId, wc: &mut ibv_wc) -> Result<Option<Time>, Errno> {
        self.lock().poll_timed(cq, wc)
    }

    /// Tells the node that the application is about to wait for an event instead of polling, so
    /// that the agent takes over at once.
    pub(crate) fn prepare_to_sleep(&self) {
        self.lock().prepare_to_sleep();
    }

    /// Binds one more slot, for when all queue pair numbers are used up.
    ///
    /// # Errors
    ///
    /// `EMFILE` when all slots of the host are taken.
    pub(crate) fn add_slot(&self) -> Result<(), Errno> {
        let slot = {
            let mut listeners = self.listeners.lock();
            let index = u32::try_from(listeners.len()).unwrap_or(u32::MAX);
            let listener = claim(&self.event_loop, index)?;
            let slot = listener.slot;
            listeners.push(listener);
            slot
        };
        self.lock().add_slot(slot);
        Ok(())
    }

    /// This process's data for a handshake.
    pub(super) fn local(&self) -> Local<'_> {
        let (slots, capacity) = {
            let state = self.lock();
            (state.slots().to_vec(), state.ring_capacity())
        };
        Local { slots, directory: &self.directory, capacity }
    }

    /// Has the agent and waiting threads watch the connection to another host.
    pub(super) fn watch_stream(&self, stream: &Stream) -> os::Result<()> {
        self.wait_set.watch_socket(stream, Source::Stream.token(), &self.event_loop)
    }

    /// Has the agent watch a link's descriptors, and waiting threads its bell.
    pub(super) fn watch(&self, link: &Link) -> os::Result<()> {
        let Some(peer) = link.peer() else { return Ok(()) };
        let (id, generation) = (link.id, link.generation);
        self.wait_set.watch(&peer.our_bell, Source::Bell.token(), &self.event_loop)?;
        self.event_loop.watch(&peer.socket, Source::Socket { link: id, generation }.token())?;
        self.event_loop.watch_once(&peer.pidfd, Source::Death { link: id, generation }.token())
    }
}

/// Binds a slot, and has the agent listen there. The start of the search depends on the process id,
/// so that the slot of a dead process is not reused soon.
fn claim(event_loop: &EventLoop, index: u32) -> os::Result<Listener> {
    let start = u16::try_from(std::process::id() % 4096).unwrap_or(0);
    let listener = slot::claim(&slot::ALL, start)?;
    event_loop.watch_once(&listener.socket, Source::Listener(index).token())?;
    Ok(listener)
}

/// Capacity of the rings. A unit test sets another by `RDMA_SOFT_RING`, in bytes.
fn ring_capacity() -> usize {
    let asked = if cfg!(test) { std::env::var("RDMA_SOFT_RING").ok() } else { None };
    asked.and_then(|bytes| bytes.parse().ok()).unwrap_or(RING_CAPACITY)
}
