//! The attributes of addresses.

use std::ffi::{c_int, c_void};

use super::context::context_of;
use crate::codes::{Code, INVALID_VALUE, NOT_FOUND};
use crate::entry::{Out, call, put};
use crate::gpus;
use crate::space::{Kind, space};

/// The value of an attribute of an address, and its size in bytes.
fn attribute(number: c_int, address: usize) -> Result<(u64, usize), Code> {
    let space = space();
    let Some((start, mapping)) = space.mapping(address) else {
        let (start, size) = super::memory::pinned(address).ok_or(INVALID_VALUE)?;
        return match number {
            // Memory type: host.
            2 => Ok((1, 4)),
            8 | 15 => Ok((0, 1)),
            9 => Ok((0, 4)),
            11 => Ok((start as u64, 8)),
            12 => Ok((size as u64, 8)),
            17 => Ok((0, 8)),
            _ => Err(INVALID_VALUE),
        };
    };
    let (kind, device) = (mapping.kind, mapping.backing.device);
    let capable = mapping.backing.capable && gpus::has(device, gpus::RDMA);
    Ok(match number {
        1 => (context_of(device) as u64, 8),
        // Memory type: device.
        2 => (2, 4),
        6 => (mapping.sync_memops.into(), 1),
        8 => ((kind == Kind::Managed).into(), 1),
        9 => (u64::from(device.unsigned_abs()), 4),
        11 => (start as u64, 8),
        12 => (mapping.size as u64, 8),
        15 => (capable.into(), 1),
        // The handle of a pool.
        17 => (if kind == Kind::Pool { 0x6000_0000 } else { 0 }, 8),
        _ => return Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, number: c_int, address: usize) -> c_int {
    call("cuPointerGetAttribute", || {
        let (value, size) = attribute(number, address)?;
        if data.is_null() {
            return Err(INVALID_VALUE);
        }
        let bytes = value.to_le_bytes();
        // SAFETY: copy requires `size` bytes at both sides: `size` is at most 8, and the caller
        // gives space for the attribute's type.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast(), size) };
        Ok(())
    })
}

/// `SYNC_MEMOPS` can be set on all memory but that of virtual memory management.
#[unsafe(no_mangle)]
extern "C" fn cuPointerSetAttribute(value: Option<&c_int>, number: c_int, address: usize) -> c_int {
    call("cuPointerSetAttribute", || match (number, value) {
        (6, Some(value)) => space().set_sync_memops(address, *value != 0),
        _ => Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(start: Out<'_, usize>, size: Out<'_, usize>, address: usize) -> c_int {
    call("cuMemGetAddressRange_v2", || {
        let space = space();
        let (at, mapping) = space.mapping(address).ok_or(NOT_FOUND)?;
        // Each result may be NULL.
        let _start = put(start, at);
        let _size = put(size, mapping.size);
        Ok(())
    })
}
