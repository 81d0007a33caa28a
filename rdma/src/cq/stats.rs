//! What a completion queue has done.
//!
//! Each poller counts in a [`Tally`] of its own, beside the entries that it fetches, so that no two
//! threads write to one line. The queue has one more for the threads that work for scopes and
//! drivers, and for the counts of pollers that have gone.

use std::ops::Add;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rdma_sys::ibv_wc_status;

/// What a completion queue has done since its creation:
/// [`CompletionQueue::stats`](crate::CompletionQueue::stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqStats {
    /// Completions that were handed out, to pollers, scopes and futures. Only grows.
    pub completions: u64,
    /// Those with another status than success, flushed ones included. Only grows.
    pub failed: u64,
    /// The failed completions of requests that were flushed, because their queue pair is in the
    /// error state. Only grows.
    pub flushed: u64,
    /// The failed completions of requests that the peer did not acknowledge, however often the
    /// device sent them (`RETRY_EXC_ERR`). Only grows.
    pub retries_exceeded: u64,
    /// The failed completions of requests for which the peer had no receive posted, however often
    /// the device sent them (`RNR_RETRY_EXC_ERR`). Only grows.
    pub rnr_retries_exceeded: u64,
    /// Completions that named no request in flight: [those that the queue
    /// counts](crate::CompletionQueue::stale_completions). Only grows.
    pub stale: u64,
    /// Polls of the device that found no completion. Only grows.
    pub empty_polls: u64,
    /// How often a poller slept on the queue's channel. Only grows.
    pub sleeps: u64,
    /// The most completions that one poll of the device found, if it found several; at most 16: a
    /// high-water mark. 16 means that completions arrived faster than they were handled.
    pub most_at_once: u32,
    /// Pollers that exist now. Goes up and down.
    pub pollers: u32,
    /// Completions that were fetched for a poller that no longer polls alone, or has gone, and that
    /// the next poll hands out. Goes up and down.
    pub backlog: usize,
}

impl Add for CqStats {
    type Output = Self;

    /// The sums for two queues; of the high-water marks, the larger.
    fn add(self, other: Self) -> Self {
        Self {
            completions: self.completions + other.completions,
            failed: self.failed + other.failed,
            flushed: self.flushed + other.flushed,
            retries_exceeded: self.retries_exceeded + other.retries_exceeded,
            rnr_retries_exceeded: self.rnr_retries_exceeded + other.rnr_retries_exceeded,
            stale: self.stale + other.stale,
            empty_polls: self.empty_polls + other.empty_polls,
            sleeps: self.sleeps + other.sleeps,
            most_at_once: self.most_at_once.max(other.most_at_once),
            pollers: self.pollers + other.pollers,
            backlog: self.backlog + other.backlog,
        }
    }
}

/// The counters of one poller, or those that several threads share. They are far from wrapping:
/// 64 bits.
#[derive(Default)]
pub(super) struct Tally {
    completed: AtomicU64,
    failed: AtomicU64,
    flushed: AtomicU64,
    retries_exceeded: AtomicU64,
    rnr_retries_exceeded: AtomicU64,
    empty: AtomicU64,
    sleeps: AtomicU64,
    most: AtomicU32,
}

impl Tally {
    /// Counts a completion that is handed out, for the only thread that counts here.
    #[inline(always)]
    pub(super) fn completed(&self) {
        add(&self.completed, 1);
    }

    /// As [`completed`](Self::completed), while other threads count here too.
    pub(super) fn completed_shared(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a poll that has found none or several completions, for the only thread that counts
    /// here.
    #[inline]
    pub(super) fn found(&self, count: u32) {
        if count == 0 {
            add(&self.empty, 1);
        } else if count > self.most.load(Ordering::Relaxed) {
            self.most.store(count, Ordering::Relaxed);
        }
    }

    /// As [`found`](Self::found), while other threads count here too.
    pub(super) fn found_shared(&self, count: usize) {
        if count == 0 {
            self.empty.fetch_add(1, Ordering::Relaxed);
        } else if let Ok(count) = u32::try_from(count) {
            if count > self.most.load(Ordering::Relaxed) {
                self.most.fetch_max(count, Ordering::Relaxed);
            }
        }
    }

    /// Counts a completion with a status other than success. Other threads may count here too.
    #[cold]
    pub(super) fn failed(&self, status: ibv_wc_status) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let kind = match status {
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => &self.flushed,
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR => &self.retries_exceeded,
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => &self.rnr_retries_exceeded,
            _ => return,
        };
        kind.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a sleep. Other threads may count here too.
    pub(super) fn slept(&self) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the counts to a sum.
    pub(super) fn add_to(&self, sum: &mut CqStats) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        sum.completions += of(&self.completed);
        sum.failed += of(&self.failed);
        sum.flushed += of(&self.flushed);
        sum.retries_exceeded += of(&self.retries_exceeded);
        sum.rnr_retries_exceeded += of(&self.rnr_retries_exceeded);
        sum.empty_polls += of(&self.empty);
        sum.sleeps += of(&self.sleeps);
        sum.most_at_once = sum.most_at_once.max(self.most.load(Ordering::Relaxed));
    }

    /// Adds the counts of a poller that has gone. Other threads may count here too.
    pub(super) fn absorb(&self, gone: &Self) {
        let mut sum = CqStats::default();
        gone.add_to(&mut sum);
        for (counter, count) in [
            (&self.completed, sum.completions),
            (&self.failed, sum.failed),
            (&self.flushed, sum.flushed),
            (&self.retries_exceeded, sum.retries_exceeded),
            (&self.rnr_retries_exceeded, sum.rnr_retries_exceeded),
            (&self.empty, sum.empty_polls),
            (&self.sleeps, sum.sleeps),
        ] {
            counter.fetch_add(count, Ordering::Relaxed);
        }
        self.most.fetch_max(sum.most_at_once, Ordering::Relaxed);
    }
}

/// Adds to a counter that only one thread writes: no locked instruction.
#[inline(always)]
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}
