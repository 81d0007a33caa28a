//! `ibv_context`: an opened device.

use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq_ex, ibv_device, ibv_mr, ibv_pd, ibv_qp_ex, verbs_context,
};

use super::device::{self, DeviceState, LinkLayer};
use super::errno::{pointer, status};
use super::events::AsyncEvents;
use super::gid::{self, GidEntry};
use super::object::{Object, Public};
use super::{Errno, ah, cq, mr, ops, pd, qp};
use crate::log::remark;
use crate::node::Node;

/// What an opened device is, apart from its public part. Its objects share it.
#[derive(Debug)]
pub(crate) struct ContextState {
    device: &'static DeviceState,
    gids: Vec<GidEntry>,
    events: Arc<AsyncEvents>,
    children: Mutex<HashMap<usize, Child>>,
}

impl ContextState {
    pub(crate) fn guid(&self) -> u64 {
        self.device.guid
    }

    pub(crate) fn link_layer(&self) -> LinkLayer {
        self.device.link_layer
    }

    /// The GID table, as it was when the device was opened: indices do not move under a program.
    pub(crate) fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    pub(crate) fn events(&self) -> &Arc<AsyncEvents> {
        &self.events
    }

    /// Remembers an object that was made in this context.
    pub(crate) fn adopt(&self, child: Child) {
        self.lock_children().insert(child.address(), child);
    }

    /// Forgets an object that is destroyed.
    pub(crate) fn disown<T>(&self, public: *mut T) {
        self.lock_children().remove(&public.addr());
    }

    fn lock_children(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object of a context, so that closing the context can end it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Child {
    Pd(*mut ibv_pd),
    Mr(*mut ibv_mr),
    Ah(*mut ibv_ah),
    Channel(*mut ibv_comp_channel),
    Cq(*mut ibv_cq_ex),
    Qp(*mut ibv_qp_ex),
}

// SAFETY: the pointers are to objects, whose inner parts are `Sync` and whose public parts are only touched through raw
// pointers (`object`, invariant 3); dereferencing one needs `unsafe` and its own reason.
unsafe impl Send for Child {}

impl Child {
    fn address(self) -> usize {
        match self {
            Self::Pd(public) => public.addr(),
            Self::Mr(public) => public.addr(),
            Self::Ah(public) => public.addr(),
            Self::Channel(public) => public.addr(),
            Self::Cq(public) => public.addr(),
            Self::Qp(public) => public.addr(),
        }
    }

    /// What is used by others comes later.
    fn order(self) -> u8 {
        match self {
            Self::Qp(_) => 0,
            Self::Mr(_) | Self::Ah(_) => 1,
            Self::Cq(_) => 2,
            Self::Pd(_) => 3,
            Self::Channel(_) => 4,
        }
    }
}

impl Public for verbs_context {
    const MARK: u64 = 0x0063_6f6e_7465_7874;
    type Private = Arc<ContextState>;
}

/// The whole structure around the part that C sees.
fn whole(context: *mut ibv_context) -> *mut verbs_context {
    if context.is_null() {
        return ptr::null_mut();
    }
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// Finds the context behind a pointer from C, in the process that opened it.
///
/// # Safety
///
/// As for [`Object::get`].
pub(crate) unsafe fn get<'a>(context: *mut ibv_context) -> Result<&'a Arc<ContextState>, Errno> {
    // SAFETY: the caller's promise; a context of ours lies in a `verbs_context`.
    let object = unsafe { Object::get(whole(context)) }?;
    Node::get()?;
    Ok(object.private())
}

/// `ibv_open_device`.
pub(super) extern "C" fn open_device(ibv_device: *mut ibv_device) -> *mut ibv_context {
    pointer(open(ibv_device).map(|(context, _)| context))
}

/// Opens the device, if the program wants one.
pub(crate) fn open_wanted() -> Result<(*mut ibv_context, Arc<ContextState>), Errno> {
    open(device::wanted()?.ok_or(Errno(libc::ENODEV))?)
}

fn open(ibv_device: *mut ibv_device) -> Result<(*mut ibv_context, Arc<ContextState>), Errno> {
    let device = device::get(ibv_device)?;
    Node::get()?.set_sink(super::events::deliver);
    let events = Arc::new(AsyncEvents::new()?);
    let mut public = verbs_context { sz: size_of::<verbs_context>(), ..ops::extended() };
    public.context = ibv_context {
        device: ibv_device,
        ops: ops::classic(),
        // There is no kernel device behind it.
        cmd_fd: -1,
        async_fd: events.raw_fd(),
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        // "There is a verbs_context around this."
        abi_compat: ptr::without_provenance_mut(usize::MAX),
    };
    let gids = gid::table(device.link_layer, device.guid);
    let state = Arc::new(ContextState { device, gids, events, children: Mutex::default() });
    let object = Object::create(public, Arc::clone(&state));
    Ok((object.wrapping_byte_add(offset_of!(verbs_context, context)).cast(), state))
}

/// `ibv_close_device`. As with libibverbs, objects that are left end with their context; the memory of their public parts, and
/// of the context's, stays, because C may still hold pointers to it. Using them fails.
pub(super) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: C's promise about the context.
    status(unsafe { close(context) })
}

/// # Safety
///
/// As for [`Object::free`].
unsafe fn close(context: *mut ibv_context) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let state = unsafe { get(context) }?;
    let mut orphans: Vec<Child> = state.lock_children().drain().map(|(_, child)| child).collect();
    if orphans.is_empty() {
        // SAFETY: the caller's promise; `state` is not used below.
        return unsafe { Object::free(whole(context)) };
    }
    let objects = orphans.len();
    remark!(WARN, objects, "soft0: a context is closed before its objects");
    orphans.sort_by_key(|child| child.order());
    for orphan in orphans {
        match orphan {
            // SAFETY: the context's children are alive: destroying one disowns it before it frees it. So for each arm.
            Child::Qp(qp) => unsafe { qp::abandon(qp) },
            // SAFETY: as above.
            Child::Mr(mr) => unsafe { mr::abandon(mr) },
            // SAFETY: as above.
            Child::Ah(ah) => unsafe { ah::abandon(ah) },
            // SAFETY: as above.
            Child::Cq(cq) => unsafe { cq::abandon(cq) },
            // SAFETY: as above.
            Child::Pd(pd) => unsafe { pd::abandon(pd) },
            // Its descriptor may be in some poll set: it stays open.
            // SAFETY: as above.
            Child::Channel(channel) => drop(unsafe { Object::get(channel) }.map(Object::abandon)),
        }
    }
    // SAFETY: the caller's promise.
    unsafe { Object::get(whole(context)) }?.abandon();
    Ok(())
}
