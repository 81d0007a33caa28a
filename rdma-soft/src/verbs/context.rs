//! `ibv_context`: an opened device, and the objects that live in it.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Weak};

use rdma_sys::{ibv_context, ibv_context_ops, ibv_cq_ex, ibv_device, ibv_qp_ex, verbs_context};

use super::Errno;
use super::call::{Done, GivenFd, Made, Own};
use super::commands::{self, Commands, Inode};
use super::device::{self, DeviceState, LinkLayer};
use super::events::{self, AsyncEvents};
use super::gid::{self, GidEntry};
use super::object::{Object, Pointee, Public};
use super::on_demand::OwnMemory;
use crate::log::log;
use crate::node::Node;
use crate::os::fork::PerProcess;
use crate::os::lock::Lock;

/// The number of completion vectors. The device has no interrupts: programs that spread completion
/// queues over vectors, one for each thread, get some.
pub(super) const COMPLETION_VECTORS: u8 = 4;

/// Constructors of the op tables in a context, its CQs and its QPs. `ops` passes them in at
/// `open`, because their functions call modules that import this one.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The op table `ibv_context_ops` in the `ibv_context`.
    pub(super) classic: fn() -> ibv_context_ops,
    /// The `verbs_context` around the `ibv_context`, with its op table.
    pub(super) extended: fn() -> verbs_context,
    /// A completion queue in which only the function pointers are set.
    pub(super) cq: fn() -> ibv_cq_ex,
    /// A queue pair in which only the function pointers are set.
    pub(super) qp: fn() -> ibv_qp_ex,
}

/// Private part of a context; the objects of the context share it.
#[derive(Debug)]
pub(crate) struct ContextState {
    device: &'static DeviceState,
    pub(super) tables: &'static Tables,
    gids: Vec<GidEntry>,
    /// The descriptor `cmd_fd`. A sandbox may deny it; the device works without.
    commands: Option<Commands>,
    events: Arc<AsyncEvents>,
    own_memory: OwnMemory,
    children: Lock<HashMap<usize, Orphan>>,
}

impl ContextState {
    pub(crate) fn device(&self) -> &'static DeviceState {
        self.device
    }

    pub(crate) fn link_layer(&self) -> LinkLayer {
        self.device.link_layer
    }

    /// The GID table, read once when the device was opened, so that indices never change.
    pub(crate) fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    pub(crate) fn events(&self) -> &Arc<AsyncEvents> {
        &self.events
    }

    /// The copies of on-demand regions.
    pub(super) fn own_memory(&self) -> &OwnMemory {
        &self.own_memory
    }

    /// Makes an object of this context and returns the pointer for C.
    pub(super) fn create<T: Child>(&self, public: T, private: T::Private) -> *mut T {
        let pointer = Object::create(public, private);
        let orphan = Orphan { pointer: pointer.cast(), mark: T::MARK, order: T::ORDER, abandon: abandon::<T> };
        self.children.lock().insert(pointer.addr(), orphan);
        pointer
    }

    /// Calls `hold` with each object of a kind in this context and in those that share its command
    /// descriptor, and returns the results. The lists of objects are locked meanwhile, so `hold`
    /// must not wait; the objects may end afterwards, so a result owns what it needs.
    pub(super) fn collect<T: Child, R>(&self, hold: impl Fn(&Object<T>) -> R) -> Vec<R> {
        let own = self.inode();
        let shares = |of: &Self| ptr::eq(of, self) || (own.is_some() && of.inode() == own);
        let mut results = Vec::new();
        for context in opened().iter().filter(|context| shares(context)) {
            let children = context.children.lock();
            results.extend(children.values().filter(|orphan| orphan.mark == T::MARK).filter_map(|orphan| {
                // SAFETY: `get` requires a live object of this type: `create` stored its mark with
                // the pointer, and `destroy` removes an object from the list, which is locked,
                // before it frees the object.
                Some(hold(unsafe { Object::get(orphan.pointer.cast()) }.ok()?))
            }));
        }
        results
    }

    fn inode(&self) -> Option<Inode> {
        self.commands.as_ref().map(Commands::inode)
    }
}

