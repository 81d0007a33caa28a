//! The process's one software device: the engine, the links to other processes, and the agent
//! thread.
//!
//! All of the engine's state is under one lock, and whoever holds it does what there is to do: a
//! thread that posts or polls moves frames itself; the agent thread does so while nobody else is
//! awake, and everything that needs the operating system. Nothing spins but the application, and no
//! hold of the lock copies more than about a megabyte.

mod agent;
mod device;
mod groups;
mod peers;
mod source;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::{Once, TryLockError};

pub(crate) use self::device::Node;
use crate::engine::Errno;
use crate::log::{self, log};
use crate::os;
use crate::os::fork::{self, PerProcess};

static NODE: PerProcess<Node> = PerProcess::new();

/// Sends what was put off (see [`state::State::poll_cq`]) before the process is gone: a peer whose
/// message was received here should not take our exit for a failure. And gives datagrams that
/// waited for a link a moment to get there: their senders were told that they are sent.
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
}
