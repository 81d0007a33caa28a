//! Reductions on a GPU, by kernels that the crate brings along.

mod ptx;

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use rdma_mem::{Operation, Scalar, SliceError};

use crate::driver::{Driver, FunctionHandle, ModuleHandle, StreamHandle};
use crate::error::{CudaError, Error, Result};
use crate::gpu::Gpu;
use crate::memory::{GpuBuffer, GpuSlice};
use crate::reduce::ptx::{MOST_OPERANDS, VECTOR};
use crate::stream::Stream;

/// Threads of a block.
const THREADS: c_uint = 256;
/// Most blocks of a launch: enough for the largest GPUs. A thread takes several elements if there
/// are more than threads.
const MOST_BLOCKS: c_uint = 4096;

/// The kernels that reduce slices on one GPU. Clones share the kernels.
///
/// The result is that of reducing the first operand with the second, the result with the third, and
/// so on, and the same as that of [`rdma_mem::reduce()`]:
///
/// * integers wrap around, and they alone have the bitwise operations;
/// * the 16-bit floating-point types are computed in `f32` and rounded to nearest even after each
///   operand;
/// * `Sum` and `Prod` of a NaN are a NaN; `Min` and `Max` ignore a NaN unless both operands are
///   NaNs, and return the first of two equal operands;
/// * a NaN's sign and payload are not specified.
///
/// # Examples
///
/// ```no_run
/// use rdma_cuda::{Gpu, GpuBuffer, Operation, Reducer, Scalar, Stream};
///
/// # fn main() -> rdma_cuda::Result<()> {
/// let gpu = Gpu::new(0)?;
/// let (stream, reducer) = (Stream::new(&gpu)?, Reducer::new(&gpu)?);
/// let (a, b) = (GpuBuffer::<f32>::new(&gpu, 2)?.slice(), GpuBuffer::<f32>::new(&gpu, 2)?.slice());
/// stream.upload(&a, &[1.0, 2.0])?;
/// stream.upload(&b, &[3.0, 4.0])?;
/// reducer.reduce(&stream, Scalar::F32, Operation::Sum, &a, &[a.clone(), b])?;
/// let mut sums = [0.0; 2];
/// stream.download(&a, &mut sums)?;
/// assert_eq!(sums, [4.0, 6.0]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Reducer(Arc<Module>);

impl Reducer {
    /// Loads the kernels, which the driver compiles for the GPU. The driver caches the result in
    /// the user's home folder; the first time takes about a second.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let text = ptx::module() + "\0";
        let mut handle = 0;
        // SAFETY: cuModuleLoadData requires space for a handle, PTX that ends with a NUL, and a
        // current context, which `with` sets.
        gpu.with(|driver| unsafe { driver.cuModuleLoadData(&raw mut handle, text.as_ptr().cast()) })?;
        let mut module = Module { gpu: gpu.clone(), handle, kernels: Vec::new() };
        for (operation, scalar) in ptx::kernels() {
            let kernel = module.find(&ptx::kernel_name(operation, scalar))?;
            module.kernels.push(((operation, scalar), kernel));
        }
        Ok(Self(Arc::new(module)))
    }

    /// The GPU that has the kernels.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// Begins to store the reduction of `operands` in `into`. One operand is a copy.
    ///
    /// The bytes of the slices are elements of type `scalar`, whatever `T` is. `into` may be one of
    /// the operands, but must not overlap one in part. If it is one after the first 64, the
    /// reduction allocates memory of its size until it is done.
    ///
    /// # Errors
    ///
    /// [`Error::Operands`] if there is no operand, if an operand has another length than `into` or
    /// overlaps it, if the bytes are no whole number of elements, or if the operation is bitwise
    /// and the elements are floating-point numbers; [`Error::Misaligned`]; [`Error::OtherGpu`];
    /// errors of the driver.
    pub fn reduce<T: Pod>(
        &self,
        stream: &Stream,
        scalar: Scalar,
        operation: Operation,
        into: &GpuSlice<T>,
        operands: &[GpuSlice<T>],
    ) -> Result<()> {
        self.check(stream, scalar, operation, into, operands)?;
        if let [operand] = operands {
            return if operand.address() == into.address() { Ok(()) } else { stream.copy(into, operand) };
        }
        let (first, rest) = operands.split_at(operands.len().min(MOST_OPERANDS));
        // A later launch must not read `into` after an earlier one has written it.
        let is_read_late = rest.iter().any(|operand| operand.address() == into.address()) && !into.is_empty();
        let between = if is_read_late { &GpuBuffer::new(into.gpu(), into.len())?.slice() } else { into };
        let launches = rest.len().div_ceil(MOST_OPERANDS - 1);
        let target = |launch| if launch == launches { into } else { between };
        self.launch(stream, scalar, operation, target(0), first)?;
        for (launch, more) in (1..).zip(rest.chunks(MOST_OPERANDS - 1)) {
            let operands = [std::slice::from_ref(between), more].concat();
            self.launch(stream, scalar, operation, target(launch), &operands)?;
        }
        Ok(())
    }

    fn check<T: Pod>(
        &self,
        stream: &Stream,
        scalar: Scalar,
        operation: Operation,
        into: &GpuSlice<T>,
        operands: &[GpuSlice<T>],
    ) -> Result<()> {
        if !operation.supports(scalar) {
            return Err(SliceError::Bitwise { operation: operation.name(), scalar: scalar.name() }.into());
        }
        if operands.is_empty() {
            return Err(SliceError::NoOperand.into());
        }
        if into.size() % scalar.size() != 0 {
            return Err(SliceError::Elements(into.size()).into());
        }
        for slice in [into].into_iter().chain(operands) {
            if slice.gpu() != self.gpu() || stream.gpu() != self.gpu() {
                return Err(Error::OtherGpu);
            }
            if slice.address() % scalar.size() as u64 != 0 {
                return Err(Error::Misaligned { address: slice.address(), element: scalar.size() });
            }
        }
        for operand in operands {
            if operand.size() != into.size() {
                return Err(SliceError::Length { expected: into.size(), actual: operand.size() }.into());
            }
            let is_same = operand.address() == into.address();
            if !is_same && operand.address().abs_diff(into.address()) < into.size() as u64 {
                return Err(SliceError::Overlap.into());
            }
        }
        Ok(())
    }

    /// Launches a kernel with 2 to [`MOST_OPERANDS`] operands that [`check`](Self::check) has seen.
    fn launch<T: Pod>(
        &self,
        stream: &Stream,
        scalar: Scalar,
        operation: Operation,
        into: &GpuSlice<T>,
        operands: &[GpuSlice<T>],
    ) -> Result<()> {
        let count = into.size() / scalar.size();
        if count == 0 {
            return Ok(());
        }
        let kernel = self.0.kernel(operation, scalar);
        let used = (Arc::clone(&self.0), into.clone(), operands.to_vec());
        let parameters = Parameters::new(into, operands, count, scalar);
        stream.submit(used, |driver, stream| parameters.launch(driver, kernel, stream))?;
        Ok(())
    }
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reducer({:?})", self.gpu())
    }
}

