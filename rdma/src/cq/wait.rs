//! Waiting for a completion: spin, then yield, then sleep.
//!
//! Spinning has the lowest latency, but where there are more waiting threads than cores it keeps the one from running that
//! would make the completion. So a waiter spins for a few microseconds only, then offers its core to others for a while, and
//! then sleeps on the completion channel.

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

use super::completion::Completion;
use super::poll::{Found, Poller};
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
        let mut nap = NAP.0;
        loop {
            let channel = self.cq.channel.clone();
            if channel.is_some() {
                self.cq.arm(false)?;
            }
            // What arrived before the queue was armed raises no event.
            if let Some(found) = self.advance()? {
                return Ok(Some(found));
            }
            if expired() {
                return Ok(None);
            }
            match channel {
                Some(channel) => {
                    wait::readable(channel.fd(), deadline)
                        .map_err(|error| Error::from_io(Operation::GetCqEvent, &error))?;
                    // This event, and any left over from earlier: the queue is armed anew before we sleep again.
                    while channel.try_next_event()?.is_some() {}
                }
                None => {
                    thread::sleep(nap);
                    nap = (nap * 2).min(NAP.1);
                }
            }
        }
    }
}
