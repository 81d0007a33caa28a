//! The connection manager's use of the devices: one context of each, opened on first use and shared
//! by all ids on the device, and one protection domain for ids to which the application gives none.
//!
//! As in librdmacm a context stays open for the life of the process, because applications keep
//! objects of it; the domain is deallocated with the last id that uses it.
//!
//! `soft0` has all addresses of the host except those that [`own_address`] gives to other devices.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Arc, MutexGuard};

use rdma_sys::{ibv_context, ibv_gid, ibv_pd};

use super::address;
use crate::engine::Errno;
use crate::os::fork::PerProcess;
use crate::os::lock::Lock;
use crate::verbs::context::ContextState;
use crate::verbs::device::{self, LinkLayer};
use crate::verbs::gid::own_address;
use crate::verbs::object::Object;
use crate::verbs::ops;
use crate::verbs::pd::PdPin;

/// The context and the protection domain that the ids on one device share.
#[derive(Debug)]
struct Shared {
    index: u8,
    open: Option<(*mut ibv_context, Arc<ContextState>)>,
    pd: *mut ibv_pd,
    /// Keeps the domain until its last user has gone, whatever C does.
    pin: Option<PdPin>,
    users: usize,
}

// SAFETY: `Send` requires that another thread may use the value: its pointers are to verbs objects,
// which any thread may use; each dereference needs `unsafe` and its own argument.
unsafe impl Send for Shared {}

/// One entry for each device.
static SHARED: PerProcess<Vec<Lock<Shared>>> = PerProcess::new();

/// The shared objects of the device with this number.
fn shared(index: u8) -> Result<MutexGuard<'static, Shared>, Errno> {
    let all = SHARED.get().unwrap_or_else(make_shared);
    let shared = all.get(usize::from(index)).ok_or(Errno(libc::ENODEV))?;
    Ok(shared.lock())
}

#[cold]
fn make_shared() -> &'static Vec<Lock<Shared>> {
    let entry = |index| Lock::new(Shared { index, open: None, pd: ptr::null_mut(), pin: None, users: 0 });
    // Collected before `get_or_make`, whose uninterrupted step must not wait for a lock.
    let all = device::all().map(|device| entry(device.index)).collect();
    let Ok(shared) = SHARED.get_or_make(|| Ok::<_, Infallible>(Box::leak(Box::new(all))));
    shared
}

impl Shared {
    fn open(&mut self) -> Result<&(*mut ibv_context, Arc<ContextState>), Errno> {
        if self.open.is_none() {
            self.open = Some(ops::open_wanted(self.index)?);
        }
        self.open.as_ref().ok_or(Errno(libc::ENODEV))
    }
}

/// The number of the device that has a local address.
fn index_of(address: &SocketAddr) -> u8 {
    let has = |index: u8| address.ip().to_canonical() == own_address(index);
    device::all().map(|device| device.index).find(|&index| has(index)).unwrap_or(0)
}

/// Opens the shared context of each device on first use and returns them.
pub(super) fn open_all() -> Result<Vec<*mut ibv_context>, Errno> {
    device::all().map(|device| shared(device.index)?.open().map(|(context, _)| *context)).collect()
}

fn state(index: u8) -> Result<Arc<ContextState>, Errno> {
    shared(index)?.open().map(|(_, state)| Arc::clone(state))
}

/// Opens the device of all addresses that no other device has.
pub(super) fn open() -> Result<(), Errno> {
    state(0).map(drop)
}

/// A use of a device's shared context and domain by an id; counted.
#[derive(Debug)]
pub(super) struct Device {
    index: u8,
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
}

// SAFETY: `Send` requires that another thread may use the value: its pointers are to verbs objects,
// which any thread may use; each dereference needs `unsafe` and its own argument.
unsafe impl Send for Device {}

impl Device {
    /// The device that has a local address.
    pub(super) fn of(local: &SocketAddr) -> Result<Self, Errno> {
        let index = index_of(local);
        let mut shared = shared(index)?;
        let context = shared.open()?.0;
        if shared.pd.is_null() {
            // SAFETY: `ibv_alloc_pd` requires an open context: the shared one is never closed.
            shared.pd = unsafe { (crate::ibverbs().ibv_alloc_pd)(context) };
            if shared.pd.is_null() {
                return Err(std::io::Error::last_os_error().into());
            }
            // SAFETY: `Object::get` requires a live domain: allocated above, and C does not hold it
            // yet.
            let pd: &Object<ibv_pd> = unsafe { Object::get(shared.pd) }?;
            shared.pin = Some(PdPin::new(pd));
        }
        shared.users += 1;
        Ok(Self { index, context, pd: shared.pd })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Ok(mut shared) = shared(self.index) else { return };
        shared.users -= 1;
        if shared.users == 0 {
            let pd = std::mem::replace(&mut shared.pd, ptr::null_mut());
            shared.pin = None;
            // SAFETY: `ibv_dealloc_pd` requires a live domain: `of` allocated this one, the pin has
            // kept it, and the `replace` above makes this call its only deallocation. If the
            // application has objects in the domain the call fails, and the domain stays, as in
            // librdmacm.
            let _in_use = unsafe { (crate::ibverbs().ibv_dealloc_pd)(pd) };
        }
    }
}

/// The GID of an address and its index in the GID table of the address's device. For a local
/// address without an entry, returns the entry of the same interface or else the last one, which is
/// loopback's. For a multicast group, returns the group's GID with index 0.
pub(super) fn gid(address: &SocketAddr) -> Result<(u8, ibv_gid), Errno> {
    let wanted = address::gid_of(address);
    if address.ip().is_multicast() {
        return Ok((0, ibv_gid { raw: wanted }));
    }
    let state = state(index_of(address))?;
    let gids = state.gids();
    let scope = match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let index = gids.iter().position(|entry| entry.address().0 == wanted);
    let index = index.or_else(|| gids.iter().position(|entry| scope != 0 && entry.interface == scope));
    let index = index.unwrap_or(gids.len().saturating_sub(1));
    let entry = gids.get(index).ok_or(Errno(libc::ENODEV))?;
    Ok((u8::try_from(index).unwrap_or(0), entry.gid))
}

/// The LID of the device that has a local address; 0 on RoCE, which has none.
pub(super) fn lid(address: &SocketAddr) -> Result<u16, Errno> {
    Ok(if is_infiniband()? { state(index_of(address))?.device().lid() } else { 0 })
}

/// Whether the link layer is InfiniBand, where address vectors have LIDs too.
pub(super) fn is_infiniband() -> Result<bool, Errno> {
    Ok(state(0)?.link_layer() == LinkLayer::InfiniBand)
}
