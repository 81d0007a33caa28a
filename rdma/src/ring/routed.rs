//! Requests whose completions go to the [`Results`] of their work queue.
//!
//! `aio::QueuePair::start` takes the next free sink and posts the request *routed*: `SINK` in the
//! `wr_id`, `ROUTED` in the slot's [`Info`]. Whoever fetches the completion (the driver, a
//! `Poller`, a scope) frees the slot and makes the report in its sink. Receives have sinks too, so
//! messages come in the order in which their receives were posted. A future that nobody polls
//! occupies a sink, never a slot.

use std::sync::OnceLock;

use rdma_sys::{ibv_wc, ibv_wc_status};

use super::results::{After, Results};
use super::{Cached, Claimed, Grabbed, Info, Producer, ReturnedMemory, Ring};
use crate::panics::Panics;

/// A place for the results of a ring's requests. Results live as long as their ring: without a time
/// limit (R4).
pub(super) type Place = OnceLock<&'static Results<Report>>;

/// The report of one ended request, with the memory that it returns.
pub(crate) struct Report {
    pub(crate) wc: ibv_wc,
    pub(crate) info: Info,
    pub(crate) memory: ReturnedMemory,
}

/// Ends a routed request with [one segment](Info::is_routed_single) that was just claimed: frees
/// the slot, and then publishes the report (W3). `cached` is what found the slot. Panics of user
/// code go to `panics`.
#[inline(always)]
pub(crate) fn publish_single(grabbed: Grabbed, wc: &ibv_wc, cached: &Cached, panics: &mut Panics) {
    let (token, info) = grabbed.read();
    let segment = grabbed.into_single().take();
    // SAFETY: as_ref requires a valid ring: the slot was found in it (K1), and a ring is never
    // freed (R4).
    let ring = unsafe { cached.ring.as_ref() };
    let report = || Report { wc: *wc, info, memory: ReturnedMemory::single(segment) };
    // SAFETY: publish requires the token of a routed request of this ring that is published once:
    // it is that of the slot, whose use was claimed once.
    if let Some(after) = unsafe { ring.publish(token, report) } {
        after.run(panics);
    }
}

impl After<'_, Report> {
    /// Wakes the tasks, and drops the report that nobody wants.
    #[inline(never)]
    fn run(self, panics: &mut Panics) {
        for waker in self.wakers.into_iter().flatten() {
            panics.catch(|| waker.wake());
        }
        panics.catch(|| drop(self.given_up));
    }
}

impl Ring {
    /// Prepares the results, if there are any, for another work queue.
    pub(super) fn renew_results(&self) {
        if let Some(results) = self.results.get() {
            results.renew();
        }
    }
}

impl Producer {
    /// The results of the queue's routed requests.
    #[inline]
    pub(crate) fn results(&self) -> &'static Results<Report> {
        self.ring().results.get_or_init(|| Box::leak(Box::new(Results::new())))
    }
}

impl Claimed {
    /// Ends a routed request: frees the slot, and then publishes the report (W3).
    pub(super) fn publish(mut self, wc: &ibv_wc) {
        self.is_routed = false;
        let memory = self.take_all();
        let (ring, token, info) = (self.ring, self.token, self.info);
        let mut panics = Panics::default();
        panics.catch(|| drop(self));
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        let ring = unsafe { ring.as_ref() };
        // SAFETY: publish requires the token of a routed request of this ring that is published
        // once: it is that of the slot, whose use was claimed once, and `is_routed` was set until
        // now.
        if let Some(after) = unsafe { ring.publish(token, || Report { wc: *wc, info, memory }) } {
            after.run(&mut panics);
        }
        panics.resume();
    }

    /// Ends a routed request that is dropped: it ended with its queue pair, or a later completion
    /// releases it. Publishes its report after the slot was freed (W3).
    #[cold]
    pub(super) fn publish_flushed(&mut self) {
        self.is_routed = false;
        let memory = self.take_all();
        let wc = self.flushed();
        let mut panics = Panics::default();
        panics.catch(|| self.drop_rest_and_release());
        // SAFETY: publish requires the token of a routed request of this ring that is published
        // once: it is that of the slot, whose use was claimed once, and `is_routed` was set until
        // now.
        if let Some(after) = unsafe { self.ring().publish(self.token, || Report { wc, info: self.info, memory }) } {
            after.run(&mut panics);
        }
        panics.resume();
    }

    /// Takes all segments.
    pub(super) fn take_all(&mut self) -> ReturnedMemory {
        let first = self.take();
        let mut rest = Vec::new();
        while let Some(segment) = self.take() {
            rest.push(segment);
        }
        ReturnedMemory::new(first, rest)
    }

    /// The completion of a request that ended with its queue pair, or that a later completion
    /// releases.
    pub(super) fn flushed(&self) -> ibv_wc {
        ibv_wc { wr_id: self.wr_id, status: ibv_wc_status::IBV_WC_WR_FLUSH_ERR, ..ibv_wc::default() }
    }
}

impl Ring {
    /// Publishes the report of a request whose slot is free, as [`Results::publish`].
    ///
    /// # Safety
    ///
    /// `token` is that of a routed request of this ring, and this is the request's only
    /// publication (W4 of [`results`](super::results)).
    #[inline(always)]
    unsafe fn publish(&self, token: u64, report: impl FnOnce() -> Report) -> Option<After<'_, Report>> {
        // SAFETY: the callee has the same contract as this function.
        unsafe { self.results.get()?.publish(token, report) }
    }
}
