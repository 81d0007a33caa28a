//! Queue pairs that belong to an id: made by `rdma_create_qp`, and moved from state to state by the connection manager.

use std::ffi::{c_int, c_void};
use std::ptr;

use rdma_sys::{
    ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type, rdma_cm_id,
};

use super::id::{self, look, put};
use super::message::Ece;
use super::service::Service;
use super::wire;
use crate::engine::Errno;

/// "Take what the request says."
pub(super) const AS_ASKED: u8 = u8::MAX;

/// `rdma_init_qp_attr`: the attributes that take the id's queue pair to a state.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn attributes(
    id: *mut rdma_cm_id,
    state: ibv_qp_state,
) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), Errno> {
    // SAFETY: the caller's promise.
    let key = unsafe { id::get(id) }?.subject.key;
    Service::get()?.with(|service| {
        service.receive(key);
        wire::qp_attributes(service.entry(key)?, state)
    })
}

/// # Safety
///
/// A live queue pair.
unsafe fn modify(qp: *mut ibv_qp, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Errno> {
    let mask = c_int::try_from(mask.0).unwrap_or(0);
    // SAFETY: the caller's promise; valid attributes.
    match unsafe { (crate::ibverbs().ibv_modify_qp)(qp, &raw mut attr, mask) } {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

/// Moves the id's queue pair, if it has one, to the state; `change` has the last word on the attributes.
///
/// # Safety
///
/// A live id.
unsafe fn advance(
    id: *mut rdma_cm_id,
    state: ibv_qp_state,
    change: impl FnOnce(&mut ibv_qp_attr),
) -> Result<(), Errno> {
    let qp = look!(id, qp);
    if qp.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let (mut attr, mask) = unsafe { attributes(id, state) }?;
    change(&mut attr);
    // SAFETY: C's promise: an id's queue pair is alive.
    unsafe { modify(qp, attr, mask) }
}

/// Makes the id's queue pair, if it has one, ready to receive.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn to_ready_to_receive(id: *mut rdma_cm_id, responder_resources: u8) -> Result<(), Errno> {
    // What the peer may do is known only now.
    // SAFETY: the caller's promise.
    unsafe { advance(id, ibv_qp_state::IBV_QPS_INIT, |_| ()) }?;
    let change = |attr: &mut ibv_qp_attr| {
        if responder_resources != AS_ASKED {
            attr.max_dest_rd_atomic = responder_resources;
        }
    };
    // SAFETY: the caller's promise.
    unsafe { advance(id, ibv_qp_state::IBV_QPS_RTR, change) }
}

/// Makes the id's queue pair, if it has one, ready to send.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn to_ready_to_send(id: *mut rdma_cm_id, initiator_depth: u8) -> Result<(), Errno> {
    let change = |attr: &mut ibv_qp_attr| {
        if initiator_depth != AS_ASKED {
            attr.max_rd_atomic = initiator_depth;
        }
    };
    // SAFETY: the caller's promise.
    unsafe { advance(id, ibv_qp_state::IBV_QPS_RTS, change) }
}

/// Ends the traffic of the id's queue pair, if it has one.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn to_error(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let qp = look!(id, qp);
    if qp.is_null() {
        return Ok(());
    }
    let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
    // SAFETY: C's promise: an id's queue pair is alive.
    unsafe { modify(qp, attr, ibv_qp_attr_mask::IBV_QP_STATE) }
}

/// Makes the id's queue pair ready for a peer that has accepted, and confirms; where there is none only confirms.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn confirm(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let ready = unsafe { to_ready_to_receive(id, AS_ASKED) };
    // SAFETY: the caller's promise.
    let ready = ready.and_then(|()| unsafe { to_ready_to_send(id, AS_ASKED) });
    let confirmed = ready.and_then(|()| {
        // SAFETY: the caller's promise.
        let key = unsafe { id::get(id) }?.subject.key;
        Service::get()?.with(|service| service.call(key, |machine, out| machine.establish(out)))
    });
    confirmed.inspect_err(|_| {
        // SAFETY: the caller's promise.
        let _best_effort = unsafe { to_error(id) };
    })
}

/// As [`confirm`], for a queue pair of the id, with what the peer says of its vendor's options: soft0 has none, so a peer that
/// has some has not answered our request.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn confirm_with(id: *mut rdma_cm_id, theirs: Ece) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let state = unsafe { id::get(id) }?;
    let ours = state.lock().local_ece;
    if theirs.vendor != 0 && theirs.vendor != ours.vendor {
        // SAFETY: the caller's promise.
        unsafe { to_error(id) }?;
        return Err(Errno::INVAL);
    }
    state.lock().remote_ece.vendor = theirs.vendor;
    // SAFETY: the caller's promise.
    unsafe { confirm(id) }
}

/// Takes a new queue pair to where it can be used, or can wait for a connection.
///
/// # Safety
///
/// A live id, a live queue pair.
unsafe fn begin(id: *mut rdma_cm_id, qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (attr, mask) = unsafe { attributes(id, ibv_qp_state::IBV_QPS_INIT) }?;
    // SAFETY: the caller's promise.
    unsafe { modify(qp, attr, mask) }?;
    if look!(id, qp_type) == ibv_qp_type::IBV_QPT_UD {
        for state in [ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS] {
            // SAFETY: the caller's promise.
            let (attr, mask) = unsafe { attributes(id, state) }?;
            // SAFETY: the caller's promise.
            unsafe { modify(qp, attr, mask) }?;
        }
    }
    Ok(())
}

