//! The functions of librdmacm on channels, ids and events.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use rdma_sys::{
    __be16, ibv_context, ibv_ece, ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_type, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};

use super::address::{self, Addr};
use super::channel::{self, Body, Channel, Conn};
use super::id::{self, Id, Inner};
use super::machine::reason;
use super::qp::AS_ASKED;
use super::service::{self, Service};
use super::wire::{Ece, Terms};
use super::{device, events};
use crate::engine::{Errno, limits};
use crate::node::ports;
use crate::os::now;
use crate::verbs::call::{Argument, DataConst, Handle, In, InOut, MinusOne, Next, Out, Own, OwnList, list};
use crate::verbs::object::{get_field, set_field};

/// The result of most functions of librdmacm.
pub(super) type Done = Result<(), MinusOne>;

/// `rdma_create_event_channel`.
pub(super) fn create_event_channel() -> Result<*mut rdma_event_channel, Errno> {
    Service::get()?;
    Ok(channel::publish(Channel::new()?))
}

/// `rdma_destroy_event_channel`. Ids that still use the channel end, as in the kernel.
pub(super) fn destroy_event_channel(channel: Own<rdma_event_channel>) {
    if channel.get().is_ok_and(|object| service::end_channel(object).is_ok()) {
        let _freed = channel.free();
    }
}

/// `rdma_create_id`.
pub(super) fn create_id(
    channel: Handle<rdma_event_channel>,
    id: Out<*mut rdma_cm_id>,
    context: *mut c_void,
    ps: rdma_port_space,
) -> Done {
    let qp_type = match ps {
        rdma_port_space::RDMA_PS_UDP | rdma_port_space::RDMA_PS_IPOIB => ibv_qp_type::IBV_QPT_UD,
        _ => ibv_qp_type::IBV_QPT_RC,
    };
    id.fill(|| Ok(id::create(&channel, context, ps, qp_type)?))
}

/// `rdma_destroy_id`: waits until every event of the id that C has taken is acknowledged.
pub(super) fn destroy_id(id: Own<rdma_cm_id>) -> Done {
    Ok(id::destroy(id)?)
}

/// `rdma_migrate_id`.
pub(super) fn migrate_id(id: Handle<rdma_cm_id>, channel: Handle<rdma_event_channel>) -> Done {
    Ok(id::migrate(id.get()?, &channel)?)
}

/// `rdma_get_cm_event`.
pub(super) fn get_cm_event(channel: Handle<rdma_event_channel>, event: Out<*mut rdma_cm_event>) -> Done {
    event.fill(|| Ok(events::take(&channel)?))
}

/// `rdma_get_cm_event` up to its read(2) of the channel's descriptor, or after it: see [`Next`].
pub(super) fn next_cm_event(
    channel: Handle<rdma_event_channel>,
    event: Out<*mut rdma_cm_event>,
    reads: u32,
) -> Result<Next, MinusOne> {
    event.check()?;
    let taken = if reads == 0 { channel.get().map(|_| None) } else { events::take_after(&channel, reads) };
    let Some(taken) = taken? else { return Ok(Next::Read) };
    event.write(taken)?;
    Ok(Next::Done)
}

/// `rdma_ack_cm_event`.
pub(super) fn ack_cm_event(event: Own<rdma_cm_event>) -> Done {
    Ok(channel::acknowledge(event)?)
}

/// `rdma_bind_addr`.
pub(super) fn bind_addr(id: Handle<rdma_cm_id>, addr: Addr) -> Done {
    Ok(bind(id.get()?, addr.get()?)?)
}

pub(super) fn bind(id: Id<'_>, address: SocketAddr) -> Result<(), Errno> {
    Service::get()?.bind(id.key(), address)?;
    // libfabric binds an id so to learn this process's address, which it tells other hosts. As with
    // hardware, loopback has no device then, and libfabric takes an address that has one.
    let is_question = address.ip().is_loopback() && address.port() == 0;
    if is_question && ports::has_address_like(&address) { id.show_ends() } else { id.show_addresses() }
}

/// `rdma_resolve_addr`. Ignores the timeout, because address resolution never waits.
pub(super) fn resolve_addr(id: Handle<rdma_cm_id>, src_addr: Addr, dst_addr: Addr, _timeout_ms: c_int) -> Done {
    Ok(resolve(id.get()?, src_addr.optional()?, dst_addr.get()?)?)
}

pub(super) fn resolve(id: Id<'_>, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), Errno> {
    // Written before the call, because another thread may take the event at once.
    set_field!(id, route.addr.__bindgen_anon_2.dst_storage, address::storage(destination));
    Service::get()?.resolve_address(id.key(), source, destination)?;
    events::complete(id)
}

/// `rdma_resolve_route`.
pub(super) fn resolve_route(id: Handle<rdma_cm_id>, _timeout_ms: c_int) -> Done {
    Ok(route(id.get()?)?)
}

pub(super) fn route(id: Id<'_>) -> Result<(), Errno> {
    id.with_entry(|entry| entry.resolve_route())?;
    events::complete(id)
}

