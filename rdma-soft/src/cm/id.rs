//! `rdma_cm_id`: the object that C holds, and its public fields.
//!
//! The fields are written where librdmacm writes them: by the calls on the id, and while one of its events is taken. Until the
//! event is acknowledged the id exists, for destroying it waits.

use std::ffi::c_void;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::sockaddr_storage;
use rdma_sys::{
    ibv_qp_init_attr, ibv_qp_type, ibv_sa_path_rec, rdma_addrinfo, rdma_cm_id, rdma_event_channel, rdma_port_space,
};

use super::channel::{self, Channel, Subject};
use super::device::Device;
use super::entry::Entry;
use super::message::Ece;
use super::port::Space;
use super::service::Service;
use super::{address, events, wire};
use crate::engine::Errno;
use crate::verbs::attr::{PKEY, PORT};
use crate::verbs::object::{Object, Public};

/// Writes a public field of an object.
macro_rules! put {
    ($object:expr, $($field:ident).+, $value:expr) => {{
        let value = $value;
        // SAFETY: the caller's promise: a live object. No reference is made.
        let place = unsafe { &raw mut (*$object).$($field).+ };
        // SAFETY: in bounds and aligned; C's promise: nobody else uses the field during this call.
        unsafe { place.write(value) };
    }};
}

/// Reads a public field of an object.
macro_rules! look {
    ($object:expr, $($field:ident).+) => {{
        // SAFETY: the caller's promise: a live object. No reference is made.
        let place = unsafe { &raw const (*$object).$($field).+ };
        // SAFETY: in bounds and aligned; C's promise: nobody else writes to the field during this call.
        unsafe { place.read() }
    }};
}

pub(super) use {look, put};

/// What the manager keeps about an id, next to its entry.
#[derive(Debug)]
pub(crate) struct IdState {
    pub(super) subject: Arc<Subject>,
    inner: Mutex<Inner>,
}

/// What belongs to the calls of the application.
#[derive(Debug, Default)]
pub(super) struct Inner {
    /// The id has a channel of its own, and its calls wait for their events.
    pub(super) sync: bool,
    pub(super) device: Option<Device>,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    /// The connection failed here: what the peer says of it is no news.
    pub(super) connect_error: bool,
    /// What goes before the private data, from `rdma_addrinfo`.
    pub(super) connect_data: Vec<u8>,
    /// What the queue pairs of requests shall be.
    pub(super) qp_init: Option<QpInit>,
    pub(super) resolving: bool,
    pub(super) resolved: Resolved,
    /// Whether `route.path_rec` is ours.
    has_path: bool,
}

/// How queue pairs are made for the requests of an endpoint.
#[derive(Clone, Copy)]
pub(super) struct QpInit(pub(super) ibv_qp_init_attr);

// SAFETY: pointers to verbs objects, which may be used by any thread.
unsafe impl Send for QpInit {}

impl std::fmt::Debug for QpInit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.qp_type)
    }
}

/// A list of addresses that waits to be fetched.
#[derive(Debug)]
pub(super) struct Resolved(pub(super) *mut rdma_addrinfo);

// SAFETY: a list that nobody else knows of.
unsafe impl Send for Resolved {}

impl Default for Resolved {
    fn default() -> Self {
        Self(ptr::null_mut())
    }
}

impl IdState {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Public for rdma_cm_id {
    const MARK: u64 = 0x0000_636d_5f69_6421;
    type Private = IdState;
}

/// Finds the id behind a pointer from C.
///
/// # Safety
///
/// As for [`Object::get`].
pub(super) unsafe fn get<'a>(id: *mut rdma_cm_id) -> Result<&'a IdState, Errno> {
    // SAFETY: the caller's promise.
    unsafe { Object::get(id) }.map(Object::private)
}

/// Makes the object that C holds.
fn publish(
    subject: Arc<Subject>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    sync: bool,
) -> *mut rdma_cm_id {
    let public = rdma_cm_id { channel, context, ps, qp_type, ..rdma_cm_id::default() };
    let inner = Mutex::new(Inner { sync, ..Inner::default() });
    let id = Object::create(public, IdState { subject: Arc::clone(&subject), inner });
    subject.set_object(id);
    id
}

/// `rdma_create_id`, with the type of queue pair.
///
/// # Safety
///
/// C's promise about the channel, which may be null.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, Errno> {
    let space = Space::of(ps).ok_or(Errno::INVAL)?;
    let fits = match space {
        Space::Tcp => qp_type == ibv_qp_type::IBV_QPT_RC,
        Space::Udp | Space::IpoIb => qp_type == ibv_qp_type::IBV_QPT_UD,
        Space::Ib => matches!(qp_type, ibv_qp_type::IBV_QPT_RC | ibv_qp_type::IBV_QPT_UD),
    };
    if !fits {
        return Err(Errno::INVAL);
    }
    let service = Service::get()?;
    let sync = channel.is_null();
    let events = if sync {
        Channel::new()?
    } else {
        // SAFETY: the caller's promise.
        Arc::clone(unsafe { channel::get(channel) }?)
    };
    let channel = if sync { channel::publish(Arc::clone(&events)) } else { channel };
    let subject = service.with(|state| {
        let key = state.new_key();
        let subject = Subject::new(key);
        state.entries.insert(key, Entry::new(Arc::clone(&subject), events, space, qp_type));
        subject
    });
    Ok(publish(subject, channel, context, ps, qp_type, sync))
}

