//! The table of the driver's functions that this crate calls, by their versioned names.
//!
//! Each function becomes an unsafe method of [`Driver`] with the C function's name and arguments,
//! whose result is a [`CudaError`]. A handle of CUDA (context, stream, event) is an integer here:
//! it is only ever given back to the driver, which any thread may do.

use std::ffi::{c_char, c_int, c_uint};

use libloading::os::unix::Library;

use crate::driver::Driver;
use crate::error::CudaError;

/// `CUdevice`
pub(crate) type DeviceHandle = c_int;
/// `CUcontext`, a pointer to an opaque structure.
pub(crate) type ContextHandle = usize;

macro_rules! table {
    (
        required { $(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)* }
        optional { $($since:literal fn $extra:ident($($extra_arg:ident: $extra_type:ty),* $(,)?);)* }
    ) => {
        /// The functions of a loaded driver, all of C's calling convention and result.
        pub(super) struct Table {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
            $($extra: Option<unsafe extern "C" fn($($extra_type),*) -> c_int>,)*
        }

        impl Table {
            /// Looks up all functions; an error lists the required ones that are missing.
            pub(super) fn find(library: &'static Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                // Looks up every required function before the first `?`, to name all that lack.
                $(
                    // SAFETY: symbol wants the type of the function: the driver API gives it.
                    let $name = unsafe { symbol(library, stringify!($name)) };
                    if $name.is_none() {
                        missing.push(stringify!($name));
                    }
                )*
                Ok(Self {
                    $($name: match $name { Some(function) => function, None => return Err(missing) },)*
                    // SAFETY: symbol wants the type of the function: the driver API gives it.
                    $($extra: unsafe { symbol(library, stringify!($extra)) },)*
                })
            }
        }

        #[allow(dead_code, reason = "`Driver::error` calls two of the functions by the table")]
        impl Driver {
            $(
                /// # Safety
                ///
                /// The requirements of the C function of this name.
                pub(crate) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), CudaError> {
                    // SAFETY: the caller meets the C function's requirements.
                    match unsafe { (self.table.$name)($($arg),*) } {
                        0 => Ok(()),
                        code => Err(self.error(stringify!($name), code)),
                    }
                }
            )*
            $(
                /// # Safety
                ///
                /// The requirements of the C function of this name.
                pub(crate) unsafe fn $extra(&self, $($extra_arg: $extra_type),*) -> Result<(), CudaError> {
                    let Some(function) = self.table.$extra else {
                        let since = concat!("the driver lacks this function, which came with CUDA ", $since);
                        return Err(CudaError::missing(stringify!($extra), since));
                    };
                    // SAFETY: the caller meets the C function's requirements.
                    match unsafe { function($($extra_arg),*) } {
                        0 => Ok(()),
                        code => Err(self.error(stringify!($extra), code)),
                    }
                }
            )*
        }
    };
}

table! {
    required {
        fn cuInit(flags: c_uint);
        fn cuDriverGetVersion(version: *mut c_int);
        fn cuGetErrorName(code: c_int, name: *mut *const c_char);
        fn cuGetErrorString(code: c_int, description: *mut *const c_char);

        fn cuDeviceGetCount(count: *mut c_int);
        fn cuDeviceGet(device: *mut DeviceHandle, ordinal: c_int);
        fn cuDeviceGetName(name: *mut c_char, size: c_int, device: DeviceHandle);
        fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: DeviceHandle);
        fn cuDeviceGetPCIBusId(id: *mut c_char, size: c_int, device: DeviceHandle);
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: DeviceHandle);
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: DeviceHandle);

        fn cuDevicePrimaryCtxRetain(context: *mut ContextHandle, device: DeviceHandle);
        fn cuDevicePrimaryCtxRelease_v2(device: DeviceHandle);
        fn cuCtxPushCurrent_v2(context: ContextHandle);
        fn cuCtxPopCurrent_v2(context: *mut ContextHandle);
        fn cuCtxSynchronize();
    }
    optional {
        "11.3" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int);
    }
}

/// Looks up a function by name; `None` if the library lacks it.
///
/// # Safety
///
/// `F` is a function pointer type, and the symbol, if it exists, is a function of that type.
unsafe fn symbol<F: Copy>(library: &'static Library, name: &str) -> Option<F> {
    // SAFETY: get wants the symbol's type. An `Option` of a function pointer has the pointer's
    // layout, and `F` is the function's type by this function's condition.
    let symbol = unsafe { library.get::<Option<F>>(name.as_bytes()) }.ok()?;
    *symbol
}
