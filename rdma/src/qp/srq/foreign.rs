//! Shared receive queues that other code has made. Numbers cite the invariants of [`super`].

use std::mem;

use rdma_sys::{ibv_srq, ibv_srq_attr};

use super::{SharedReceiveQueue, SrqBuilder, SrqInner};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::{Handle, Ownership, Raw, constants, require, require_some};
use crate::ring::MAX_SLOTS;
use crate::transport::Transport;
use crate::types::{ForeignObject, SrqId};

impl<T: Transport> SharedReceiveQueue<T> {
    /// Makes a queue of one that was created elsewhere.
    ///
    /// The depth and the number of segments are what the device reports; those that are set in
    /// `builder` limit what this crate uses of them. At most 32768 receives are in flight. The
    /// address of the queue's user context is its [`id`](Self::id).
    ///
    /// # Errors
    ///
    /// With the `Ownership`; the queue is as it was. `Foreign` for NULL, for a queue of another
    /// context or domain, and for one with fewer entries than asked for; `NotSupported`; `Forked`;
    /// errors of the provider.
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`]; and:
    ///
    /// 5. Receives that this crate has not posted carry a `wr_id` of less than
    ///    [`FOREIGN_WR_IDS`](crate::CompletionQueue::FOREIGN_WR_IDS): those in flight by now, and
    ///    those that other code posts later.
    /// 6. The queue is a basic one: it was made by `ibv_create_srq`, or with the type
    ///    `IBV_SRQT_BASIC`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let pd = context.alloc_pd()?;
    /// use rdma::sys::{ibv_srq_attr, ibv_srq_init_attr};
    /// use rdma::{Ownership, SharedReceiveQueue};
    ///
    /// let attr = ibv_srq_attr { max_wr: 64, max_sge: 1, srq_limit: 0 };
    /// let mut init = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
    /// // SAFETY: ibv_create_srq requires a live domain, and attributes that live during the call.
    /// let raw = unsafe { (context.table().ibv_create_srq)(pd.as_raw(), &raw mut init) };
    /// // SAFETY: the queue was just created, nobody else has it, and nothing is posted to it.
    /// let mut receives =
    ///     unsafe { SharedReceiveQueue::from_raw(&SharedReceiveQueue::builder(&pd), raw, Ownership::Destroy)? };
    /// receives.post_recv(pd.allocate(4096)?, 1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn from_raw(
        builder: &SrqBuilder<T>,
        raw: *mut ibv_srq,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        // SAFETY: `adopt` has the same contract as this function.
        let (id, depth, max_sge) = match unsafe { adopt(builder, raw) } {
            Ok(adopted) => adopted,
            Err(error) => return Err(Failed::new(error, ownership)),
        };
        let inner = SrqInner::new(Raw::new(raw), &builder.pd.inner, id, depth, ownership);
        Self::assemble(Handle::new(inner), depth, max_sge).map_err(|failed| {
            failed.map(|mut inner| {
                // The end of the handle leaves the queue as it is.
                mem::replace(&mut inner.ownership, Ownership::Keep)
            })
        })
    }
}

/// The identifier, depth and number of segments of a queue.
///
/// # Safety
///
/// As for [`SharedReceiveQueue::from_raw`].
unsafe fn adopt<T: Transport>(builder: &SrqBuilder<T>, raw: *mut ibv_srq) -> Result<(SrqId, u32, u32)> {
    let pd = &builder.pd.inner;
    let context = &pd.context;
    context.check(Verb::FromRaw)?;
    if !T::is_supported(&context.capabilities()) {
        return Err(Error::new(Verb::FromRaw, ErrorKind::NotSupported));
    }
    require_some(raw)?;
    // `constants` requires a live object: not NULL, so this function's contract says so.
    let (of, domain, name) = constants!(raw => context, pd, srq_context);
    require(of == context.raw.as_ptr(), ForeignObject::OtherContext)?;
    require(domain == pd.raw.as_ptr(), ForeignObject::OtherDomain)?;
    let mut has = ibv_srq_attr::default();
    // SAFETY: ibv_query_srq requires a live queue of this table (this function's contract), and
    // space for the attributes: a local.
    let call = || unsafe { (context.table.ibv_query_srq)(raw, &raw mut has) };
    Error::check(Verb::QuerySrq, call)?;
    let choose = |asked: Option<u32>, has: u32| {
        let is_enough = has > 0 && asked.is_none_or(|asked| (1..=has).contains(&asked));
        require(is_enough, ForeignObject::TooFewEntries(has)).map(|()| asked.unwrap_or(has))
    };
    let depth = choose(builder.max_wr, has.max_wr)?.min(MAX_SLOTS / 2);
    let max_sge = choose(builder.max_sge, has.max_sge)?;
    let device = u32::try_from(context.device_attr.as_raw().max_srq_sge).unwrap_or(0).max(1);
    Ok((SrqId(name.addr() as u64), depth, max_sge.min(device)))
}
