//! The device as the connection manager uses it: one context, opened when first needed and shared by all ids, and a
//! protection domain for those that bring none.
//!
//! As in librdmacm the context stays open for good, because applications keep objects of it; the domain is given back with the
//! last id that uses it.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_sys::{ibv_context, ibv_device_attr, ibv_gid, ibv_pd};

use super::address;
use crate::engine::Errno;
use crate::verbs::context;
use crate::verbs::gid::GidEntry;

/// What is shared.
#[derive(Debug)]
struct Shared {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    users: usize,
}

// SAFETY: pointers to verbs objects, which may be used by any thread; dereferencing them needs `unsafe` and its own reason.
unsafe impl Send for Shared {}

static SHARED: Mutex<Shared> = Mutex::new(Shared { context: ptr::null_mut(), pd: ptr::null_mut(), users: 0 });

fn shared() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().into()
}

impl Shared {
    fn open(&mut self) -> Result<*mut ibv_context, Errno> {
        if self.context.is_null() {
            let verbs = crate::ibverbs();
            let mut count: c_int = 0;
            // SAFETY: `count` is valid for writes.
            let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
            // SAFETY: a list has at least its end, which is null.
            let device = unsafe { list.read() };
            // SAFETY: the list is not used below; its devices stay.
            unsafe { (verbs.ibv_free_device_list)(list) };
            if device.is_null() {
                return Err(Errno(libc::ENODEV));
            }
            // SAFETY: a device of this library.
            self.context = unsafe { (verbs.ibv_open_device)(device) };
            if self.context.is_null() {
                return Err(last_error());
            }
        }
        Ok(self.context)
    }
}

/// The shared context.
pub(super) fn open() -> Result<*mut ibv_context, Errno> {
    shared().open()
}

/// A use of the device by an id.
#[derive(Debug)]
pub(super) struct Device {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
}

// SAFETY: as for `Shared`.
unsafe impl Send for Device {}

impl Device {
    pub(super) fn get() -> Result<Self, Errno> {
        let mut shared = shared();
        let context = shared.open()?;
        if shared.pd.is_null() {
            // SAFETY: the shared context is never closed.
            shared.pd = unsafe { (crate::ibverbs().ibv_alloc_pd)(context) };
            if shared.pd.is_null() {
                return Err(last_error());
            }
        }
        shared.users += 1;
        Ok(Self { context, pd: shared.pd })
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.context
    }

    pub(super) fn pd(&self) -> *mut ibv_pd {
        self.pd
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut shared = shared();
        shared.users -= 1;
        if shared.users == 0 {
            let pd = std::mem::replace(&mut shared.pd, ptr::null_mut());
            // SAFETY: the domain is alive: it is only deallocated here, once. With objects of the application's in it, it is
            // not, and stays as librdmacm's would.
            let _in_use = unsafe { (crate::ibverbs().ibv_dealloc_pd)(pd) };
        }
    }
}

/// What the device can hold of reads and atomic operations: as responder, and as initiator.
pub(super) fn depths() -> Result<(u8, u8), Errno> {
    let context = open()?;
    let mut attr = ibv_device_attr::default();
    // SAFETY: the shared context is never closed; `attr` is valid for writes.
    match unsafe { (crate::ibverbs().ibv_query_device)(context, &raw mut attr) } {
        0 => {
            let byte = |count: c_int| u8::try_from(count).unwrap_or(u8::MAX);
            Ok((byte(attr.max_qp_rd_atom), byte(attr.max_qp_init_rd_atom)))
        }
        errno => Err(Errno(errno)),
    }
}

/// The port's GID for an address of this host, and its index: the address's own if the port has it, else one of the same
/// interface, else loopback's, which is the last.
pub(super) fn gid(address: &SocketAddr) -> Result<(u8, ibv_gid), Errno> {
    let context = open()?;
    // SAFETY: the shared context is never closed.
    let gids = unsafe { context::get(context) }?.gids();
    let wanted = address::gid_of(address);
    let scope = match address {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let is_wanted = |entry: &GidEntry| {
        // SAFETY: every bit pattern is a GID.
        let raw = unsafe { entry.gid.raw };
        raw == wanted
    };
    let index = gids.iter().position(is_wanted);
    let index = index.or_else(|| gids.iter().position(|entry| scope != 0 && entry.interface == scope));
    let index = index.unwrap_or(gids.len().saturating_sub(1));
    let entry = gids.get(index).ok_or(Errno(libc::ENODEV))?;
    Ok((u8::try_from(index).unwrap_or(0), entry.gid))
}

/// Whether the port's link is InfiniBand, where addresses are LIDs as well.
pub(super) fn is_infiniband() -> Result<bool, Errno> {
    let context = open()?;
    // SAFETY: the shared context is never closed.
    let state = unsafe { context::get(context) }?;
    Ok(state.link_layer() == crate::verbs::device::LinkLayer::InfiniBand)
}