/// A kind of object that lives in a context.
pub(super) trait Child: Public {
    /// Objects of a lower order use those of a higher order and end first when the context is
    /// closed.
    const ORDER: u8;

    fn context(object: &Object<Self>) -> &ContextState;

    /// Ends the object in the engine. Fails while another object uses this one.
    fn end(object: &Object<Self>, node: &Node) -> Result<(), Errno>;

    /// Ends as much of the object as possible, because its context is closed.
    fn force_end(object: &Object<Self>, node: &Node) {
        // Fails only if another object, which could not be ended either, still uses this one.
        let _ended = Self::end(object, node);
    }

    /// Removes the object's unread events from their queues.
    fn close(_object: &Object<Self>) {}

    /// Waits until C has acknowledged every event it read, then releases the objects that this one
    /// uses.
    fn settle(_object: &Object<Self>) {}
}

/// Destroys an object: `ibv_destroy_qp`, `ibv_dereg_mr`, `ibv_dealloc_pd` and the like.
pub(super) fn destroy<T>(pointer: Own<T>) -> Result<(), Errno>
where
    T: Pointee,
    T::Object: Child,
{
    let object = pointer.get()?;
    Child::end(object, Node::get()?)?;
    Child::close(object);
    Child::settle(object);
    discard(pointer)
}

/// Frees an object that has ended, or that another object stands for.
pub(super) fn discard<T>(pointer: Own<T>) -> Result<(), Errno>
where
    T: Pointee,
    T::Object: Child,
{
    Child::context(pointer.get()?).children.lock().remove(&T::object(pointer.raw()).addr());
    pointer.free()
}

/// An object of a context, for `close_device` to end if C has not destroyed it.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    pointer: *mut (),
    /// The mark of the object's kind.
    mark: u64,
    order: u8,
    abandon: unsafe fn(*mut (), &Node),
}

// SAFETY: `Send` requires that another thread may use the value. `pointer` is to an object whose
// private part is `Sync` and whose public part is accessed only through raw pointers (`object`,
// invariant 4); each dereference needs `unsafe` and its own argument.
unsafe impl Send for Orphan {}

