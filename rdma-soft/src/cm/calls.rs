//! The functions of librdmacm on channels, ids and events. Numbers cite C's promises in [`super`].

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;

use libc::sockaddr;
use rdma_sys::{
    __be16, ibv_context, ibv_ece, ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_type, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use super::channel::{self, Body, Channel, Conn};
use super::id::{self, Id, Inner};
use super::machine::reason;
use super::message::{Ece, Terms};
use super::qp::AS_ASKED;
use super::service::{self, Service};
use super::{address, device, events};
use crate::engine::{Errno, limits};
use crate::os::now;
use crate::verbs::errno::{minus_one, pointer};
use crate::verbs::object::{Object, get_field, set_field};

/// Runs a call on an id.
///
/// # Safety
///
/// `id` is null or a live id that nobody destroys meanwhile.
pub(super) unsafe fn on(id: *mut rdma_cm_id, call: impl FnOnce(Id<'_>) -> Result<(), Errno>) -> c_int {
    // SAFETY: `Object::get` asks for the same.
    minus_one(unsafe { Object::get(id) }.and_then(call))
}

/// Hands out what a call made.
///
/// # Safety
///
/// `out` is null or valid for writes.
pub(super) unsafe fn hand_out<T>(out: *mut T, make: impl FnOnce() -> Result<T, Errno>) -> c_int {
    if out.is_null() {
        return minus_one(Err(Errno::INVAL));
    }
    // SAFETY: `write` wants a pointer that is valid for writes: the caller's promise, and it is not null.
    minus_one(make().map(|made| unsafe { out.write(made) }))
}

/// `rdma_create_event_channel`.
pub(super) extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    pointer(Service::get().and_then(|_| Ok(channel::publish(Channel::new()?))))
}

/// `rdma_destroy_event_channel`: ids that are left on it end, as the kernel's do.
pub(super) unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: `Object::get` wants null or a live channel: promise 1.
    let Ok(object) = (unsafe { Object::get(channel) }) else { return };
    if service::end_channel(object).is_ok() {
        // SAFETY: `Object::free` wants an object that nobody uses: promise 1; `object` is not used below.
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
    // SAFETY: `create` wants null or a live channel: promise 1.
    let create = || unsafe { id::create(channel, context, ps, qp_type) };
    // SAFETY: `hand_out` wants a pointer for writes: promise 2.
    unsafe { hand_out(id, create) }
}

/// `rdma_destroy_id`: waits until every event of it that was taken is acknowledged.
pub(super) unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `destroy` wants an id that nobody uses: promise 1.
    minus_one(unsafe { id::destroy(id) })
}

/// `rdma_migrate_id`.
pub(super) unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: `migrate` wants null or a live channel: promise 1.
    let migrate = |id: Id<'_>| unsafe { id::migrate(id, channel) };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, migrate) }
}

/// `rdma_get_cm_event`.
pub(super) unsafe extern "C" fn get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: `take` wants null or a live channel: promise 1.
    let take = || unsafe { events::take(channel) };
    // SAFETY: `hand_out` wants a pointer for writes: promise 2.
    unsafe { hand_out(event, take) }
}

/// `rdma_ack_cm_event`.
pub(super) unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: `acknowledge` wants an event that nobody uses any more: promise 1.
    minus_one(unsafe { channel::acknowledge(event) })
}

/// `rdma_bind_addr`.
pub(super) unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: `read` wants null or an address as its family says: promise 2.
    let address = unsafe { address::read(addr) };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| bind(id, address?)) }
}

pub(super) fn bind(id: Id<'_>, address: SocketAddr) -> Result<(), Errno> {
    Service::get()?.bind(id.key(), address)?;
    id.show_addresses()
}

/// `rdma_resolve_addr`. There is nothing to wait for, and so no time limit.
pub(super) unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: `read_optional` wants null or an address as its family says: promise 2.
    let source = unsafe { address::read_optional(src_addr) };
    // SAFETY: `read` wants null or an address as its family says: promise 2.
    let destination = unsafe { address::read(dst_addr) };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| resolve(id, source?, destination?)) }
}

