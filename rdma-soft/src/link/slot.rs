//! Slots, the numbers of processes. A slot is the number in the name of an abstract socket that a
//! process has bound. The kernel decides which process has a slot, per network namespace, and frees
//! the slot when the process dies.
//!
//! A queue pair number consists of the slot (12 bits) and an index, so it says which process to
//! connect to, without a daemon.

use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::engine::Slot;
use crate::log::log;
use crate::os::socket::Socket;
use crate::os::{Error, Result};

/// All slots. 0 is excluded because queue pair numbers 0 and 1 are special, and 4095 because of
/// queue pair number 0xffffff.
pub(crate) const ALL: RangeInclusive<u16> = 1..=4094;

/// A slot that this process has.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The slot's number.
    pub(crate) slot: Slot,
    /// The socket to which peers connect.
    pub(crate) socket: Socket,
}

fn name(slot: Slot) -> String {
    format!("rdma-soft-{}", slot.0)
}

/// Binds the first free slot of `range`, searching from offset `start` on.
pub(crate) fn claim(range: &RangeInclusive<u16>, start: u16) -> Result<Listener> {
    let (first, count) = (*range.start(), range.end() - range.start() + 1);
    for i in 0..count {
        let slot = Slot(first + (start.wrapping_add(i)) % count);
        let socket = Socket::new()?;
        match socket.bind(&name(slot)) {
            Ok(()) => {}
            Err(Error { errno: Errno::EADDRINUSE, .. }) => continue,
            Err(error) => return Err(error),
        }
        socket.listen()?;
        return Ok(Listener { slot, socket });
    }
    log!(ERROR, "all {count} names for processes that use the software RDMA device are taken on this host");
    Err(Error { call: "bind", errno: Errno::EMFILE })
}

/// Connects to the process that has a slot. Waits while too many other connections are pending
/// there; `EAGAIN` after `patience`.
pub(crate) fn connect(slot: Slot, patience: Duration) -> Result<Socket> {
    let deadline = Instant::now() + patience;
    let socket = Socket::new()?;
    loop {
        match socket.connect(&name(slot)) {
            Err(Error { errno: Errno::EAGAIN, .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            connected => return connected.map(|()| socket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_out_is_an_error_and_a_dropped_slot_is_free_again() {
        // Numbers beyond the real slots, so that the test meets neither devices nor other tests.
        let base = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap() * 4;
        let range = base..=base + 2;
        let mut taken: Vec<_> = (0..3).map(|start| claim(&range, start).unwrap()).collect();
        taken.sort_by_key(|listener| listener.slot);
        assert_eq!(taken.iter().map(|l| l.slot.0).collect::<Vec<_>>(), range.clone().collect::<Vec<_>>());
        assert_eq!(claim(&range, 7).unwrap_err().errno, Errno::EMFILE);
        drop(taken.remove(1));
        assert_eq!(claim(&range, 0).unwrap().slot, Slot(base + 1));
    }

    #[test]
    fn nobody_at_a_slot_is_refused_at_once() {
        let error = connect(Slot(65_000), Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.errno, Errno::ECONNREFUSED);
    }
}
