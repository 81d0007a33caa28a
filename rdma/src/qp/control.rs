//! The control half of a queue pair: create, modify, query, destroy. Numbers cite the invariants of
//! [`super`].

use std::ptr;
use std::sync::Arc;

use rdma_sys::{
    ibv_ece, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};

use super::attr::QpAttr;
use super::multicast::Groups;
use super::port::Chosen;
use super::srq::SrqUse;
use super::transition;
use crate::context::{Context, ContextInner};
use crate::cq::CqInner;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::handle::{Handle, Ownership, Raw};
use crate::pd::PdInner;
use crate::types::{Ece, Mtu, QpAttrMask, QpState};

/// The owned C queue pair (1).
pub(crate) struct QpInner {
    pub(crate) raw: *mut ibv_qp,
    pub(crate) context: Arc<Handle<ContextInner>>,
    pub(crate) pd: Arc<Handle<PdInner>>,
    pub(crate) send_cq: Arc<Handle<CqInner>>,
    pub(crate) recv_cq: Arc<Handle<CqInner>>,
    srq: Option<SrqUse>,
    pub(crate) qpn: u32,
    qp_type: ibv_qp_type,
    /// The capacities that the provider granted.
    pub(crate) cap: ibv_qp_cap,
    /// The port, Q_Key and groups of a datagram queue pair.
    pub(super) datagrams: Option<Box<Datagrams>>,
    /// Whether other code has made the queue pair.
    pub(super) is_foreign: bool,
    ownership: Ownership,
    /// Whether the queue pair was destroyed or leaked.
    done: bool,
}

// SAFETY: moving a queue pair to another thread is sound: libibverbs' functions may be called on
// one queue pair from any thread.
unsafe impl Send for QpInner {}
// SAFETY: sharing a queue pair is sound: libibverbs locks the state that its functions change, and
// `&QpInner` changes no field of its own.
unsafe impl Sync for QpInner {}

/// The objects that a queue pair uses: its domain, the completion queues of sends and of receives,
/// and its shared receive queue.
type Parents<'a> = (&'a Arc<Handle<PdInner>>, &'a Arc<Handle<CqInner>>, &'a Arc<Handle<CqInner>>, Option<SrqUse>);

/// The port, Q_Key and groups of a datagram queue pair.
pub(super) struct Datagrams {
    pub(super) groups: Groups,
    /// The port that the queue pair is bound to, and its Q_Key.
    pub(super) bound: Option<(Chosen, u32)>,
}

