//! `ibv_mr`: memory regions.
//!
//! `ibv_import_mr` makes another object of a region. The region ends when C deregisters one of its
//! objects; the others then fail with `EINVAL`.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rdma_mem::SharedMemory;
use rdma_sys::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    IBV_ADVISE_MR_FLAG_FLUSH, ib_uverbs_advise_mr_advice, ibv_access_flags, ibv_mr, ibv_mr_init_attr,
    ibv_mr_init_attr_mask, ibv_pd, ibv_rereg_mr_err_code, ibv_rereg_mr_flags, ibv_sge,
};

use super::call::{Answer, Argument, Done, Handle, In, ListMut, Made, Memory, Own};
use super::context::{Child, ContextState, discard};
use super::object::{Object, Public, get_field, set_field};
use super::pd::PdUse;
use super::{Errno, errno, on_demand, pages};
use crate::copier::CopierThreads;
use crate::engine::{Engine, ForeignRegistration, MrKeys, Registration};
use crate::node::Node;

/// Private part of a memory region.
#[derive(Debug)]
pub(crate) struct MrState {
    /// The region, which its objects share.
    registered: Arc<Mutex<Registered>>,
    context: Arc<ContextState>,
    /// Whether this is another object of a region.
    is_imported: bool,
}

impl MrState {
    fn lock(&self) -> MutexGuard<'_, Registered> {
        lock(&self.registered)
    }
}

fn lock(registered: &Mutex<Registered>) -> MutexGuard<'_, Registered> {
    registered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parameters of a region that are not public; `ibv_rereg_mr` changes them.
#[derive(Debug)]
struct Registered {
    lkey: u32,
    pd: PdUse,
    iova: u64,
    len: usize,
    /// The flags that C has asked for; `None` for memory of a copier or of the device, which cannot
    /// be registered again.
    access: Option<u32>,
    /// The memory of the device, which stays mapped until the engine has deregistered the region
    /// (invariant 1 of `dm`).
    device_memory: Option<Arc<SharedMemory>>,
    has_ended: bool,
}

impl Registered {
    fn new(keys: MrKeys, pd: PdUse, iova: u64, len: usize, access: Option<u32>) -> Self {
        Self { lkey: keys.lkey, pd, iova, len, access, device_memory: None, has_ended: false }
    }

    /// The region's key. `EINVAL` if the region has ended.
    fn lkey(&self) -> Result<u32, Errno> {
        if self.has_ended { Err(Errno::INVAL) } else { Ok(self.lkey) }
    }

    /// The engine has deregistered the region: all its objects have ended, and give up the memory
    /// of the device.
    fn end(&mut self) {
        self.has_ended = true;
        self.device_memory = None;
    }
}

impl Public for ibv_mr {
    const MARK: u64 = 0x006d_725f_6d72_5f6d;
    type Private = MrState;
}

impl Child for ibv_mr {
    const ORDER: u8 = 1;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    fn end(object: &Object<Self>, node: &Node) -> Result<(), Errno> {
        let lkey = object.lock().lkey()?;
        deregister(node, lkey, None)?;
        object.lock().end();
        Ok(())
    }

    fn force_end(object: &Object<Self>, node: &Node) {
        if object.is_imported {
            return;
        }
        let Ok(lkey) = object.lock().lkey() else { return };
        // Fails only if a copy does not end. No other copy of the region begins.
        match wait_and_end(node, |engine| engine.deregister(lkey)) {
            Ok(()) => object.lock().end(),
            // The copy may use the memory of the device, which the object keeps.
            Err(_) => object.lock().has_ended = true,
        }
    }
}

/// Ends a region when its copies have ended; `EAGAIN` if they do not end, after which no request
/// can use the region.
fn wait_and_end(node: &Node, mut end: impl FnMut(&mut Engine) -> Result<(), Errno>) -> Result<(), Errno> {
    node.with_copies_ended(|errno| *errno == Errno::AGAIN, &mut end)
}

/// Deregisters a region, which stays as it is if its copies do not end. The region with the key
/// `successor`, if any, takes its key.
fn deregister(node: &Node, lkey: u32, successor: Option<u32>) -> Result<(), Errno> {
    let ended = wait_and_end(node, |engine| match successor {
        Some(by) => engine.replace_region(lkey, by),
        None => engine.deregister(lkey),
    });
    if ended == Err(Errno::AGAIN) {
        node.with(|engine| engine.keep_region(lkey));
    }
    ended.map_err(Errno::after_waiting)
}

