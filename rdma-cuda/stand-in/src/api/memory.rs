//! Device memory of `cuMemAlloc`, pools and managed memory, and pinned host memory.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::context::current;
use crate::codes::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use crate::entry::{Out, call, put};
use crate::gpus::MEMORY;
use crate::space::{Backing, GPU_PAGE, Kind, Mapping, space};

/// Start, size, and whether `cuMemHostAlloc` made the memory, of pinned host memory.
static PINNED: Mutex<BTreeMap<usize, (usize, bool)>> = Mutex::new(BTreeMap::new());

/// The range of pinned host memory that contains an address.
pub(crate) fn pinned(address: usize) -> Option<(usize, usize)> {
    let pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let (start, (size, _)) = pinned.range(..=address).next_back()?;
    (address < start + size).then_some((*start, *size))
}

pub(crate) fn live() -> usize {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).len()
}

fn allocate(size: usize, kind: Kind) -> Result<usize, Code> {
    let device = current()?;
    let whole = size.checked_next_multiple_of(GPU_PAGE).filter(|&whole| whole > 0).ok_or(INVALID_VALUE)?;
    if whole > MEMORY {
        return Err(OUT_OF_MEMORY);
    }
    let backing = Arc::new(Backing::new(whole, device, false, kind == Kind::Plain)?);
    let mut space = space();
    let at = space.take(whole, GPU_PAGE)?;
    let mapping = Mapping { size: whole, kind, backing, accessible: true, sync_memops: false };
    let mapped = space.map(at, 0, mapping);
    if mapped.is_err() {
        space.give_back(at)?;
    }
    mapped.map(|()| at)
}

fn free(at: usize) -> Result<(), Code> {
    let mut space = space();
    match space.mapping(at) {
        Some((start, mapping)) if start == at && mapping.kind != Kind::Vmm => (),
        _ => return Err(INVALID_VALUE),
    }
    space.unmap(at)?;
    space.give_back(at)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<'_, usize>, size: usize) -> c_int {
    call("cuMemAlloc_v2", || put(address, allocate(size, Kind::Plain)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: usize) -> c_int {
    call("cuMemFree_v2", || free(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: Out<'_, usize>, size: usize, _stream: usize) -> c_int {
    call("cuMemAllocAsync", || put(address, allocate(size, Kind::Pool)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: usize, _stream: usize) -> c_int {
    call("cuMemFreeAsync", || free(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocManaged(address: Out<'_, usize>, size: usize, _flags: c_uint) -> c_int {
    call("cuMemAllocManaged", || put(address, allocate(size, Kind::Managed)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(address: Out<'_, *mut c_void>, size: usize, _flags: c_uint) -> c_int {
    call("cuMemHostAlloc", || {
        current()?;
        let length = NonZeroUsize::new(size).ok_or(INVALID_VALUE)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: mmap_anonymous requires that a mapping replaces nothing: it is not a fixed one.
        let memory = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) };
        let memory = memory.map_err(|_| OUT_OF_MEMORY)?.as_ptr();
        PINNED.lock().unwrap_or_else(PoisonError::into_inner).insert(memory.expose_provenance(), (size, true));
        put(address, memory)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> c_int {
    call("cuMemFreeHost", || {
        let removed = {
            let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
            let is_ours = pinned.get(&address.expose_provenance()).is_some_and(|(_, allocated)| *allocated);
            if is_ours { pinned.remove(&address.expose_provenance()) } else { None }
        };
        let (size, _) = removed.ok_or(INVALID_VALUE)?;
        let memory = NonNull::new(address).ok_or(INVALID_VALUE)?;
        // SAFETY: munmap requires memory that nobody uses: cuMemHostAlloc mapped it with this size,
        // and the caller gives it up.
        unsafe { munmap(memory, size) }.map_err(|_| INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(address: *mut c_void, size: usize, _flags: c_uint) -> c_int {
    call("cuMemHostRegister_v2", || {
        current()?;
        let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
        // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        pinned.insert(address.expose_provenance(), (size, false)).map_or(Ok(()), |_| Err(712))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(address: *mut c_void) -> c_int {
    call("cuMemHostUnregister", || {
        let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
        // CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        pinned.remove(&address.expose_provenance()).map(drop).ok_or(713)
    })
}