impl QpInner {
    /// Creates a queue pair in the RESET state.
    pub(crate) fn create(
        pd: &Arc<Handle<PdInner>>,
        send_cq: &Arc<Handle<CqInner>>,
        recv_cq: &Arc<Handle<CqInner>>,
        srq: Option<SrqUse>,
        qp_type: ibv_qp_type,
        cap: ibv_qp_cap,
        signal_all: bool,
    ) -> Result<Self> {
        let context = &pd.context;
        context.check(Verb::CreateQp)?;
        if !Arc::ptr_eq(&send_cq.context, context) || !Arc::ptr_eq(&recv_cq.context, context) {
            // The provider does not check that the completion queues belong to the same device.
            return Err(Error::new(Verb::CreateQp, ErrorKind::InvalidInput));
        }
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.raw,
            recv_cq: recv_cq.raw,
            srq: srq.as_ref().map_or(ptr::null_mut(), SrqUse::as_raw),
            cap,
            qp_type,
            sq_sig_all: signal_all.into(),
        };
        // SAFETY: ibv_create_qp requires a domain and queues of one open context (checked; a shared
        // receive queue is of the same domain), which the new value keeps alive (1), and attributes
        // that live during the call: a local.
        let call = || unsafe { (context.table.ibv_create_qp)(pd.raw.as_ptr(), &raw mut init) };
        let raw = Raw::created(Verb::CreateQp, call)?.as_ptr();
        Ok(Self::of(raw, (pd, send_cq, recv_cq, srq), (qp_type, init.cap)))
    }

    /// The owner of a live queue pair with these parents (1).
    pub(super) fn of(
        raw: *mut ibv_qp,
        (pd, send_cq, recv_cq, srq): Parents<'_>,
        (qp_type, cap): (ibv_qp_type, ibv_qp_cap),
    ) -> Self {
        let context = &pd.context;
        // SAFETY: the read requires a live queue pair whose `qp_num` no thread writes: the caller
        // has one (1), and its number never changes.
        let qpn = unsafe { (*raw).qp_num };
        let is_datagram = qp_type == ibv_qp_type::IBV_QPT_UD;
        Self {
            raw,
            context: Arc::clone(context),
            pd: Arc::clone(pd),
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            srq,
            qpn,
            qp_type,
            cap,
            datagrams: is_datagram.then(|| Box::new(Datagrams { groups: Groups::new(raw, context), bound: None })),
            is_foreign: false,
            ownership: Ownership::Destroy,
            done: false,
        }
    }

    /// Marks a queue pair that other code has made, and says who destroys it.
    pub(super) fn set_foreign(&mut self, ownership: Ownership) {
        (self.is_foreign, self.ownership) = (true, ownership);
    }

    /// Whether other code destroys the queue pair.
    pub(super) fn is_kept(&self) -> bool {
        self.ownership.is_kept()
    }

    #[inline]
    pub(crate) fn check(&self, operation: Verb) -> Result<()> {
        if self.done {
            // A scope destroyed the queue pair because its requests did not finish.
            return Err(Error::new(operation, ErrorKind::NoDevice));
        }
        self.context.check(operation)
    }

    pub(crate) fn context(&self) -> Context {
        Context { inner: Arc::clone(&self.context) }
    }

    /// Whether the receives come from a shared queue.
    pub(crate) fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.done
    }

    pub(crate) fn modify(&self, attr: &QpAttr) -> Result<()> {
        self.check(Verb::ModifyQp)?;
        let mut raw = *attr.as_raw();
        let mask =
            i32::try_from(attr.mask().bits()).map_err(|_| Error::new(Verb::ModifyQp, ErrorKind::InvalidInput))?;
        // SAFETY: ibv_modify_qp requires a live queue pair (1), attributes that live during the
        // call (a local), and a process that is not a forked child (3, checked above).
        let call = || unsafe { (self.context.table.ibv_modify_qp)(self.raw, &raw mut raw, mask) };
        Error::check(Verb::ModifyQp, call).map_err(|error| {
            if error.kind() != ErrorKind::InvalidInput {
                return error;
            }
            // The change did not happen, so the queue pair is still in its earlier state.
            let from = self.state().unwrap_or(QpState::UNKNOWN);
            transition::explain(self.qp_type, from, attr.target(), attr.mask())
                .map_or(error, |kind| error.with_kind(kind))
        })
    }

    pub(crate) fn state(&self) -> Result<QpState> {
        Ok(self.query_raw(ibv_qp_attr_mask::IBV_QP_STATE.0)?.state())
    }

    pub(crate) fn query(&self) -> Result<QpInfo> {
        // All attributes of reliable connections, except path migration and rate limits, which not
        // every device supports.
        let connected = QpAttrMask::all() - QpAttrMask::QKEY - QpAttrMask::RATE_LIMIT - QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        let datagram = QpAttrMask::STATE
            | QpAttrMask::CUR_STATE
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PORT
            | QpAttrMask::QKEY
            | QpAttrMask::SQ_PSN
            | QpAttrMask::CAP;
        self.query_raw(if self.datagrams.is_some() { datagram } else { connected }.bits())
    }

    pub(super) fn query_raw(&self, mask: u32) -> Result<QpInfo> {
        self.check(Verb::QueryQp)?;
        let mask = i32::try_from(mask).map_err(|_| Error::new(Verb::QueryQp, ErrorKind::InvalidInput))?;
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: ibv_query_qp requires a live queue pair (1), space for the answers (locals), and
        // a process that is not a forked child (3, checked above).
        let call = || unsafe { (self.context.table.ibv_query_qp)(self.raw, &raw mut attr, mask, &raw mut init) };
        Error::check(Verb::QueryQp, call)?;
        Ok(QpInfo { attr, cap: init.cap })
    }

    pub(crate) fn ece(&self) -> Result<Ece> {
        self.check(Verb::QueryEce)?;
        let mut ece = ibv_ece::default();
        // SAFETY: ibv_query_ece requires a live queue pair (1), space for the options (a local),
        // and a process that is not a forked child (3, checked above).
        let call = || unsafe { (self.context.table.ibv_query_ece)(self.raw, &raw mut ece) };
        Error::check(Verb::QueryEce, call)?;
        Ok(Ece::from_raw(ece))
    }

    pub(crate) fn set_ece(&self, ece: Ece) -> Result<()> {
        self.check(Verb::SetEce)?;
        let mut ece = ece.to_raw();
        // SAFETY: ibv_set_ece requires a live queue pair (1), options that live during the call (a
        // local), and a process that is not a forked child (3, checked above).
        let call = || unsafe { (self.context.table.ibv_set_ece)(self.raw, &raw mut ece) };
        Error::check(Verb::SetEce, call)
    }

    /// Fetches the completions of shared receives, before the queue pair is destroyed or reset.
    pub(crate) fn rescue_receives(&self) {
        if let Some(srq) = &self.srq {
            srq.rescue();
        }
    }

    /// Destroys the queue pair, or lets go of one that other code destroys, which then has no
    /// requests of this crate in flight. On failure the queue pair still exists.
    pub(crate) fn destroy(&mut self) -> Result<()> {
        self.check(Verb::DestroyQp)?;
        self.rescue_receives();
        // SAFETY: ibv_destroy_qp requires a live queue pair of this table: this table created it,
        // and it was not destroyed before (`done`). This is not a forked child (3, checked above).
        // Its events are acknowledged as they are taken, so the call does not block.
        let call = || unsafe { (self.context.table.ibv_destroy_qp)(self.raw) };
        let destroy = || if self.is_kept() { Ok(()) } else { Error::check(Verb::DestroyQp, call) };
        match &self.datagrams {
            Some(datagrams) => datagrams.groups.end(destroy)?,
            None => destroy()?,
        }
        self.done = true;
        Ok(())
    }

    /// Leaks the queue pair: the device keeps it, so the domain and completion queues must stay
    /// (2).
    #[allow(clippy::mem_forget, reason = "a queue pair that the device still has needs its parents")]
    pub(crate) fn leak(&mut self) {
        if !self.done {
            self.done = true;
            std::mem::forget(Arc::clone(&self.pd));
            std::mem::forget(Arc::clone(&self.send_cq));
            std::mem::forget(Arc::clone(&self.recv_cq));
            std::mem::forget(self.srq.clone());
            std::mem::forget(std::mem::take(&mut self.ownership));
        }
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if self.context.is_forked() {
            self.leak();
        } else if let Err(error) = self.destroy() {
            self.leak();
            tracing::warn!(
                name: "queue_pair_not_destroyed", target: "rdma",
                %error, qpn = self.qpn, "a queue pair could not be destroyed; it and what it uses are leaked"
            );
        }
    }
}