/// Makes the completion queues that the application has not brought, with a channel each.
///
/// # Safety
///
/// A live id.
unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, recv: u32) -> Result<(), Errno> {
    let verbs = crate::ibverbs();
    let context = look!(id, verbs);
    let user = id.cast::<c_void>();
    let create = |depth: u32| {
        let last_error = || Errno::from(std::io::Error::last_os_error());
        // SAFETY: the id's context is the shared one, which is never closed.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(context) };
        if channel.is_null() {
            return Err(last_error());
        }
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: the context as above, a channel of it.
        let cq = unsafe { (verbs.ibv_create_cq)(context, depth, user, channel, 0) };
        if cq.is_null() {
            let error = last_error();
            // SAFETY: just made, without queues.
            unsafe { (verbs.ibv_destroy_comp_channel)(channel) };
            return Err(error);
        }
        Ok((channel, cq))
    };
    if recv != 0 {
        let (channel, cq) = create(recv)?;
        put!(id, recv_cq_channel, channel);
        put!(id, recv_cq, cq);
    }
    if send != 0 {
        let made = create(send).inspect_err(|_| {
            // SAFETY: the caller's promise.
            unsafe { destroy_cqs(id) };
        });
        let (channel, cq) = made?;
        put!(id, send_cq_channel, channel);
        put!(id, send_cq, cq);
    }
    Ok(())
}

/// Destroys the completion queues that were made for the id.
///
/// # Safety
///
/// A live id, whose queue pair is gone.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    let verbs = crate::ibverbs();
    let (send, recv) = (look!(id, send_cq), look!(id, recv_cq));
    put!(id, send_cq, ptr::null_mut());
    put!(id, recv_cq, ptr::null_mut());
    for cq in [recv, if send == recv { ptr::null_mut() } else { send }] {
        if !cq.is_null() {
            // SAFETY: the queue is alive: the id's own, forgotten above.
            unsafe { (verbs.ibv_destroy_cq)(cq) };
        }
    }
    let (send, recv) = (look!(id, send_cq_channel), look!(id, recv_cq_channel));
    put!(id, send_cq_channel, ptr::null_mut());
    put!(id, recv_cq_channel, ptr::null_mut());
    for channel in [recv, if send == recv { ptr::null_mut() } else { send }] {
        if !channel.is_null() {
            // SAFETY: the channel is alive: the id's own, forgotten above.
            unsafe { (verbs.ibv_destroy_comp_channel)(channel) };
        }
    }
}

/// `rdma_create_qp_ex`.
///
/// # Safety
///
/// C's promises about the id and the attributes.
pub(super) unsafe fn create_ex(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    const PD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    // SAFETY: the caller's promise.
    unsafe { id::get(id) }?;
    let context = look!(id, verbs);
    if !look!(id, qp).is_null() || context.is_null() {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= PD;
        attr.pd = look!(id, pd);
    } else if look!(attr.pd, context) != context {
        return Err(Errno::INVAL);
    }
    let (send, recv) = (look!(id, send_cq), look!(id, recv_cq));
    let differ = |one: *mut ibv_cq, other: *mut ibv_cq| !one.is_null() && !other.is_null() && one != other;
    if differ(send, attr.send_cq) || differ(recv, attr.recv_cq) {
        return Err(Errno::INVAL);
    }
    let missing = |mine: *mut ibv_cq, theirs: *mut ibv_cq, depth: u32| {
        if mine.is_null() && theirs.is_null() { depth } else { 0 }
    };
    let (send_depth, recv_depth) =
        (missing(send, attr.send_cq, attr.cap.max_send_wr), missing(recv, attr.recv_cq, attr.cap.max_recv_wr));
    // SAFETY: the caller's promise.
    unsafe { create_cqs(id, send_depth, recv_depth) }?;
    if attr.send_cq.is_null() {
        attr.send_cq = look!(id, send_cq);
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = look!(id, recv_cq);
    }
    // SAFETY: C's promise about the attributes; the context is the shared one.
    let qp = unsafe { crate::ibverbs().ibv_create_qp_ex(context, attr) };
    let made = if qp.is_null() {
        Err(std::io::Error::last_os_error().into())
    } else {
        // SAFETY: the caller's promise; just made.
        unsafe { begin(id, qp) }.inspect_err(|_| {
            // SAFETY: just made, and nobody knows of it.
            unsafe { (crate::ibverbs().ibv_destroy_qp)(qp) };
        })
    };
    if let Err(errno) = made {
        // SAFETY: the caller's promise; there is no queue pair.
        unsafe { destroy_cqs(id) };
        return Err(errno);
    }
    put!(id, pd, look!(qp, pd));
    put!(id, qp, qp);
    Ok(())
}

/// `rdma_create_qp`.
///
/// # Safety
///
/// C's promises about the id, the domain (which may be null) and the attributes.
pub(super) unsafe fn create(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { id::get(id) }?;
    let mut attr = ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
        pd: if pd.is_null() { look!(id, pd) } else { pd },
        ..ibv_qp_init_attr_ex::default()
    };
    // SAFETY: the caller's promise.
    let made = unsafe { create_ex(id, &mut attr) };
    init.send_cq = attr.send_cq;
    init.recv_cq = attr.recv_cq;
    init.cap = attr.cap;
    made
}

/// `rdma_destroy_qp`.
///
/// # Safety
///
/// C's promises about the id and its queue pair.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    if unsafe { id::get(id) }.is_err() {
        return;
    }
    let qp = look!(id, qp);
    if !qp.is_null() {
        // SAFETY: the id's own queue pair, forgotten below.
        unsafe { (crate::ibverbs().ibv_destroy_qp)(qp) };
        put!(id, qp, ptr::null_mut());
    }
    // SAFETY: the caller's promise; the queue pair is gone.
    unsafe { destroy_cqs(id) };
}