const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const ZERO_BASED: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
const ON_DEMAND: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
/// Remote rights that require `IBV_ACCESS_LOCAL_WRITE` too.
const REMOTE_CHANGE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
/// The rights that the engine checks.
const RIGHTS: u32 = LOCAL_WRITE | REMOTE_CHANGE | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
/// Flags that are accepted without effect on the rights: huge pages are registered like others,
/// memory windows cannot be bound, `register` handles `IBV_ACCESS_ZERO_BASED` and `enroll` handles
/// `IBV_ACCESS_ON_DEMAND`.
const HINTS: u32 =
    ibv_access_flags::IBV_ACCESS_HUGETLB.0 | ibv_access_flags::IBV_ACCESS_MW_BIND.0 | ZERO_BASED | ON_DEMAND;
/// Flags that a device may ignore, relaxed ordering among them.
const OPTIONAL: u32 = rdma_sys::IBV_ACCESS_OPTIONAL_RANGE;
/// Flags that this device does not support: `EOPNOTSUPP`.
const LACKING: u32 = ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0 | ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0;

/// The rights for the engine; `EOPNOTSUPP` or `EINVAL` if the flags are not allowed.
fn check_access(access: u32) -> Result<u32, Errno> {
    if access & LACKING != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if access & !(RIGHTS | HINTS | OPTIONAL) != 0 || (access & REMOTE_CHANGE != 0 && access & LOCAL_WRITE == 0) {
        return Err(Errno::INVAL);
    }
    Ok(access & RIGHTS)
}

/// Memory that C registers.
#[derive(Clone, Copy)]
struct Range {
    memory: Memory,
    len: usize,
    iova: u64,
}

/// Registers memory in the engine.
fn enroll(context: &ContextState, pd: PdUse, range: Range, access: u32) -> Result<(Registered, MrKeys), Errno> {
    let Range { memory: Memory(addr), len, iova } = range;
    let rights = check_access(access)?;
    let id = pd.id;
    let registered = |keys: MrKeys| (Registered::new(keys, pd, iova, len, Some(access)), keys);
    if access & ON_DEMAND != 0 {
        let copier = context.own_memory().queue()?;
        let what = on_demand::registration(addr.addr(), len, iova, rights, copier)?;
        return Node::get()?.with(|engine| engine.register_foreign(id, &what)).map(registered);
    }
    let node = Node::get()?;
    let ends = addr.addr().checked_add(len).is_some() && iova.checked_add(len as u64).is_some();
    if len == 0 || isize::try_from(len).is_err() || !ends {
        return Err(Errno::INVAL);
    }
    pages::populate(addr.addr(), len, rights & LOCAL_WRITE != 0)?;
    // Peers may map the file behind this memory and write to it directly, so only memory that has a
    // file of its own is offered for mapping.
    let backing = rdma_mem::shared::find(addr.addr(), len);
    let what = Registration { addr: addr.cast(), len, iova, access: rights, backing };
    // SAFETY: `Engine::register` requires memory that stays mapped with these rights until it is
    // deregistered: promise 3, which `Memory` carries, and for memory of the device invariant 1 of
    // `dm`. Work requests and their completions order
    // the accesses of the device and of C.
    let keys = node.with(|engine| unsafe { engine.register(id, &what) })?;
    Ok(registered(keys))
}

fn register(ibv_pd: &Handle<ibv_pd>, memory: Memory, len: usize, iova: u64, access: u32) -> Made<ibv_mr> {
    let iova = if access & ZERO_BASED != 0 { 0 } else { iova };
    let pd = ibv_pd.get()?;
    let (registered, keys) = enroll(&pd.context, pd.hold()?, Range { memory, len, iova }, access)?;
    create(ibv_pd, memory.0, len, registered, keys)
}

