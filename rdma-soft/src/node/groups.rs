//! Multicast groups of this process, as other processes see them, and theirs, as we do.

use std::time::{Duration, Instant};

use super::device::Node;
use crate::engine::{Errno, Gid, QpId};
use crate::link::group;
use crate::log::log;
use crate::os;

impl Node {
    /// Puts a queue pair into a group. When this returns, other processes find this one there.
    ///
    /// # Errors
    ///
    /// The engine's, or why the membership cannot be made known.
    pub(crate) fn attach(&self, qp: QpId, gid: Gid) -> Result<(), Errno> {
        // Held throughout: two threads that attach and detach would leave the wrong thing said.
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

    /// Takes a queue pair out of a group.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub(crate) fn detach(&self, qp: QpId, gid: Gid) -> Result<(), Errno> {
        let mut memberships = self.memberships.lock();
        // Frames that came in before are still delivered to the queue pair.
        if self.with_drained(|engine| engine.detach(qp, gid))? {
            memberships.remove(&gid);
        }
        Ok(())
    }
}

/// Finds out who is in groups, and tells the engine. What is found is good for fifty times as long
/// as it took to find, so that looking takes at most a fiftieth of a processor, but not for longer
/// than it takes to notice.
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
