//! The calls on ids: connections, from binding to their end.

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::sockaddr;
use rdma_sys::{
    __be16, ibv_ece, ibv_event_type, ibv_qp_attr, ibv_qp_type, rdma_cm_event, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use super::channel::{self, Channel, Conn};
use super::id::{self, Inner, look};
use super::machine::reason;
use super::message::{Ece, Terms};
use super::service::{self, Service};
use super::{address, device, events, qp};
use crate::engine::Errno;
use crate::verbs::errno::{minus_one, pointer};
use crate::verbs::object::Object;

/// `rdma_create_event_channel`.
pub(super) extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    pointer(Service::get().and_then(|_| Ok(channel::publish(Channel::new()?))))
}

/// `rdma_destroy_event_channel`: what ids are left on it end, as the kernel's do.
pub(super) unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: C's promise about the channel.
    let Ok(events) = (unsafe { channel::get(channel) }) else { return };
    // In a forked child nothing is done, and nothing freed.
    if service::end_channel(events).is_ok() {
        // SAFETY: C's promise: nobody uses a channel that is being freed; `events` is not used below.
        let _freed = unsafe { Object::free(channel) };
    }
}

/// `rdma_create_id`.
pub(super) unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let qp_type = match ps {
        rdma_port_space::RDMA_PS_UDP | rdma_port_space::RDMA_PS_IPOIB => ibv_qp_type::IBV_QPT_UD,
        _ => ibv_qp_type::IBV_QPT_RC,
    };
    // SAFETY: C's promise about the channel.
    minus_one(unsafe { id::create(channel, context, ps, qp_type) }.map(|made| {
        // SAFETY: C's promise: valid for writes.
        unsafe { id.write(made) };
    }))
}

/// `rdma_destroy_id`: waits until every event of it that was taken is acknowledged.
pub(super) unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { id::destroy(id) })
}

/// `rdma_migrate_id`.
pub(super) unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: C's promises about the id and the channel.
    minus_one(unsafe { id::migrate(id, channel) })
}

/// `rdma_get_cm_event`.
pub(super) unsafe extern "C" fn get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return minus_one(Err(Errno::INVAL));
    }
    // SAFETY: C's promise about the channel.
    minus_one(unsafe { events::take(channel) }.map(|taken| {
        // SAFETY: C's promise: valid for writes.
        unsafe { event.write(taken) };
    }))
}

/// `rdma_ack_cm_event`.
pub(super) unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    minus_one(Service::get().and_then(|_| {
        // SAFETY: C's promise about the event.
        unsafe { channel::acknowledge(event) }
    }))
}

/// The manager, and the key of an id.
///
/// # Safety
///
/// C's promise about the id.
unsafe fn find(id: *mut rdma_cm_id) -> Result<(&'static Service, u64), Errno> {
    // SAFETY: the caller's promise.
    let key = unsafe { id::get(id) }?.subject.key;
    Ok((Service::get()?, key))
}

/// `rdma_bind_addr`.
pub(super) unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: C's promises about the id and the address.
    minus_one(unsafe { bind(id, addr) })
}

/// # Safety
///
/// C's promises about the id and the address.
pub(super) unsafe fn bind(id: *mut rdma_cm_id, addr: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (service, key) = unsafe { find(id) }?;
    // SAFETY: the caller's promise.
    let address = unsafe { address::read(addr) }?;
    service.bind(key, address)?;
    // SAFETY: the caller's promise.
    unsafe { id::show_addresses(id) }
}

/// `rdma_resolve_addr`. There is nothing to wait for, and so no time limit.
pub(super) unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: C's promises about the id and the addresses.
    minus_one(unsafe { resolve(id, src_addr, dst_addr) })
}

/// # Safety
///
/// C's promises about the id and the addresses; the source may be null.
pub(super) unsafe fn resolve(
    id: *mut rdma_cm_id,
    src_addr: *const sockaddr,
    dst_addr: *const sockaddr,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (service, key) = unsafe { find(id) }?;
    // SAFETY: the caller's promise.
    let destination = unsafe { address::read(dst_addr) }?;
    let source = if src_addr.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { address::read(src_addr) }?)
    };
    // Shown first: another thread may take the event at once.
    // SAFETY: the caller's promise.
    unsafe { id::show_destination(id, &destination) };
    service.resolve_address(key, source, destination)?;
    // SAFETY: the caller's promise.
    unsafe { events::complete(id) }
}