/// Makes the object of a registered region.
fn create(
    ibv_pd: &Handle<ibv_pd>,
    addr: *mut c_void,
    len: usize,
    registered: Registered,
    keys: MrKeys,
) -> Made<ibv_mr> {
    let pd = ibv_pd.get()?;
    let public = ibv_mr {
        context: get_field!(pd, context),
        pd: ibv_pd.raw(),
        addr,
        length: len,
        handle: keys.lkey,
        lkey: keys.lkey,
        rkey: keys.rkey,
    };
    let registered = Arc::new(Mutex::new(registered));
    let state = MrState { registered, context: Arc::clone(&pd.context), is_imported: false };
    Ok(pd.context.create(public, state))
}

/// `ibv_import_mr`: another object of the region with this handle, whose address is null. `ENOENT`
/// if neither the domain's context nor another one with its command descriptor has such a region.
pub(super) fn import_mr(ibv_pd: Handle<ibv_pd>, handle: u32) -> Made<ibv_mr> {
    let pd = ibv_pd.get()?;
    let regions = pd.context.collect(|mr: &Object<ibv_mr>| Arc::clone(&mr.registered));
    let (registered, length) = find(regions, handle).ok_or(Errno(libc::ENOENT))?;
    let public = ibv_mr {
        context: get_field!(pd, context),
        pd: ibv_pd.raw(),
        addr: ptr::null_mut(),
        length,
        handle,
        lkey: handle,
        rkey: handle,
    };
    Ok(pd.context.create(public, MrState { registered, context: Arc::clone(&pd.context), is_imported: true }))
}

/// The region with this key, and its length. `ibv_rereg_mr` keeps a region locked while it waits
/// for copies: only for such regions this waits, and only if no other region has the key.
fn find(regions: Vec<Arc<Mutex<Registered>>>, lkey: u32) -> Option<(Arc<Mutex<Registered>>, usize)> {
    let len = |registered: &Registered| (registered.lkey() == Ok(lkey)).then_some(registered.len);
    let mut busy = Vec::new();
    for region in regions {
        let found = match region.try_lock() {
            Ok(registered) => len(&registered),
            Err(TryLockError::Poisoned(registered)) => len(registered.get_ref()),
            Err(TryLockError::WouldBlock) => {
                busy.push(Arc::clone(&region));
                None
            }
        };
        if let Some(len) = found {
            return Some((region, len));
        }
    }
    busy.into_iter().find_map(|region| {
        let len = len(&lock(&region))?;
        Some((region, len))
    })
}

/// `ibv_unimport_mr`: frees an imported object; the region stays. Does nothing to other objects.
pub(super) fn unimport_mr(mr: Own<ibv_mr>) {
    if mr.get().is_ok_and(|mr| mr.is_imported) {
        // Fails only if another thread frees the object, which C must not do.
        let _freed = discard(mr);
    }
}

const CHANGE_TRANSLATION: i32 = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION.0 as i32;
const CHANGE_PD: i32 = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD.0 as i32;
const CHANGE_ACCESS: i32 = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS.0 as i32;

/// `ibv_rereg_mr`: registers the region with its new attributes, then deregisters the old one. The
/// keys change if the memory does. A region whose change fails keeps its attributes.
pub(super) fn rereg_mr(
    mr: Handle<ibv_mr>,
    flags: c_int,
    pd: Handle<ibv_pd>,
    memory: Memory,
    len: usize,
    access: c_int,
) -> c_int {
    let fail = |errno, code: ibv_rereg_mr_err_code| {
        errno::set(errno);
        code.0
    };
    let moves = flags & CHANGE_TRANSLATION != 0;
    let is_allowed = flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) == 0
        && (!moves || (len != 0 && !memory.0.is_null()))
        && (access == 0 || flags & CHANGE_ACCESS != 0);
    if !is_allowed {
        return fail(Errno::INVAL, ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT);
    }
    if flags == 0 {
        return fail(Errno::INVAL, ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD);
    }
    let iova = memory.0.addr() as u64;
    let range = moves.then_some(Range { memory, len, iova });
    let access = (flags & CHANGE_ACCESS != 0).then_some(access as u32);
    let pd = (flags & CHANGE_PD != 0).then_some(&pd);
    match change(&mr, pd, range, access) {
        Ok(()) => 0,
        Err(errno) => fail(errno, ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD),
    }
}

