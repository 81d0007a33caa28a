//! The inline functions of `rdma_cma.h` and `rdma_verbs.h`: verbs on what a connection identifier holds.
//!
//! An identifier's pointers `qp`, `srq`, `pd`, `send_cq`, `recv_cq` and the channels are set by `rdma_create_qp`,
//! `rdma_create_srq` and `rdma_create_ep`. None of these functions checks that; each says which it needs.
//! The safety rules are those of the [module](crate::inline), 1 to 7.

use std::ptr::null_mut;

use super::{ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_req_notify_cq};
use crate::{Ibverbs, bindings::*, table::set_errno};
use libc::{c_int, c_uint, c_void, sockaddr};

const LOCAL: c_uint = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const READ: c_uint = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const WRITE: c_uint = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;

/// What the `rdma_*` functions answer where a verb answered `ret`: 0 for 0, else -1, and `ret` is in `errno`.
#[allow(clippy::must_use_candidate, reason = "it sets errno, too")]
pub fn rdma_seterrno(ret: c_int) -> c_int {
    if ret == 0 {
        return 0;
    }
    set_errno(ret);
    -1
}

/// Where an identifier's own address lies. The family says whether it is set and which form it has.
///
/// # Safety
///
/// The identifier is live. What the pointer leads to is the identifier's, and the library changes it.
#[inline]
#[must_use]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the identifier is live, so the field lies in it; nothing is read.
    unsafe { &raw mut (*id).route.addr.__bindgen_anon_1.src_addr }
}

/// Where the address of an identifier's peer lies. The family says whether it is set and which form it has.
///
/// # Safety
///
/// The identifier is live. What the pointer leads to is the identifier's, and the library changes it.
#[inline]
#[must_use]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the identifier is live, so the field lies in it; nothing is read.
    unsafe { &raw mut (*id).route.addr.__bindgen_anon_2.dst_addr }
}

/// An entry of a scatter-gather list. Lengths beyond 32 bits are cut off, as in C.
#[allow(clippy::cast_possible_truncation, reason = "as in C")]
fn entry(addr: *mut c_void, length: usize, lkey: u32) -> ibv_sge {
    ibv_sge { addr: addr.expose_provenance() as u64, length: length as u32, lkey }
}

/// The key of a region that may be left out, for inline data.
///
/// # Safety
///
/// The region is NULL or live.
unsafe fn key_or_zero(mr: *const ibv_mr) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { mr.as_ref() }.map_or(0, |mr| mr.lkey)
}

/// A request with everything that all of them have; what its operation does not use is zero.
fn request(context: *mut c_void, sgl: *mut ibv_sge, nsge: c_int, flags: c_int, opcode: ibv_wr_opcode) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: context.expose_provenance() as u64,
        sg_list: sgl,
        num_sge: nsge,
        opcode,
        #[allow(clippy::cast_sign_loss, reason = "bits")]
        send_flags: flags as c_uint,
        ..ibv_send_wr::default()
    }
}

/// Posts one request to an identifier's queue pair.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
unsafe fn post(id: *mut rdma_cm_id, mut wr: ibv_send_wr) -> c_int {
    let mut bad = null_mut();
    // SAFETY: by 7, the identifier is live.
    let qp = unsafe { (*id).qp };
    // SAFETY: by 7, the queue pair is there; the list is one request with what the caller vouches for, and `bad` has room.
    rdma_seterrno(unsafe { ibv_post_send(qp, &raw mut wr, &raw mut bad) })
}

/// Posts a receive to the shared receive queue of an identifier if it has one, else to its queue pair.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `srq` or `qp`.
pub unsafe fn rdma_post_recvv(id: *mut rdma_cm_id, context: *mut c_void, sgl: *mut ibv_sge, nsge: c_int) -> c_int {
    let wr_id = context.expose_provenance() as u64;
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: sgl, num_sge: nsge };
    let mut bad = null_mut();
    // SAFETY: by 7, the identifier is live.
    let srq = unsafe { (*id).srq };
    if !srq.is_null() {
        // SAFETY: by 7, it is live; the list is one request with the caller's entries, and `bad` has room.
        return rdma_seterrno(unsafe { ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad) });
    }
    // SAFETY: by 7, the identifier is live.
    let qp = unsafe { (*id).qp };
    // SAFETY: by 7, the queue pair is there; otherwise as above.
    rdma_seterrno(unsafe { ibv_post_recv(qp, &raw mut wr, &raw mut bad) })
}