/// `rdma_resolve_route`.
pub(super) unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { route(id) })
}

/// # Safety
///
/// C's promise about the id.
pub(super) unsafe fn route(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (service, key) = unsafe { find(id) }?;
    service.with(|state| state.entry(key)?.resolve_route())?;
    // SAFETY: the caller's promise.
    unsafe { events::complete(id) }
}

/// `rdma_listen`.
pub(super) unsafe extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { find(id) }.and_then(|(service, key)| {
        service.listen(key, backlog)?;
        // SAFETY: C's promise about the id.
        unsafe { id::show_addresses(id) }
    }))
}

/// Private data, as C has it.
///
/// # Safety
///
/// `data` is null or valid for reads of `len` bytes.
unsafe fn private(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// The parameters of a call, with what the id itself says: the depths, its queue pair, its vendor's options.
///
/// # Safety
///
/// A live id; `param` is null or C's, and its private data as it says.
unsafe fn parameters(id: *mut rdma_cm_id, inner: &Inner, param: *const rdma_conn_param) -> Conn {
    let mut terms = Terms {
        responder_resources: inner.responder_resources,
        initiator_depth: inner.initiator_depth,
        rnr_retry_count: 7,
        private: inner.connect_data.clone(),
        ..Terms::default()
    };
    let mut retry_count = 7;
    // SAFETY: the caller's promise.
    if let Some(param) = unsafe { param.as_ref() } {
        terms.qp_num = param.qp_num;
        terms.srq = param.srq != 0;
        terms.flow_control = param.flow_control != 0;
        terms.rnr_retry_count = param.rnr_retry_count;
        retry_count = param.retry_count;
        // SAFETY: the caller's promise.
        terms.private.extend(unsafe { private(param.private_data, param.private_data_len) });
    }
    let qp = look!(id, qp);
    if !qp.is_null() {
        terms.qp_num = look!(qp, qp_num);
        terms.srq = !look!(qp, srq).is_null();
    }
    Conn { retry_count, terms }
}

/// Which depths a call asks for: 255 stands for as many as there can be.
///
/// # Safety
///
/// A live id; `param` is null or C's.
unsafe fn check_depths(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(u8, u8), Errno> {
    let (max_responder, max_initiator) = device::depths()?;
    let is_rc = look!(id, ps) == rdma_port_space::RDMA_PS_TCP;
    // SAFETY: the caller's promise.
    let Some(param) = (unsafe { param.as_ref() }) else {
        // Without a queue pair of the id's the number of another one is needed.
        let known = !is_rc || !look!(id, qp).is_null();
        return if known { Ok((qp::AS_ASKED, qp::AS_ASKED)) } else { Err(Errno::INVAL) };
    };
    let fits = |asked: u8, max: u8| !is_rc || asked == qp::AS_ASKED || asked <= max;
    if fits(param.responder_resources, max_responder) && fits(param.initiator_depth, max_initiator) {
        Ok((param.responder_resources, param.initiator_depth))
    } else {
        Err(Errno::INVAL)
    }
}

/// `rdma_connect`.
pub(super) unsafe extern "C" fn connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: C's promises about the id and the parameters.
    minus_one(unsafe { try_connect(id, conn_param) })
}

/// # Safety
///
/// C's promises about the id and the parameters, which may be null.
unsafe fn try_connect(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (service, key) = unsafe { find(id) }?;
    // SAFETY: the caller's promise.
    let (responder, initiator) = unsafe { check_depths(id, param) }?;
    let (max_responder, max_initiator) = device::depths()?;
    let most = |asked: u8, max: u8| if asked == qp::AS_ASKED { max } else { asked };
    // SAFETY: the caller's promise.
    let state = unsafe { id::get(id) }?;
    let asked = {
        let mut inner = state.lock();
        inner.responder_resources = most(responder, max_responder);
        inner.initiator_depth = most(initiator, max_initiator);
        // SAFETY: the caller's promise.
        let Conn { retry_count, terms } = unsafe { parameters(id, &inner, param) };
        Conn { retry_count, terms: Terms { ece: inner.local_ece, ..terms } }
    };
    service.with(|state| state.connect(key, asked))?;
    state.lock().connect_data = Vec::new();
    // SAFETY: the caller's promise.
    unsafe { events::complete(id) }
}

/// `rdma_accept`.
pub(super) unsafe extern "C" fn accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: C's promises about the id and the parameters.
    minus_one(unsafe { try_accept(id, conn_param) })
}

