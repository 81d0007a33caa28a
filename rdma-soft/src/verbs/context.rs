//! `ibv_context`: an opened device, and the objects that live in it.

use std::collections::HashMap;
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_sys::{ibv_context, ibv_context_ops, ibv_cq_ex, ibv_device, ibv_qp_ex, verbs_context};

use super::Errno;
use super::call::{Done, Own};
use super::device::{self, DeviceState, LinkLayer};
use super::events::AsyncEvents;
use super::gid::{self, GidEntry};
use super::object::{Object, Pointee, Public};
use crate::log::log;
use crate::node::Node;

/// The functions in a context and its objects, which call this module and those above it.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The context's classic table.
    pub(super) classic: fn() -> ibv_context_ops,
    /// The table around the context.
    pub(super) extended: fn() -> verbs_context,
    /// A completion queue with nothing filled in but its functions.
    pub(super) cq: fn() -> ibv_cq_ex,
    /// A queue pair with nothing filled in but its functions.
    pub(super) qp: fn() -> ibv_qp_ex,
}

/// The device's part of a context, which the objects of the context share.
#[derive(Debug)]
pub(crate) struct ContextState {
    device: &'static DeviceState,
    pub(super) tables: &'static Tables,
    gids: Vec<GidEntry>,
    events: Arc<AsyncEvents>,
    children: Mutex<HashMap<usize, Orphan>>,
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

    /// Makes an object of this context and returns the pointer that C shall have.
    pub(super) fn create<T: Child>(&self, public: T, private: T::Private) -> *mut T {
        let pointer = Object::create(public, private);
        let orphan = Orphan { pointer: pointer.cast(), order: T::ORDER, abandon: abandon::<T> };
        self.lock_children().insert(pointer.addr(), orphan);
        pointer
    }

    fn lock_children(&self) -> MutexGuard<'_, HashMap<usize, Orphan>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kind of objects that live in a context.
pub(super) trait Child: Public {
    /// Objects of a lower order use those of a higher one, and end before them.
    const ORDER: u8;

    fn context(object: &Object<Self>) -> &ContextState;

    /// Ends the object in the engine. Fails while something uses it.
    fn end(object: &Object<Self>, node: &Node) -> Result<(), Errno>;

    /// As [`Child::end`], of an object whose context is closed: ends as much of it as can be.
    fn force_end(object: &Object<Self>, node: &Node) {
        // It is in use only by an object that could not be ended either.
        let _ended = Self::end(object, node);
    }

    /// Takes back the object's unread events.
    fn close(_object: &Object<Self>) {}

    /// Waits for the events that C has read and not acknowledged, and lets go of other objects.
    fn settle(_object: &Object<Self>) {}
}

/// The verb that destroys an object.
pub(super) fn destroy<T>(pointer: Own<T>) -> Result<(), Errno>
where
    T: Pointee,
    T::Object: Child,
{
    let object = pointer.get()?;
    Child::end(object, Node::get()?)?;
    Child::close(object);
    Child::settle(object);
    Child::context(object).lock_children().remove(&T::object(pointer.raw()).addr());
    pointer.free()
}

/// An object that is left when its context is closed.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    pointer: *mut (),
    order: u8,
    abandon: unsafe fn(*mut (), &Node),
}

// SAFETY: the pointer is to an object, whose private part is `Sync` and whose public part is only
// touched through raw pointers (`object`, invariant 4); dereferencing it needs `unsafe` and its own
// reason.
unsafe impl Send for Orphan {}

/// Ends an object whose context is closed.
///
/// # Safety
///
/// `pointer` is a live object of type `T`.
unsafe fn abandon<T: Child>(pointer: *mut (), node: &Node) {
    // SAFETY: `Object::get` wants a live object of this type: the caller's contract.
    if let Ok(object) = unsafe { Object::<T>::get(pointer.cast()) } {
        T::force_end(object, node);
        T::close(object);
        object.abandon();
    }
}

impl Public for verbs_context {
    const MARK: u64 = 0x0063_6f6e_7465_7874;
    type Private = Arc<ContextState>;
}

/// A context lies in a `verbs_context`.
impl Pointee for ibv_context {
    type Object = verbs_context;

    fn object(pointer: *mut Self) -> *mut verbs_context {
        if pointer.is_null() {
            return ptr::null_mut();
        }
        pointer.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// Opens the device.
pub(super) fn open(
    ibv_device: *mut ibv_device,
    tables: &'static Tables,
) -> Result<(*mut ibv_context, Arc<ContextState>), Errno> {
    let device = device::get(ibv_device)?;
    Node::get()?.set_sink(super::events::deliver);
    let events = Arc::new(AsyncEvents::new()?);
    let mut public = verbs_context { sz: size_of::<verbs_context>(), ..(tables.extended)() };
    public.context = ibv_context {
        device: ibv_device,
        ops: (tables.classic)(),
        // There is no kernel device behind it.
        cmd_fd: -1,
        async_fd: events.raw_fd(),
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        // "There is a verbs_context around this."
        abi_compat: ptr::without_provenance_mut(usize::MAX),
    };
    let gids = gid::table(device.link_layer, device.guid);
    let state = Arc::new(ContextState { device, tables, gids, events, children: Mutex::default() });
    let object = Object::create(public, Arc::clone(&state));
    Ok((object.wrapping_byte_add(offset_of!(verbs_context, context)).cast(), state))
}

/// `ibv_close_device`. As with libibverbs, objects that are left end with their context; the memory
/// of their public parts, and of the context's, stays, because C may still hold pointers to it.
/// Using them fails.
pub(super) fn close_device(context: Own<ibv_context>) -> Done {
    let object = context.get()?;
    let node = Node::get()?;
    let mut orphans: Vec<Orphan> = object.lock_children().drain().map(|(_, orphan)| orphan).collect();
    if orphans.is_empty() {
        return context.free();
    }
    let objects = orphans.len();
    log!(WARN, objects, "soft0: a context is closed before its objects");
    orphans.sort_by_key(|orphan| orphan.order);
    for Orphan { pointer, abandon, .. } in orphans {
        // SAFETY: `abandon` wants a live object of its type: `create` paired the two, and
        // destroying an object takes it off the list before it is freed.
        unsafe { abandon(pointer, node) };
    }
    object.abandon();
    Ok(())
}
