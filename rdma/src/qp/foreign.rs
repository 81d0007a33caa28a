//! Queue pairs that other code has made: by `ibv_create_qp_ex`, `mlx5dv_create_qp`, a C library.
//! Numbers cite the invariants of [`super`].

use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr};

use super::builder::{SharedReceives, assemble};
use super::control::QpInner;
use super::srq::SrqUse;
use super::transport::Transport;
use super::{PreparedQueuePair, QpAttr, QpBuilder, QueuePair, datagram};
use crate::cq::Attached;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::{Ownership, constants, require, require_some};
use crate::ring::MAX_SLOTS;
use crate::types::{ForeignObject, QpAttrMask, QpState};

impl<T: Transport> QueuePair<T> {
    /// Makes a queue pair of one that was created elsewhere, in the state that it is in.
    ///
    /// `builder` names its protection domain, completion queues and shared receive queue, as for a
    /// queue pair that it would create. The depths, the numbers of segments and of inline bytes,
    /// and whether all sends are signaled, are what the device reports of the queue pair; depths
    /// and segments that are set in `builder` limit what this crate uses of them. At most 65536
    /// requests are in flight in each direction.
    ///
    /// Requests are posted by `ibv_post_send` and `ibv_post_recv`, also on a queue pair of
    /// `ibv_create_qp_ex` whose maker asked for the functions `ibv_wr_*`.
    ///
    /// # Errors
    ///
    /// With the `Ownership`; the queue pair is as it was. `Foreign` for NULL, for a queue pair of
    /// another context or domain, with other queues, or of another transport than `T`;
    /// `InvalidInput` for a limit that is more than the queue pair has; `NoCompletionQueue`;
    /// `CompletionQueueTooSmall`; `NotSupported`; `Forked`; errors of the provider.
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`]; and:
    ///
    /// 5. Requests that this crate has not posted carry a `wr_id` of less than
    ///    [`FOREIGN_WR_IDS`](crate::CompletionQueue::FOREIGN_WR_IDS): those in flight by now, and
    ///    those that other code posts later. Their memory is the concern of that code, which gets
    ///    no completions of them while pollers of this crate poll.
    /// 6. Requests of the send queue end in the order in which they were posted, as they do unless
    ///    a provider's own functions have changed it, and `ibv_post_send` and `ibv_post_recv` work
    ///    on the queue pair.
    ///
    /// # Examples
    ///
    /// A queue pair that C code has made on a completion queue of this crate:
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// use rdma::sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type};
    /// use rdma::{Ownership, PreparedQueuePair, QueuePair};
    ///
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
    /// let cap = ibv_qp_cap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, ..ibv_qp_cap::default() };
    /// let (send_cq, recv_cq) = (cq.as_raw(), cq.as_raw());
    /// let mut init = ibv_qp_init_attr { send_cq, recv_cq, cap, qp_type: ibv_qp_type::IBV_QPT_RC, ..ibv_qp_init_attr::default() };
    /// // SAFETY: ibv_create_qp requires a domain and queues of one context, and attributes that live
    /// // during the call.
    /// let raw = unsafe { (context.table().ibv_create_qp)(pd.as_raw(), &raw mut init) };
    /// // SAFETY: the queue pair was just created, nobody else has it, and nothing is posted to it.
    /// let qp = unsafe { PreparedQueuePair::from_raw(&QueuePair::builder(&pd).cq(&cq), raw, Ownership::Destroy)? };
    /// // From here on it is as any other.
    /// let qp = qp.init(&rdma::InitOptions::new())?;
    /// # drop(qp);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn from_raw(
        builder: &QpBuilder<T>,
        raw: *mut ibv_qp,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        // SAFETY: `adopt` has the same contract as this function.
        match unsafe { adopt(builder, raw) } {
            Ok((mut qp, _)) => {
                qp.control.set_foreign(ownership);
                Ok(qp)
            }
            Err(error) => Err(Failed::new(error, ownership)),
        }
    }
}

impl<T: Transport> PreparedQueuePair<T> {
    /// Makes a queue pair of one that was created elsewhere and is in the state RESET:
    /// [`QueuePair::from_raw`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::from_raw`]; `Foreign` for a queue pair in another state.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::from_raw`].
    pub unsafe fn from_raw(
        builder: &QpBuilder<T>,
        raw: *mut ibv_qp,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        // SAFETY: `adopt` has the same contract as this function.
        let adopted = unsafe { adopt(builder, raw) };
        let adopted = adopted.and_then(|(qp, state)| {
            let is_reset = require(state == QpState::RESET, ForeignObject::NotReset);
            is_reset.map(|()| qp)
        });
        match adopted {
            Ok(mut qp) => {
                qp.control.set_foreign(ownership);
                Ok(Self::new(qp))
            }
            Err(error) => Err(Failed::new(error, ownership)),
        }
    }
}

/// A queue pair that is not destroyed when it is dropped, and its state.
///
/// # Safety
///
/// As for [`QueuePair::from_raw`].
unsafe fn adopt<T: Transport>(builder: &QpBuilder<T>, raw: *mut ibv_qp) -> Result<(QueuePair<T>, QpState)> {
    let none = Error::new(Verb::FromRaw, ErrorKind::NoCompletionQueue);
    let send_cq = &builder.send_cq.as_ref().ok_or(none)?.inner;
    let recv_cq = &builder.recv_cq.as_ref().ok_or(none)?.inner;
    let (pd, srq) = (&builder.pd.inner, builder.srq.as_ref());
    let context = &pd.context;
    context.check(Verb::FromRaw)?;
    if !T::is_supported(&context.capabilities()) {
        return Err(Error::new(Verb::FromRaw, ErrorKind::NotSupported));
    }
    require_some(raw)?;
    // `constants` requires a live object: not NULL, so this function's contract says so.
    let (of, domain, kind) = constants!(raw => context, pd, qp_type);
    require(of == context.raw.as_ptr(), ForeignObject::OtherContext)?;
    require(domain == pd.raw.as_ptr(), ForeignObject::OtherDomain)?;
    require(kind == T::TYPE, ForeignObject::OtherTransport(kind.0))?;
    // `constants` requires a live object: as above.
    let queues = constants!(raw => send_cq, recv_cq);
    let is_of = |cq: &CqOf<'_>| Arc::ptr_eq(&cq.context, context);
    let is_same = queues == (send_cq.raw, recv_cq.raw) && is_of(send_cq) && is_of(recv_cq);
    require(is_same, ForeignObject::OtherCompletionQueue)?;
    // `constants` requires a live object: as above.
    let receives = constants!(raw => srq);
    let is_same = srq.map_or(std::ptr::null_mut(), |SharedReceives(srq)| srq.as_raw()) == receives;
    require(is_same, ForeignObject::OtherSharedReceives)?;

    let (reported, signal_all, state) = query(context, raw)?;
    let cap = limit(builder, reported)?;
    let send_ring = Attached::new(send_cq, cap.max_send_wr, cap.max_send_sge)?;
    let (recv_ring, srq) = match srq {
        None => (Attached::new(recv_cq, cap.max_recv_wr, cap.max_recv_sge)?, None),
        Some(SharedReceives(srq)) => (Attached::unused(recv_cq)?, Some(SrqUse::new(srq, pd, recv_cq)?)),
    };
    let mut control = QpInner::of(raw, (pd, send_cq, recv_cq, srq), (kind, reported));
    // Until the caller says otherwise: an error leaves the queue pair as it is.
    control.set_foreign(Ownership::Keep);
    let mut qp = assemble(control, (send_ring, recv_ring), cap, signal_all || builder.signal_all);
    if T::IS_DATAGRAM && state != QpState::RESET {
        let info = qp.control.query()?;
        let attr = QpAttr::from_raw(*info.as_raw(), QpAttrMask::PORT | QpAttrMask::QKEY);
        datagram::follow(&mut qp.control, &mut qp.send, &attr);
    }
    Ok((qp, state))
}

type CqOf<'a> = crate::handle::Handle<crate::cq::CqInner>;

/// What the device reports of a queue pair: capacities, whether all sends are signaled, the state.
fn query(context: &crate::context::ContextInner, raw: *mut ibv_qp) -> Result<(ibv_qp_cap, bool, QpState)> {
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 | ibv_qp_attr_mask::IBV_QP_CAP.0;
    let mask = i32::try_from(mask).map_err(|_| Error::new(Verb::QueryQp, ErrorKind::InvalidInput))?;
    // SAFETY: ibv_query_qp requires a live queue pair (the contract of `adopt`), space for the
    // answers (locals), and a process that is not a forked child (checked by the caller).
    let call = || unsafe { (context.table.ibv_query_qp)(raw, &raw mut attr, mask, &raw mut init) };
    Error::check(Verb::QueryQp, call)?;
    Ok((init.cap, init.sq_sig_all != 0, QpState::from_raw(attr.qp_state.0)))
}

/// The part of a queue pair's capacities that this crate uses.
fn limit<T: Transport>(builder: &QpBuilder<T>, has: ibv_qp_cap) -> Result<ibv_qp_cap> {
    let invalid = Error::new(Verb::FromRaw, ErrorKind::InvalidInput);
    let device = builder.pd.inner.context.device_attr.as_raw();
    let max_sge = u32::try_from(device.max_sge).unwrap_or(0).max(1);
    let choose = |asked: Option<u32>, has: u32| match asked {
        Some(asked) if asked > has => Err(invalid),
        asked => Ok(asked.unwrap_or(has)),
    };
    Ok(ibv_qp_cap {
        max_send_wr: choose(builder.max_send_wr, has.max_send_wr)?.min(MAX_SLOTS),
        max_recv_wr: choose(builder.max_recv_wr, has.max_recv_wr)?.min(MAX_SLOTS),
        max_send_sge: choose(builder.max_send_sge, has.max_send_sge)?.clamp(1, max_sge),
        max_recv_sge: choose(builder.max_recv_sge, has.max_recv_sge)?.clamp(1, max_sge),
        max_inline_data: has.max_inline_data,
    })
}
