//! The process's one software device: the engine, the links to other processes, and the agent
//! thread.
//!
//! All of the engine's state is under one lock, and whoever holds it does what there is to do: a
//! thread that posts or polls moves frames itself; the agent thread does so while nobody else is
//! awake, and everything that needs the operating system. Nothing spins but the application, and no
//! hold of the lock copies more than about a megabyte.

mod agent;
mod groups;
mod peers;
mod source;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError};

use rdma_mem::SharedMemory;
use rdma_sys::ibv_wc;

use self::peers::Meetings;
use self::source::Source;
use self::state::State;
use crate::engine::{Area, CqId, DIRECTORY_LEN, Engine, EngineConfig, Errno, Event};
use crate::link::memory;
use crate::link::slot::{self, Listener};
use crate::log::{self, log};
use crate::os;
use crate::os::event_loop::EventLoop;
use crate::os::fork::{self, PerProcess};

/// Bytes of each ring, unless the environment says otherwise.
const RING_CAPACITY: usize = 1 << 20;

static NODE: PerProcess<Node> = PerProcess::new();

/// Sends what was put off (see [`State::poll_cq`]) before the process is gone: a peer whose message
/// was received here should not take our exit for a failure. And gives datagrams that waited for a
/// link a moment to get there: their senders were told that they are sent.
extern "C" fn at_exit() {
    let Some(node) = NODE.get() else { return };
    let waits = || match node.state.try_lock() {
        Ok(state) => state.has_words_left(),
        Err(TryLockError::Poisoned(state)) => state.into_inner().has_words_left(),
        Err(TryLockError::WouldBlock) => true,
    };
    for _ in 0..500 {
        // Nothing may unwind into C.
        if !std::panic::catch_unwind(std::panic::AssertUnwindSafe(waits)).unwrap_or(false) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // Other threads may be running still, or have ended with the lock held: no waiting for ever.
    for _ in 0..100 {
        if let Ok(mut state) = node.state.try_lock() {
            // Nothing may unwind into C.
            let _result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| state.send_deferred()));
            break;
        }
        std::thread::yield_now();
    }
    // Why a call failed that made the program end. By the agent: what is left of this thread is not
    // enough for a subscriber.
    for _ in 0..100 {
        if log::is_idle() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Has the agent look at everything, if there is one.
fn wake_agent() {
    if let Some(node) = NODE.get() {
        node.event_loop.wake();
    }
}

/// This process's software device.
#[derive(Debug)]
pub(crate) struct Node {
    state: Mutex<State>,
    /// What peers may map: regions and queue pairs.
    directory: Arc<SharedMemory>,
    /// What the agent sleeps on.
    event_loop: Arc<EventLoop>,
    /// The slots of this process. Nobody takes the state's lock while holding this one.
    listeners: Mutex<Vec<Listener>>,
    /// Handshakes under way. Locked before the state.
    meetings: Meetings,
    /// The multicast groups of this process. Locked before the state.
    memberships: groups::Memberships,
}

impl Node {
    /// The node of this process, started by the first call. A forked child has one of its own.
    ///
    /// # Errors
    ///
    /// When it cannot be started, the reason's number (the log says more).
    #[inline]
    pub(crate) fn get() -> Result<&'static Self, Errno> {
        // Without an agent nobody else emits the events of the log that say why.
        NODE.get().map_or_else(|| Self::start().inspect_err(|_| log::emit_deferred()), Ok)
    }

    #[cold]
    fn start() -> Result<&'static Self, Errno> {
        static AT_EXIT: Once = Once::new();
        log::set_wake(wake_agent);
        let started = NODE.get_or_make(|| {
            fork::identify()?;
            // Never freed: the agent uses it as long as the process lives.
            let node = Box::leak(Box::new(Self::new()?));
            agent::start(node)?;
            AT_EXIT.call_once(|| {
                // Without memory for the registration the device works all the same. SAFETY: atexit
                // takes a function that may run at any time from now on: `at_exit` may.
                let _registered = unsafe { libc::atexit(at_exit) };
            });
            Ok::<_, os::Error>(node)
        });
        started.map_err(|error| {
            log!(ERROR, %error, "the software RDMA device cannot start");
            error.into()
        })
    }

    fn new() -> os::Result<Self> {
        let event_loop = Arc::new(EventLoop::new()?);
        let directory = Arc::new(SharedMemory::new(DIRECTORY_LEN)?);
        // SAFETY: the directory is DIRECTORY_LEN bytes of page-aligned shared memory that lives as
        // long as the owner; nobody else in this process touches it.
        let area = unsafe { Area::new(directory.as_ptr(), DIRECTORY_LEN, Arc::clone(&directory) as _) };
        let seed = u64::from_ne_bytes(os::random()?);
        let listener = claim(&event_loop, 0)?;
        let slot = listener.slot;
        log!(DEBUG, slot = slot.0, "software RDMA device starts");
        let engine = Engine::new(EngineConfig { slot, seed, directory: Some(area) });
        let state = State::new(engine, slot, Arc::clone(&event_loop), ring_capacity());
        Ok(Self {
            state: Mutex::new(state),
            directory,
            event_loop,
            listeners: Mutex::new(vec![listener]),
            meetings: Meetings::default(),
            memberships: groups::Memberships::default(),
        })
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where the engine's events go; it is called under the node's lock.
    pub(crate) fn set_sink(&self, sink: fn(Event)) {
        self.lock().set_sink(sink);
    }

    /// Calls the engine, and does what the call has made necessary.
    #[inline]
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R {
        let mut state = self.lock();
        let result = call(&mut state.engine);
        state.after_call();
        result
    }

    /// Like [`with`](Self::with), after everything that has come in so far was handled: what
    /// changes a queue pair's state must not be overtaken by it.
    pub(crate) fn with_drained<R>(&self, call: impl FnOnce(&mut Engine) -> R) -> R {
        let mut state = self.lock();
        state.drain_fully();
        let result = call(&mut state.engine);
        state.after_call();
        result
    }

    /// Polls a completion queue, and makes progress if it is empty.
    ///
    /// # Errors
    ///
    /// The engine's.
    #[inline(always)]
    pub(crate) fn poll_cq(&self, cq: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        self.lock().poll_cq(cq, out)
    }

    /// Says that the application is about to wait for an event instead of polling: the agent takes
    /// over at once.
    pub(crate) fn settle(&self) {
        self.lock().settle();
    }

    /// Takes one more slot, for when all queue pair numbers are used up.
    ///
    /// # Errors
    ///
    /// `EMFILE` when the host's slots are all taken.
    pub(crate) fn add_slot(&self) -> Result<(), Errno> {
        let slot = {
            let mut listeners = self.listeners();
            let index = u32::try_from(listeners.len()).unwrap_or(u32::MAX);
            let listener = claim(&self.event_loop, index)?;
            let slot = listener.slot;
            listeners.push(listener);
            slot
        };
        self.lock().add_slot(slot);
        Ok(())
    }
}

/// Takes a slot and has the agent listen there. Where the search starts depends on the process, so
/// that a dead one's slot is not soon somebody else's.
fn claim(event_loop: &EventLoop, index: u32) -> os::Result<Listener> {
    let start = u16::try_from(std::process::id() % 4096).unwrap_or(0);
    let listener = slot::claim(&slot::ALL, start)?;
    event_loop.watch_once(&listener.socket, Source::Listener(index).token())?;
    Ok(listener)
}

/// `RDMA_SOFT_RING` (bytes) is for tests.
fn ring_capacity() -> usize {
    let wish = std::env::var("RDMA_SOFT_RING").ok().and_then(|wish| wish.parse().ok());
    wish.filter(|&wish| memory::capacity_is_valid(wish) && wish >= 4096).unwrap_or(RING_CAPACITY)
}