/// Makes the object of an id that a request brought, like its listener.
///
/// # Safety
///
/// `listener` is a live id.
pub(super) unsafe fn create_requested(
    listener: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
    subject: &Arc<Subject>,
    sync: bool,
) -> *mut rdma_cm_id {
    let context = look!(listener, context);
    let (ps, qp_type) = (look!(listener, ps), look!(listener, qp_type));
    publish(Arc::clone(subject), channel, context, ps, qp_type, sync)
}

/// `rdma_destroy_id`.
///
/// # Safety
///
/// As for [`Object::free`].
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let state = unsafe { get(id) }?;
    Service::get()?.with(|service| service.destroy(state.subject.key));
    let event = look!(id, event);
    if !event.is_null() {
        // SAFETY: C's promise: the event of a synchronous id is its own until it is destroyed.
        let _stale = unsafe { channel::acknowledge(event) };
    }
    state.subject.ledger.settle();
    let inner = std::mem::take(&mut *state.lock());
    if inner.has_path {
        let path = look!(id, route.path_rec);
        // SAFETY: made by `set_path` from a box, and freed once: the id is gone below.
        drop(unsafe { Box::from_raw(path) });
    }
    if !inner.resolved.0.is_null() {
        // SAFETY: a list of ours that was not handed out.
        unsafe { super::addrinfo::free(inner.resolved.0) };
    }
    if inner.sync {
        let channel = look!(id, channel);
        // SAFETY: made in `create` or `migrate` for this id alone.
        let _freed = unsafe { Object::free(channel) };
    }
    // SAFETY: the caller's promise; `state` is not used below.
    unsafe { Object::free(id) }
}

/// Shows C the id's addresses, and its device once it has one.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn show_addresses(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let state = unsafe { get(id) }?;
    let (local, peer, on_device) = Service::get()?.with(|service| {
        let entry = service.entry(state.subject.key)?;
        Ok::<_, Errno>((entry.local, entry.peer, entry.is_on_device()))
    })?;
    if let Some(local) = local {
        put!(id, route.addr.__bindgen_anon_1.src_storage, address::storage(&local).0);
    }
    if let Some(peer) = peer {
        put!(id, route.addr.__bindgen_anon_2.dst_storage, address::storage(&peer).0);
    }
    if on_device {
        let mut inner = state.lock();
        if inner.device.is_none() {
            let device = Device::get()?;
            put!(id, verbs, device.context());
            put!(id, pd, device.pd());
            put!(id, port_num, PORT);
            inner.device = Some(device);
        }
        let gid = |address: Option<SocketAddr>| address.map(|address| super::device::gid(&address)).transpose();
        if let Some((_, sgid)) = gid(local)? {
            put!(id, route.addr.addr.ibaddr.sgid, sgid);
        }
        if let Some((_, dgid)) = gid(peer)? {
            put!(id, route.addr.addr.ibaddr.dgid, dgid);
        }
        put!(id, route.addr.addr.ibaddr.pkey, PKEY.to_be());
    }
    Ok(())
}

/// Shows C the destination that it asks for.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn show_destination(id: *mut rdma_cm_id, destination: &SocketAddr) {
    let storage: sockaddr_storage = address::storage(destination).0;
    put!(id, route.addr.__bindgen_anon_2.dst_storage, storage);
}

/// Shows C the path to the peer.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn show_path(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let state = unsafe { get(id) }?;
    let path = Service::get()?.with(|service| wire::path(service.entry(state.subject.key)?))?;
    let mut inner = state.lock();
    if inner.has_path {
        let known: *mut ibv_sa_path_rec = look!(id, route.path_rec);
        // SAFETY: made below, and not freed before the id.
        unsafe { known.write(path) };
    } else {
        inner.has_path = true;
        put!(id, route.path_rec, Box::into_raw(Box::new(path)));
        put!(id, route.num_paths, 1);
    }
    Ok(())
}

/// `rdma_migrate_id`: to another channel, or to one of its own.
///
/// # Safety
///
/// C's promises about the id and the channel, which may be null.
pub(super) unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let state = unsafe { get(id) }?;
    let service = Service::get()?;
    let was_sync = state.lock().sync;
    let sync = channel.is_null();
    if was_sync && sync {
        return Err(Errno::INVAL);
    }
    let events = if sync {
        Channel::new()?
    } else {
        // SAFETY: the caller's promise.
        Arc::clone(unsafe { channel::get(channel) }?)
    };
    let channel = if sync { channel::publish(Arc::clone(&events)) } else { channel };
    let moved = service.with(|service| service.entry(state.subject.key).map(|entry| entry.migrate(events)));
    if let Err(errno) = moved {
        if sync {
            // SAFETY: made above, and nobody knows of it.
            let _freed = unsafe { Object::free(channel) };
        }
        return Err(errno);
    }
    let old = look!(id, channel);
    if was_sync {
        // SAFETY: the caller's promise.
        unsafe { events::acknowledge_own(id) };
        // SAFETY: the channel was the id's own.
        let _freed = unsafe { Object::free(old) };
    }
    state.lock().sync = sync;
    put!(id, channel, channel);
    // Events that were taken from the old channel are acknowledged before anybody takes one from the new.
    state.subject.ledger.settle();
    Ok(())
}
