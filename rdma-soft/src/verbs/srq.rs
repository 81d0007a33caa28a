//! `ibv_srq`: shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_sys::{ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr};

use super::Errno;
use super::call::{Done, Handle, In, InOut, Made, Out};
use super::context::{Child, ContextState};
use super::events::Entry;
use super::object::{Object, Public, get_field};
use super::pd::PdUse;
use crate::engine::{SrqId, SrqInit, limits};
use crate::node::Node;

/// Private part of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqState {
    id: SrqId,
    entry: Arc<Entry>,
    context: Arc<ContextState>,
    _pd: PdUse,
    max_sge: u32,
}

impl SrqState {
    pub(crate) fn id(&self) -> SrqId {
        self.id
    }

    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    pub(crate) fn is_of(&self, context: &Arc<ContextState>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

impl Public for ibv_srq {
    const MARK: u64 = 0x7372_715f_7372_715f;
    type Private = SrqState;
}

impl Child for ibv_srq {
    const ORDER: u8 = 2;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    fn end(object: &Object<Self>, node: &Node) -> Result<(), Errno> {
        node.with(|engine| engine.destroy_srq(object.id))
    }

    fn close(object: &Object<Self>) {
        object.entry.close();
    }

    /// As in libibverbs, destroying waits until C has acknowledged every event that it read.
    fn settle(object: &Object<Self>) {
        object.entry.settle();
    }
}

/// `ibv_create_srq`. Ignores `srq_limit`, as its man page says.
pub(super) fn create_srq(ibv_pd: Handle<ibv_pd>, mut init: InOut<ibv_srq_init_attr>) -> Made<ibv_srq> {
    let (pd, init) = (ibv_pd.get()?, init.get()?);
    let max_sge = init.attr.max_sge.max(1);
    let longest = u32::try_from(limits::MAX_SGE).unwrap_or(u32::MAX);
    if init.attr.max_wr == 0 || init.attr.max_wr > limits::MAX_SRQ_WR || max_sge > longest {
        return Err(Errno::INVAL);
    }
    let held = pd.hold()?;
    let entry = Entry::new(None, Arc::clone(pd.context.events()));
    let (max_wr, token) = (init.attr.max_wr, entry.token());
    let id = Node::get()?.with(|engine| engine.create_srq(&SrqInit { pd: held.id, max_wr, max_sge, token }))?;
    let public = ibv_srq {
        context: get_field!(pd, context),
        srq_context: init.srq_context,
        pd: ibv_pd.raw(),
        handle: id.0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let state = SrqState { id, entry: Arc::clone(&entry), context: Arc::clone(&pd.context), _pd: held, max_sge };
    let srq = pd.context.create(public, state);
    entry.announce(srq);
    init.attr.max_sge = max_sge;
    Ok(srq)
}

/// `ibv_modify_srq`.
pub(super) fn modify_srq(srq: Handle<ibv_srq>, attr: In<ibv_srq_attr>, mask: c_int) -> Done {
    const MAX_WR: u32 = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0;
    const LIMIT: u32 = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
    let (state, attr) = (srq.get()?, attr.get()?);
    let mask = mask as u32;
    let has_depth = mask & MAX_WR != 0;
    if mask & !(MAX_WR | LIMIT) != 0 || (has_depth && attr.max_wr == 0) {
        return Err(Errno::INVAL);
    }
    let (max_wr, limit) = (has_depth.then_some(attr.max_wr), (mask & LIMIT != 0).then_some(attr.srq_limit));
    Node::get()?.with(|engine| engine.modify_srq(state.id, max_wr, limit))
}

/// `ibv_query_srq`.
pub(super) fn query_srq(srq: Handle<ibv_srq>, attr: Out<ibv_srq_attr>) -> Done {
    let state = srq.get()?;
    // Drained, because messages that have arrived may have raised the limit event.
    let status = Node::get()?.with_drained(|engine| engine.query_srq(state.id))?;
    attr.write(ibv_srq_attr { max_wr: status.max_wr, max_sge: state.max_sge, srq_limit: status.limit })
}
