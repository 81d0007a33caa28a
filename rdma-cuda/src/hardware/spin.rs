//! A kernel that spins until it is told to end.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::{FunctionHandle, ModuleHandle};
use crate::{Gpu, PinnedBuffer, Stream};

/// Spins until the number at an address is not 0.
const KERNEL: &str = "
.version 6.4
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 address)
{
    .reg .u64 %address;
    .reg .u32 %number;
    .reg .pred %is_zero;
    ld.param.u64 %address, [address];
again:
    ld.volatile.u32 %number, [%address];
    setp.eq.u32 %is_zero, %number, 0;
    @%is_zero bra again;
    ret;
}
\0";

/// A kernel on a stream; ends when this is dropped.
pub(super) struct Spinning {
    /// Pinned memory, which the GPU accesses at the processor's address.
    number: PinnedBuffer<u32>,
}

impl Spinning {
    /// Gives the kernel to a stream.
    pub(super) fn start(stream: &Stream) -> Self {
        let gpu = stream.gpu();
        let (number, module) = (PinnedBuffer::<u32>::new(gpu, 1).unwrap(), Module::load(gpu));
        let function = module.function();
        let mut address = number.memory().start().as_ptr().expose_provenance();
        let spinning = Self { number };
        let used = (module, spinning.number.memory());
        let started = stream.submit(used, |driver, stream| {
            let mut parameter: *mut std::ffi::c_void = (&raw mut address).cast();
            let none = std::ptr::null_mut();
            // SAFETY: cuLaunchKernel requires a function and a stream of the current context, and a
            // pointer to each parameter, which it copies: the kernel has one, an address of 64
            // bits. The kernel reads four bytes there: the stream keeps the memory until it ends.
            unsafe { driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, &raw mut parameter, none) }
        });
        started.unwrap();
        spinning
    }

    /// Ends the kernel.
    pub(super) fn end(self) {
        drop(self);
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        let number = self.number.memory().start().cast::<u32>();
        // SAFETY: from_ptr requires an aligned number that lives as long as the result, and that
        // nobody accesses otherwise but atomically: it is the buffer's, of which nobody has a
        // reference, and the kernel only loads it.
        unsafe { AtomicU32::from_ptr(number.as_ptr()) }.store(1, Ordering::SeqCst);
    }
}

/// The module of the kernel; unloaded when dropped.
struct Module {
    gpu: Gpu,
    handle: ModuleHandle,
}

impl Module {
    fn load(gpu: &Gpu) -> Self {
        let mut handle = 0;
        // SAFETY: cuModuleLoadData requires space for a handle, PTX that ends with a NUL, and a
        // current context, which `with` sets.
        gpu.with(|driver| unsafe { driver.cuModuleLoadData(&raw mut handle, KERNEL.as_ptr().cast()) }).unwrap();
        Self { gpu: gpu.clone(), handle }
    }

    fn function(&self) -> FunctionHandle {
        let mut function = 0;
        // SAFETY: cuModuleGetFunction requires space for a handle, a loaded module, and a text that
        // ends with a NUL.
        let found = self
            .gpu
            .with(|driver| unsafe { driver.cuModuleGetFunction(&raw mut function, self.handle, c"spin".as_ptr()) });
        found.unwrap();
        function
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: cuModuleUnload requires a module whose kernels do not run: a stream keeps the
        // module until they are done.
        self.gpu.with(|driver| unsafe { driver.cuModuleUnload(self.handle) }).unwrap();
    }
}