/// Changes those attributes of a region that are given.
fn change(
    mr: &Handle<ibv_mr>,
    pd: Option<&Handle<ibv_pd>>,
    range: Option<Range>,
    access: Option<u32>,
) -> Result<(), Errno> {
    let object = mr.get()?;
    let mut registered = object.lock();
    registered.lkey()?;
    // An imported object does not have the region's address.
    let before = registered.access.filter(|_| !object.is_imported).ok_or(Errno::OPNOTSUPP)?;
    let held = match pd {
        Some(pd) => {
            let pd = pd.get()?;
            if !Arc::ptr_eq(&pd.context, &object.context) {
                return Err(Errno::INVAL);
            }
            pd.hold()?
        }
        None => registered.pd.clone(),
    };
    let old =
        Range { memory: Memory(get_field!(object, addr)), len: get_field!(object, length), iova: registered.iova };
    let moves = range.is_some();
    let range = range.unwrap_or(old);
    let (mut new, mut keys) = enroll(&object.context, held, range, access.unwrap_or(before))?;
    let node = Node::get()?;
    if let Err(errno) = deregister(node, registered.lkey, (!moves).then_some(new.lkey)) {
        deregister(node, new.lkey, None)?;
        return Err(errno);
    }
    if !moves {
        new.lkey = registered.lkey;
        keys = MrKeys { lkey: new.lkey, rkey: new.lkey };
    }
    *registered = new;
    if let Some(pd) = pd {
        set_field!(object, pd, pd.raw());
    }
    set_field!(object, addr, range.memory.0);
    set_field!(object, length, range.len);
    set_field!(object, handle, keys.lkey);
    set_field!(object, lkey, keys.lkey);
    set_field!(object, rkey, keys.rkey);
    Ok(())
}

/// `ibv_reg_mr`.
pub(super) fn reg_mr(pd: Handle<ibv_pd>, memory: Memory, len: usize, access: c_int) -> Made<ibv_mr> {
    register(&pd, memory, len, memory.0.addr() as u64, access as u32)
}

/// `ibv_reg_mr_iova`.
pub(super) fn reg_mr_iova(pd: Handle<ibv_pd>, memory: Memory, len: usize, iova: u64, access: c_int) -> Made<ibv_mr> {
    register(&pd, memory, len, iova, access as u32)
}

/// `ibv_reg_mr_iova2`.
pub(super) fn reg_mr_iova2(pd: Handle<ibv_pd>, memory: Memory, len: usize, iova: u64, access: c_uint) -> Made<ibv_mr> {
    register(&pd, memory, len, iova, access)
}

/// The first fields of `ibv_mr_init_attr`; those behind them are of memory that the device refuses.
#[repr(C)]
struct MrInit {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
}

const _: () = assert!(offset_of!(MrInit, addr) == offset_of!(ibv_mr_init_attr, addr));

/// `ibv_reg_mr_ex`. `EOPNOTSUPP` for dma-bufs, DMA handles and buffers of an allocator, `EINVAL`
/// without an address.
pub(super) fn reg_mr_ex(pd: Handle<ibv_pd>, attr: In<ibv_mr_init_attr>) -> Made<ibv_mr> {
    const IOVA: u64 = ibv_mr_init_attr_mask::IBV_REG_MR_MASK_IOVA.0 as u64;
    const ADDR: u64 = ibv_mr_init_attr_mask::IBV_REG_MR_MASK_ADDR.0 as u64;
    // SAFETY: `get_as` requires that every version of the structure begins with these fields: they
    // are of its first version (the layout is asserted above).
    let attr = unsafe { attr.get_as::<MrInit>() }?;
    if attr.comp_mask & !(IOVA | ADDR) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if attr.comp_mask & ADDR == 0 {
        return Err(Errno::INVAL);
    }
    // C makes promise 3 for the memory of the structure as for that of `ibv_reg_mr`.
    let memory = Memory(attr.addr);
    let iova = if attr.comp_mask & IOVA != 0 { attr.iova } else { memory.0.addr() as u64 };
    register(&pd, memory, attr.length, iova, attr.access as u32)
}

