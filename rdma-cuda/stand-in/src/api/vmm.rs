//! Virtual memory management, and export of memory by descriptors.

use std::collections::HashMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use rdma_mem::page_size;

use super::context::current;
use crate::codes::{Code, INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, OUT_OF_MEMORY, UNKNOWN};
use crate::entry::{Out, call, new_handle, put};
use crate::gpus::{self, MEMORY};
use crate::space::{Backing, GRANULARITY, Kind, Mapping, device, space};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const DESCRIPTOR: c_int = 1;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
const DMA_BUF: c_int = 1;

static HANDLES: LazyLock<Mutex<HashMap<u64, Arc<Backing>>>> = LazyLock::new(Mutex::default);

fn handles() -> MutexGuard<'static, HashMap<u64, Arc<Backing>>> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn live() -> usize {
    handles().len()
}

fn new_allocation(backing: Arc<Backing>) -> u64 {
    let handle = new_handle() as u64;
    handles().insert(handle, backing);
    handle
}

/// `CUmemAllocationProp`
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location_type: c_int,
    device: c_int,
    windows: *const c_void,
    compression: u8,
    gpu_direct_rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl Properties {
    fn check(&self) -> Result<(), Code> {
        gpus::model(self.device).ok_or(INVALID_DEVICE)?;
        let is_pinned_on_device = self.kind == 1 && self.location_type == 1;
        if is_pinned_on_device && self.handle_types & !DESCRIPTOR == 0 { Ok(()) } else { Err(INVALID_VALUE) }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationGranularity(
    granularity: Out<'_, usize>,
    properties: Option<&Properties>,
    _option: c_int,
) -> c_int {
    call("cuMemGetAllocationGranularity", || {
        properties.ok_or(INVALID_VALUE)?.check()?;
        put(granularity, GRANULARITY)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemCreate(
    handle: Out<'_, u64>,
    size: usize,
    properties: Option<&Properties>,
    flags: c_ulonglong,
) -> c_int {
    call("cuMemCreate", || {
        let properties = properties.ok_or(INVALID_VALUE)?;
        properties.check()?;
        let capable = properties.gpu_direct_rdma_capable != 0;
        if size == 0 || size % GRANULARITY != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if size > MEMORY {
            return Err(OUT_OF_MEMORY);
        }
        if capable && !gpus::has(properties.device, gpus::VMM_WITH_RDMA) {
            return Err(NOT_SUPPORTED);
        }
        let shareable = properties.handle_types & DESCRIPTOR != 0;
        put(handle, new_allocation(Arc::new(Backing::new(size, properties.device, shareable, capable)?)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationPropertiesFromHandle(properties: Out<'_, Properties>, handle: u64) -> c_int {
    call("cuMemGetAllocationPropertiesFromHandle", || {
        let backing = handles().get(&handle).cloned().ok_or(INVALID_VALUE)?;
        let handle_types = if backing.shareable { DESCRIPTOR } else { 0 };
        put(
            properties,
            Properties {
                kind: 1,
                handle_types,
                location_type: 1,
                device: backing.device,
                windows: std::ptr::null(),
                compression: 0,
                gpu_direct_rdma_capable: backing.capable.into(),
                usage: 0,
                reserved: [0; 4],
            },
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: u64) -> c_int {
    call("cuMemRelease", || handles().remove(&handle).map(drop).ok_or(INVALID_VALUE))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressReserve(
    address: Out<'_, usize>,
    size: usize,
    alignment: usize,
    _hint: usize,
    _flags: c_ulonglong,
) -> c_int {
    call("cuMemAddressReserve", || {
        if size % GRANULARITY != 0 {
            return Err(INVALID_VALUE);
        }
        put(address, space().take(size, alignment.max(GRANULARITY))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: usize, _size: usize) -> c_int {
    call("cuMemAddressFree", || {
        let mut space = space();
        if space.mapping(address).is_some() { Err(INVALID_VALUE) } else { space.give_back(address) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(address: usize, size: usize, offset: usize, handle: u64, _flags: c_ulonglong) -> c_int {
    call("cuMemMap", || {
        let backing = handles().get(&handle).cloned().ok_or(INVALID_VALUE)?;
        space().map(address, offset, Mapping { size, kind: Kind::Vmm, backing, accessible: false, sync_memops: false })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(address: usize, _size: usize) -> c_int {
    call("cuMemUnmap", || {
        let mut space = space();
        match space.mapping(address) {
            Some((start, mapping)) if start == address && mapping.kind == Kind::Vmm => (),
            _ => return Err(INVALID_VALUE),
        }
        space.unmap(address).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(address: usize, size: usize, _access: *const c_void, _count: usize) -> c_int {
    call("cuMemSetAccess", || space().allow(address, size))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(handle: Out<'_, u64>, address: usize) -> c_int {
    call("cuMemRetainAllocationHandle", || {
        let backing = match space().mapping(address) {
            Some((_, mapping)) if mapping.kind == Kind::Vmm => Arc::clone(&mapping.backing),
            _ => return Err(INVALID_VALUE),
        };
        put(handle, new_allocation(backing))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemExportToShareableHandle(
    descriptor: Out<'_, c_int>,
    handle: u64,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    call("cuMemExportToShareableHandle", || {
        let backing = handles().get(&handle).cloned().ok_or(INVALID_VALUE)?;
        if !backing.shareable || kind != DESCRIPTOR || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let copy = backing.file.try_clone().map_err(|_| OUT_OF_MEMORY)?;
        put(descriptor, copy.into_raw_fd())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemImportFromShareableHandle(handle: Out<'_, u64>, descriptor: usize, kind: c_int) -> c_int {
    call("cuMemImportFromShareableHandle", || {
        current()?;
        let descriptor = c_int::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
        if kind != DESCRIPTOR {
            return Err(INVALID_VALUE);
        }
        let file = reopen(descriptor)?;
        let size = file.metadata().map_err(|_| INVALID_VALUE)?.len();
        let size = usize::try_from(size).map_err(|_| INVALID_VALUE)?;
        let file = OwnedFd::from(file);
        // The code of NVIDIA's driver for a descriptor of something else.
        let device = device(&file).ok_or(UNKNOWN)?;
        put(handle, new_allocation(Arc::new(Backing { file, size, device, shareable: true, capable: true })))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetHandleForAddressRange(
    descriptor: Out<'_, c_int>,
    address: usize,
    size: usize,
    kind: c_int,
    flags: c_ulonglong,
) -> c_int {
    call("cuMemGetHandleForAddressRange", || {
        let device = current()?;
        let page = page_size();
        if size == 0 || size % page != 0 || address % page != 0 || kind != DMA_BUF {
            return Err(INVALID_VALUE);
        }
        let space = space();
        let (start, mapping) = space.mapping(address).ok_or(INVALID_VALUE)?;
        if mapping.backing.device != device {
            return Err(NOT_FOUND);
        }
        if flags != 0 || !mapping.backing.capable || !gpus::has(device, gpus::DMA_BUF) {
            return Err(NOT_SUPPORTED);
        }
        if address - start + size > mapping.size {
            return Err(INVALID_VALUE);
        }
        let mut file = reopen(mapping.backing.file.as_raw_fd())?;
        file.seek(SeekFrom::Start((address - start) as u64)).map_err(|_| OUT_OF_MEMORY)?;
        put(descriptor, file.into_raw_fd())
    })
}

/// A new open file description of a memory file.
fn reopen(descriptor: c_int) -> Result<File, Code> {
    let path = format!("/proc/self/fd/{descriptor}");
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path).map_err(|_| INVALID_VALUE)
}

const _: () = assert!(size_of::<Properties>() == 32);
