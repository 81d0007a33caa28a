//! Initialisation, errors, devices.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

use crate::codes::{
    Code, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NO_DEVICE, NOT_FOUND,
    NOT_INITIALIZED, NOT_PERMITTED, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
};
use crate::entry::{INITIALIZED, Out, call, put};
use crate::gpus::{self, MEMORY, Model};
use crate::knobs::KNOBS;

/// Codes with their names and descriptions.
const ERRORS: [(Code, &CStr, &CStr); 13] = [
    (0, c"CUDA_SUCCESS", c"no error"),
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (NOT_INITIALIZED, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (NO_DEVICE, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (NOT_FOUND, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (NOT_READY, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (NOT_PERMITTED, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (NOT_SUPPORTED, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
];

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    call("cuInit", || {
        match (flags, gpus::count()) {
            (0, 0) => return Err(NO_DEVICE),
            (0, _) => INITIALIZED.store(true, Ordering::Release),
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<'_, c_int>) -> c_int {
    call("cuDriverGetVersion", || put(version, KNOBS.version))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: c_int, name: Out<'_, *const c_char>) -> c_int {
    put(name, text_of(code, |entry| entry.1)).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: c_int, description: Out<'_, *const c_char>) -> c_int {
    put(description, text_of(code, |entry| entry.2)).err().unwrap_or(0)
}

fn text_of(code: Code, part: fn(&(Code, &'static CStr, &'static CStr)) -> &'static CStr) -> *const c_char {
    ERRORS.iter().find(|entry| entry.0 == code).map_or(std::ptr::null(), |entry| part(entry).as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<'_, c_int>) -> c_int {
    call("cuDeviceGetCount", || put(count, gpus::count()))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<'_, c_int>, ordinal: c_int) -> c_int {
    call("cuDeviceGet", || {
        model(ordinal)?;
        put(device, ordinal)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, size: c_int, device: c_int) -> c_int {
    call("cuDeviceGetName", || {
        let model = model(device)?;
        // SAFETY: write_text requires space for `size` bytes at `name`, as this function does.
        unsafe { write_text(name, size, model.name) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, size: c_int, device: c_int) -> c_int {
    call("cuDeviceGetPCIBusId", || {
        let model = model(device)?;
        // SAFETY: write_text requires space for `size` bytes at `id`, as this function does.
        unsafe { write_text(id, size, model.pci_id) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: Out<'_, [u8; 16]>, device: c_int) -> c_int {
    call("cuDeviceGetUuid", || {
        model(device)?;
        let mut bytes = *b"stand-in GPU no.";
        bytes[15] = device.to_le_bytes()[0];
        put(uuid, bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: c_int) -> c_int {
    call("cuDeviceTotalMem_v2", || {
        model(device)?;
        put(bytes, MEMORY)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<'_, c_int>, attribute: c_int, device: c_int) -> c_int {
    call("cuDeviceGetAttribute", || {
        model(device)?;
        put(value, gpus::attribute(device, attribute).ok_or(INVALID_VALUE)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<'_, c_int>, device: c_int, peer: c_int) -> c_int {
    call("cuDeviceCanAccessPeer", || {
        model(device)?;
        model(peer)?;
        put(can, (device != peer && device < 2 && peer < 2).into())
    })
}

fn model(device: c_int) -> Result<&'static Model, Code> {
    gpus::model(device).ok_or(INVALID_DEVICE)
}

/// Writes a text, cut if it is too long.
///
/// # Safety
///
/// `to` is NULL or has space for `size` bytes.
unsafe fn write_text(to: *mut c_char, size: c_int, text: &CStr) -> Result<(), Code> {
    let Some(room) = usize::try_from(size).ok().filter(|&room| room > 0 && !to.is_null()) else {
        return Err(INVALID_VALUE);
    };
    let length = text.count_bytes().min(room - 1);
    let mut bytes = text.to_bytes()[..length].to_vec();
    bytes.push(0);
    // SAFETY: copy requires that as many bytes lie at both sides: they are at most the space at
    // `to`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len()) };
    Ok(())
}