/// Registers `len` bytes of the device's memory at `start`; the region's addresses begin at 0.
pub(super) fn register_device_memory(
    ibv_pd: &Handle<ibv_pd>,
    memory: &Arc<SharedMemory>,
    start: *mut u8,
    len: usize,
    access: u32,
) -> Made<ibv_mr> {
    if access & ZERO_BASED == 0 || access & ON_DEMAND != 0 {
        return Err(Errno::INVAL);
    }
    let pd = ibv_pd.get()?;
    // The memory stays mapped as promise 3 says: invariant 1 of `dm`.
    let range = Range { memory: Memory(start.cast()), len, iova: 0 };
    let (mut registered, keys) = enroll(&pd.context, pd.hold()?, range, access)?;
    (registered.access, registered.device_memory) = (None, Some(Arc::clone(memory)));
    create(ibv_pd, ptr::null_mut(), len, registered, keys)
}

fn register_copied(
    ibv_pd: &Handle<ibv_pd>,
    copier: &CopierThreads,
    address: u64,
    len: usize,
    access: u32,
) -> Made<ibv_mr> {
    let pd = ibv_pd.get()?;
    let rights = check_access(access)?;
    if access & (ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0 | ZERO_BASED | ON_DEMAND) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if len == 0 {
        return Err(Errno::INVAL);
    }
    let held = pd.hold()?;
    let copier = copier.queue().ok_or(Errno(libc::ENODEV))?;
    let what = ForeignRegistration { address, len, iova: address, access: rights, copier };
    let keys = Node::get()?.with(|engine| engine.register_foreign(held.id, &what))?;
    let addr = ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0));
    let registered = Registered::new(keys, held, address, len, None);
    create(ibv_pd, addr, len, registered, keys)
}

/// Registers memory that the processor cannot access, such as a GPU's, with a protection domain of
/// the software device. `copier` accesses it in place of the device.
///
/// `address` names the memory in requests and for the copier. `ibv_dereg_mr` deregisters it; that
/// waits up to 10 s for copies that are running, and fails with `EBUSY` if they do not end.
///
/// Returns null, with `errno` set, if the memory cannot be registered: `EOPNOTSUPP` for
/// `IBV_ACCESS_REMOTE_ATOMIC`, `EINVAL` for other arguments, `ENOMEM` for too many regions,
/// `ENODEV` in a forked child for a copier of its parent.
///
/// # Safety
///
/// `pd` is null, or a protection domain that [`ibverbs`](crate::ibverbs) made and that nobody
/// destroys during the call. Until the region is deregistered with success, the `len` bytes at
/// `address` are memory that `copier` may access.
pub unsafe fn register_foreign(
    pd: *mut ibv_pd,
    copier: &CopierThreads,
    address: u64,
    len: usize,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: `from_c` requires null or a live domain during the value's life: this function's
    // contract.
    let pd = unsafe { Handle::from_c(pd) };
    register_copied(&pd, copier, address, len, access).into_c()
}

