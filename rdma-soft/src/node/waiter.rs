//! A thread of the application that waits for an event, and runs the device meanwhile.
//!
//! While such a thread sleeps, peers wake it instead of the agent: the doorbell reaches it without
//! another thread in between. When it is not asleep, doorbells go to the agent as ever
//! (`os/wait_set.rs`), so at any time one of the two answers them. The agent keeps its timer, the
//! sockets and the work that only it does.
//!
//! One thread of the process is the waiter. Others sleep on their descriptors, and the waiter
//! brings their events, as the agent would. No other thread is promoted when the waiter leaves: to
//! wake a thread only to let it sleep elsewhere costs more than the agent does, and the waiter is
//! usually back before the next doorbell.
//!
//! A thread in poll(2) stays with the agent. To wake it by the doorbell, the channel's descriptor
//! would have to be readable for doorbells without an event, and programs end when
//! `ibv_get_cq_event` then fails with `EAGAIN`, as the manual's own example does.

use std::sync::{MutexGuard, TryLockError};
use std::time::Duration;

use super::NODE;
use super::device::Node;
use crate::os::signal;
pub(crate) use crate::os::wait_set::Wake;

/// The right to wait in place of the agent.
#[derive(Debug)]
pub(crate) struct Waiter {
    node: &'static Node,
    _right: MutexGuard<'static, ()>,
}

impl Waiter {
    /// None if another thread has the right, or if the application has signal handlers that end
    /// waits: a signal that comes while this thread runs the device would be lost.
    pub(crate) fn new(node: &'static Node) -> Option<Self> {
        let right = try_lock(node)?;
        signal::all_restarted().then_some(Self { node, _right: right })
    }

    /// Handles the frames that have arrived.
    pub(crate) fn work(&self) {
        self.node.lock().work_for_event();
    }

    /// Finishes the work at hand and has peers ring from now on. Events that this reports need no
    /// doorbell: the caller looks for them before it sleeps.
    pub(crate) fn prepare_to_sleep(&self) {
        self.node.lock().rest();
    }

    /// Sleeps until a peer rings or [`wake_waiter`] is called, for `limit` at most if there is one;
    /// may return early. `Interrupted` if a signal handler may have run that ends waits.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> Wake {
        match self.node.wait_set.wait(limit) {
            Wake::Interrupted if signal::all_restart() => Wake::Rung,
            wake => {
                // A ring that came at the end has not woken the agent, and the peer rings once.
                if wake != Wake::Rung {
                    self.prepare_to_sleep();
                }
                wake
            }
        }
    }

    /// Ends the wait of a thread that has its event. The thread counts as one that polls, until it
    /// waits again or a tick has passed.
    pub(crate) fn resume(self) {
        self.node.lock().resume();
    }
}

fn try_lock(node: &'static Node) -> Option<MutexGuard<'static, ()>> {
    match node.waiter.try_lock() {
        Ok(right) => Some(right),
        // The lock guards no data.
        Err(TryLockError::Poisoned(right)) => Some(right.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Ends the sleep of the thread that waits in place of the agent, if there is one.
pub(crate) fn wake_waiter() {
    if let Some(node) = NODE.get() {
        node.wait_set.wake();
    }
}
