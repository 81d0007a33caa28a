//! The wait of unreliable messages for space in a link. It ends after a time: from then on,
//! messages do not wait for this link until it has space again. So no peer can hold up a sender for
//! long.

use super::peers::Peers;
use super::tables::Tables;
use super::timer::Owner;
use super::types::{LinkId, QpId};

/// The wait of a queue pair for space in a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The longest wait, in nanoseconds.
    nanos: u64,
    /// The link is full, and the timer runs.
    blocked: bool,
    /// Generation of the current timer; timers with another generation are ignored.
    timer: u32,
}

impl Patience {
    /// Many times as long as a running process needs to free space.
    pub(super) const DATAGRAM: Self = Self::new(20_000_000);
    /// Longer, because one lost piece costs the whole of a message that may have many.
    pub(super) const CONNECTION: Self = Self::new(1_000_000_000);

    const fn new(nanos: u64) -> Self {
        Self { nanos, blocked: false, timer: 0 }
    }

    /// Records an attempt to send over a link: whether the message is sent or lost, and need not
    /// wait.
    pub(super) fn ends(&mut self, qp: QpId, link: LinkId, pushed: bool, tables: &mut Tables) -> bool {
        let Some(state) = tables.peers.get(link) else { return true };
        if !pushed && state.waited < self.nanos {
            if !self.blocked {
                self.blocked = true;
                self.timer = self.timer.wrapping_add(1);
                tables.timers.start(Owner::Qp(qp), self.timer, self.nanos);
            }
            return false;
        }
        if pushed {
            state.waited = 0;
        }
        self.stop(qp, tables);
        true
    }

    /// Ends the wait without a result.
    pub(super) fn stop(&mut self, qp: QpId, tables: &mut Tables) {
        if core::mem::replace(&mut self.blocked, false) {
            tables.timers.cancel(Owner::Qp(qp));
        }
    }

    /// Ends the wait of a queue pair whose timer is cancelled already.
    pub(super) const fn forget(&mut self) {
        self.blocked = false;
    }

    /// Stops waiting for a link that has been full for too long; `listed` is the link whose work
    /// list holds the queue pair.
    pub(super) fn handle_timer(&mut self, generation: u32, listed: Option<LinkId>, peers: &mut Peers) {
        if generation != self.timer || !core::mem::replace(&mut self.blocked, false) {
            return;
        }
        if let Some(link) = listed {
            if let Some(state) = peers.get(link) {
                state.waited = state.waited.max(self.nanos);
                peers.activate(link);
            }
        }
    }
}
