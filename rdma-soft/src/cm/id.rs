//! `rdma_cm_id`: the object that C holds and its public fields.
//!
//! The public fields change where librdmacm changes them: in calls on the id, and while C takes one
//! of its events. The id exists until that event is acknowledged, because destroying the id waits.

use std::ffi::c_void;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Arc, MutexGuard};

use rdma_sys::{ibv_qp_init_attr, ibv_qp_type, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel, rdma_port_space};

use super::addrinfo::List;
use super::channel::{self, Channel, Target};
use super::device::Device;
use super::entry::Entry;
use super::port::space_of;
use super::service::{Service, State};
use super::wire::Ece;
use super::{address, path};
use crate::engine::Errno;
use crate::link::port::Space;
use crate::os::lock::Lock;
use crate::verbs::attr::{PKEY, PORT};
use crate::verbs::call::{Argument, Handle, Own};
use crate::verbs::object::{Object, Public, get_field, set_field};

/// A live id.
pub(super) type Id<'a> = &'a Object<rdma_cm_id>;

/// Private part of an id; the connection manager's other data of the id is its `Entry`.
#[derive(Debug)]
pub(crate) struct IdState {
    target: Arc<Target>,
    inner: Lock<Inner>,
}

/// State of an id that calls of the application use.
#[derive(Debug, Default)]
pub(super) struct Inner {
    /// Whether the id is synchronous: the id has its own channel, and its calls wait for their
    /// events.
    pub(super) sync: bool,
    device: Option<Device>,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    /// The connection failed at this side: later events about its end are dropped.
    pub(super) connect_error: bool,
    /// Data from `ai_connect` of the `rdma_addrinfo`, sent before the private data.
    pub(super) connect_data: Vec<u8>,
    /// Attributes of the queue pairs that a passive endpoint makes for its requests.
    pub(super) qp_init: Option<QpInit>,
    /// `rdma_resolve_addrinfo` was called, and C has not fetched its list yet.
    pub(super) resolving: bool,
    pub(super) resolved: Option<List>,
    /// Whether `route.path_rec` is set, to a box of this id.
    has_path: bool,
}

/// Attributes of queue pairs to make.
#[derive(Clone, Copy)]
pub(super) struct QpInit(pub(super) ibv_qp_init_attr);

// SAFETY: `Send` requires that another thread may use the value: its pointers are to verbs objects,
// which any thread may use.
unsafe impl Send for QpInit {}

impl std::fmt::Debug for QpInit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.qp_type)
    }
}

impl Public for rdma_cm_id {
    const MARK: u64 = 0x0000_636d_5f69_6421;
    type Private = IdState;
}

