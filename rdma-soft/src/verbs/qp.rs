//! `ibv_qp`: queue pairs, from creation to destruction.
//!
//! `ibv_destroy_qp` waits up to 1.2 s for datagrams that are not sent yet.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::{
    ibv_mig_state, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_query_qp_data_in_order_caps, ibv_query_qp_data_in_order_flags, ibv_wr_opcode,
};

use super::builder::{Batch, Builder};
use super::call::{Argument, Done, Handle, In, InOut, Made, Out};
use super::context::{Child, ContextState};
use super::events::Entry;
use super::gid::Place;
use super::object::{Object, Pointee, Public, get_field};
use super::pd::PdUse;
use super::qp_state::{self, Attributes, Refusal};
use super::{Errno, ah, attr};
use crate::engine::{Host, ModifyQp, PdId, QpId, QpInit, QpState, ServiceType, limits};
use crate::log::log;
use crate::node::Node;
use crate::os::lock::Lock;

/// Private part of a queue pair.
#[derive(Debug)]
pub(crate) struct QpShared {
    id: QpId,
    pd: PdUse,
    entry: Arc<Entry>,
    context: Arc<ContextState>,
    cap: ibv_qp_cap,
    sq_sig_all: bool,
    qp_type: ibv_qp_type,
    /// Attributes set by `modify_qp` and returned by `query_qp`, except those that the engine
    /// keeps. The lock also serialises `modify_qp`.
    shown: Lock<Shown>,
    /// Keeps the number of the connected queue pair's host.
    place: Lock<Place>,
    /// Collects `ibv_wr_*` requests; only for queue pairs created with `send_ops_flags`.
    builder: Option<Builder>,
}

struct Shown(ibv_qp_attr);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "to {:#x}", self.0.dest_qp_num)
    }
}

impl QpShared {
    pub(crate) fn id(&self) -> QpId {
        self.id
    }

    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Whether the queue pair is UD, so that each send request has its own destination.
    #[inline]
    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_UD
    }

    pub(crate) fn pd(&self) -> PdId {
        self.pd.id
    }

    pub(super) fn builder(&self) -> Option<&Builder> {
        self.builder.as_ref()
    }
}

/// Every queue pair is an `ibv_qp_ex`, of which the plain `ibv_qp` is the beginning.
impl Public for ibv_qp_ex {
    const MARK: u64 = 0x0071_705f_7170_5f71;
    type Private = QpShared;
}

/// An `ibv_qp` of this device is the beginning of an `ibv_qp_ex`.
impl Pointee for ibv_qp {
    type Object = ibv_qp_ex;

    #[inline]
    fn object(pointer: *mut Self) -> *mut ibv_qp_ex {
        pointer.cast()
    }
}

impl Child for ibv_qp_ex {
    const ORDER: u8 = 0;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    /// Refused while the queue pair is attached to a multicast group, as in the kernel.
    ///
    /// Datagrams that wait for a link are sent first: a NIC would have sent them when they were
    /// posted, and programs such as `mckey` rely on this.
    fn end(object: &Object<Self>, node: &Node) -> Result<(), Errno> {
        if node.with(|engine| engine.group_of(object.id)).is_none() {
            node.send_datagrams(object.id);
        }
        let ended = node.with_copies_ended(|errno| *errno == Errno::AGAIN, |engine| engine.destroy_qp(object.id));
        ended.map_err(Errno::after_waiting)
    }

    fn force_end(object: &Object<Self>, node: &Node) {
        while let Some(gid) = node.with(|engine| engine.group_of(object.id)) {
            if node.detach(object.id, gid).is_err() {
                break;
            }
        }
        // Fails only if the engine does not know the queue pair, which then has ended already.
        let _ended = Self::end(object, node);
    }

    fn close(object: &Object<Self>) {
        object.entry.close();
    }

    /// As in libibverbs, destroying waits until C has acknowledged every event that it read.
    fn settle(object: &Object<Self>) {
        object.entry.settle();
    }
}

/// `max_inline_data` is rounded up to a multiple of this number of bytes, and is never 0:
/// `rdma_xclient` asks for 0 and sends 16 bytes inline, relying on hardware that rounds up.
const INLINE_UNIT: u32 = 32;