pub(super) fn resolve(id: Id<'_>, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), Errno> {
    // Before the call: another thread may take the event at once.
    set_field!(id, route.addr.__bindgen_anon_2.dst_storage, address::storage(destination));
    Service::get()?.resolve_address(id.key(), source, destination)?;
    events::complete(id)
}

/// `rdma_resolve_route`.
pub(super) unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, route) }
}

pub(super) fn route(id: Id<'_>) -> Result<(), Errno> {
    id.with_entry(|entry| entry.resolve_route())?;
    events::complete(id)
}

/// `rdma_listen`.
pub(super) unsafe extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let listen = |id: Id<'_>| {
        Service::get()?.listen(id.key(), backlog)?;
        id.show_addresses()
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, listen) }
}

/// So many bytes of C's; none for null.
///
/// # Safety
///
/// `data` is null or valid for reads of `len` bytes, which nobody changes while the slice is used.
pub(super) unsafe fn bytes<'a>(data: *const c_void, len: usize) -> &'a [u8] {
    if data.is_null() || isize::try_from(len).is_err() {
        return &[];
    }
    // SAFETY: `from_raw_parts` asks for the same, and for a length that an `isize` holds.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }
}

/// Parameters as C gives them; `None` for null.
///
/// # Safety
///
/// `param` is null or valid for reads, and its private data is as it says.
unsafe fn parameters(param: *const rdma_conn_param) -> Option<Conn> {
    // SAFETY: `as_ref` wants null or a pointer that is valid for reads: the caller's promise.
    let param = unsafe { param.as_ref() }?;
    let terms = Terms {
        qp_num: param.qp_num,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        rnr_retry_count: param.rnr_retry_count,
        flow_control: param.flow_control != 0,
        srq: param.srq != 0,
        // SAFETY: `bytes` wants null or so many bytes: the caller's promise.
        private: unsafe { bytes(param.private_data, param.private_data_len.into()) }.to_vec(),
        ..Terms::default()
    };
    Some(Conn { retry_count: param.retry_count, terms })
}

/// The parameters of a call, with what the id itself says: its queue pair, and what goes before the private data. The depths are
/// checked; 255 stands for as many as there can be.
fn complete_parameters(id: Id<'_>, given: Option<Conn>) -> Result<Conn, Errno> {
    let is_rc = get_field!(id, ps) == rdma_port_space::RDMA_PS_TCP;
    if given.is_none() && is_rc && id.qp().is_none() {
        // The number of a queue pair is needed.
        return Err(Errno::INVAL);
    }
    let mut conn = given.unwrap_or_else(|| {
        let (responder_resources, initiator_depth, rnr_retry_count) = (AS_ASKED, AS_ASKED, 7);
        let terms = Terms { responder_resources, initiator_depth, rnr_retry_count, ..Terms::default() };
        Conn { retry_count: 7, terms }
    });
    let fits = |asked: u8| !is_rc || asked == AS_ASKED || asked <= limits::MAX_RD_ATOMIC;
    if !fits(conn.terms.responder_resources) || !fits(conn.terms.initiator_depth) {
        return Err(Errno::INVAL);
    }
    if let Some(qp) = id.qp() {
        conn.terms.qp_num = qp.number();
        conn.terms.srq = qp.has_srq();
    }
    let mut private = id.lock().connect_data.clone();
    private.append(&mut conn.terms.private);
    Ok(Conn { terms: Terms { private, ..conn.terms }, ..conn })
}

/// Sets the depths of a call; `most` is what stands for as many as there can be.
fn agree(inner: &mut Inner, terms: &mut Terms, most: (u8, u8)) {
    let agree = |asked: u8, most: u8| if asked == AS_ASKED { most } else { asked };
    terms.responder_resources = agree(terms.responder_resources, most.0);
    terms.initiator_depth = agree(terms.initiator_depth, most.1);
    (inner.responder_resources, inner.initiator_depth) = (terms.responder_resources, terms.initiator_depth);
}

/// `rdma_connect`.
pub(super) unsafe extern "C" fn connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: `parameters` wants null or valid parameters: promise 2.
    let given = unsafe { parameters(conn_param) };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| try_connect(id, given)) }
}

