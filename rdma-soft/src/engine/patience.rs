//! The wait of unreliable messages for room in a link. It ends after [`PATIENCE`]: from then on,
//! messages do not wait for this link until it has room again. So no peer can hold up a sender.

use super::peers::Peers;
use super::tables::Tables;
use super::timer::Owner;
use super::types::{LinkId, QpId};

/// The longest wait of a message for room in a ring, in nanoseconds: many times as long as a
/// running process needs to make room.
const PATIENCE: u64 = 20_000_000;

/// The wait of a queue pair for room in a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    /// The link is full, and the timer runs.
    blocked: bool,
    /// Generation of the current timer; timers with another generation are ignored.
    timer: u32,
}

impl Patience {
    /// Records an attempt to send over a link: whether the message is sent or lost, and need not
    /// wait.
    pub(super) fn ends(&mut self, qp: QpId, link: LinkId, pushed: bool, tables: &mut Tables) -> bool {
        let Some(state) = tables.peers.get(link) else { return true };
        if !pushed && !state.stuck {
            if !self.blocked {
                self.blocked = true;
                self.timer = self.timer.wrapping_add(1);
                tables.timers.start(Owner::Qp(qp), self.timer, PATIENCE);
            }
            return false;
        }
        state.stuck = !pushed;
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
                state.stuck = true;
                peers.activate(link);
            }
        }
    }
}