/// Checks the requested capacities against the limits (`EINVAL`), and raises the SGE counts to at
/// least 1 and the inline size to a multiple of `INLINE_UNIT`.
fn check_cap(asked: &ibv_qp_cap) -> Result<ibv_qp_cap, Errno> {
    let max_sge = u32::try_from(limits::MAX_SGE).unwrap_or(u32::MAX);
    let fits = asked.max_send_wr <= limits::MAX_QP_WR
        && asked.max_recv_wr <= limits::MAX_QP_WR
        && asked.max_send_sge <= max_sge
        && asked.max_recv_sge <= max_sge
        && asked.max_inline_data <= limits::MAX_INLINE;
    if !fits {
        return Err(Errno::INVAL);
    }
    Ok(ibv_qp_cap {
        max_send_sge: asked.max_send_sge.max(1),
        max_recv_sge: asked.max_recv_sge.max(1),
        max_inline_data: asked.max_inline_data.max(1).next_multiple_of(INLINE_UNIT),
        ..*asked
    })
}

/// Returns the transport service of a type of queue pairs.
fn service(qp_type: ibv_qp_type) -> Result<ServiceType, Errno> {
    match qp_type {
        ibv_qp_type::IBV_QPT_RC => Ok(ServiceType::Rc),
        ibv_qp_type::IBV_QPT_UC => Ok(ServiceType::Uc),
        ibv_qp_type::IBV_QPT_UD => Ok(ServiceType::Ud),
        // Types of the specification that this device does not support.
        ibv_qp_type::IBV_QPT_RAW_PACKET
        | ibv_qp_type::IBV_QPT_XRC_SEND
        | ibv_qp_type::IBV_QPT_XRC_RECV
        | ibv_qp_type::IBV_QPT_DRIVER => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::INVAL),
    }
}