/// # Safety
///
/// C's promises about the id and the parameters, which may be null.
unsafe fn try_accept(id: *mut rdma_cm_id, param: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (service, key) = unsafe { find(id) }?;
    if param.is_null() && look!(id, qp).is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let (responder, initiator) = unsafe { check_depths(id, param) }?;
    let (max_responder, max_initiator) = device::depths()?;
    // SAFETY: the caller's promise.
    let state = unsafe { id::get(id) }?;
    let answer = {
        let mut inner = state.lock();
        // What the peer asks for, but not more than there can be.
        let agree = |asked: u8, theirs: u8, max: u8| if asked == qp::AS_ASKED { theirs.min(max) } else { asked };
        inner.responder_resources = agree(responder, inner.responder_resources, max_responder);
        inner.initiator_depth = agree(initiator, inner.initiator_depth, max_initiator);
        // SAFETY: the caller's promise.
        let Conn { terms, .. } = unsafe { parameters(id, &inner, param) };
        // The peer's own vendor, as a sign that its options were read.
        Terms { ece: Ece { vendor: inner.remote_ece.vendor, options: inner.local_ece.options }, ..terms }
    };
    let is_datagram = look!(id, qp_type) == ibv_qp_type::IBV_QPT_UD;
    if !is_datagram {
        // SAFETY: the caller's promise.
        unsafe { qp::to_ready_to_receive(id, answer.responder_resources) }?;
        // SAFETY: the caller's promise.
        unsafe { qp::to_ready_to_send(id, answer.initiator_depth) }?;
    }
    let accepted = service.with(|state| state.accept_request(key, answer, rdma_sys::RDMA_UDP_QKEY));
    if let Err(errno) = accepted {
        // Too much private data, or the peer is gone already: it is told, if it can be.
        let _gone = service.with(|state| state.reject(key, reason::CONSUMER_DEFINED, Vec::new()));
        // SAFETY: the caller's promise.
        let _best_effort = unsafe { qp::to_error(id) };
        return Err(errno);
    }
    if is_datagram {
        // No event will come.
        if state.lock().sync {
            // SAFETY: the caller's promise.
            unsafe { events::acknowledge_own(id) };
        }
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { events::complete(id) }
}

/// `rdma_establish`.
pub(super) unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { id::get(id) }.and_then(|_| {
        if !look!(id, qp).is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: C's promise about the id.
        unsafe { qp::confirm(id) }
    }))
}

/// `rdma_reject`.
pub(super) unsafe extern "C" fn reject(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int {
    // SAFETY: C's promises about the id and the data.
    minus_one(unsafe { try_reject(id, private_data, len, reason::CONSUMER_DEFINED) })
}

/// `rdma_reject_ece`.
pub(super) unsafe extern "C" fn reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int {
    // SAFETY: C's promises about the id and the data.
    minus_one(unsafe { try_reject(id, private_data, len, reason::VENDOR_OPTION_NOT_SUPPORTED) })
}

/// # Safety
///
/// C's promises about the id and the data.
unsafe fn try_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8, reason: u16) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (service, key) = unsafe { find(id) }?;
    // SAFETY: the caller's promise.
    let private = unsafe { private(data, len) };
    service.with(|state| state.reject(key, reason, private))
}

/// `rdma_notify`.
pub(super) unsafe extern "C" fn notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { find(id) }.and_then(|(service, key)| match event {
        ibv_event_type::IBV_EVENT_COMM_EST => {
            service.with(|state| state.call(key, |machine, out| machine.communication_established(out)))
        }
        _ => Err(Errno::INVAL),
    }))
}

/// `rdma_disconnect`.
pub(super) unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { try_disconnect(id) })
}

