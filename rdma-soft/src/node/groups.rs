//! Multicast groups: announces this process's memberships and looks up those of other processes.

use std::time::{Duration, Instant};

use super::device::Node;
use crate::engine::{Errno, Gid, QpId};
use crate::link::group;
use crate::log::log;
use crate::os;

impl Node {
    /// Attaches a queue pair to a group. When this returns, other processes can find this process
    /// in the group.
    ///
    /// # Errors
    ///
    /// The engine's errors, or the error of the system call that failed to announce the membership.
    pub(crate) fn attach(&self, qp: QpId, gid: Gid) -> Result<(), Errno> {
        // Held throughout: otherwise two threads that attach and detach could leave a wrong
        // announcement.
        let mut memberships = self.memberships.lock();
        if !self.with(|engine| engine.attach(qp, gid))? {
            return Ok(());
        }
        let slot = self.lock().slots()[0];
        let number = os::random().map(u64::from_ne_bytes);
        match number.and_then(|number| group::join(slot, gid, number)) {
            Ok(socket) => {
                memberships.insert(gid, socket);
                Ok(())
            }
            Err(error) => {
                let errno = error.into();
                log!(WARN, %error, "a multicast group cannot be joined");
                self.with(|engine| engine.detach(qp, gid))?;
                Err(errno)
            }
        }
    }

    /// Detaches a queue pair from a group.
    ///
    /// # Errors
    ///
    /// The engine's errors.
    pub(crate) fn detach(&self, qp: QpId, gid: Gid) -> Result<(), Errno> {
        let mut memberships = self.memberships.lock();
        // Frames that arrived before the call are still delivered to the queue pair.
        if self.with_drained(|engine| engine.detach(qp, gid))? {
            memberships.remove(&gid);
        }
        Ok(())
    }
}

/// Looks up the members of groups for the engine. A result is used for fifty times as long as the
/// look-up took, so that look-ups take at most a fiftieth of a processor. `LONGEST` limits that
/// time, so that new members are found without a noticeable delay.
pub(super) fn look_up(node: &Node, gids: &[Gid]) {
    const SHORTEST: Duration = Duration::from_millis(2);
    const LONGEST: Duration = Duration::from_millis(100);
    let start = Instant::now();
    let found = group::members(gids).unwrap_or_else(|error| {
        log!(WARN, %error, "who is in a multicast group cannot be found out: only this process is reached");
        vec![Vec::new(); gids.len()]
    });
    let good_for = (start.elapsed() * 50).clamp(SHORTEST, LONGEST);
    let nanos = u64::try_from(good_for.as_nanos()).unwrap_or(u64::MAX);
    let mut state = node.lock();
    for (gid, members) in gids.iter().zip(found) {
        state.engine.handle_members(*gid, &members, nanos);
    }
    state.after_call();
}
