//! `repoll_wait`: waits for rsockets and plain descriptors whose list lasts over several waits, as
//! epoll(7) does.
//!
//! Reports are level-triggered: an entry is reported as long as it is ready. `EPOLLET` has no
//! effect, because a program that reads until `EAGAIN` is right with both.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use libc::{c_short, epoll_event};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::poll::{PollEntry, poll_until};
use crate::socket::Socket;
use crate::wait::{self, Polled};

/// The events that poll(2) has, too; both calls have the same numbers for them.
const EVENTS: c_short = libc::POLLIN
    | libc::POLLPRI
    | libc::POLLOUT
    | libc::POLLERR
    | libc::POLLHUP
    | libc::POLLRDHUP
    | libc::POLLRDNORM
    | libc::POLLRDBAND
    | libc::POLLWRNORM
    | libc::POLLWRBAND;

/// `EPOLLONESHOT`
const ONE_SHOT: u32 = 1 << 30;

/// A list of rsockets and descriptors to wait for.
#[derive(Debug)]
pub(crate) struct Epoll {
    /// The descriptor whose number names the list.
    name: EventFd,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    entries: BTreeMap<RawFd, Entry>,
    /// Signalled once at the next change, for the threads that wait.
    change: Option<Arc<EventFd>>,
    /// The number of changes.
    changes: u64,
    /// The entry with which the next report begins, so that every one has its turn.
    next: RawFd,
    is_closed: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    target: Target,
    events: u32,
    data: u64,
    /// The number of the change that made the entry: after another one, a result is out of date.
    change: u64,
    /// Whether the entry was reported and has `EPOLLONESHOT`.
    is_done: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Leaves the list when the socket is closed.
    Socket(Weak<Socket>),
    Descriptor,
}

/// An entry that a thread waits for.
struct Watched {
    fd: RawFd,
    socket: Option<Arc<Socket>>,
    change: u64,
    events: c_short,
}

impl Epoll {
    /// An empty list.
    pub(crate) fn new(closes_on_exec: bool) -> Result<Self, Errno> {
        let flags = if closes_on_exec { EfdFlags::EFD_CLOEXEC } else { EfdFlags::empty() };
        Ok(Self { name: EventFd::from_flags(flags)?, list: Mutex::default() })
    }

    pub(crate) fn number(&self) -> RawFd {
        self.name.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `EPOLL_CTL_ADD`. `EEXIST` if the list has the descriptor, `EBADF` if it is closed.
    pub(crate) fn add(&self, fd: RawFd, target: Target, event: epoll_event) -> Result<(), Errno> {
        if matches!(target, Target::Descriptor) && !is_open(fd)? {
            return Err(Errno::EBADF);
        }
        self.lock().change(|entries, change| {
            // The descriptor of a socket that was closed may have become another one's.
            if entries.get(&fd).is_some_and(|entry| entry.target.is_same(&target)) {
                return Err(Errno::EEXIST);
            }
            entries.insert(fd, Entry::new(target, event, change));
            Ok(())
        })
    }

    /// `EPOLL_CTL_MOD`. `ENOENT` if the list lacks the descriptor.
    pub(crate) fn modify(&self, fd: RawFd, event: epoll_event) -> Result<(), Errno> {
        self.lock().change(|entries, change| {
            let entry = entries.get_mut(&fd).ok_or(Errno::ENOENT)?;
            *entry = Entry::new(entry.target.clone(), event, change);
            Ok(())
        })
    }

    /// `EPOLL_CTL_DEL`. `ENOENT` if the list lacks the descriptor.
    pub(crate) fn remove(&self, fd: RawFd) -> Result<(), Errno> {
        self.lock().change(|entries, _| entries.remove(&fd).map(drop).ok_or(Errno::ENOENT))
    }

    /// Ends the waits of all threads with `EBADF`.
    pub(crate) fn close(&self) {
        let mut list = self.lock();
        list.is_closed = true;
        list.signal();
    }

    /// Waits until entries are ready, or until the deadline. Returns how many events it has
    /// written, as many as there is space for.
    pub(crate) fn wait(
        &self,
        room: &mut [MaybeUninit<epoll_event>],
        deadline: Option<Instant>,
    ) -> Result<usize, Errno> {
        loop {
            let (watched, change) = self.lock().watch()?;
            let mut polled: Vec<PollEntry<'_>> = watched.iter().map(Watched::entry).collect();
            // Changes of the list end the wait, too.
            polled.push(PollEntry::descriptor(change.as_raw_fd(), libc::POLLIN));
            poll_until(&mut polled, deadline)?;
            let found = watched.iter().zip(&polled).map(|(watched, polled)| (watched, polled.found()));
            let count = self.lock().report(found.filter(|(_, found)| *found != 0), room);
            if count > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(count);
            }
        }
    }
}

