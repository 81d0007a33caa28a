//! The connection manager's use of the device: one context, opened on first use and shared by all
//! ids, and one protection domain for ids to which the application gives none.
//!
//! As in librdmacm the context stays open for the life of the process, because applications keep
//! objects of it; the domain is deallocated with the last id that uses it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_sys::{ibv_context, ibv_gid, ibv_pd};

use super::address;
use crate::engine::Errno;
use crate::os::fork::PerProcess;
use crate::verbs::context::ContextState;
use crate::verbs::device::LinkLayer;
use crate::verbs::ops;

/// The context and the protection domain that ids share.
#[derive(Debug)]
struct Shared {
    open: Option<(*mut ibv_context, Arc<ContextState>)>,
    pd: *mut ibv_pd,
    users: usize,
}

// SAFETY: `Send` requires that another thread may use the value: its pointers are to verbs objects,
// which any thread may use; each dereference needs `unsafe` and its own argument.
unsafe impl Send for Shared {}

static SHARED: PerProcess<Mutex<Shared>> = PerProcess::new();

fn shared() -> MutexGuard<'static, Shared> {
    let make = || Box::leak(Box::new(Mutex::new(Shared { open: None, pd: ptr::null_mut(), users: 0 })));
    let Ok(shared) = SHARED.get_or_make(|| Ok::<_, Infallible>(make()));
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn open(&mut self) -> Result<&(*mut ibv_context, Arc<ContextState>), Errno> {
        if self.open.is_none() {
            self.open = Some(ops::open_wanted()?);
        }
        self.open.as_ref().ok_or(Errno(libc::ENODEV))
    }
}

/// Opens the shared context on first use and returns it.
pub(super) fn open() -> Result<*mut ibv_context, Errno> {
    shared().open().map(|(context, _)| *context)
}

fn state() -> Result<Arc<ContextState>, Errno> {
    shared().open().map(|(_, state)| Arc::clone(state))
}

/// A use of the shared context and domain by an id; counted.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
}

// SAFETY: `Send` requires that another thread may use the value: its pointers are to verbs objects,
// which any thread may use; each dereference needs `unsafe` and its own argument.
unsafe impl Send for Device {}

impl Device {
    pub(super) fn get() -> Result<Self, Errno> {
        let mut shared = shared();
        let context = shared.open()?.0;
        if shared.pd.is_null() {
            // SAFETY: `ibv_alloc_pd` requires an open context: the shared one is never closed.
            shared.pd = unsafe { (crate::ibverbs().ibv_alloc_pd)(context) };
            if shared.pd.is_null() {
                return Err(std::io::Error::last_os_error().into());
            }
        }
        shared.users += 1;
        Ok(Self { context, pd: shared.pd })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut shared = shared();
        shared.users -= 1;
        if shared.users == 0 {
            let pd = std::mem::replace(&mut shared.pd, ptr::null_mut());
            // SAFETY: `ibv_dealloc_pd` requires a live domain: `get` allocated this one, and the
            // `replace` above makes this call its only deallocation. If the application has objects
            // in the domain the call fails, and the domain stays, as in librdmacm.
            let _in_use = unsafe { (crate::ibverbs().ibv_dealloc_pd)(pd) };
        }
    }
}

/// The GID of an address and its index in the port's GID table. For a local address without an
/// entry, returns the entry of the same interface or else the last one, which is loopback's. For a
/// multicast group, returns the group's GID with index 0.
pub(super) fn gid(address: &SocketAddr) -> Result<(u8, ibv_gid), Errno> {
    let wanted = address::gid_of(address);
    if address.ip().is_multicast() {
        return Ok((0, ibv_gid { raw: wanted }));
    }
    let state = state()?;
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

/// Whether the port's link layer is InfiniBand, where address vectors have LIDs too.
pub(super) fn is_infiniband() -> Result<bool, Errno> {
    Ok(state()?.link_layer() == LinkLayer::InfiniBand)
}