fn try_connect(id: Id<'_>, given: Option<Conn>) -> Result<(), Errno> {
    let mut conn = complete_parameters(id, given)?;
    {
        let mut inner = id.lock();
        agree(&mut inner, &mut conn.terms, (limits::MAX_RD_ATOMIC, limits::MAX_RD_ATOMIC));
        conn.terms.ece = inner.local_ece;
    }
    id.with_state(|state, key| state.connect(key, conn))?;
    id.lock().connect_data = Vec::new();
    events::complete(id)
}

/// `rdma_accept`.
pub(super) unsafe extern "C" fn accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: `parameters` wants null or valid parameters: promise 2.
    let given = unsafe { parameters(conn_param) };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| try_accept(id, given)) }
}

fn try_accept(id: Id<'_>, given: Option<Conn>) -> Result<(), Errno> {
    if given.is_none() && id.qp().is_none() {
        return Err(Errno::INVAL);
    }
    let Conn { mut terms, .. } = complete_parameters(id, given)?;
    {
        let mut inner = id.lock();
        // What the peer asks for, but not more than there can be.
        let most = (inner.responder_resources, inner.initiator_depth);
        agree(&mut inner, &mut terms, (most.0.min(limits::MAX_RD_ATOMIC), most.1.min(limits::MAX_RD_ATOMIC)));
        // The peer's own vendor, as a sign that its options were read.
        terms.ece = Ece { vendor: inner.remote_ece.vendor, options: inner.local_ece.options };
    }
    if !id.is_datagram() {
        id.make_ready_to_receive(terms.responder_resources)?;
        id.make_ready_to_send(terms.initiator_depth)?;
    }
    if let Err(errno) = id.with_state(|state, key| state.accept_request(key, terms, rdma_sys::RDMA_UDP_QKEY)) {
        // Too much private data, or the peer is gone already: it is told, if it can be.
        let _gone = id.with_state(|state, key| state.reject(key, reason::CONSUMER_DEFINED, Vec::new()));
        let _best_effort = id.fail_qp();
        return Err(errno);
    }
    if !id.is_datagram() {
        return events::complete(id);
    }
    // No event will come.
    if id.lock().sync {
        id.acknowledge_own();
    }
    Ok(())
}

/// `rdma_establish`.
pub(super) unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| if id.qp().is_some() { Err(Errno::INVAL) } else { id.confirm() }) }
}

/// `rdma_reject`.
pub(super) unsafe extern "C" fn reject(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int {
    // SAFETY: `bytes` wants null or so many bytes: promise 2.
    let private = unsafe { bytes(private_data, len.into()) }.to_vec();
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| id.with_state(|state, key| state.reject(key, reason::CONSUMER_DEFINED, private))) }
}

/// `rdma_reject_ece`.
pub(super) unsafe extern "C" fn reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int {
    // SAFETY: `bytes` wants null or so many bytes: promise 2.
    let private = unsafe { bytes(private_data, len.into()) }.to_vec();
    let reason = reason::VENDOR_OPTION_NOT_SUPPORTED;
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| id.with_state(|state, key| state.reject(key, reason, private))) }
}

/// `rdma_notify`.
pub(super) unsafe extern "C" fn notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    let notify = |id: Id<'_>| match event {
        ibv_event_type::IBV_EVENT_COMM_EST => {
            id.with_state(|state, key| state.call(key, |machine, out| machine.communication_established(out)))
        }
        _ => Err(Errno::INVAL),
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, notify) }
}

/// `rdma_disconnect`.
pub(super) unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    let disconnect = |id: Id<'_>| {
        if get_field!(id, verbs).is_null() {
            return Err(Errno::INVAL);
        }
        id.fail_qp()?;
        id.with_state(|state, key| {
            state.call(key, |machine, out| {
                machine.disconnect(now(), out);
                Ok(())
            })
        })?;
        events::complete(id)
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, disconnect) }
}

/// `rdma_get_src_port`, in network order.
pub(super) unsafe extern "C" fn get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: `Object::get` wants null or a live id: promise 1.
    let id: Result<Id<'_>, Errno> = unsafe { Object::get(id) };
    id.map_or(0, |id| address::port_of(&get_field!(id, route.addr.__bindgen_anon_1.src_storage)).to_be())
}

