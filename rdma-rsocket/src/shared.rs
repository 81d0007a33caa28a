//! Sockets that threads share: calls that wait for a change of the socket's state.
//!
//! One mutex protects all of a socket. No thread sleeps with it: a call that cannot proceed joins
//! the socket's [`Sleepers`], unlocks, and sleeps on the descriptors of the libraries.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::{c_int, c_short};
use nix::errno::Errno;
use nix::sys::socket::MsgFlags;

use crate::process::Owner;
use crate::settings::Settings;
use crate::wait::{Bell, Polled, SPIN, Sleepers};

/// How often a call looks again after something has changed, before it looks at the time and lets
/// other threads use the socket.
const TURNS: usize = 16;

/// The state of a socket, as far as calls wait for its changes.
pub(crate) trait Waiting {
    fn sleepers(&mut self) -> &mut Sleepers;

    /// Whether every call fails.
    fn is_closed(&self) -> bool;

    fn settings(&mut self) -> &mut Settings;

    /// The longest sleep before the peer is probed.
    fn probe_interval(&self) -> Option<Duration> {
        None
    }

    /// Processes completions. Returns whether there were any.
    fn poll(&mut self) -> bool;

    /// Processes events of other descriptors than those of completions. Returns whether there were
    /// any.
    fn take_events(&mut self) -> bool;

    /// Asks for an event at the next completion. Returns true if completions that came before it
    /// must be looked for.
    fn arm(&mut self) -> Result<bool, Errno>;

    /// The descriptors that become readable when something happens.
    fn sources(&mut self) -> Vec<Polled>;

    /// Takes the completion events that have ended a sleep. Probes the peer after `probe`.
    fn awake(&mut self, probe: Option<Instant>);

    /// The events of poll(2) that the socket has now.
    fn ready(&mut self, events: c_short) -> c_short;

    /// Ends the socket's work for a reason.
    fn fail(&mut self, errno: Errno);
}

/// A socket's state, which threads share.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    fd: RawFd,
    /// The process whose socket it is.
    owner: Owner,
    state: Mutex<S>,
}

impl<S: Waiting> Shared<S> {
    /// A socket with a number.
    pub(crate) fn of(fd: RawFd, state: S) -> Self {
        Self { fd, owner: Owner::current(), state: Mutex::new(state) }
    }

    /// The socket's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Whether the socket belongs to the parent of this process.
    pub(crate) fn is_inherited(&self) -> bool {
        self.owner != Owner::current()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a socket that is not closed. `EBADF` in a forked child, where the lock may be held by
    /// a thread of the parent.
    pub(crate) fn open(&self) -> Result<MutexGuard<'_, S>, Errno> {
        if self.is_inherited() {
            return Err(Errno::EBADF);
        }
        let state = self.lock();
        if state.is_closed() { Err(Errno::EBADF) } else { Ok(state) }
    }

    pub(crate) fn is_nonblocking(&self) -> Result<bool, Errno> {
        Ok(self.open()?.settings().is_nonblocking)
    }

    pub(crate) fn set_nonblocking(&self, is_nonblocking: bool) -> Result<(), Errno> {
        self.open()?.settings().is_nonblocking = is_nonblocking;
        Ok(())
    }

    /// The flags of `F_GETFD`; sets them if new ones are given.
    pub(crate) fn descriptor_flags(&self, new: Option<c_int>) -> Result<c_int, Errno> {
        let mut state = self.open()?;
        let flags = &mut state.settings().descriptor_flags;
        *flags = new.unwrap_or(*flags);
        Ok(*flags)
    }

    /// Repeats an attempt until it has a result, and sleeps meanwhile. `EAGAIN` once the deadline
    /// has passed, `EINTR` after a signal.
    pub(crate) fn until<T>(
        &self,
        wait: Wait,
        mut attempt: impl FnMut(&mut S) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let mut state = self.open()?;
        let deadline = wait.deadline(state.settings().is_nonblocking);
        let mut spin_until = None;
        let mut turns = 0;
        loop {
            let mut is_changed = state.poll();
            if let Some(result) = attempt(&mut state) {
                return result;
            }
            is_changed |= state.take_events();
            turns = if is_changed { turns + 1 } else { 0 };
            if is_changed && turns % TURNS != 0 {
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Errno::EAGAIN);
            }
            if is_changed || now < *spin_until.get_or_insert(now + SPIN) {
                drop(state);
                std::hint::spin_loop();
                state = self.open()?;
            } else if !state.arm()? {
                state = self.sleep(state, deadline)?;
            }
        }
    }

    /// Sleeps until the state may have changed.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, S>,
        deadline: Option<Instant>,
    ) -> Result<MutexGuard<'a, S>, Errno> {
        let bell = Bell::of_thread()?;
        let mut sources = state.sources();
        let probe = state.probe_interval().map(|interval| Instant::now() + interval);
        state.sleepers().join(&bell);
        drop(state);
        let slept = bell.sleep(&mut sources, [deadline, probe].into_iter().flatten().min());
        let mut state = self.lock();
        state.sleepers().leave(&bell);
        if state.is_closed() {
            return Err(Errno::EBADF);
        }
        state.awake(probe);
        slept.map(|()| state)
    }

    /// The events of poll(2) that the socket has now.
    pub(crate) fn ready(&self, events: c_short) -> c_short {
        let Ok(mut state) = self.open() else { return libc::POLLNVAL };
        for _ in 0..TURNS {
            let is_changed = state.poll();
            let ready = state.ready(events);
            if ready != 0 || !(state.take_events() || is_changed) {
                return ready;
            }
        }
        // More has come: `prepare_sleep`, or the descriptor, makes the caller look again.
        0
    }

    /// Prepares the calling thread's sleep: adds the descriptors to sleep on. Returns false if the
    /// socket must be looked at again first.
    pub(crate) fn prepare_sleep(&self, bell: &Arc<Bell>, sources: &mut Vec<Polled>) -> bool {
        let Ok(mut state) = self.open() else { return false };
        match state.arm() {
            Ok(false) => (),
            Ok(true) => return false,
            Err(errno) => {
                state.fail(errno);
                return false;
            }
        }
        sources.extend(state.sources());
        state.sleepers().join(bell);
        true
    }

    /// Ends the calling thread's sleep.
    pub(crate) fn end_sleep(&self, bell: &Arc<Bell>) {
        let mut state = self.lock();
        state.sleepers().leave(bell);
        state.awake(None);
    }
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// As the socket's mode says.
    Mode,
    /// Not at all.
    Never,
    Until(Instant),
}

impl Wait {
    pub(crate) fn of(flags: MsgFlags) -> Self {
        if flags.contains(MsgFlags::MSG_DONTWAIT) { Self::Never } else { Self::Mode }
    }

    fn deadline(self, is_nonblocking: bool) -> Option<Instant> {
        match self {
            Self::Mode => is_nonblocking.then(Instant::now),
            Self::Never => Some(Instant::now()),
            Self::Until(deadline) => Some(deadline),
        }
    }
}