/// The attributes of a queue pair at one moment.
#[doc(alias = "ibv_query_qp")]
#[derive(Clone, Copy)]
pub struct QpInfo {
    attr: ibv_qp_attr,
    cap: ibv_qp_cap,
}

impl QpInfo {
    /// The state.
    #[must_use]
    pub fn state(&self) -> QpState {
        let ibv_qp_state(raw) = self.attr.qp_state;
        QpState::from_raw(raw)
    }

    getters! { |this|
        /// The path's MTU.
        path_mtu: Mtu = Mtu::from_raw(this.attr.path_mtu.0);
        /// The Q_Key of a datagram queue pair.
        qkey: u32 = this.attr.qkey;
        /// The peer's queue pair number.
        dest_qpn: u32 = this.attr.dest_qp_num;
        /// The number of requests that the send queue holds.
        max_send_wr: u32 = this.cap.max_send_wr;
        /// The number of requests that the receive queue holds.
        max_recv_wr: u32 = this.cap.max_recv_wr;
        /// The number of bytes that a send can carry inline.
        max_inline_data: u32 = this.cap.max_inline_data;
        /// The C structure.
        as_raw: &ibv_qp_attr = &this.attr;
    }
}

debug_by_methods!(QpInfo: state, path_mtu, dest_qpn);