/// The context's `advise_mr`: prefetches the pages of on-demand regions. With
/// `IBV_ADVISE_MR_FLAG_FLUSH`, missing pages are an error; without, a page that cannot be fetched
/// now is left for the request that needs it.
pub(super) fn advise_mr(
    pd: Handle<ibv_pd>,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    list: ListMut<ibv_sge>,
    len: u32,
) -> Done {
    let id = pd.get()?.hold()?.id;
    let writes = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    let fetches = writes || advice == IBV_ADVISE_MR_ADVICE_PREFETCH;
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || len == 0 {
        return Err(Errno::INVAL);
    }
    if !fetches && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
        return Err(Errno::OPNOTSUPP);
    }
    let rights = if writes { LOCAL_WRITE } else { 0 };
    // SAFETY: `get_all` requires the number of entries that C passes: `len`.
    let list = unsafe { list.get_all(len as usize) }.map_err(|_| Errno(libc::EFAULT))?;
    let node = Node::get()?;
    let address = |sge| node.with(|engine| engine.foreign_address(id, sge, rights)).ok_or(Errno(libc::EFAULT));
    let ranges = list.iter().map(|sge| Ok((address(sge)?, sge.length))).collect::<Result<Vec<_>, Errno>>()?;
    for (address, len) in ranges.into_iter().filter(|_| fetches) {
        let address = usize::try_from(address).map_err(|_| Errno::INVAL)?;
        let fetched = pages::populate(address, len as usize, writes);
        if flags & IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            fetched?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicPtr, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use rdma_sys::{Ibverbs, ibv_context};

    const VERBS: &Ibverbs = crate::ibverbs();
    /// Longer than any call takes that does not wait.
    const LONG: Duration = Duration::from_secs(20);

    fn open() -> *mut ibv_context {
        // SAFETY: the number of devices may be null.
        let list = unsafe { (VERBS.ibv_get_device_list)(ptr::null_mut()) };
        assert!(!list.is_null());
        // SAFETY: the list has at least its null.
        let device = unsafe { *list };
        // SAFETY: a device of the list.
        let context = unsafe { (VERBS.ibv_open_device)(device) };
        // SAFETY: the list is not used again.
        unsafe { (VERBS.ibv_free_device_list)(list) };
        assert!(!context.is_null());
        context
    }

    /// Registers memory that is never freed.
    fn region(pd: *mut ibv_pd) -> *mut ibv_mr {
        let bytes = Box::leak(Box::new([0_u8; 64]));
        // SAFETY: a live domain, and memory that nobody uses until the process ends.
        let mr = unsafe { (VERBS.ibv_reg_mr)(pd, bytes.as_mut_ptr().cast(), bytes.len(), 1) };
        assert!(!mr.is_null());
        mr
    }

    /// `ibv_rereg_mr` keeps its region locked while it waits for copies.
    #[test]
    fn an_import_waits_only_for_a_region_that_is_changed() {
        let context = open();
        // SAFETY: a live context.
        let pd = unsafe { (VERBS.ibv_alloc_pd)(context) };
        let [changed, other] = [region(pd), region(pd)];
        // SAFETY: two live regions that nobody changes.
        let [changed_key, other_key] = [changed, other].map(|mr| unsafe { (*mr).lkey });
        let (context, pd) = (AtomicPtr::new(context), AtomicPtr::new(pd));
        let import = |key: u32| {
            // SAFETY: a live domain.
            let mr = unsafe { (VERBS.ibv_import_mr)(pd.load(Ordering::Relaxed), key) };
            // SAFETY: an imported object, used for the last time.
            unsafe { (VERBS.ibv_unimport_mr)(mr) };
            !mr.is_null()
        };
        // SAFETY: a live region.
        let object = unsafe { Object::get(changed) }.unwrap();
        let (ended, ends) = mpsc::channel();
        thread::scope(|scope| {
            let guard = object.lock();
            let done = ended.clone();
            scope.spawn(move || done.send(("other", import(other_key))));
            assert_eq!(ends.recv_timeout(LONG), Ok(("other", true)));
            let done = ended.clone();
            scope.spawn(move || done.send(("changed", import(changed_key))));
            assert!(ends.recv_timeout(Duration::from_millis(100)).is_err(), "the region is being changed");
            scope.spawn(|| {
                // SAFETY: a live context.
                let made = unsafe { (VERBS.ibv_alloc_pd)(context.load(Ordering::Relaxed)) };
                // SAFETY: a live domain, used for the last time.
                let destroyed = unsafe { (VERBS.ibv_dealloc_pd)(made) };
                ended.send(("domain", destroyed == 0))
            });
            assert_eq!(ends.recv_timeout(LONG), Ok(("domain", true)));
            drop(guard);
            assert_eq!(ends.recv_timeout(LONG), Ok(("changed", true)));
        });
        for mr in [changed, other] {
            // SAFETY: a live region, used for the last time.
            assert_eq!(unsafe { (VERBS.ibv_dereg_mr)(mr) }, 0);
        }
        // SAFETY: a live domain, used for the last time.
        assert_eq!(unsafe { (VERBS.ibv_dealloc_pd)(pd.into_inner()) }, 0);
        // SAFETY: a live context, used for the last time.
        assert_eq!(unsafe { (VERBS.ibv_close_device)(context.into_inner()) }, 0);
    }

    #[test]
    fn access_flags() {
        let all = RIGHTS | HINTS | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        assert_eq!(check_access(all), Ok(RIGHTS));
        assert_eq!(check_access(0), Ok(0));
        assert_eq!(check_access(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0), Err(Errno::INVAL));
        assert_eq!(check_access(ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0), Err(Errno::INVAL));
        assert_eq!(check_access(ibv_access_flags::IBV_ACCESS_REMOTE_READ.0), Ok(4));
        assert_eq!(check_access(1 << 31), Err(Errno::INVAL));
        assert_eq!(check_access(ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0), Err(Errno::OPNOTSUPP));
    }
}
