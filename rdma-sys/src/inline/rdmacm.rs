//! The inline functions of `rdma_cma.h` and `rdma_verbs.h`: verbs on the objects of a connection
//! identifier.
//!
//! `rdma_create_qp`, `rdma_create_srq` and `rdma_create_ep` set an identifier's pointers `qp`,
//! `srq`, `pd`, `send_cq`, `recv_cq` and the channels. None of these functions checks them; each
//! says which it needs. The safety rules are those of the [module](crate::inline), 1 to 7.

use std::ptr::null_mut;

use super::{ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_req_notify_cq};
use crate::{Ibverbs, bindings::*, os::set_errno};
use libc::{c_int, c_uint, c_void, sockaddr};

const LOCAL: c_uint = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const READ: c_uint = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
const WRITE: c_uint = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;

/// Converts the result `ret` of a verb to the result of an `rdma_*` function: 0 for 0, otherwise -1
/// with `ret` in `errno`.
#[allow(clippy::must_use_candidate, reason = "it sets errno, too")]
pub fn rdma_seterrno(ret: c_int) -> c_int {
    if ret == 0 {
        return 0;
    }
    set_errno(ret);
    -1
}

/// A pointer to an identifier's own address. The family says whether the address is set, and its
/// form.
///
/// # Safety
///
/// The identifier is live. The address is the identifier's, and the library changes it.
#[inline]
#[must_use]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the place requires a live identifier, this function's condition; nothing is read.
    unsafe { &raw mut (*id).route.addr.__bindgen_anon_1.src_addr }
}

/// A pointer to the address of an identifier's peer. The family says whether the address is set,
/// and its form.
///
/// # Safety
///
/// The identifier is live. The address is the identifier's, and the library changes it.
#[inline]
#[must_use]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the place requires a live identifier, this function's condition; nothing is read.
    unsafe { &raw mut (*id).route.addr.__bindgen_anon_2.dst_addr }
}

/// One entry of a scatter-gather list, for memory of a region, or for inline data without one. A
/// length beyond 32 bits is cut off, as in C.
///
/// # Safety
///
/// The region is NULL or live.
#[allow(clippy::cast_possible_truncation, reason = "as in C")]
unsafe fn entry(addr: *mut c_void, length: usize, mr: *const ibv_mr) -> ibv_sge {
    // SAFETY: as_ref requires NULL or a live region, this function's condition.
    let lkey = unsafe { mr.as_ref() }.map_or(0, |mr| mr.lkey);
    ibv_sge { addr: addr.expose_provenance() as u64, length: length as u32, lkey }
}

/// A send request with the fields that every operation uses; the others are zero.
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
    // SAFETY: the read requires a live identifier (7).
    let qp = unsafe { (*id).qp };
    // SAFETY: ibv_post_send requires a live queue pair (7), a list of requests, which is one local
    // request that the caller answers for (2, 3), and space for a pointer, which is a local.
    rdma_seterrno(unsafe { ibv_post_send(qp, &raw mut wr, &raw mut bad) })
}

/// Posts a receive to the shared receive queue of an identifier, or to its queue pair if the
/// identifier has no shared receive queue.
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
    // SAFETY: the read requires a live identifier (7).
    let srq = unsafe { (*id).srq };
    if !srq.is_null() {
        // SAFETY: ibv_post_srq_recv requires a live queue (7), a list of requests, which is one
        // local request that the caller answers for (2, 3), and space for a pointer, which is a
        // local.
        return rdma_seterrno(unsafe { ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad) });
    }
    // SAFETY: the read requires a live identifier (7).
    let qp = unsafe { (*id).qp };
    // SAFETY: ibv_post_recv requires a live queue pair (7), a list of requests, which is one local
    // request that the caller answers for (2, 3), and space for a pointer, which is a local.
    rdma_seterrno(unsafe { ibv_post_recv(qp, &raw mut wr, &raw mut bad) })
}