/// The parameters of a kernel, of the types that its PTX declares.
struct Parameters {
    into: u64,
    operands: [u64; MOST_OPERANDS],
    operand_count: u32,
    count: u64,
    /// Vectors of elements that the kernel accesses at once, the rest one by one.
    vectors: u64,
}

impl Parameters {
    fn new<T: Pod>(into: &GpuSlice<T>, operands: &[GpuSlice<T>], count: usize, scalar: Scalar) -> Self {
        let mut addresses = [0; MOST_OPERANDS];
        let mut operand_count = 0;
        for (address, operand) in addresses.iter_mut().zip(operands) {
            *address = operand.address();
            operand_count += 1;
        }
        let is_aligned = |slice: &GpuSlice<T>| slice.address() % VECTOR as u64 == 0;
        let are_aligned = is_aligned(into) && operands.iter().all(is_aligned);
        let vectors = if are_aligned { count * scalar.size() / VECTOR } else { 0 };
        let (count, vectors) = (count as u64, vectors as u64);
        Self { into: into.address(), operands: addresses, operand_count, count, vectors }
    }

    /// Launches a kernel on memory of which each address has `count` elements, as long as it runs.
    fn launch(mut self, driver: &Driver, kernel: FunctionHandle, stream: StreamHandle) -> Result<(), CudaError> {
        let work = if self.vectors > 0 { self.vectors } else { self.count };
        let blocks = c_uint::try_from(work.div_ceil(THREADS.into())).unwrap_or(MOST_BLOCKS).min(MOST_BLOCKS);
        let mut pointers: [*mut c_void; 5] = [
            (&raw mut self.into).cast(),
            (&raw mut self.operands).cast(),
            (&raw mut self.operand_count).cast(),
            (&raw mut self.count).cast(),
            (&raw mut self.vectors).cast(),
        ];
        let (parameters, no_extra) = (pointers.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: cuLaunchKernel requires a pointer to each parameter of the kernel, which it
        // copies, and a function and a stream of the current context: `check` has compared the
        // GPUs. The kernel accesses `count` elements at each address: `check` has compared the
        // lengths, and the stream keeps the slices until the kernel is done. Those in `vectors` it
        // accesses 16 bytes at a time, which requires aligned addresses: `new` counts none
        // otherwise.
        unsafe { driver.cuLaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, no_extra) }
    }
}

/// A module that is loaded in the primary context of a GPU; unloaded when dropped.
struct Module {
    gpu: Gpu,
    handle: ModuleHandle,
    kernels: Vec<((Operation, Scalar), FunctionHandle)>,
}

impl Module {
    fn find(&self, name: &str) -> Result<FunctionHandle, CudaError> {
        let name = format!("{name}\0");
        let mut function = 0;
        // SAFETY: cuModuleGetFunction requires space for a handle, a loaded module, and a text that
        // ends with a NUL.
        self.gpu.with(|driver| unsafe {
            driver.cuModuleGetFunction(&raw mut function, self.handle, name.as_ptr().cast())
        })?;
        Ok(function)
    }

    fn kernel(&self, operation: Operation, scalar: Scalar) -> FunctionHandle {
        let found = self.kernels.iter().find(|(of, _)| *of == (operation, scalar));
        found.expect("`Reducer::new` has found all kernels, and `check` has refused what has none").1
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: cuModuleUnload requires a module whose kernels do not run: a stream keeps the
        // module until they are done.
        if let Err(error) = self.gpu.with(|driver| unsafe { driver.cuModuleUnload(self.handle) }) {
            tracing::warn!("the kernels of reductions stay loaded: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