/// `rdma_listen`.
pub(super) fn listen(id: Handle<rdma_cm_id>, backlog: c_int) -> Done {
    let id = id.get()?;
    Service::get()?.listen(id.key(), backlog)?;
    Ok(id.show_addresses()?)
}

/// Reads C's connection parameters; `None` for null.
fn parameters(param: &In<rdma_conn_param>) -> Option<Conn> {
    let param = param.optional()?;
    // SAFETY: `from_c` requires null, or a pointer that is valid for the length beside it: promise
    // 2 for the parameters.
    let private = unsafe { DataConst::from_c(param.private_data) };
    let terms = Terms {
        qp_num: param.qp_num,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        rnr_retry_count: param.rnr_retry_count,
        flow_control: param.flow_control != 0,
        srq: param.srq != 0,
        // SAFETY: `List::get` requires the length that C passed beside the pointer.
        private: unsafe { private.0.get(param.private_data_len.into()) }.to_vec(),
        ..Terms::default()
    };
    Some(Conn { retry_count: param.retry_count, terms })
}

/// Completes the parameters of a call with the id's queue pair number and with the connect data,
/// which precedes the private data. Checks the depths; 255 ([`AS_ASKED`]) requests the maximum.
fn complete_parameters(id: Id<'_>, given: Option<Conn>) -> Result<Conn, Errno> {
    let is_rc = get_field!(id, ps) == rdma_port_space::RDMA_PS_TCP;
    if given.is_none() && is_rc && id.qp().is_none() {
        // Without a queue pair of the id, C must pass the queue pair number in the parameters.
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

/// Sets the responder resources and initiator depth; `most` replaces [`AS_ASKED`].
fn agree(inner: &mut Inner, terms: &mut Terms, most: (u8, u8)) {
    let agree = |asked: u8, most: u8| if asked == AS_ASKED { most } else { asked };
    terms.responder_resources = agree(terms.responder_resources, most.0);
    terms.initiator_depth = agree(terms.initiator_depth, most.1);
    (inner.responder_resources, inner.initiator_depth) = (terms.responder_resources, terms.initiator_depth);
}

/// `rdma_connect`.
pub(super) fn connect(id: Handle<rdma_cm_id>, conn_param: In<rdma_conn_param>) -> Done {
    Ok(try_connect(id.get()?, parameters(&conn_param))?)
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
pub(super) fn accept(id: Handle<rdma_cm_id>, conn_param: In<rdma_conn_param>) -> Done {
    Ok(try_accept(id.get()?, parameters(&conn_param))?)
}

fn try_accept(id: Id<'_>, given: Option<Conn>) -> Result<(), Errno> {
    if given.is_none() && id.qp().is_none() {
        return Err(Errno::INVAL);
    }
    let Conn { mut terms, .. } = complete_parameters(id, given)?;
    {
        let mut inner = id.lock();
        // `AS_ASKED` grants what the peer asks for, up to the device's limit.
        let most = (inner.responder_resources, inner.initiator_depth);
        agree(&mut inner, &mut terms, (most.0.min(limits::MAX_RD_ATOMIC), most.1.min(limits::MAX_RD_ATOMIC)));
        // Returning the peer's own vendor id tells the peer that its options were read.
        terms.ece = Ece { vendor: inner.remote_ece.vendor, options: inner.local_ece.options };
    }
    if !id.is_datagram() {
        id.make_ready_to_receive(terms.responder_resources)?;
        id.make_ready_to_send(terms.initiator_depth)?;
    }
    if let Err(errno) = id.with_state(|state, key| state.accept_request(key, terms, rdma_sys::RDMA_UDP_QKEY)) {
        // Too much private data, or the connection has ended. Reject the request, if the peer still
        // exists.
        let _gone = id.with_state(|state, key| state.reject(key, reason::CONSUMER_DEFINED, Vec::new()));
        let _best_effort = id.fail_qp();
        return Err(errno);
    }
    if !id.is_datagram() {
        return events::complete(id);
    }
    // Accepting a datagram request causes no event, so release the one that brought the request.
    if id.lock().sync {
        id.acknowledge_own();
    }
    Ok(())
}

/// `rdma_establish`.
pub(super) fn establish(id: Handle<rdma_cm_id>) -> Done {
    let id = id.get()?;
    Ok(if id.qp().is_some() { Err(Errno::INVAL) } else { id.confirm() }?)
}

fn reject_for(reason: u16, id: &Handle<rdma_cm_id>, data: &DataConst, len: u8) -> Done {
    // SAFETY: `List::get` requires the length that C passed beside the pointer.
    let private = unsafe { data.0.get(len.into()) }.to_vec();
    Ok(id.get()?.with_state(|state, key| state.reject(key, reason, private))?)
}

/// `rdma_reject`.
pub(super) fn reject(id: Handle<rdma_cm_id>, private_data: DataConst, len: u8) -> Done {
    reject_for(reason::CONSUMER_DEFINED, &id, &private_data, len)
}

/// `rdma_reject_ece`.
pub(super) fn reject_ece(id: Handle<rdma_cm_id>, private_data: DataConst, len: u8) -> Done {
    reject_for(reason::VENDOR_OPTION_NOT_SUPPORTED, &id, &private_data, len)
}

/// `rdma_notify`.
pub(super) fn notify(id: Handle<rdma_cm_id>, event: ibv_event_type) -> Done {
    let id = id.get()?;
    if event != ibv_event_type::IBV_EVENT_COMM_EST {
        return Err(Errno::INVAL.into());
    }
    Ok(id.with_state(|state, key| state.call(key, |machine, out| machine.communication_established(out)))?)
}

/// `rdma_disconnect`.
pub(super) fn disconnect(id: Handle<rdma_cm_id>) -> Done {
    let id = id.get()?;
    if get_field!(id, verbs).is_null() {
        return Err(Errno::INVAL.into());
    }
    id.fail_qp()?;
    id.with_state(|state, key| {
        state.call(key, |machine, out| {
            machine.disconnect(now(), out);
            Ok(())
        })
    })?;
    Ok(events::complete(id)?)
}

/// `rdma_get_src_port`: the local port in network byte order.
pub(super) fn get_src_port(id: Handle<rdma_cm_id>) -> __be16 {
    id.get().map_or(0, |id| address::port_of(&get_field!(id, route.addr.__bindgen_anon_1.src_storage)).to_be())
}

/// `rdma_get_dst_port`: the peer's port in network byte order.
pub(super) fn get_dst_port(id: Handle<rdma_cm_id>) -> __be16 {
    id.get().map_or(0, |id| address::port_of(&get_field!(id, route.addr.__bindgen_anon_2.dst_storage)).to_be())
}

/// `rdma_init_qp_attr`.
pub(super) fn init_qp_attr(id: Handle<rdma_cm_id>, mut qp_attr: InOut<ibv_qp_attr>, qp_attr_mask: Out<c_int>) -> Done {
    let (id, attr) = (id.get()?, qp_attr.get()?);
    let (made, mask) = id.qp_attributes(attr.qp_state)?;
    *attr = made;
    Ok(qp_attr_mask.write(c_int::try_from(mask.0).unwrap_or(0))?)
}

/// `rdma_create_qp`.
pub(super) fn create_qp(id: Handle<rdma_cm_id>, pd: Handle<ibv_pd>, mut init: InOut<ibv_qp_init_attr>) -> Done {
    Ok(id.get()?.create_qp(&pd, init.get()?)?)
}

/// `rdma_create_qp_ex`.
pub(super) fn create_qp_ex(id: Handle<rdma_cm_id>, mut init: InOut<ibv_qp_init_attr_ex>) -> Done {
    Ok(id.get()?.create_qp_ex(init.get()?)?)
}

/// `rdma_destroy_qp`.
pub(super) fn destroy_qp(id: Handle<rdma_cm_id>) {
    if let Ok(id) = id.get() {
        id.destroy_qp();
    }
}

/// `rdma_set_local_ece`.
pub(super) fn set_local_ece(id: Handle<rdma_cm_id>, ece: In<ibv_ece>) -> Done {
    let (id, ece) = (id.get()?, ece.get()?);
    if id.qp().is_some() || ece.vendor_id == 0 || ece.comp_mask != 0 {
        return Err(Errno::INVAL.into());
    }
    id.lock().local_ece = Ece { vendor: ece.vendor_id, options: ece.options };
    Ok(())
}

/// `rdma_get_remote_ece`.
pub(super) fn get_remote_ece(id: Handle<rdma_cm_id>, ece: Out<ibv_ece>) -> Done {
    let id = id.get()?;
    if id.qp().is_some() {
        return Err(Errno::INVAL.into());
    }
    let Ece { vendor, options } = id.lock().remote_ece;
    Ok(ece.write(ibv_ece { vendor_id: vendor, options, comp_mask: 0 })?)
}

/// `rdma_write_cm_event`.
pub(super) fn write_cm_event(id: Handle<rdma_cm_id>, event: rdma_cm_event_type, status: c_int, arg: u64) -> Done {
    let id = id.get()?;
    if event != rdma_cm_event_type::RDMA_CM_EVENT_USER {
        return Err(Errno::INVAL.into());
    }
    Ok(id.with_entry(|entry| {
        entry.push(event, status, Body::Arg(arg));
        Ok(())
    })?)
}

/// `rdma_get_devices`.
pub(super) fn get_devices(num_devices: Out<c_int>) -> Result<*mut *mut ibv_context, Errno> {
    let opened = Service::get().and_then(|_| device::open_all());
    let count = opened.as_ref().map_or(0, Vec::len);
    // C may pass null for `num_devices`.
    let _written = num_devices.write(c_int::try_from(count).unwrap_or(c_int::MAX));
    opened.map(|contexts| list(&contexts))
}

/// `rdma_free_devices`: frees the list; the contexts stay open.
pub(super) fn free_devices(list: OwnList<ibv_context>) {
    list.free();
}