impl Object<rdma_cm_id> {
    /// The key of the id's entry.
    pub(super) fn key(&self) -> u64 {
        self.target.key
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Calls `work` with the connection manager's state and the id's key, under the lock.
    pub(super) fn with_state<R>(&self, work: impl FnOnce(&mut State, u64) -> Result<R, Errno>) -> Result<R, Errno> {
        Service::get()?.with(|state| work(state, self.key()))
    }

    /// Calls `work` with the id's entry, under the connection manager's lock.
    pub(super) fn with_entry<R>(&self, work: impl FnOnce(&mut Entry) -> Result<R, Errno>) -> Result<R, Errno> {
        self.with_state(|state, key| work(state.entry(key)?))
    }

    pub(super) fn is_datagram(&self) -> bool {
        get_field!(self, qp_type) == ibv_qp_type::IBV_QPT_UD
    }

    /// Acknowledges the event in `id->event`, if any, and clears the field.
    pub(super) fn acknowledge_own(&self) {
        let event = get_field!(self, event);
        if !event.is_null() {
            set_field!(self, event, ptr::null_mut());
            // SAFETY: `from_c` requires a live event that nobody uses any more: the event of a
            // synchronous id is valid only until the id's next call, and the field is cleared
            // above.
            let _stale = channel::acknowledge(unsafe { Own::from_c(event) });
        }
    }

    /// Writes the id's addresses to its public fields, and its device once the local address is
    /// known.
    pub(super) fn show_addresses(&self) -> Result<(), Errno> {
        let (local, peer, is_far, on_device) =
            self.with_entry(|entry| Ok((entry.local, entry.peer, entry.is_far, entry.is_on_device())))?;
        self.set_ends(local, peer);
        if let Some(local) = local.filter(|_| on_device) {
            let mut inner = self.lock();
            if inner.device.is_none() {
                let device = inner.device.insert(Device::of(&local)?);
                set_field!(self, verbs, device.context);
                set_field!(self, pd, device.pd);
                set_field!(self, port_num, PORT);
            }
            set_field!(self, route.addr.addr.ibaddr.sgid, super::device::gid(&local)?.1);
            if let Some(peer) = peer {
                set_field!(self, route.addr.addr.ibaddr.dgid, path::gid_of_peer(is_far, &peer)?);
            }
            set_field!(self, route.addr.addr.ibaddr.pkey, PKEY.to_be());
        }
        Ok(())
    }

    /// Writes the id's addresses, and nothing of the device.
    pub(super) fn show_ends(&self) -> Result<(), Errno> {
        let (local, peer) = self.with_entry(|entry| Ok((entry.local, entry.peer)))?;
        self.set_ends(local, peer);
        Ok(())
    }

    fn set_ends(&self, local: Option<SocketAddr>, peer: Option<SocketAddr>) {
        if let Some(local) = local {
            set_field!(self, route.addr.__bindgen_anon_1.src_storage, address::storage(local));
        }
        if let Some(peer) = peer {
            set_field!(self, route.addr.__bindgen_anon_2.dst_storage, address::storage(peer));
        }
    }

    /// Writes the path to the peer to `route.path_rec`.
    pub(super) fn show_path(&self) -> Result<(), Errno> {
        let path = self.with_entry(|entry| path::record(entry))?;
        let mut inner = self.lock();
        if inner.has_path {
            let known: *mut ibv_sa_path_rec = get_field!(self, route.path_rec);
            // SAFETY: `write` requires a pointer that is valid for writes: `has_path` says that the
            // branch below stored a box here, which only `destroy` frees.
            unsafe { known.write(path) };
        } else {
            inner.has_path = true;
            set_field!(self, route.path_rec, Box::into_raw(Box::new(path)));
            set_field!(self, route.num_paths, 1);
        }
        Ok(())
    }
}

/// The channel that C passed, or a new one of the id's own: its C object and its private part.
fn channel_or_own(channel: &Handle<rdma_event_channel>) -> Result<(*mut rdma_event_channel, Arc<Channel>), Errno> {
    if channel.raw().is_null() {
        let own = Channel::new()?;
        return Ok((channel::publish(Arc::clone(&own)), own));
    }
    Ok((channel.raw(), Arc::clone(channel.get()?)))
}

/// Makes the id object for C.
fn publish(
    target: Arc<Target>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    sync: bool,
) -> *mut rdma_cm_id {
    let public = rdma_cm_id { channel, context, ps, qp_type, ..rdma_cm_id::default() };
    let inner = Lock::new(Inner { sync, ..Inner::default() });
    let id = Object::create(public, IdState { target: Arc::clone(&target), inner });
    target.set_object(id);
    id
}

/// `rdma_create_id` with a given queue pair type.
pub(super) fn create(
    channel: &Handle<rdma_event_channel>,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, Errno> {
    let space = space_of(ps).ok_or(Errno::INVAL)?;
    let fits = match space {
        Space::Tcp => qp_type == ibv_qp_type::IBV_QPT_RC,
        Space::Udp | Space::IpoIb => qp_type == ibv_qp_type::IBV_QPT_UD,
        Space::Ib => matches!(qp_type, ibv_qp_type::IBV_QPT_RC | ibv_qp_type::IBV_QPT_UD),
    };
    if !fits {
        return Err(Errno::INVAL);
    }
    let service = Service::get()?;
    let sync = channel.raw().is_null();
    let (channel, events) = channel_or_own(channel)?;
    let target = service.with(|state| {
        let target = Target::new(state.new_key());
        state.entries.insert(target.key, Entry::new(Arc::clone(&target), events, space, qp_type));
        target
    });
    Ok(publish(target, channel, context, ps, qp_type, sync))
}

/// Makes the object of a request's id, with the port space, type and context of its listener.
pub(super) fn create_requested(
    listener: Id<'_>,
    channel: *mut rdma_event_channel,
    target: &Arc<Target>,
) -> *mut rdma_cm_id {
    let (ps, qp_type) = (get_field!(listener, ps), get_field!(listener, qp_type));
    publish(Arc::clone(target), channel, get_field!(listener, context), ps, qp_type, false)
}

/// `rdma_destroy_id`.
pub(super) fn destroy(pointer: Own<rdma_cm_id>) -> Result<(), Errno> {
    let id = pointer.get()?;
    Service::get()?.with(|state| state.destroy(id.key()));
    id.acknowledge_own();
    id.target.ledger.settle();
    let inner = std::mem::take(&mut *id.lock());
    if inner.has_path {
        let path = get_field!(id, route.path_rec);
        // SAFETY: `Box::from_raw` requires the pointer of a box, once: `show_path` made it, and
        // `has_path` was taken above.
        drop(unsafe { Box::from_raw(path) });
    }
    if inner.sync {
        let channel = get_field!(id, channel);
        // SAFETY: `Object::free` requires a live object that nobody uses: the channel was made for
        // this id alone, and the id's events have ended.
        let _freed = unsafe { Object::free(channel) };
    }
    pointer.free()
}

/// `rdma_migrate_id`: moves the id to another channel, or to one of its own if null.
pub(super) fn migrate(id: Id<'_>, channel: &Handle<rdma_event_channel>) -> Result<(), Errno> {
    let (was_sync, sync) = (id.lock().sync, channel.raw().is_null());
    if was_sync && sync {
        return Err(Errno::INVAL);
    }
    let (channel, events) = channel_or_own(channel)?;
    let moved = id.with_entry(|entry| Ok(entry.migrate(events)));
    let taken = moved.inspect_err(|_| {
        if sync {
            // SAFETY: `Object::free` requires a live object that nobody uses: `channel_or_own` made
            // the channel, and no entry has it.
            let _freed = unsafe { Object::free(channel) };
        }
    })?;
    let old = get_field!(id, channel);
    if was_sync {
        id.acknowledge_own();
        // SAFETY: `Object::free` requires a live object that nobody uses: the channel was made for
        // this id alone, which has moved to another one.
        let _freed = unsafe { Object::free(old) };
    }
    id.lock().sync = sync;
    set_field!(id, channel, channel);
    // Waits until as many events are acknowledged as were taken from the old channel, and not for
    // more: another thread may keep one that it has taken from the new channel.
    id.target.ledger.settle_until(taken);
    Ok(())
}
