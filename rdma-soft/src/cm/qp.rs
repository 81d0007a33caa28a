//! Queue pairs of an id: `rdma_create_qp` makes them, and the connection manager changes their
//! state.

use std::ffi::{c_int, c_void};
use std::ptr;

use rdma_sys::{
    ibv_comp_channel, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state, rdma_cm_id,
};

use super::path;
use super::wire::Ece;
use crate::engine::Errno;
use crate::verbs::call::Handle;
use crate::verbs::object::{Object, get_field, set_field};

/// As a depth: the depth that the peer's request or reply asks for.
pub(super) const AS_ASKED: u8 = u8::MAX;

pub(super) fn last_error() -> Errno {
    std::io::Error::last_os_error().into()
}

/// A live queue pair.
pub(super) struct Qp<'a> {
    raw: *mut ibv_qp,
    object: &'a Object<ibv_qp_ex>,
}

impl Qp<'_> {
    /// Finds the queue pair behind a pointer.
    ///
    /// # Safety
    ///
    /// `raw` is null, or a live queue pair that nobody else destroys while the value exists.
    unsafe fn find(raw: *mut ibv_qp) -> Result<Self, Errno> {
        // SAFETY: `Object::get` requires null or a live object: the caller's contract; every
        // `ibv_qp` of this device is an `ibv_qp_ex`.
        Ok(Self { raw, object: unsafe { Object::get(raw.cast()) }? })
    }

    pub(super) fn number(&self) -> u32 {
        get_field!(self.object, qp_base.qp_num)
    }

    pub(super) fn has_srq(&self) -> bool {
        !get_field!(self.object, qp_base.srq).is_null()
    }

    fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Errno> {
        let mask = c_int::try_from(mask.0).unwrap_or(0);
        // SAFETY: `ibv_modify_qp` requires a live queue pair (the contract of `find`) and valid
        // attributes (a local).
        match unsafe { (crate::ibverbs().ibv_modify_qp)(self.raw, &raw mut attr, mask) } {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }

    fn destroy(self) {
        // SAFETY: `ibv_destroy_qp` requires a live queue pair (the contract of `find`) that nobody
        // uses afterwards: `self` is consumed.
        let _kept = unsafe { (crate::ibverbs().ibv_destroy_qp)(self.raw) };
    }

    /// Attaches the queue pair to a multicast group, or detaches it.
    pub(super) fn set_attached(&self, attached: bool, mgid: [u8; 16], lid: u16) -> Result<(), Errno> {
        let verbs = crate::ibverbs();
        let change = if attached { verbs.ibv_attach_mcast } else { verbs.ibv_detach_mcast };
        // SAFETY: both verbs require a live queue pair (the contract of `find`) and a valid GID (a
        // temporary that outlives the call).
        match unsafe { change(self.raw, &ibv_gid { raw: mgid }, lid) } {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }
}

impl Object<rdma_cm_id> {
    /// The id's queue pair, if it has one.
    pub(super) fn qp(&self) -> Option<Qp<'_>> {
        let qp = get_field!(self, qp);
        // SAFETY: `find` requires null, or a live queue pair that nobody destroys meanwhile: C
        // destroys an id's queue pair by `rdma_destroy_qp`, which clears the field, and not during
        // another call on the id.
        unsafe { Qp::find(qp) }.ok()
    }

    /// `rdma_init_qp_attr`: the attributes and mask for the transition of the id's queue pair to
    /// `state`.
    pub(super) fn qp_attributes(&self, state: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), Errno> {
        self.with_state(|service, key| {
            service.receive(key);
            path::qp_attributes(service.entry(key)?, state)
        })
    }

    /// Moves the id's queue pair, if any, to `state`. `change` may adjust the attributes first.
    fn advance_qp(&self, state: ibv_qp_state, change: impl FnOnce(&mut ibv_qp_attr)) -> Result<(), Errno> {
        let Some(qp) = self.qp() else { return Ok(()) };
        let (mut attr, mask) = self.qp_attributes(state)?;
        change(&mut attr);
        qp.modify(attr, mask)
    }

    /// Moves the id's queue pair, if any, through INIT to RTR.
    pub(super) fn make_ready_to_receive(&self, responder_resources: u8) -> Result<(), Errno> {
        // INIT again, because the peer's access rights are known only after the request.
        self.advance_qp(ibv_qp_state::IBV_QPS_INIT, |_| ())?;
        self.advance_qp(ibv_qp_state::IBV_QPS_RTR, |attr| {
            if responder_resources != AS_ASKED {
                attr.max_dest_rd_atomic = responder_resources;
            }
        })
    }

    /// Moves the id's queue pair, if any, to RTS.
    pub(super) fn make_ready_to_send(&self, initiator_depth: u8) -> Result<(), Errno> {
        self.advance_qp(ibv_qp_state::IBV_QPS_RTS, |attr| {
            if initiator_depth != AS_ASKED {
                attr.max_rd_atomic = initiator_depth;
            }
        })
    }

    /// Moves the id's queue pair, if any, to the error state, which flushes its requests.
    pub(super) fn fail_qp(&self) -> Result<(), Errno> {
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.qp().map_or(Ok(()), |qp| qp.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE))
    }

    /// Moves the id's queue pair, if any, to RTS for a peer that has accepted, and confirms the
    /// connection.
    pub(super) fn confirm(&self) -> Result<(), Errno> {
        let confirmed = (self.make_ready_to_receive(AS_ASKED))
            .and_then(|()| self.make_ready_to_send(AS_ASKED))
            .and_then(|()| self.with_state(|state, key| state.call(key, |machine, out| machine.establish(out))));
        confirmed.inspect_err(|_| {
            let _best_effort = self.fail_qp();
        })
    }

    /// Calls [`confirm`](Self::confirm) after a check of the peer's ECE vendor: a peer may only
    /// return the vendor that this side sent, so any other vendor is an error.
    pub(super) fn confirm_with(&self, theirs: Ece) -> Result<(), Errno> {
        let ours = self.lock().local_ece;
        if theirs.vendor != 0 && theirs.vendor != ours.vendor {
            self.fail_qp()?;
            return Err(Errno::INVAL);
        }
        self.lock().remote_ece.vendor = theirs.vendor;
        self.confirm()
    }

    /// Moves a new queue pair to RTS for datagrams, or to INIT to wait for a connection.
    fn begin_qp(&self, qp: &Qp<'_>) -> Result<(), Errno> {
        type S = ibv_qp_state;
        let states = [S::IBV_QPS_INIT, S::IBV_QPS_RTR, S::IBV_QPS_RTS];
        for state in &states[..if self.is_datagram() { 3 } else { 1 }] {
            let (attr, mask) = self.qp_attributes(*state)?;
            qp.modify(attr, mask)?;
        }
        Ok(())
    }

    /// Creates a completion queue of the id's own, with a channel.
    fn create_cq(&self, depth: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
        let (verbs, context) = (crate::ibverbs(), get_field!(self, verbs));
        // SAFETY: `ibv_create_comp_channel` requires an open context: the shared one is never
        // closed.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(context) };
        if channel.is_null() {
            return Err(last_error());
        }
        let (depth, user) = (c_int::try_from(depth).unwrap_or(c_int::MAX), self.public().cast::<c_void>());
        // SAFETY: `ibv_create_cq` requires an open context and a live channel of it: made above.
        let cq = unsafe { (verbs.ibv_create_cq)(context, depth, user, channel, 0) };
        if cq.is_null() {
            let error = last_error();
            // SAFETY: `destroy_cq` requires null or live objects that nobody uses: the channel was
            // made above and is not shared; the CQ is null.
            unsafe { destroy_cq(channel, cq) };
            return Err(error);
        }
        Ok((channel, cq))
    }

    /// Creates the completion queues that the application did not provide.
    fn create_cqs(&self, send: Option<u32>, recv: Option<u32>) -> Result<(), Errno> {
        if let Some(depth) = recv {
            let (channel, cq) = self.create_cq(depth)?;
            set_field!(self, recv_cq_channel, channel);
            set_field!(self, recv_cq, cq);
        }
        if let Some(depth) = send {
            let (channel, cq) = self.create_cq(depth).inspect_err(|_| self.destroy_cqs())?;
            set_field!(self, send_cq_channel, channel);
            set_field!(self, send_cq, cq);
        }
        Ok(())
    }

    /// Destroys the completion queues that were created for the id. The id's queue pair must be
    /// destroyed before.
    fn destroy_cqs(&self) {
        let send = (get_field!(self, send_cq_channel), get_field!(self, send_cq));
        let recv = (get_field!(self, recv_cq_channel), get_field!(self, recv_cq));
        set_field!(self, send_cq, ptr::null_mut());
        set_field!(self, recv_cq, ptr::null_mut());
        set_field!(self, send_cq_channel, ptr::null_mut());
        set_field!(self, recv_cq_channel, ptr::null_mut());
        for (channel, cq) in [recv, if send == recv { (ptr::null_mut(), ptr::null_mut()) } else { send }] {
            // SAFETY: `destroy_cq` requires null or live objects that nobody uses: `create_cqs`
            // stored them in the fields, which were cleared above, and their queue pair is
            // destroyed.
            unsafe { destroy_cq(channel, cq) };
        }
    }

    /// `EINVAL` unless the domain is of the id's device.
    ///
    /// # Safety
    ///
    /// `pd` is null or a live domain.
    pub(super) unsafe fn check_domain(&self, pd: *mut ibv_pd) -> Result<(), Errno> {
        // SAFETY: `Object::get` requires null or a live domain: the caller's contract.
        let pd: &Object<ibv_pd> = unsafe { Object::get(pd) }?;
        if get_field!(pd, context) == get_field!(self, verbs) { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// `rdma_create_qp_ex`. A call that fails leaves the attributes without the queues that it has
    /// made and destroyed, so that C can try again with them.
    pub(super) fn create_qp_ex(&self, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
        let (send_cq, recv_cq, srq) = (attr.send_cq, attr.recv_cq, attr.srq);
        self.try_create_qp(attr).inspect_err(|_| (attr.send_cq, attr.recv_cq, attr.srq) = (send_cq, recv_cq, srq))
    }

    fn try_create_qp(&self, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
        const PD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        let context = get_field!(self, verbs);
        if self.qp().is_some() || context.is_null() {
            return Err(Errno::INVAL);
        }
        if attr.comp_mask & PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= PD;
            attr.pd = get_field!(self, pd);
        }
        // SAFETY: `check_domain` requires null or a live domain: C's (promise 2), or the shared
        // one, which the id keeps alive.
        unsafe { self.check_domain(attr.pd) }?;
        let (send, recv) = (get_field!(self, send_cq), get_field!(self, recv_cq));
        let differ = |one: *mut ibv_cq, other: *mut ibv_cq| !one.is_null() && !other.is_null() && one != other;
        if differ(send, attr.send_cq) || differ(recv, attr.recv_cq) {
            return Err(Errno::INVAL);
        }
        let missing = |ours: *mut ibv_cq, theirs: *mut ibv_cq, depth: u32| {
            (ours.is_null() && theirs.is_null() && depth != 0).then_some(depth)
        };
        self.create_cqs(
            missing(send, attr.send_cq, attr.cap.max_send_wr),
            missing(recv, attr.recv_cq, attr.cap.max_recv_wr),
        )?;
        if attr.send_cq.is_null() {
            attr.send_cq = get_field!(self, send_cq);
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = get_field!(self, recv_cq);
        }
        if attr.srq.is_null() {
            attr.srq = get_field!(self, srq);
        }
        // SAFETY: `ibv_create_qp_ex` requires an open context (the shared one) and attributes whose
        // objects are alive (promise 2, and CQs made above).
        let qp = unsafe { crate::ibverbs().ibv_create_qp_ex(context, attr) };
        let error = last_error();
        // SAFETY: `find` requires null, or a live queue pair that nobody destroys meanwhile: made
        // above, and C does not hold it yet.
        let made = unsafe { Qp::find(qp) }.map_err(|_| error).and_then(|made| match self.begin_qp(&made) {
            Ok(()) => Ok(()),
            Err(errno) => {
                made.destroy();
                Err(errno)
            }
        });
        made.inspect_err(|_| self.destroy_cqs())?;
        set_field!(self, pd, attr.pd);
        set_field!(self, qp, qp);
        Ok(())
    }

    /// `rdma_create_qp`; with a null domain uses the id's.
    pub(super) fn create_qp(&self, pd: &Handle<ibv_pd>, init: &mut ibv_qp_init_attr) -> Result<(), Errno> {
        let mut attr = ibv_qp_init_attr_ex {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
            pd: if pd.raw().is_null() { get_field!(self, pd) } else { pd.raw() },
            ..ibv_qp_init_attr_ex::default()
        };
        let made = self.create_qp_ex(&mut attr);
        (init.send_cq, init.recv_cq) = (attr.send_cq, attr.recv_cq);
        (init.srq, init.cap) = (attr.srq, attr.cap);
        made
    }

    /// `rdma_destroy_qp`.
    pub(super) fn destroy_qp(&self) {
        if let Some(qp) = self.qp() {
            qp.destroy();
            set_field!(self, qp, ptr::null_mut());
        }
        self.destroy_cqs();
    }
}

/// Destroys a completion queue of an id and its channel.
///
/// # Safety
///
/// Each pointer is null or to a live object that nobody uses.
unsafe fn destroy_cq(channel: *mut ibv_comp_channel, cq: *mut ibv_cq) {
    if !cq.is_null() {
        // SAFETY: `ibv_destroy_cq` requires a live CQ: the caller's contract.
        let _kept = unsafe { (crate::ibverbs().ibv_destroy_cq)(cq) };
    }
    if !channel.is_null() {
        // SAFETY: `ibv_destroy_comp_channel` requires a live channel: the caller's contract.
        let _kept = unsafe { (crate::ibverbs().ibv_destroy_comp_channel)(channel) };
    }
}
