//! `ibv_dm`: device memory, which is shared memory of this process.
//!
//! # Safety
//!
//! The invariant that the blocks of `mr` cite:
//!
//! 1. Device memory stays mapped, readable and writable, until the engine has deregistered its
//!    regions. Each region keeps the memory, and gives it up only after the engine has deregistered
//!    the region: a region that the engine still has is not freed, or, when its context is closed,
//!    is leaked with the memory.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use rdma_mem::{SharedMemory, SharedMemoryError};
use rdma_sys::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};

use super::call::{Done, Handle, In, Made, call4};
use super::context::{Child, ContextState};
use super::object::{Object, Public};
use super::{Errno, mr};
use crate::engine::limits;
use crate::node::Node;

/// NICs access their memory in words of so many bytes, so offsets and lengths are multiples.
const WORD: usize = 4;
/// Binary logarithm of the largest alignment: that of a page.
const MAX_LOG_ALIGN: u32 = 12;

/// Private part of device memory.
#[derive(Debug)]
pub(crate) struct DmState {
    /// Shared with each region of the memory.
    memory: Arc<SharedMemory>,
    context: Arc<ContextState>,
}

impl DmState {
    /// The address of `len` bytes at an offset. `EINVAL` if they are not all inside.
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8, Errno> {
        let offset = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.memory.len() => Ok(self.memory.as_ptr().wrapping_add(offset)),
            _ => Err(Errno::INVAL),
        }
    }

    /// Like [`at`](Self::at), for an access by the processor: `EINVAL` also if it is not of words.
    fn words(&self, offset: u64, len: usize) -> Result<*mut u8, Errno> {
        let start = self.at(offset, len)?;
        if start.addr() % WORD == 0 && len % WORD == 0 { Ok(start) } else { Err(Errno::INVAL) }
    }
}

impl Public for ibv_dm {
    const MARK: u64 = 0x0064_6d5f_646d_5f64;
    type Private = DmState;
}

impl Child for ibv_dm {
    const ORDER: u8 = 2;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    /// `EBUSY` while a region of the memory lives.
    fn end(object: &Object<Self>, _node: &Node) -> Result<(), Errno> {
        if Arc::strong_count(&object.memory) == 1 { Ok(()) } else { Err(Errno::BUSY) }
    }
}

/// The context's `alloc_dm`. `EINVAL` for no bytes, more than `MAX_DM`, or an alignment beyond a
/// page's; `EOPNOTSUPP` for attributes that the device does not know; the error of the system call
/// that made no memory, such as `EMFILE`.
pub(super) fn alloc_dm(ibv_context: Handle<ibv_context>, attr: In<ibv_alloc_dm_attr>) -> Made<ibv_dm> {
    let (context, attr) = (ibv_context.get()?, attr.get()?);
    if attr.comp_mask != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if attr.length == 0 || attr.length > limits::MAX_DM || attr.log_align_req > MAX_LOG_ALIGN {
        return Err(Errno::INVAL);
    }
    let failed = |error: SharedMemoryError| error.raw_os_error().map_or(Errno::NOMEM, Errno);
    let memory = Arc::new(SharedMemory::new(attr.length).map_err(failed)?);
    let public = ibv_dm {
        context: ibv_context.raw(),
        memcpy_to_dm: Some(call4(memcpy_to_dm)),
        memcpy_from_dm: Some(call4(memcpy_from_dm)),
        comp_mask: 0,
        handle: 0,
    };
    Ok(context.create(public, DmState { memory, context: Arc::clone(context) }))
}

/// The context's `reg_dm_mr`. `EINVAL` without `IBV_ACCESS_ZERO_BASED`, or beyond the memory's end.
pub(super) fn reg_dm_mr(
    pd: Handle<ibv_pd>,
    dm: Handle<ibv_dm>,
    offset: u64,
    len: usize,
    access: c_uint,
) -> Made<ibv_mr> {
    let dm = dm.get()?;
    if !Arc::ptr_eq(&pd.get()?.context, &dm.context) {
        return Err(Errno::INVAL);
    }
    mr::register_device_memory(&pd, &dm.memory, dm.at(offset, len)?, len, access)
}

/// The memory's `memcpy_to_dm`.
fn memcpy_to_dm(dm: Handle<ibv_dm>, offset: u64, from: *const c_void, len: usize) -> Done {
    let dm = dm.get()?;
    let to = dm.words(offset, len)?;
    if from.is_null() && len != 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: `copy` requires 1. valid ranges: `words` has checked that of the memory, which `dm`
    // keeps, and C's is readable for `len` bytes (promise 2); 2. that they do not overlap: C has no
    // pointer into the memory; 3. no plain access to the memory, which only `copy` and the device
    // access, and no write to C's bytes during the call (promise 2).
    unsafe { rdma_mem::copy(to, from.cast(), len) };
    Ok(())
}

/// The memory's `memcpy_from_dm`.
fn memcpy_from_dm(to: *mut c_void, dm: Handle<ibv_dm>, offset: u64, len: usize) -> Done {
    let dm = dm.get()?;
    let from = dm.words(offset, len)?;
    if to.is_null() && len != 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: `copy` requires 1. valid ranges: `words` has checked that of the memory, which `dm`
    // keeps, and C's is writable for `len` bytes (promise 2); 2. that they do not overlap: C has no
    // pointer into the memory; 3. no plain write to the memory, which only `copy` and the device
    // access, and no access to C's bytes during the call (promise 2).
    unsafe { rdma_mem::copy(to.cast(), from, len) };
    Ok(())
}

const _: () = assert!(1_usize << MAX_LOG_ALIGN <= 4096, "shared memory begins at a page");
