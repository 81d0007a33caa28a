//! The knowledge, shared by all threads of this rank, whether another rank has failed.
//!
//! Each rank sends a heartbeat frame at regular intervals. A rank whose process is stopped, whose
//! host has lost power, or whose connection is only held open by a child process sends none, and is
//! given up.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use socket2::Socket;

use crate::Error;

/// Tells whether a rank has failed; cheap enough to ask in a polling loop.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    job: Arc<State>,
    /// The failure of a part of the job alone, whose ranks this watch is for.
    part: Arc<Reason>,
}

#[derive(Debug, Default)]
struct State {
    reason: Reason,
    /// Set once the end of a connection is no failure any more.
    closing: AtomicBool,
    awaited: Mutex<String>,
}

/// Whether something has failed, and why.
#[derive(Debug, Default)]
struct Reason {
    failed: AtomicBool,
    why: OnceLock<Error>,
    /// Whether a caller has got the reason.
    is_told: AtomicBool,
}

impl Reason {
    /// Keeps the reason if it is the first, since later ones follow from it; returns whether it is.
    fn set(&self, why: Error) -> bool {
        let is_first = self.why.set(why).is_ok();
        self.failed.store(true, Ordering::Release);
        is_first
    }

    #[inline]
    fn check(&self) -> Result<(), Error> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.is_told.store(true, Ordering::Relaxed);
        Err(self.why.get().cloned().unwrap_or_else(|| Error::peer("another rank has failed")))
    }
}

impl Watch {
    /// A watch of no job, which has not failed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A watch of a part of the job.
    pub(super) fn of_part(&self) -> Self {
        Self { job: Arc::clone(&self.job), part: Arc::default() }
    }

    /// Keeps the reason why the job has failed if it is the first; returns whether it is.
    pub(crate) fn fail(&self, why: Error) -> bool {
        self.job.reason.set(why)
    }

    /// The same for this part of the job alone.
    pub(super) fn fail_part(&self, why: Error) -> bool {
        self.part.set(why)
    }

    /// The reason why this part of the job alone has failed, if no caller has got it yet.
    pub(super) fn untold(&self) -> Option<Error> {
        let why = self.part.why.get()?;
        (!self.part.is_told.swap(true, Ordering::Relaxed)).then(|| why.clone())
    }

    pub(super) fn close(&self) {
        self.job.closing.store(true, Ordering::Release);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.job.closing.load(Ordering::Acquire)
    }

    /// Sets the name of the thing that this rank waits for, for the message if a rank is lost
    /// meanwhile; an empty one if it does not wait.
    pub fn wait_for(&self, what: &str) {
        what.clone_into(&mut self.job.awaited.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The name of the thing that this rank waits for.
    pub(super) fn awaited(&self) -> String {
        self.job.awaited.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails if another rank has failed, or if the ranks of this part of the job do different
    /// operations.
    ///
    /// # Errors
    /// The reason of the failure.
    pub fn check(&self) -> Result<(), Error> {
        self.job.reason.check()?;
        self.part.check()
    }

    /// Fails if this part of the job has failed, and not the whole job.
    #[inline]
    pub(super) fn check_part(&self) -> Result<(), Error> {
        self.part.check()
    }
}

/// The reading half of a connection on which bytes arrive at least every `limit`.
pub(super) struct Pulse<'a> {
    stream: &'a Socket,
    limit: Duration,
    heard: Instant,
}

impl<'a> Pulse<'a> {
    /// The interval between two frames of a rank that may be silent for at most `limit`.
    pub(super) fn period(limit: Duration) -> Duration {
        limit / 5
    }

    /// Sets the read timeout of the connection.
    pub(super) fn new(stream: &'a Socket, limit: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(Self::period(limit)))?;
        Ok(Self { stream, limit, heard: Instant::now() })
    }
}

impl Read for Pulse<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let began = Instant::now();
            let read = (&mut &*self.stream).read(bytes);
            let now = Instant::now();
            match read {
                Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    self.heard = now;
                    return read;
                }
            }
            if now - began > 3 * Self::period(self.limit) {
                // This process was stopped itself, and could not hear its peers meanwhile.
                self.heard = now;
            } else if now - self.heard > self.limit {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// Whether a read has timed out, which Linux reports as `WouldBlock`.
#[must_use]
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