/// Creates a queue pair and writes the granted capacities to `asked.cap`. With `extended` the queue
/// pair has a builder for the `ibv_wr_*` calls.
pub(super) fn create(ibv_pd: &Handle<ibv_pd>, asked: &mut ibv_qp_init_attr, extended: bool) -> Made<ibv_qp_ex> {
    let pd = ibv_pd.get()?;
    let held = pd.hold()?;
    let node = Node::get()?;
    let service = service(asked.qp_type)?;
    // SAFETY: `from_c` requires null or a CQ that is alive during the call: promise 2 for `asked`.
    let send_cq = unsafe { Handle::from_c(asked.send_cq) };
    // SAFETY: `from_c` requires null or a CQ that is alive during the call: promise 2 for `asked`.
    let recv_cq = unsafe { Handle::from_c(asked.recv_cq) };
    let (send_cq, recv_cq) = (send_cq.get()?, recv_cq.get()?);
    if !send_cq.is_of(&pd.context) || !recv_cq.is_of(&pd.context) {
        return Err(Errno::INVAL);
    }
    // SAFETY: `from_c` requires null or an SRQ that is alive during the call: promise 2 for
    // `asked`.
    let srq = unsafe { Handle::from_c(asked.srq) };
    let srq = if asked.srq.is_null() { None } else { Some(srq.get()?) };
    if srq.is_some_and(|srq| !srq.is_of(&pd.context)) {
        return Err(Errno::INVAL);
    }
    let mut cap = check_cap(&asked.cap)?;
    if srq.is_some() {
        // The queue pair has no receive queue of its own.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let sq_sig_all = asked.sq_sig_all != 0;
    let entry = Entry::new(None, Arc::clone(pd.context.events()));
    let init = QpInit {
        service,
        pd: held.id,
        send_cq: send_cq.id(),
        recv_cq: recv_cq.id(),
        srq: srq.map(|srq| srq.id()),
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
        sq_sig_all,
        token: entry.token(),
    };
    let (id, number) = match node.with(|engine| engine.create_qp(&init)) {
        // The queue pair numbers of all slots of this process are taken: claim one more slot and
        // retry. A slot does not help against a lack of memory, and a host has few of them.
        Err(Errno::NOMEM) if node.with(|engine| !engine.has_free_number()) => {
            node.add_slot()?;
            node.with(|engine| engine.create_qp(&init))?
        }
        made => made?,
    };
    let mut public = (pd.context.tables.qp)();
    public.qp_base = ibv_qp {
        context: get_field!(pd, context),
        qp_context: asked.qp_context,
        pd: ibv_pd.raw(),
        send_cq: asked.send_cq,
        recv_cq: asked.recv_cq,
        srq: asked.srq,
        handle: id.0,
        qp_num: number,
        state: ibv_qp_state::IBV_QPS_RESET,
        qp_type: asked.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let shared = QpShared {
        id,
        pd: held,
        entry: Arc::clone(&entry),
        context: Arc::clone(&pd.context),
        cap,
        sq_sig_all,
        qp_type: asked.qp_type,
        shown: Lock::new(Shown(ibv_qp_attr::default())),
        place: Lock::new(Place::Here),
        builder: extended.then(|| Builder::new(Batch::new(&cap, service))),
    };
    let qp = pd.context.create(public, shared);
    entry.announce(qp);
    asked.cap = cap;
    Ok(qp)
}

/// `ibv_create_qp`.
pub(super) fn create_qp(pd: Handle<ibv_pd>, mut init: InOut<ibv_qp_init_attr>) -> Made<ibv_qp> {
    create(&pd, init.get()?, false).map(<*mut ibv_qp_ex>::cast)
}

/// Translates the attributes that the mask names into the engine's form. `dest_host` is the host of
/// the address vector, if the mask names it.
fn change(attr: &ibv_qp_attr, mask: Attributes, dest_host: Option<Host>) -> ModifyQp {
    type A = Attributes;
    const PSN: u32 = 0x00ff_ffff;
    ModifyQp {
        state: mask.contains(A::STATE).then(|| QpState::from_raw(attr.qp_state)).flatten(),
        dest_host,
        access: mask.contains(A::ACCESS_FLAGS).then_some(attr.qp_access_flags),
        dest_qpn: mask.contains(A::DEST_QPN).then_some(attr.dest_qp_num),
        qkey: mask.contains(A::QKEY).then_some(attr.qkey),
        rq_psn: mask.contains(A::RQ_PSN).then_some(attr.rq_psn & PSN),
        sq_psn: mask.contains(A::SQ_PSN).then_some(attr.sq_psn & PSN),
        max_rd_atomic: mask.contains(A::MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: mask.contains(A::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: mask.contains(A::MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        timeout: mask.contains(A::TIMEOUT).then_some(attr.timeout),
        retry_cnt: mask.contains(A::RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: mask.contains(A::RNR_RETRY).then_some(attr.rnr_retry),
        sqd_notify: mask.contains(A::EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
    }
}

/// Shows C the state of a queue pair. Atomically, because threads may change and query a queue pair
/// at the same time.
fn show_state(qp: &Object<ibv_qp_ex>, state: ibv_qp_state) {
    let public = qp.public();
    // SAFETY: a place expression through `public` requires a pointer in bounds: the object lives as
    // long as the borrow (`object`, invariant 1); `&raw` makes no reference.
    let field = unsafe { &raw mut (*public).qp_base.state.0 };
    // SAFETY: `from_ptr` requires an aligned pointer that is valid as long as the borrow, and no
    // non-atomic access that conflicts: it is a field of the live object, the device accesses the
    // field only here, and C does not use it during calls that write it (promise 4).
    unsafe { AtomicU32::from_ptr(field) }.store(state.0, Ordering::Relaxed);
}

/// Why `modify_qp` made no change.
enum Failure {
    Refused(ibv_qp_state, Refusal),
    Other(Errno),
}

/// `ibv_modify_qp`.
pub(super) fn modify_qp(qp: Handle<ibv_qp>, attr: In<ibv_qp_attr>, mask: c_int) -> Done {
    let (shared, asked) = (qp.get()?, attr.get()?);
    let node = Node::get()?;
    let mask = Attributes::from_bits_retain(mask as u32);
    let limits = attr::qp_limits(&shared.context);
    // Before the lock, because it may list the host's addresses; reported after the other checks.
    let has_vector = mask.contains(Attributes::AV);
    let place = has_vector.then(|| ah::place(&shared.context, &asked.ah_attr)).transpose();
    let host = place.as_ref().map(|place| place.as_ref().map(Place::host)).map_err(|errno| *errno);
    // Held until the end: two concurrent changes would leave a mixture of both in `shown`.
    let mut shown = shared.shown.lock();
    let is_running = |failure: &Failure| matches!(failure, Failure::Other(Errno::AGAIN));
    let changed = node.with_copies_ended(is_running, |engine| {
        let actual = engine.query_qp(shared.id).map_err(Failure::Other)?.state.raw();
        let next = qp_state::check_transition(shared.qp_type, actual, asked, mask)
            .and_then(|next| qp_state::check_values(asked, mask, &limits).map(|()| next))
            .map_err(|refusal| Failure::Refused(actual, refusal))?;
        let change = change(asked, mask, host.map_err(Failure::Other)?);
        engine.modify_qp(shared.id, &change).map_err(Failure::Other)?;
        Ok(next)
    });
    let next = match changed {
        Ok(next) => next,
        Err(Failure::Refused(actual, refusal)) => {
            log!(DEBUG, ?actual, %mask, ?refusal, "soft0: modify_qp is refused");
            return Err(refusal.into());
        }
        Err(Failure::Other(errno)) => return Err(errno.after_waiting()),
    };
    if next == ibv_qp_state::IBV_QPS_RESET {
        shown.0 = ibv_qp_attr::default();
        // The number of the host that it was connected to may go to another one.
        *shared.place.lock() = Place::Here;
    }
    if let Ok(Some(place)) = place {
        *shared.place.lock() = place;
    }
    qp_state::merge(&mut shown.0, asked, mask);
    show_state(shared, next);
    Ok(())
}

/// `ibv_query_qp`. Ignores the mask, which is a hint, and fills in every attribute.
pub(super) fn query_qp(qp: Handle<ibv_qp>, attr: Out<ibv_qp_attr>, _mask: c_int, init: Out<ibv_qp_init_attr>) -> Done {
    let shared = qp.get()?;
    let found = Node::get()?.with_drained(|engine| engine.query_qp(shared.id))?;
    let state = found.state.raw();
    attr.write(ibv_qp_attr {
        qp_state: state,
        cur_qp_state: state,
        sq_draining: u8::from(found.sq_draining),
        sq_psn: found.sq_psn,
        rq_psn: found.rq_psn,
        path_mig_state: ibv_mig_state::IBV_MIG_MIGRATED,
        cap: shared.cap,
        ..shared.shown.lock().0
    })?;
    show_state(shared, state);
    init.write(ibv_qp_init_attr {
        qp_context: get_field!(shared, qp_base.qp_context),
        send_cq: get_field!(shared, qp_base.send_cq),
        recv_cq: get_field!(shared, qp_base.recv_cq),
        srq: get_field!(shared, qp_base.srq),
        cap: shared.cap,
        qp_type: shared.qp_type,
        sq_sig_all: c_int::from(shared.sq_sig_all),
    })
}

/// `ibv_query_qp_data_in_order`: true for RDMA writes. The last aligned 8 bytes of a write are
/// stored last and become visible only after all others, so a program that polls on the end of a
/// message then sees all of it.
pub(super) fn query_qp_data_in_order(qp: Handle<ibv_qp>, op: ibv_wr_opcode, flags: u32) -> c_int {
    type Caps = ibv_query_qp_data_in_order_caps;
    type Flags = ibv_query_qp_data_in_order_flags;
    const RETURN_CAPS: u32 = Flags::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS.0;
    // The answer is that of the device: its writes are the processor's own stores.
    const KNOWN: u32 = RETURN_CAPS | Flags::IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY.0;
    // Bytes in order are in order in each block, too.
    const IN_ORDER: u32 =
        Caps::IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG.0 | Caps::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES.0;
    let is_write = matches!(op, ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
    let in_order = is_write && flags & !KNOWN == 0 && qp.get().is_ok();
    if flags & RETURN_CAPS == 0 {
        return c_int::from(in_order);
    }
    c_int::try_from(if in_order { IN_ORDER } else { 0 }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths() {
        let cap = |send, recv, sge, inline| ibv_qp_cap {
            max_send_wr: send,
            max_recv_wr: recv,
            max_send_sge: sge,
            max_recv_sge: sge,
            max_inline_data: inline,
        };
        assert_eq!(check_cap(&cap(16, 0, 0, 64)), Ok(cap(16, 0, 1, 64)));
        for (asked, given) in [(0, 32), (1, 32), (33, 64), (1023, 1024), (limits::MAX_INLINE, limits::MAX_INLINE)] {
            assert_eq!(check_cap(&cap(16, 0, 1, asked)), Ok(cap(16, 0, 1, given)));
        }
        assert_eq!(check_cap(&cap(limits::MAX_QP_WR + 1, 0, 1, 0)), Err(Errno::INVAL));
        assert_eq!(check_cap(&cap(1, limits::MAX_QP_WR + 1, 1, 0)), Err(Errno::INVAL));
        assert_eq!(check_cap(&cap(1, 1, 17, 0)), Err(Errno::INVAL));
        assert_eq!(check_cap(&cap(1, 1, 1, limits::MAX_INLINE + 1)), Err(Errno::INVAL));
    }

    #[test]
    fn the_engine_hears_what_the_mask_names() {
        let asked = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            sq_psn: 0x0100_0005,
            ..Default::default()
        };
        let mask = Attributes::STATE | Attributes::TIMEOUT | Attributes::SQ_PSN;
        let heard = change(&asked, mask, Some(Host::LOCAL));
        let expected = ModifyQp {
            state: Some(QpState::Rts),
            dest_host: Some(Host::LOCAL),
            timeout: Some(14),
            sq_psn: Some(5),
            ..ModifyQp::default()
        };
        assert_eq!(heard, expected);
    }
}
