//! The device as the connection manager uses it: one context, opened when first needed and shared
//! by all ids, and a protection domain for ids that bring none.
//!
//! As in librdmacm the context stays open for good, because applications keep objects of it; the
//! domain is given back with the last id that uses it.

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

/// The context and the domain that ids share.
#[derive(Debug)]
struct Shared {
    open: Option<(*mut ibv_context, Arc<ContextState>)>,
    pd: *mut ibv_pd,
    users: usize,
}

// SAFETY: pointers to verbs objects, which may be used by any thread; dereferencing them needs
// `unsafe` and its own reason.
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

/// The shared context.
pub(super) fn open() -> Result<*mut ibv_context, Errno> {
    shared().open().map(|(context, _)| *context)
}

fn state() -> Result<Arc<ContextState>, Errno> {
    shared().open().map(|(_, state)| Arc::clone(state))
}

/// A use of the device by an id.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
}

// SAFETY: the two pointers of `Shared`, for which the same holds.
unsafe impl Send for Device {}

impl Device {
    pub(super) fn get() -> Result<Self, Errno> {
        let mut shared = shared();
        let context = shared.open()?.0;
        if shared.pd.is_null() {
            // SAFETY: ibv_alloc_pd wants an open context: the shared one is never closed.
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
            // SAFETY: ibv_dealloc_pd wants a live domain: it is deallocated here only, once. With
            // objects of the application's in it the call fails, and the domain stays as
            // librdmacm's would.
            let _in_use = unsafe { (crate::ibverbs().ibv_dealloc_pd)(pd) };
        }
    }
}

/// The GID of an address, and its index in the port's table. Of an address of this host that the
/// port has no GID for: that of the same interface, else loopback's, which is the last. Of a
/// multicast group: its own, with the index of none.
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

/// Whether the port's link is InfiniBand, where addresses are LIDs as well.
pub(super) fn is_infiniband() -> Result<bool, Errno> {
    Ok(state()?.link_layer() == LinkLayer::InfiniBand)
}
