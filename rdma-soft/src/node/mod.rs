//! The software device of this process: the engine, the links to other processes, and the agent
//! thread.
//!
//! One lock guards all of the engine's state, and the thread that holds the lock does the pending
//! work. A thread that posts or polls moves frames itself. The agent thread moves frames while no
//! other thread is awake, and does the work that needs the operating system. Only the application
//! spins, and no hold of the lock copies more than about a megabyte.
//!
//! # Threads
//!
//! Any awake thread runs the device. A verb that finds its completion queue empty drains the links
//! itself (`State::poll_cq`). While no thread of the process is in a verb, the agent sleeps in
//! epoll and peers ring it. While the application polls, peers do not ring; the agent looks at the
//! links once a millisecond, and sleeps again when the application has not polled since its last
//! look. A polling thread takes over from the sleeping agent by itself, so no message waits until
//! the agent gets a processor.
//!
//! A thread that sleeps in `ibv_get_cq_event` is woken by the doorbell itself (`waiter`). For 1 ms
//! after its event the thread counts as polling. Threads are woken after the node is unlocked, so
//! that they do not run into its lock.
//!
//! After waking a thread, the agent holds the acknowledgement for up to 1 ms, so that the thread's
//! next request can carry it. A frame of a signaled request asks for its acknowledgement at once.
//!
//! A turn copies about a megabyte. The link that has used it up sends last in the next turn, and
//! incoming frames leave every other link a share.
//!
//! # Files
//!
//! ```text
//!   device.rs            `Node`: the lock, and the parts that have locks of their own
//!   state.rs             the data under the lock, and one turn of work
//!   state/streams.rs     the links to other hosts in it
//!   agent.rs             the agent thread
//!   waiter.rs            a thread of the application that waits in place of the agent
//!   peers.rs, groups.rs  find and connect other processes; multicast groups
//!   callers.rs           the same for processes of other hosts
//!   admission.rs         who calls from other hosts, before it has proved anything
//!   ports.rs             calls between the connection managers of two hosts
//!   meeting.rs           handshakes under way
//!   chosen.rs            address and key, as the program or the environment chooses them
//!   remote.rs            address, key and numbers of other hosts
//!   source.rs            the descriptors that the agent watches
//!   faults.rs            reads the plan of faults from the environment
//! ```

mod admission;
mod agent;
mod callers;
pub(crate) mod chosen;
mod device;
pub(crate) mod faults;
mod groups;
mod meeting;
mod peers;
pub(crate) mod ports;
pub(crate) mod remote;
mod source;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiter;

use std::sync::TryLockError;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use self::device::Node;
use self::remote::Remote;
pub(crate) use self::waiter::{Waiter, Wake, wake_waiter};
use crate::engine::Errno;
use crate::log::{self, log};
use crate::os;
use crate::os::fork::{self, PerProcess};

static NODE: PerProcess<Node> = PerProcess::new();

/// Sends deferred acknowledgements (see [`state::State::poll_cq`]) before the process exits: a peer
/// whose message was received here should not take the exit for a failure. Before that, waits up to
/// 500 ms for datagrams that wait for a link, because their senders have seen successful
/// completions, and for acknowledgements that wait for room on a full link.
extern "C" fn at_exit() {
    let Some(node) = NODE.get() else { return };
    let waits = || match node.state.try_lock() {
        Ok(state) => state.has_words_left(),
        Err(TryLockError::Poisoned(state)) => state.into_inner().has_words_left(),
        Err(TryLockError::WouldBlock) => true,
    };
    for _ in 0..500 {
        // A panic must not unwind into C.
        if !std::panic::catch_unwind(std::panic::AssertUnwindSafe(waits)).unwrap_or(false) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // Other threads may still be running, or may have ended with the lock held, so the attempts are
    // limited.
    for _ in 0..100 {
        if let Ok(mut state) = node.state.try_lock() {
            // A panic must not unwind into C.
            let _result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| state.send_deferred()));
            break;
        }
        std::thread::yield_now();
    }
    // Lets the agent emit queued events, which may say why a failed call made the program end. This
    // thread cannot: the rest of an exiting thread is not enough for a subscriber.
    for _ in 0..100 {
        if log::is_idle() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Makes the agent take a turn, if there is an agent.
fn wake_agent() {
    if let Some(node) = NODE.get() {
        node.event_loop.wake();
    }
}

impl Node {
    /// The node of this process, started by the first call. A forked child has its own node.
    ///
    /// # Errors
    ///
    /// The error number of the failure if the node cannot be started (the log says more).
    #[inline]
    pub(crate) fn get() -> Result<&'static Self, Errno> {
        // Without an agent, no other thread emits the queued events that explain the failure.
        NODE.get().map_or_else(|| Self::start().inspect_err(|_| log::emit_deferred()), Ok)
    }

    /// The node of this process, if it has been started.
    pub(crate) fn started() -> Option<&'static Self> {
        NODE.get()
    }

    #[cold]
    fn start() -> Result<&'static Self, Errno> {
        static IS_AT_EXIT: AtomicBool = AtomicBool::new(false);
        let prepared = fork::uninterrupted(|| {
            fork::identify()?;
            log::set_wake(wake_agent);
            log::read_environment();
            Ok(())
        });
        // Before `get_or_make`, whose uninterrupted step must wait for nobody.
        let prepared = prepared.and_then(|()| Remote::prepare());
        let started = prepared.and_then(|prepared| {
            NODE.get_or_make(|| {
                // Leaked, because the agent uses the node as long as the process lives.
                let node = Box::leak(Box::new(Self::new(prepared)?));
                agent::start(node)?;
                admission::start(node)?;
                if !IS_AT_EXIT.load(Ordering::Relaxed) {
                    // If the registration fails for lack of memory, the device works without
                    // `at_exit`.
                    // SAFETY: atexit requires a function that may run at any time from now on,
                    // which `at_exit` may.
                    let _registered = unsafe { libc::atexit(at_exit) };
                    IS_AT_EXIT.store(true, Ordering::Relaxed);
                }
                Ok::<_, os::Error>(node)
            })
        });
        started.map_err(|error| {
            log!(ERROR, %error, "the software RDMA device cannot start");
            error.into()
        })
    }
}