/// `rdma_get_dst_port`, in network order.
pub(super) unsafe extern "C" fn get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: `Object::get` wants null or a live id: promise 1.
    let id: Result<Id<'_>, Errno> = unsafe { Object::get(id) };
    id.map_or(0, |id| address::port_of(&get_field!(id, route.addr.__bindgen_anon_2.dst_storage)).to_be())
}

/// `rdma_init_qp_attr`.
pub(super) unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    let init = |id: Id<'_>| {
        // SAFETY: `as_mut` wants null or attributes that nobody else uses meanwhile: promise 2.
        let attr = unsafe { qp_attr.as_mut() }.ok_or(Errno::INVAL)?;
        let (made, mask) = id.qp_attributes(attr.qp_state)?;
        *attr = made;
        // SAFETY: `write` wants a pointer for writes: promise 2.
        unsafe { qp_attr_mask.write(c_int::try_from(mask.0).unwrap_or(0)) };
        Ok(())
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, init) }
}

/// `rdma_create_qp`.
pub(super) unsafe extern "C" fn create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int {
    // SAFETY: `as_mut` wants null or attributes that nobody else uses meanwhile: promise 2.
    let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL);
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| id.create_qp(pd, init?)) }
}

/// `rdma_create_qp_ex`.
pub(super) unsafe extern "C" fn create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: `as_mut` wants null or attributes that nobody else uses meanwhile: promise 2.
    let init = unsafe { init.as_mut() }.ok_or(Errno::INVAL);
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, |id| id.create_qp_ex(init?)) }
}

/// `rdma_destroy_qp`.
pub(super) unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    let destroy = |id: Id<'_>| {
        id.destroy_qp();
        Ok(())
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    let _none = unsafe { on(id, destroy) };
}

/// `rdma_set_local_ece`.
pub(super) unsafe extern "C" fn set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: `as_ref` wants null or a pointer for reads: promise 2.
    let ece = unsafe { ece.as_ref() };
    let set = |id: Id<'_>| {
        let usable = ece.filter(|ece| id.qp().is_none() && ece.vendor_id != 0 && ece.comp_mask == 0);
        let ece = usable.ok_or(Errno::INVAL)?;
        id.lock().local_ece = Ece { vendor: ece.vendor_id, options: ece.options };
        Ok(())
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, set) }
}

/// `rdma_get_remote_ece`.
pub(super) unsafe extern "C" fn get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: `as_mut` wants null or a pointer for writes: promise 2.
    let ece = unsafe { ece.as_mut() };
    let get = |id: Id<'_>| {
        let ece = ece.filter(|_| id.qp().is_none()).ok_or(Errno::INVAL)?;
        let Ece { vendor, options } = id.lock().remote_ece;
        *ece = ibv_ece { vendor_id: vendor, options, comp_mask: 0 };
        Ok(())
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, get) }
}

/// `rdma_write_cm_event`.
pub(super) unsafe extern "C" fn write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    let write = |id: Id<'_>| {
        if event != rdma_cm_event_type::RDMA_CM_EVENT_USER {
            return Err(Errno::INVAL);
        }
        id.with_entry(|entry| {
            entry.push(event, status, Body::Arg(arg));
            Ok(())
        })
    };
    // SAFETY: `on` wants null or a live id: promise 1.
    unsafe { on(id, write) }
}

/// `rdma_get_devices`.
pub(super) unsafe extern "C" fn get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let opened = Service::get().and_then(|_| device::open());
    if !num_devices.is_null() {
        // SAFETY: `write` wants a pointer for writes: promise 2.
        unsafe { num_devices.write(c_int::from(opened.is_ok())) };
    }
    pointer(opened.map(|context| Box::into_raw(Box::new([context, ptr::null_mut()])).cast()))
}

/// `rdma_free_devices`: the list; the context stays open.
pub(super) unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
    if !list.is_null() {
        // SAFETY: `from_raw` wants the pointer of a box, once: `get_devices` made it from one of this type, and promise 1.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
    }
}
