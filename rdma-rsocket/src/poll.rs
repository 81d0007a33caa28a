//! `rpoll`: waits for rsockets and plain descriptors together.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use libc::c_short;
use nix::errno::Errno;

use crate::socket::Socket;
use crate::wait::{self, Bell, Polled, SPIN};

/// An rsocket or a descriptor to wait for.
#[derive(Debug)]
pub struct PollEntry<'a> {
    target: Target<'a>,
    events: c_short,
    found: c_short,
}

#[derive(Debug)]
enum Target<'a> {
    Socket(&'a Socket),
    Descriptor(RawFd),
}

impl<'a> PollEntry<'a> {
    /// Waits for events of poll(2) on an rsocket.
    #[must_use]
    pub fn socket(socket: &'a Socket, events: c_short) -> Self {
        Self { target: Target::Socket(socket), events, found: 0 }
    }

    /// Waits for events of poll(2) on a descriptor. As for poll(2), it may be closed.
    #[must_use]
    pub fn descriptor(fd: RawFd, events: c_short) -> Self {
        Self { target: Target::Descriptor(fd), events, found: 0 }
    }

    /// The events that the last [`poll`] found.
    #[must_use]
    pub fn found(&self) -> c_short {
        self.found
    }
}

/// Waits until an entry has one of its events, or until the time is over. Returns the number of
/// entries with events.
///
/// # Errors
///
/// `EINTR` after a signal.
#[doc(alias = "rpoll")]
#[doc(alias = "rselect")]
pub fn poll(entries: &mut [PollEntry<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    // A time that is too far for the clock is no time.
    Ok(poll_until(entries, timeout.and_then(|timeout| Instant::now().checked_add(timeout)))?)
}

/// [`poll`] with the end of the time.
pub(crate) fn poll_until(entries: &mut [PollEntry<'_>], deadline: Option<Instant>) -> Result<usize, Errno> {
    let spin_until = Instant::now() + SPIN;
    loop {
        let count = look(entries)?;
        let now = Instant::now();
        if count > 0 || deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(count);
        }
        if now >= spin_until {
            sleep(entries, deadline)?;
        }
    }
}

/// Looks for events. Returns the number of entries with events.
fn look(entries: &mut [PollEntry<'_>]) -> Result<usize, Errno> {
    let mut plain: Vec<Polled> = entries.iter().filter_map(PollEntry::plain).collect();
    if !plain.is_empty() {
        wait::poll(&mut plain, Some(Instant::now()))?;
    }
    let mut plain = plain.iter();
    for entry in entries.iter_mut() {
        entry.found = match entry.target {
            Target::Socket(socket) => socket.ready(entry.events),
            Target::Descriptor(_) => plain.next().map_or(0, Polled::found),
        };
    }
    Ok(entries.iter().filter(|entry| entry.found != 0).count())
}

/// Sleeps until something may have happened.
fn sleep(entries: &[PollEntry<'_>], deadline: Option<Instant>) -> Result<(), Errno> {
    let bell = Bell::of_thread()?;
    let mut sources: Vec<Polled> = entries.iter().filter_map(PollEntry::plain).collect();
    let sockets = || {
        entries.iter().filter_map(|entry| match entry.target {
            Target::Socket(socket) => Some((socket, entry.events)),
            Target::Descriptor(_) => None,
        })
    };
    let prepared = sockets().take_while(|(socket, events)| socket.prepare_sleep(*events, &bell, &mut sources)).count();
    let slept = if prepared == sockets().count() { bell.sleep(&mut sources, deadline) } else { Ok(()) };
    sockets().take(prepared).for_each(|(socket, _)| socket.end_sleep(&bell));
    slept
}

impl PollEntry<'_> {
    fn plain(&self) -> Option<Polled> {
        match self.target {
            Target::Socket(_) => None,
            Target::Descriptor(fd) => Some(Polled::raw(fd, self.events)),
        }
    }
}