impl List {
    /// Changes the entries, and wakes the threads that wait. `change` gets the change's number.
    fn change(
        &mut self,
        change: impl FnOnce(&mut BTreeMap<RawFd, Entry>, u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.is_closed {
            return Err(Errno::EBADF);
        }
        self.changes += 1;
        change(&mut self.entries, self.changes)?;
        self.signal();
        Ok(())
    }

    /// Wakes the threads that wait. They take the next signal from a new descriptor, so this one
    /// stays signalled until all have seen it.
    fn signal(&mut self) {
        if let Some(change) = self.change.take() {
            // Fails only if the counter is full, and it is zero.
            let _full = change.write(1);
        }
    }

    /// The entries to wait for, and the signal of the next change.
    fn watch(&mut self) -> Result<(Vec<Watched>, Arc<EventFd>), Errno> {
        if self.is_closed {
            return Err(Errno::EBADF);
        }
        let change = match &self.change {
            Some(change) => Arc::clone(change),
            None => {
                let change = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
                Arc::clone(self.change.insert(change))
            }
        };
        self.entries.retain(|_, entry| entry.target.is_alive());
        let (before, after) = (self.entries.range(..self.next), self.entries.range(self.next..));
        let waiting = after.chain(before).filter(|(_, entry)| !entry.is_done);
        Ok((waiting.filter_map(|(&fd, entry)| Watched::new(fd, entry)).collect(), change))
    }

    /// Writes the events of entries that are ready. Returns their number.
    fn report<'a>(
        &mut self,
        found: impl Iterator<Item = (&'a Watched, c_short)>,
        room: &mut [MaybeUninit<epoll_event>],
    ) -> usize {
        let mut count = 0;
        for (watched, events) in found {
            let Some(entry) = self.entries.get_mut(&watched.fd) else { continue };
            if entry.change != watched.change || entry.is_done {
                continue;
            }
            if events & libc::POLLNVAL != 0 {
                // Closed without our knowledge: epoll forgets it, too.
                self.entries.remove(&watched.fd);
                continue;
            }
            let Some(to) = room.get_mut(count) else {
                self.next = watched.fd;
                break;
            };
            to.write(epoll_event { events: to_epoll(events), u64: entry.data });
            entry.is_done = entry.events & ONE_SHOT != 0;
            count += 1;
        }
        count
    }
}

impl Entry {
    fn new(target: Target, event: epoll_event, change: u64) -> Self {
        Self { target, events: event.events, data: event.u64, change, is_done: false }
    }
}

impl Target {
    fn is_alive(&self) -> bool {
        match self {
            Self::Socket(socket) => socket.strong_count() > 0,
            Self::Descriptor => true,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Socket(one), Self::Socket(other)) => Weak::ptr_eq(one, other),
            (Self::Descriptor, Self::Descriptor) => true,
            _ => false,
        }
    }
}

impl Watched {
    /// `None` if the socket is closed.
    fn new(fd: RawFd, entry: &Entry) -> Option<Self> {
        let socket = match &entry.target {
            Target::Socket(socket) => Some(socket.upgrade()?),
            Target::Descriptor => None,
        };
        Some(Self { fd, socket, change: entry.change, events: to_poll(entry.events) })
    }

    fn entry(&self) -> PollEntry<'_> {
        match &self.socket {
            Some(socket) => PollEntry::socket(socket, self.events),
            None => PollEntry::descriptor(self.fd, self.events),
        }
    }
}

/// The events of poll(2) among those of epoll(7).
fn to_poll(events: u32) -> c_short {
    let [low, high, ..] = events.to_le_bytes();
    c_short::from_le_bytes([low, high]) & EVENTS
}

fn to_epoll(events: c_short) -> u32 {
    u32::from(u16::from_le_bytes((events & EVENTS).to_le_bytes()))
}

/// Whether a descriptor is open.
fn is_open(fd: RawFd) -> Result<bool, Errno> {
    let mut polled = [Polled::raw(fd, 0)];
    wait::poll(&mut polled, Some(Instant::now()))?;
    Ok(fd >= 0 && polled[0].found() & libc::POLLNVAL == 0)
}