/// Declares the two functions of an operation: one for a list of pieces, one for one piece.
macro_rules! post_functions {
    ($(
        $(#[$list_doc:meta])* fn $list:ident, $(#[$doc:meta])* fn $single:ident
        ($($arg:ident: $ty:ty),*) = $opcode:ident $({ $($remote:ident),* })?;
    )*) => {$(
        $(#[$list_doc])*
        ///
        /// # Errors
        ///
        /// -1, with the reason in `errno`.
        ///
        /// # Safety
        ///
        /// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
        pub unsafe fn $list(
            id: *mut rdma_cm_id,
            context: *mut c_void,
            sgl: *mut ibv_sge,
            nsge: c_int,
            flags: c_int,
            $($arg: $ty),*
        ) -> c_int {
            let wr = ibv_send_wr {
                $(wr: ibv_send_wr__bindgen_ty_2 { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { $($remote),* } },)?
                ..request(context, sgl, nsge, flags, ibv_wr_opcode::$opcode)
            };
            // SAFETY: post has this function's conditions (1 to 7, `qp`), and the request names the
            // caller's list.
            unsafe { post(id, wr) }
        }

        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// -1, with the reason in `errno`.
        ///
        /// # Safety
        ///
        /// The [rules of the module](crate::inline), 1 to 7. Needs `qp`.
        #[allow(clippy::too_many_arguments, reason = "the header's")]
        pub unsafe fn $single(
            id: *mut rdma_cm_id,
            context: *mut c_void,
            addr: *mut c_void,
            length: usize,
            mr: *mut ibv_mr,
            flags: c_int,
            $($arg: $ty),*
        ) -> c_int {
            // SAFETY: entry requires NULL or a live region (1, 2).
            let mut sge = unsafe { entry(addr, length, mr) };
            // SAFETY: the other function has this function's conditions (1 to 7, `qp`); the list is
            // one local entry.
            unsafe { $list(id, context, &raw mut sge, 1, flags, $($arg),*) }
        }
    )*};
}

post_functions! {
    /// Posts a send of several pieces to an identifier's queue pair.
    fn rdma_post_sendv,
    /// Posts a send to an identifier's queue pair. `mr` may be NULL for inline data.
    fn rdma_post_send() = IBV_WR_SEND;
    /// Posts an RDMA read into several pieces to an identifier's queue pair.
    fn rdma_post_readv,
    /// Posts an RDMA read to an identifier's queue pair.
    fn rdma_post_read(remote_addr: u64, rkey: u32) = IBV_WR_RDMA_READ { remote_addr, rkey };
    /// Posts an RDMA write of several pieces to an identifier's queue pair.
    fn rdma_post_writev,
    /// Posts an RDMA write to an identifier's queue pair. `mr` may be NULL for inline data.
    fn rdma_post_write(remote_addr: u64, rkey: u32) = IBV_WR_RDMA_WRITE { remote_addr, rkey };
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
/// The [rules of the module](crate::inline), 1 to 7. Needs `srq` or `qp`.
pub unsafe fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: the read requires a live region (1).
    let region = unsafe { mr.read() };
    debug_assert!(
        addr.addr() >= region.addr.addr()
            && addr.addr().wrapping_add(length) <= region.addr.addr().wrapping_add(region.length),
        "the memory is not inside the region"
    );
    // SAFETY: entry requires NULL or a live region (1).
    let mut sge = unsafe { entry(addr, length, mr) };
    // SAFETY: rdma_post_recvv has this function's conditions (1 to 7, a queue); the list is one
    // local entry.
    unsafe { rdma_post_recvv(id, context, &raw mut sge, 1) }
}

/// Posts a datagram with the queue key [`RDMA_UDP_QKEY`] to an identifier's queue pair. `mr` may be
/// NULL for inline data.
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
    // SAFETY: entry requires NULL or a live region (1, 2).
    let mut sge = unsafe { entry(addr, length, mr) };
    let mut wr = request(context, &raw mut sge, 1, flags, ibv_wr_opcode::IBV_WR_SEND);
    wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey: RDMA_UDP_QKEY };
    // SAFETY: post has this function's conditions (1 to 7, `qp`); the list is one local entry.
    unsafe { post(id, wr) }
}

/// The functions that call exported symbols of libibverbs. The safety rules are those of the
/// [module](crate::inline), 1 to 7, and all objects are of this table's implementation.
impl Ibverbs {
    /// Registers memory in an identifier's domain.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::ibv_reg_mr`], and 7. Needs `pd`.
    unsafe fn register(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize, access: c_uint) -> *mut ibv_mr {
        // SAFETY: the read requires a live identifier (7).
        let pd = unsafe { (*id).pd };
        // SAFETY: ibv_reg_mr requires a live domain (7) and memory that stays valid, this
        // function's condition.
        unsafe { self.ibv_reg_mr(pd, addr, length, access) }
    }

