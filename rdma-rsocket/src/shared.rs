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

use crate::number::Number;
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
    number: Number,
    /// The process whose socket it is.
    owner: Owner,
    state: Mutex<S>,
}

impl<S: Waiting> Shared<S> {
    /// A socket with a number.
    pub(crate) fn of(number: Number, state: S) -> Self {
        Self { number, owner: Owner::current(), state: Mutex::new(state) }
    }

    /// The socket's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.number.get()
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

    /// Prepares the calling thread's sleep for events of poll(2): adds the descriptors to sleep on.
    /// Returns false if the socket must be looked at again first.
    pub(crate) fn prepare_sleep(&self, events: c_short, bell: &Arc<Bell>, sources: &mut Vec<Polled>) -> bool {
        let Ok(mut state) = self.open() else { return false };
        // Since the caller looked, another thread may have changed the state, and found nobody to
        // wake. From here on it finds this thread.
        if state.ready(events) != 0 {
            return false;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that has the events of poll(2) in a list, one after the other.
    struct Scripted {
        sleepers: Sleepers,
        settings: Settings,
        ready: Vec<c_short>,
    }

    impl Waiting for Scripted {
        fn sleepers(&mut self) -> &mut Sleepers {
            &mut self.sleepers
        }

        fn is_closed(&self) -> bool {
            false
        }

        fn settings(&mut self) -> &mut Settings {
            &mut self.settings
        }

        fn poll(&mut self) -> bool {
            false
        }

        fn take_events(&mut self) -> bool {
            false
        }

        fn arm(&mut self) -> Result<bool, Errno> {
            Ok(false)
        }

        fn sources(&mut self) -> Vec<Polled> {
            Vec::new()
        }

        fn awake(&mut self, _: Option<Instant>) {}

        fn ready(&mut self, events: c_short) -> c_short {
            events & self.ready.pop().unwrap_or(0)
        }

        fn fail(&mut self, _: Errno) {}
    }

    /// Another thread makes the socket ready after it was looked at, and before its sleep.
    #[test]
    fn what_comes_before_a_sleep_is_seen() {
        let state =
            Scripted { sleepers: Sleepers::default(), settings: Settings::default(), ready: vec![libc::POLLIN, 0] };
        let (shared, bell, mut sources) =
            (Shared::of(Number::Shared(-1), state), Arc::new(Bell::new().unwrap()), Vec::new());
        assert_eq!(shared.ready(libc::POLLIN), 0);
        assert!(!shared.prepare_sleep(libc::POLLIN, &bell, &mut sources), "the thread would sleep for ever");
        assert!(shared.prepare_sleep(libc::POLLIN, &bell, &mut sources));
        shared.end_sleep(&bell);
    }
}
