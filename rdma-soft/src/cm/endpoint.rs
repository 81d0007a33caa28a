//! Endpoints: ids that are bound or connected in one call, and requests taken by waiting for them.

use std::ffi::c_int;

use rdma_sys::{
    RAI_PASSIVE, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_addrinfo,
    rdma_cm_event_type, rdma_cm_id, rdma_port_space,
};

use super::id::{self, QpInit, look, put};
use super::{calls, events, options, qp};
use crate::engine::Errno;
use crate::verbs::errno::minus_one;

/// `rdma_create_ep`.
pub(super) unsafe extern "C" fn create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: C's promises about the arguments.
    minus_one(unsafe { create(res, pd, qp_init_attr) }.map(|made| {
        // SAFETY: C's promise: valid for writes.
        unsafe { id.write(made) };
    }))
}

fn unsigned(value: c_int) -> Result<u32, Errno> {
    u32::try_from(value).map_err(|_| Errno::INVAL)
}

/// # Safety
///
/// C's promises about the arguments; the domain and the attributes may be null.
unsafe fn create(
    res: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's promise: valid for reads.
    let res = unsafe { res.as_ref() }.ok_or(Errno::INVAL)?;
    let (ps, qp_type) = (unsigned(res.ai_port_space)?, unsigned(res.ai_qp_type)?);
    let none = std::ptr::null_mut();
    // SAFETY: without a channel.
    let id = unsafe { id::create(none, none.cast(), rdma_port_space(ps), ibv_qp_type(qp_type)) }?;
    let ready = match unsigned(res.ai_flags) {
        Ok(flags) if flags & RAI_PASSIVE == 0 => {
            // SAFETY: just made; the rest as the caller promises.
            unsafe { active(id, res, pd, init) }
        }
        _ => {
            // SAFETY: as above.
            unsafe { passive(id, res, pd, init) }
        }
    };
    if let Err(errno) = ready {
        // SAFETY: just made, and nobody knows of it.
        unsafe { destroy(id) };
        return Err(errno);
    }
    Ok(id)
}

/// # Safety
///
/// A live id; C's promises about the others.
unsafe fn passive(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { calls::bind(id, res.ai_src_addr) }?;
    if !pd.is_null() {
        put!(id, pd, pd);
    }
    // SAFETY: the caller's promise: null, or valid for reads.
    if let Some(init) = unsafe { init.as_ref() } {
        let init = ibv_qp_init_attr { qp_type: ibv_qp_type(unsigned(res.ai_qp_type)?), ..*init };
        // SAFETY: the caller's promise.
        unsafe { id::get(id) }?.lock().qp_init = Some(QpInit(init));
    }
    Ok(())
}

/// # Safety
///
/// A live id; C's promises about the others.
unsafe fn active(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { calls::resolve(id, res.ai_src_addr, res.ai_dst_addr) }?;
    if res.ai_route_len == 0 {
        // SAFETY: the caller's promise.
        unsafe { calls::route(id) }?;
    } else {
        // SAFETY: the caller's promise.
        unsafe { options::set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res.ai_route, res.ai_route_len) }?;
        // SAFETY: the caller's promise.
        unsafe { events::complete(id) }?;
    }
    // SAFETY: the caller's promise: null, or valid for reads and writes.
    if let Some(init) = unsafe { init.as_mut() } {
        init.qp_type = ibv_qp_type(unsigned(res.ai_qp_type)?);
        // SAFETY: the caller's promise.
        unsafe { qp::create(id, pd, init) }?;
    }
    if res.ai_connect_len != 0 && !res.ai_connect.is_null() {
        // SAFETY: the caller's promise: so many bytes.
        let data = unsafe { std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        // SAFETY: the caller's promise.
        unsafe { id::get(id) }?.lock().connect_data = data.to_vec();
    }
    Ok(())
}

/// `rdma_destroy_ep`.
pub(super) unsafe extern "C" fn destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: C's promise about the id.
    unsafe { destroy(id) };
}

/// # Safety
///
/// As for [`id::destroy`].
unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    if unsafe { id::get(id) }.is_ok() && !look!(id, qp).is_null() {
        // SAFETY: the caller's promise.
        unsafe { qp::destroy(id) };
    }
    // SAFETY: the caller's promise.
    let _gone = unsafe { id::destroy(id) };
}

/// `rdma_get_request`.
pub(super) unsafe extern "C" fn get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { request(listen) }.map(|made| {
        // SAFETY: C's promise: valid for writes.
        unsafe { id.write(made) };
    }))
}

/// # Safety
///
/// C's promise about the id.
unsafe fn request(listen: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    type Event = rdma_cm_event_type;
    // SAFETY: the caller's promise.
    let state = unsafe { id::get(listen) }?;
    if !state.lock().sync {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { events::acknowledge_own(listen) };
    let channel = look!(listen, channel);
    // SAFETY: the id's own channel.
    let event = unsafe { events::take(channel) }?;
    let (code, status, id) = (look!(event, event), look!(event, status), look!(event, id));
    let good = match code {
        Event::RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
        _ if status != 0 => Err(Errno(status.checked_abs().unwrap_or(libc::EIO))),
        Event::RDMA_CM_EVENT_CONNECT_REQUEST => Ok(()),
        _ => Err(Errno::INVAL),
    };
    let init = state.lock().qp_init;
    let good = good.and_then(|()| match init {
        Some(QpInit(mut init)) => {
            let pd = look!(listen, pd);
            // SAFETY: the id of the request, which nobody else knows of.
            unsafe { qp::create(id, pd, &mut init) }
        }
        None => Ok(()),
    });
    match good {
        Ok(()) => {
            put!(id, event, event);
            Ok(id)
        }
        Err(errno) => {
            put!(listen, event, event);
            // A request whose queue pair cannot be made is nobody's.
            if code == Event::RDMA_CM_EVENT_CONNECT_REQUEST {
                // SAFETY: the id of the request, which nobody else knows of.
                unsafe { destroy(id) };
            }
            Err(errno)
        }
    }
}
