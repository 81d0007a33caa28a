//! Waiting for a completion: spin, then yield, then sleep.
//!
//! Spinning has the lowest latency, but where there are more waiting threads than cores it keeps the one from running that
//! would make the completion. So a waiter spins for a few microseconds only, then offers its core to others for a while, and
//! then sleeps on the completion channel.

use std::hint;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::completion::Completion;
use super::poll::{Found, Poller};
use super::{ChannelInner, CqInner};
use crate::error::{Error, Operation, Result};
use crate::wait::{self, Deadline};

/// Polls without a pause.
const SPINS: u32 = 200;
/// How long to yield before sleeping.
const YIELD: Duration = Duration::from_micros(200);
/// How long to sleep at a time without a channel, first and at most.
const NAP: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));

impl Poller {
    /// The next completion, waiting for it if there is none; none after `timeout`, without which it waits for ever.
    ///
    /// It polls for some microseconds, then yields, then sleeps on the queue's channel, or, where it has none, in short naps.
    /// The channel should have no other queues: their events would be taken here.
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll), and what waiting on the channel reports.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Completion<'_>>> {
        let found = self.find(timeout)?;
        Ok(found.map(|found| Completion::new(self, found)))
    }

    fn find(&mut self, timeout: Option<Duration>) -> Result<Option<Found>> {
        for _ in 0..SPINS {
            if let Some(found) = self.advance()? {
                return Ok(Some(found));
            }
            hint::spin_loop();
        }
        let start = Instant::now();
        let expired = || timeout.is_some_and(|timeout| start.elapsed() >= timeout);
        while start.elapsed() < YIELD {
            thread::yield_now();
            if let Some(found) = self.advance()? {
                return Ok(Some(found));
            }
            if expired() {
                return Ok(None);
            }
        }
        let deadline = Deadline::after(timeout.map(|timeout| timeout.saturating_sub(start.elapsed())));
        let cq = Arc::clone(&self.cq);
        match &cq.channel {
            Some(channel) => self.sleep(&cq, channel, deadline),
            None => self.nap(deadline),
        }
    }

    fn sleep(&mut self, cq: &CqInner, channel: &ChannelInner, deadline: Deadline) -> Result<Option<Found>> {
        let failed = |error: io::Error| Error::from_io(Operation::GetCqEvent, &error);
        let asleep = cq.sharing.fall_asleep();
        let mut slept = false;
        loop {
            let bell = cq.sharing.bell()?;
            cq.arm(false)?;
            // What arrived before the queue was armed raises no event, and what others put aside before we counted as
            // asleep rings no bell.
            if let Some(found) = self.advance()? {
                if slept {
                    asleep.wake_another();
                }
                return Ok(Some(found));
            }
            if deadline.is_over() {
                return Ok(None);
            }
            if bell.is_none() && !cq.sharing.crowd.is_alone() {
                continue;
            }
            wait::any_readable([Some(channel.fd()), bell], deadline).map_err(failed)?;
            if let Some(bell) = bell {
                wait::take(bell);
            }
            // This event, and any left over from earlier: the queue is armed anew before we sleep again.
            while channel.try_next_event()?.is_some() {}
            slept = true;
        }
    }

    fn nap(&mut self, deadline: Deadline) -> Result<Option<Found>> {
        let mut nap = NAP.0;
        loop {
            if let Some(found) = self.advance()? {
                return Ok(Some(found));
            }
            if deadline.is_over() {
                return Ok(None);
            }
            thread::sleep(nap);
            nap = (nap * 2).min(NAP.1);
        }
    }
}
