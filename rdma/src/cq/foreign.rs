//! Completion queues that other code has made. Numbers cite the invariants of [`super`].

use std::sync::Arc;

use rdma_sys::ibv_cq;

use super::queue::{CompletionQueue, CqBuilder, CqInner};
use crate::error::{Failed, Result, Verb};
use crate::handle::{Handle, Ownership, constants, require, require_some};
use crate::ring::FOREIGN_IDS;
use crate::types::{CqId, ForeignObject};

impl CompletionQueue {
    /// The `wr_id`s of other code's requests are less than this, if their completions come to a
    /// queue that this crate polls: 2^44.
    ///
    /// No request of this crate has such a `wr_id`. A poller drops these completions, and
    /// [`stale_completions`](Self::stale_completions) counts them.
    pub const FOREIGN_WR_IDS: u64 = FOREIGN_IDS;

    /// Makes a handle of a completion queue that was created elsewhere.
    ///
    /// `builder` says how many entries queue pairs of this crate may fill (the depth of
    /// [`cq_builder`](crate::Context::cq_builder)), and on which channel the queue's events arrive.
    /// The other entries are left to requests of other code, also by [`resize`](Self::resize). The
    /// address of the queue's user context is its [`id`](Self::id). Without a channel in `builder`
    /// the queue can only be polled.
    ///
    /// # Errors
    ///
    /// With the `Ownership`; the queue is as it was. `Foreign` for NULL, for a queue or a channel
    /// of another context, for a queue with another channel, and for one with fewer entries than
    /// asked for; `Forked`.
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`]; and:
    ///
    /// 5. `ibv_poll_cq` polls the queue.
    /// 6. Completions of requests that this crate has not posted carry a `wr_id` of less than
    ///    [`FOREIGN_WR_IDS`](Self::FOREIGN_WR_IDS), also those that are in the queue by now. Any
    ///    other number may be that of a request of this crate, whose memory would be given back too
    ///    early.
    /// 7. Requests of other code fill at most the entries that `builder` leaves to them.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// use std::ptr;
    ///
    /// use rdma::{CompletionQueue, Ownership};
    ///
    /// let (create, none) = (context.table().ibv_create_cq, ptr::null_mut());
    /// // SAFETY: ibv_create_cq requires an open context, and a channel of it or NULL.
    /// let raw = unsafe { create(context.as_raw(), 64, ptr::null_mut(), none, 0) };
    /// // SAFETY: the queue was just created, nobody else has it, and no request uses it.
    /// let cq = unsafe { CompletionQueue::from_raw(&context.cq_builder(64), raw, Ownership::Destroy)? };
    /// assert!(cq.poller().poll()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn from_raw(
        builder: &CqBuilder,
        raw: *mut ibv_cq,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        // SAFETY: `adopt` has the same contract as this function.
        let inner = unsafe { CqInner::adopt(builder, raw, ownership) }?;
        Ok(Self { inner: Arc::new(Handle::new(inner)) })
    }
}

impl CqInner {
    /// The owner of a foreign queue.
    ///
    /// # Safety
    ///
    /// As for [`CompletionQueue::from_raw`]; of a queue that is marked as raw, the caller of the
    /// polls accounts for the completions.
    pub(crate) unsafe fn adopt(
        builder: &CqBuilder,
        raw: *mut ibv_cq,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        let context = &builder.context.inner;
        let channel = builder.channel.as_ref().map(|channel| &channel.inner);
        let check = || {
            context.check(Verb::FromRaw)?;
            require_some(raw)?;
            // `constants` requires a live object: not NULL, so this function's contract says so.
            // Nobody resizes the queue meanwhile: other code owns it no longer.
            let (of, on, name, cqe) = constants!(raw => context, channel, cq_context, cqe);
            require(of == context.raw.as_ptr(), ForeignObject::OtherContext)?;
            let is_same = channel.is_none_or(|channel| channel.raw == on && Arc::ptr_eq(&channel.context, context));
            require(is_same, ForeignObject::OtherChannel)?;
            let cqe = u32::try_from(cqe).unwrap_or(0);
            let is_enough = builder.depth > 0 && builder.depth <= cqe;
            require(is_enough, ForeignObject::TooFewEntries(cqe))?;
            Ok((CqId(name.addr() as u64), cqe - builder.depth))
        };
        match check() {
            Ok((id, others)) => Ok(Self::of(raw, context, channel, id, (builder.depth, others), ownership)),
            Err(error) => Err(Failed::new(error, ownership)),
        }
    }
}