/// Posts a send of several pieces to an identifier's queue pair.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
pub unsafe fn rdma_post_sendv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { post(id, request(context, sgl, nsge, flags, ibv_wr_opcode::IBV_WR_SEND)) }
}

/// Posts an RDMA read into several pieces to an identifier's queue pair.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
pub unsafe fn rdma_post_readv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let mut wr = request(context, sgl, nsge, flags, ibv_wr_opcode::IBV_WR_RDMA_READ);
    wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    // SAFETY: the caller's promises.
    unsafe { post(id, wr) }
}

/// Posts an RDMA write of several pieces to an identifier's queue pair.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
pub unsafe fn rdma_post_writev(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let mut wr = request(context, sgl, nsge, flags, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
    wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    // SAFETY: the caller's promises.
    unsafe { post(id, wr) }
}

/// Posts a receive into memory of `mr`, as [`rdma_post_recvv`] does.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Panics
///
/// With debug assertions, if the memory is not inside the region.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
pub unsafe fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: by 1, the region is live.
    let region = unsafe { mr.read() };
    debug_assert!(
        addr.addr() >= region.addr.addr()
            && addr.addr().wrapping_add(length) <= region.addr.addr().wrapping_add(region.length),
        "the memory is not inside the region"
    );
    let mut sge = entry(addr, length, region.lkey);
    // SAFETY: the caller's promises; the list has one entry.
    unsafe { rdma_post_recvv(id, context, &raw mut sge, 1) }
}

/// Posts a send to an identifier's queue pair. `mr` may be NULL for inline data.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
pub unsafe fn rdma_post_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
) -> c_int {
    // SAFETY: by 1 and 2, the region is NULL or live.
    let lkey = unsafe { key_or_zero(mr) };
    let mut sge = entry(addr, length, lkey);
    // SAFETY: the caller's promises; the list has one entry.
    unsafe { rdma_post_sendv(id, context, &raw mut sge, 1, flags) }
}

/// Posts an RDMA read to an identifier's queue pair.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
#[allow(clippy::too_many_arguments, reason = "the header's")]
pub unsafe fn rdma_post_read(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: by 1, the region is live.
    let lkey = unsafe { (*mr).lkey };
    let mut sge = entry(addr, length, lkey);
    // SAFETY: the caller's promises; the list has one entry.
    unsafe { rdma_post_readv(id, context, &raw mut sge, 1, flags, remote_addr, rkey) }
}

/// Posts an RDMA write to an identifier's queue pair. `mr` may be NULL for inline data.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
#[allow(clippy::too_many_arguments, reason = "the header's")]
pub unsafe fn rdma_post_write(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: by 1 and 2, the region is NULL or live.
    let lkey = unsafe { key_or_zero(mr) };
    let mut sge = entry(addr, length, lkey);
    // SAFETY: the caller's promises; the list has one entry.
    unsafe { rdma_post_writev(id, context, &raw mut sge, 1, flags, remote_addr, rkey) }
}

/// Posts a datagram with the queue key [`RDMA_UDP_QKEY`] to an identifier's queue pair. `mr` may be NULL for inline data.
///
/// # Errors
///
/// -1, with the reason in `errno`.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
#[allow(clippy::too_many_arguments, reason = "the header's")]
pub unsafe fn rdma_post_ud_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    ah: *mut ibv_ah,
    remote_qpn: u32,
) -> c_int {
    // SAFETY: by 1 and 2, the region is NULL or live.
    let lkey = unsafe { key_or_zero(mr) };
    let mut sge = entry(addr, length, lkey);
    let mut wr = request(context, &raw mut sge, 1, flags, ibv_wr_opcode::IBV_WR_SEND);
    wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey: RDMA_UDP_QKEY };
    // SAFETY: the caller's promises; the list has one entry.
    unsafe { post(id, wr) }
}

/// Those that call exported symbols of libibverbs. The safety rules are those of the [module](crate::inline), 1 to 7,
/// and the objects are of this table's implementation.
impl Ibverbs {
    /// Registers memory for messages: an identifier's domain, `IBV_ACCESS_LOCAL_WRITE`.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// As [`Self::ibv_reg_mr`], and 7. Needs `pd`.
    pub unsafe fn rdma_reg_msgs(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        // SAFETY: by 7, the identifier is live.
        let pd = unsafe { (*id).pd };
        // SAFETY: the caller's promises.
        unsafe { self.ibv_reg_mr(pd, addr, length, LOCAL) }
    }

