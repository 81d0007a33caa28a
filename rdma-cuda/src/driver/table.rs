//! The table of the driver's functions that this crate calls, by their versioned names.
//!
//! Each function becomes an unsafe method of [`Driver`] with the C function's name and arguments,
//! whose result is a [`CudaError`]. In a host function of a stream it only returns an error. A
//! handle of CUDA (context, stream, event) is an integer here: it is only ever given back to the
//! driver, which any thread may do.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use libloading::os::unix::Library;

use crate::cuda_error::CudaError;
use crate::driver::Driver;
use crate::host_function;

/// `CUdevice`
pub(crate) type DeviceHandle = c_int;
/// `CUcontext`, a pointer to an opaque structure.
pub(crate) type ContextHandle = usize;
/// `CUstream`, a pointer to an opaque structure.
pub(crate) type StreamHandle = usize;
/// `CUevent`, a pointer to an opaque structure.
pub(crate) type EventHandle = usize;
/// `CUmodule`, a pointer to an opaque structure.
pub(crate) type ModuleHandle = usize;
/// `CUfunction`, a pointer to an opaque structure.
pub(crate) type FunctionHandle = usize;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub(crate) const POSIX_FILE_DESCRIPTOR: c_int = 1;

/// `CUmemLocation`
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    /// The memory of a device.
    pub(crate) fn device(device: DeviceHandle) -> Self {
        Self { kind: 1, id: device }
    }
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    windows_meta_data: *const c_void,
    compression: u8,
    gpu_direct_rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl AllocationProperties {
    /// Pinned memory of a device: whether it can be shared by a descriptor, and whether a NIC may
    /// access it.
    pub(crate) fn new(device: DeviceHandle, is_shareable: bool, is_rdma_capable: bool) -> Self {
        Self {
            kind: 1,
            handle_types: if is_shareable { POSIX_FILE_DESCRIPTOR } else { 0 },
            location: Location::device(device),
            windows_meta_data: std::ptr::null(),
            compression: 0,
            gpu_direct_rdma_capable: is_rdma_capable.into(),
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// Whether the memory is a device's.
    pub(crate) fn is_of(&self, device: DeviceHandle) -> bool {
        self.location == Location::device(device)
    }
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AccessDescription {
    location: Location,
    flags: c_int,
}

impl AccessDescription {
    /// A device may read and write.
    pub(crate) fn read_write(device: DeviceHandle) -> Self {
        Self { location: Location::device(device), flags: 3 }
    }
}

const _: () = assert!(size_of::<AllocationProperties>() == 32 && size_of::<AccessDescription>() == 12);

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
                    // SAFETY: symbol requires the type of the function: the driver API gives it.
                    let $name = unsafe { symbol(library, stringify!($name)) };
                    if $name.is_none() {
                        missing.push(stringify!($name));
                    }
                )*
                Ok(Self {
                    $($name: match $name { Some(function) => function, None => return Err(missing) },)*
                    // SAFETY: symbol requires the type of the function: the driver API gives it.
                    $($extra: unsafe { symbol(library, stringify!($extra)) },)*
                })
            }

            /// The optional functions that the driver lacks.
            #[cfg(test)]
            pub(super) fn missing(&self) -> Vec<&'static str> {
                let there = [$((stringify!($extra), self.$extra.is_some())),*];
                there.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect()
            }
        }

        #[allow(dead_code, reason = "`Driver::error` calls two of the functions by the table")]
        #[allow(clippy::too_many_arguments, reason = "C's functions")]
        impl Driver {
            $(
                /// # Safety
                ///
                /// The requirements of the C function of this name.
                pub(crate) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), CudaError> {
                    host_function::check_allowed(stringify!($name))?;
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
                    host_function::check_allowed(stringify!($extra))?;
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
        fn cuDeviceCanAccessPeer(can: *mut c_int, device: DeviceHandle, peer: DeviceHandle);
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: DeviceHandle);

        fn cuDevicePrimaryCtxRetain(context: *mut ContextHandle, device: DeviceHandle);
        fn cuDevicePrimaryCtxRelease_v2(device: DeviceHandle);
        fn cuCtxPushCurrent_v2(context: ContextHandle);
        fn cuCtxPopCurrent_v2(context: *mut ContextHandle);
        fn cuCtxSynchronize();

        fn cuMemAlloc_v2(address: *mut u64, size: usize);
        fn cuMemFree_v2(address: u64);
        fn cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint);
        fn cuMemFreeHost(address: *mut c_void);
        fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, address: u64);

        fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize);
        fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, size: usize);
        fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, size: usize, stream: StreamHandle);
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, size: usize, stream: StreamHandle);
        fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: StreamHandle);
        fn cuMemcpyPeerAsync(
            to: u64,
            to_context: ContextHandle,
            from: u64,
            from_context: ContextHandle,
            size: usize,
            stream: StreamHandle,
        );
        fn cuMemsetD8Async(to: u64, value: c_uchar, size: usize, stream: StreamHandle);

        fn cuStreamCreate(stream: *mut StreamHandle, flags: c_uint);
        fn cuStreamDestroy_v2(stream: StreamHandle);
        fn cuStreamSynchronize(stream: StreamHandle);
        fn cuStreamQuery(stream: StreamHandle);
        fn cuStreamWaitEvent(stream: StreamHandle, event: EventHandle, flags: c_uint);
        fn cuEventCreate(event: *mut EventHandle, flags: c_uint);
        fn cuEventDestroy_v2(event: EventHandle);
        fn cuEventRecord(event: EventHandle, stream: StreamHandle);
        fn cuEventQuery(event: EventHandle);
        fn cuEventSynchronize(event: EventHandle);

        fn cuModuleLoadData(module: *mut ModuleHandle, image: *const c_void);
        fn cuModuleUnload(module: ModuleHandle);
        fn cuModuleGetFunction(function: *mut FunctionHandle, module: ModuleHandle, name: *const c_char);
        fn cuLaunchKernel(
            function: FunctionHandle,
            grid_x: c_uint,
            grid_y: c_uint,
            grid_z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: StreamHandle,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        );
    }
    optional {
        "10.0" fn cuLaunchHostFunc(
            stream: StreamHandle,
            function: unsafe extern "C" fn(*mut c_void),
            data: *mut c_void,
        );

        "10.2" fn cuMemGetAllocationGranularity(size: *mut usize, properties: *const AllocationProperties, option: c_int);
        "10.2" fn cuMemCreate(handle: *mut u64, size: usize, properties: *const AllocationProperties, flags: c_ulonglong);
        "10.2" fn cuMemRelease(handle: u64);
        "10.2" fn cuMemGetAllocationPropertiesFromHandle(properties: *mut AllocationProperties, handle: u64);
        "10.2" fn cuMemAddressReserve(address: *mut u64, size: usize, alignment: usize, hint: u64, flags: c_ulonglong);
        "10.2" fn cuMemAddressFree(address: u64, size: usize);
        "10.2" fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: c_ulonglong);
        "10.2" fn cuMemUnmap(address: u64, size: usize);
        "10.2" fn cuMemSetAccess(address: u64, size: usize, access: *const AccessDescription, count: usize);

        "10.2" fn cuMemExportToShareableHandle(descriptor: *mut c_int, handle: u64, kind: c_int, flags: c_ulonglong);
        "10.2" fn cuMemImportFromShareableHandle(handle: *mut u64, descriptor: usize, kind: c_int);

        "6.0" fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: u64);

        "11.7" fn cuMemGetHandleForAddressRange(
            handle: *mut c_int,
            address: u64,
            size: usize,
            kind: c_int,
            flags: c_ulonglong,
        );
        "11.3" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int);
    }
}

/// Looks up a function by name; `None` if the library lacks it.
///
/// # Safety
///
/// `F` is a function pointer type, and the symbol, if it exists, is a function of that type.
unsafe fn symbol<F: Copy>(library: &'static Library, name: &str) -> Option<F> {
    // SAFETY: get requires the symbol's type. An `Option` of a function pointer has the pointer's
    // layout, and `F` is the function's type by this function's condition.
    let symbol = unsafe { library.get::<Option<F>>(name.as_bytes()) }.ok()?;
    *symbol
}