    /// Registers memory for messages in an identifier's domain: `IBV_ACCESS_LOCAL_WRITE`.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::ibv_reg_mr`], and 7. Needs `pd`.
    pub unsafe fn rdma_reg_msgs(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        // SAFETY: register has this function's conditions, on the same arguments.
        unsafe { self.register(id, addr, length, LOCAL) }
    }

    /// Registers memory from which the peer may read, in an identifier's domain.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::ibv_reg_mr`], and 7. Needs `pd`.
    pub unsafe fn rdma_reg_read(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        // SAFETY: register has this function's conditions, on the same arguments.
        unsafe { self.register(id, addr, length, LOCAL | READ) }
    }

    /// Registers memory to which the peer may write, in an identifier's domain.
    ///
    /// # Errors
    ///
    /// NULL, with the reason in `errno`.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::ibv_reg_mr`], and 7. Needs `pd`.
    pub unsafe fn rdma_reg_write(&self, id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        // SAFETY: register has this function's conditions, on the same arguments.
        unsafe { self.register(id, addr, length, LOCAL | WRITE) }
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
        // SAFETY: the symbol requires a live region (1).
        rdma_seterrno(unsafe { (self.ibv_dereg_mr)(mr) })
    }

    /// Waits for a completion of an identifier's send queue: returns 1, with the completion in
    /// `wc`.
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
    /// The [rules of the module](crate::inline). Needs `send_cq` and `send_cq_channel`, on which no
    /// other events may come.
    pub unsafe fn rdma_get_send_comp(&self, id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
        // SAFETY: the read requires a live identifier (7).
        let cq = unsafe { (*id).send_cq };
        // SAFETY: the read requires a live identifier (7).
        let channel = unsafe { (*id).send_cq_channel };
        // SAFETY: completion requires space for a completion (2), and the identifier's own queue
        // and channel.
        unsafe { self.completion(id, cq, channel, wc) }
    }

    /// Waits for a completion of an identifier's receive queue: returns 1, with the completion in
    /// `wc`.
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
    /// The [rules of the module](crate::inline). Needs `recv_cq` and `recv_cq_channel`, on which no
    /// other events may come.
    pub unsafe fn rdma_get_recv_comp(&self, id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
        // SAFETY: the read requires a live identifier (7).
        let cq = unsafe { (*id).recv_cq };
        // SAFETY: the read requires a live identifier (7).
        let channel = unsafe { (*id).recv_cq_channel };
        // SAFETY: completion requires space for a completion (2), and the identifier's own queue
        // and channel.
        unsafe { self.completion(id, cq, channel, wc) }
    }

    /// Polls, asks for an event, polls again for a completion that came in between, and sleeps
    /// until the event.
    ///
    /// # Safety
    ///
    /// The [rules of the module](crate::inline); queue and channel are the identifier's, and live.
    unsafe fn completion(
        &self,
        id: *mut rdma_cm_id,
        cq: *mut ibv_cq,
        channel: *mut ibv_comp_channel,
        wc: *mut ibv_wc,
    ) -> c_int {
        // SAFETY: ibv_poll_cq requires a live queue, this function's condition, and space for one
        // completion (2).
        let poll = || unsafe { ibv_poll_cq(cq, 1, wc) };
        let found = loop {
            let found = poll();
            if found != 0 {
                break found;
            }
            // SAFETY: ibv_req_notify_cq requires a live queue, this function's condition.
            let asked = unsafe { ibv_req_notify_cq(cq, 0) };
            if asked != 0 {
                return rdma_seterrno(asked);
            }
            let found = poll();
            if found != 0 {
                break found;
            }
            let (mut ready, mut context) = (null_mut(), null_mut());
            // SAFETY: the symbol requires a live channel, this function's condition, and space for
            // two pointers, which are locals.
            let event = unsafe { (self.ibv_get_cq_event)(channel, &raw mut ready, &raw mut context) };
            if event != 0 {
                return event;
            }
            debug_assert!(ready == cq && context == id.cast(), "an event of another queue");
            // SAFETY: the symbol requires a live queue, this function's condition, of which one
            // event was taken.
            unsafe { (self.ibv_ack_cq_events)(cq, 1) };
        };
        if found < 0 { rdma_seterrno(found) } else { found }
    }
}