    /// Registers memory from which the peer may read, in an identifier's domain.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// As [`Self::ibv_reg_mr`], and 7. Needs `pd`.
    pub unsafe fn rdma_reg_read(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        // SAFETY: by 7, the identifier is live.
        let pd = unsafe { (*id).pd };
        // SAFETY: the caller's promises.
        unsafe { self.ibv_reg_mr(pd, addr, length, LOCAL | READ) }
    }

    /// Registers memory to which the peer may write, in an identifier's domain.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// As [`Self::ibv_reg_mr`], and 7. Needs `pd`.
    pub unsafe fn rdma_reg_write(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        // SAFETY: by 7, the identifier is live.
        let pd = unsafe { (*id).pd };
        // SAFETY: the caller's promises.
        unsafe { self.ibv_reg_mr(pd, addr, length, LOCAL | WRITE) }
    }

    /// Deregisters memory.
    ///
    /// # Errors
    ///
    /// -1, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline).
    pub unsafe fn rdma_dereg_mr(&self, mr: *mut ibv_mr) -> c_int {
        // SAFETY: the caller's promise is the symbol's.
        rdma_seterrno(unsafe { (self.ibv_dereg_mr)(mr) })
    }

    /// Waits for a completion of an identifier's send queue: 1, and it is in `wc`.
    ///
    /// # Errors
    ///
    /// -1, with the reason in `errno`.
    ///
    /// # Panics
    ///
    /// With debug assertions, if an event of another queue comes.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline). Needs `send_cq` and `send_cq_channel`, on which no other events may come.
    pub unsafe fn rdma_get_send_comp(&self, id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
        // SAFETY: by 7, the identifier is live.
        let cq = unsafe { (*id).send_cq };
        // SAFETY: as above.
        let channel = unsafe { (*id).send_cq_channel };
        // SAFETY: the caller's promises.
        unsafe { self.completion(id, cq, channel, wc) }
    }

    /// Waits for a completion of an identifier's receive queue: 1, and it is in `wc`.
    ///
    /// # Errors
    ///
    /// -1, with the reason in `errno`.
    ///
    /// # Panics
    ///
    /// With debug assertions, if an event of another queue comes.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline). Needs `recv_cq` and `recv_cq_channel`, on which no other events may come.
    pub unsafe fn rdma_get_recv_comp(&self, id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
        // SAFETY: by 7, the identifier is live.
        let cq = unsafe { (*id).recv_cq };
        // SAFETY: as above.
        let channel = unsafe { (*id).recv_cq_channel };
        // SAFETY: the caller's promises.
        unsafe { self.completion(id, cq, channel, wc) }
    }

    /// Polls, asks for an event, polls again for what came in between, and sleeps until the event.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline); queue and channel are the identifier's.
    unsafe fn completion(
        &self,
        id: *mut rdma_cm_id,
        cq: *mut ibv_cq,
        channel: *mut ibv_comp_channel,
        wc: *mut ibv_wc,
    ) -> c_int {
        let found = loop {
            // SAFETY: the queue is live, and there is room for one completion.
            let found = unsafe { ibv_poll_cq(cq, 1, wc) };
            if found != 0 {
                break found;
            }
            // SAFETY: the queue is live.
            let asked = unsafe { ibv_req_notify_cq(cq, 0) };
            if asked != 0 {
                return rdma_seterrno(asked);
            }
            // SAFETY: as for the first time.
            let found = unsafe { ibv_poll_cq(cq, 1, wc) };
            if found != 0 {
                break found;
            }
            let (mut ready, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is live, and there is room for both.
            let event = unsafe { (self.ibv_get_cq_event)(channel, &raw mut ready, &raw mut context) };
            if event != 0 {
                return event;
            }
            debug_assert!(ready == cq && context == id.cast(), "an event of another queue");
            // SAFETY: the queue is live, and one event was taken.
            unsafe { (self.ibv_ack_cq_events)(cq, 1) };
        };
        if found < 0 { rdma_seterrno(found) } else { found }
    }
}