/// Ends an object whose context is closed.
///
/// # Safety
///
/// `pointer` is a live object of type `T`.
unsafe fn abandon<T: Child>(pointer: *mut (), node: &Node) {
    // SAFETY: `Object::get` requires a live object of this type: the caller's contract.
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

/// An `ibv_context` is a field of a `verbs_context`.
impl Pointee for ibv_context {
    type Object = verbs_context;

    fn object(pointer: *mut Self) -> *mut verbs_context {
        if pointer.is_null() {
            return ptr::null_mut();
        }
        pointer.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// The contexts of this process.
static OPENED: PerProcess<Lock<Vec<Weak<ContextState>>>> = PerProcess::new();

/// The contexts that are open.
fn opened() -> Vec<Arc<ContextState>> {
    OPENED.get_or_default().lock().iter().filter_map(Weak::upgrade).collect()
}

/// Opens a device.
pub(super) fn open(
    ibv_device: *mut ibv_device,
    tables: &'static Tables,
) -> Result<(*mut ibv_context, Arc<ContextState>), Errno> {
    make(ibv_device, tables, || Ok(Commands::new().ok()))
}

/// `ibv_import_device`: another context of the device, which shares the handles of the context with
/// this descriptor. Its objects and events are its own. `EOPNOTSUPP` for a context of another
/// process, whose memory holds its objects.
pub(super) fn import_device(cmd_fd: GivenFd) -> Made<ibv_context> {
    // The list of open contexts is that of a process with a node.
    Node::get()?;
    let inode = Inode::of(cmd_fd.get()?).map_err(|_| Errno::INVAL)?;
    let opened = opened();
    let is_in_use = |commands: &Commands| cmd_fd.get().is_ok_and(|fd| fd.as_raw_fd() == commands.raw_fd());
    if opened.iter().filter_map(|context| context.commands.as_ref()).any(is_in_use) {
        // Two contexts would close the descriptor: C imports a duplicate.
        return Err(Errno::INVAL);
    }
    let Some(context) = opened.iter().find(|context| context.inode() == Some(inode)) else {
        return Err(match commands::is_command_file(cmd_fd.get()?) {
            true => {
                log!(
                    WARN,
                    "ibv_import_device: the context is closed, or of another process, whose memory holds its objects"
                );
                Errno::OPNOTSUPP
            }
            false => Errno::INVAL,
        });
    };
    let ibv_device = device::wanted()?.get(usize::from(context.device.index)).copied().ok_or(Errno(libc::ENODEV))?;
    // Taken over last: a call that fails leaves the descriptor to C, which closes it.
    let commands = || Ok(Some(Commands::from_file(File::from(cmd_fd.take()?), inode)));
    make(ibv_device, context.tables, commands).map(|(context, _)| context)
}

fn make(
    ibv_device: *mut ibv_device,
    tables: &'static Tables,
    commands: impl FnOnce() -> Result<Option<Commands>, Errno>,
) -> Result<(*mut ibv_context, Arc<ContextState>), Errno> {
    let device: &'static DeviceState = device::get(ibv_device)?;
    let node = Node::get()?;
    gid::check_chosen(node, device)?;
    node.set_sink(events::deliver);
    let events = Arc::new(AsyncEvents::new()?);
    let commands = commands()?;
    events::listen(&events);
    let mut public = verbs_context { sz: size_of::<verbs_context>(), ..(tables.extended)() };
    public.context = ibv_context {
        device: ibv_device,
        ops: (tables.classic)(),
        cmd_fd: commands.as_ref().map_or(-1, Commands::raw_fd),
        async_fd: events.raw_fd(),
        num_comp_vectors: c_int::from(COMPLETION_VECTORS),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        // `verbs.h` reads this value as "a `verbs_context` surrounds this `ibv_context`".
        abi_compat: ptr::without_provenance_mut(usize::MAX),
    };
    let gids = gid::table(device);
    let state = Arc::new(ContextState {
        device,
        tables,
        gids,
        events,
        own_memory: OwnMemory::default(),
        commands,
        children: Lock::default(),
    });
    let mut opened = OPENED.get_or_default().lock();
    opened.retain(|context| context.strong_count() > 0);
    opened.push(Arc::downgrade(&state));
    drop(opened);
    let object = Object::create(public, Arc::clone(&state));
    Ok((object.wrapping_byte_add(offset_of!(verbs_context, context)).cast(), state))
}

/// `ibv_close_device`. As in libibverbs, objects that C has not destroyed end with their context.
/// Their memory and the context's is leaked then, because C may still hold pointers to it; verbs on
/// such objects fail with `EINVAL`.
pub(super) fn close_device(context: Own<ibv_context>) -> Done {
    let object = context.get()?;
    let node = Node::get()?;
    OPENED.get_or_default().lock().retain(|other| !ptr::eq(other.as_ptr(), Arc::as_ptr(object)));
    let mut orphans: Vec<Orphan> = object.children.lock().drain().map(|(_, orphan)| orphan).collect();
    if orphans.is_empty() {
        return context.free();
    }
    let objects = orphans.len();
    let device = object.device.index;
    log!(WARN, device, objects, "a context of a software device is closed before its objects");
    orphans.sort_by_key(|orphan| orphan.order);
    for Orphan { pointer, abandon, .. } in orphans {
        // SAFETY: `abandon` requires a live object of its type: `ContextState::create` stored
        // pointer and function together, and `destroy` removes an object from the list before it
        // frees the object.
        unsafe { abandon(pointer, node) };
    }
    object.abandon();
    Ok(())
}