/// # Safety
///
/// C's promise about the id.
unsafe fn try_disconnect(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (service, key) = unsafe { find(id) }?;
    if look!(id, verbs).is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { qp::to_error(id) }?;
    service.with(|state| {
        state.call(key, |machine, out| {
            machine.disconnect(crate::node::clock::now(), out);
            Ok(())
        })
    })?;
    // SAFETY: the caller's promise.
    unsafe { events::complete(id) }
}

/// `rdma_get_src_port`, in network order.
pub(super) unsafe extern "C" fn get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: C's promise about the id.
    if unsafe { id::get(id) }.is_err() {
        return 0;
    }
    let storage = look!(id, route.addr.__bindgen_anon_1.src_storage);
    // SAFETY: a copy of an address that we wrote, or zeroes.
    unsafe { address::read((&raw const storage).cast()) }.map_or(0, |address| address.port().to_be())
}

/// `rdma_get_dst_port`, in network order.
pub(super) unsafe extern "C" fn get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: C's promise about the id.
    if unsafe { id::get(id) }.is_err() {
        return 0;
    }
    let storage = look!(id, route.addr.__bindgen_anon_2.dst_storage);
    // SAFETY: a copy of an address that we wrote, or zeroes.
    unsafe { address::read((&raw const storage).cast()) }.map_or(0, |address| address.port().to_be())
}

/// `rdma_init_qp_attr`.
pub(super) unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { id::get(id) }.and_then(|_| {
        let state = look!(qp_attr, qp_state);
        // SAFETY: C's promise about the id.
        let (attr, mask) = unsafe { qp::attributes(id, state) }?;
        // SAFETY: C's promise: valid for writes.
        unsafe { qp_attr.write(attr) };
        // SAFETY: C's promise: valid for writes.
        unsafe { qp_attr_mask.write(c_int::try_from(mask.0).unwrap_or(0)) };
        Ok(())
    }))
}

/// `rdma_set_local_ece`.
pub(super) unsafe extern "C" fn set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { id::get(id) }.and_then(|state| {
        // SAFETY: C's promise: null, or valid for reads.
        let ece = unsafe { ece.as_ref() }.ok_or(Errno::INVAL)?;
        if !look!(id, qp).is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        state.lock().local_ece = Ece { vendor: ece.vendor_id, options: ece.options };
        Ok(())
    }))
}

/// `rdma_get_remote_ece`.
pub(super) unsafe extern "C" fn get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { id::get(id) }.and_then(|state| {
        if !look!(id, qp).is_null() || ece.is_null() {
            return Err(Errno::INVAL);
        }
        let Ece { vendor, options } = state.lock().remote_ece;
        // SAFETY: C's promise: valid for writes.
        unsafe { ece.write(ibv_ece { vendor_id: vendor, options, comp_mask: 0 }) };
        Ok(())
    }))
}

/// `rdma_write_cm_event`.
pub(super) unsafe extern "C" fn write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    // SAFETY: C's promise about the id.
    minus_one(unsafe { find(id) }.and_then(|(service, key)| {
        if event != rdma_cm_event_type::RDMA_CM_EVENT_USER {
            return Err(Errno::INVAL);
        }
        service.with(|state| state.entry(key).map(|entry| entry.write_event(event, status, arg)))
    }))
}

/// `rdma_get_devices`.
pub(super) unsafe extern "C" fn get_devices(num_devices: *mut c_int) -> *mut *mut rdma_sys::ibv_context {
    let opened = Service::get().and_then(|_| device::open());
    if !num_devices.is_null() {
        // SAFETY: C's promise: null, or valid for writes.
        unsafe { num_devices.write(c_int::from(opened.is_ok())) };
    }
    pointer(opened.map(|context| Box::into_raw(Box::new([context, ptr::null_mut()])).cast()))
}

/// `rdma_free_devices`: the list; the context stays open.
pub(super) unsafe extern "C" fn free_devices(list: *mut *mut rdma_sys::ibv_context) {
    if !list.is_null() {
        // SAFETY: C's promise: it came from `get_devices`, and is not used any more. There it was such a box.
        drop(unsafe { Box::from_raw(list.cast::<[*mut rdma_sys::ibv_context; 2]>()) });
    }
}
