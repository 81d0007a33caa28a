//! Modules of kernels. The kernels of reductions are known by name and done by the processor.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rdma_mem::{Operation, Scalar, SharedSlice, SharedSliceMut, Stores, reduce};

use super::context::current;
use super::stream;
use crate::codes::{Code, ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, MISALIGNED_ADDRESS, NOT_FOUND};
use crate::entry::{Out, call, new_handle, put};
use crate::space::{Space, space};

/// `CUDA_ERROR_INVALID_PTX`
const INVALID_PTX: Code = 218;
/// Entries of the table of operands.
const MOST_OPERANDS: usize = 64;
/// Bytes of a vector, which is loaded or stored at once.
const VECTOR: usize = 16;

static MODULES: LazyLock<Mutex<Modules>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Modules {
    /// The names of each module's kernels.
    loaded: HashMap<usize, HashSet<String>>,
    /// The module and the name of each function.
    functions: HashMap<usize, (usize, String)>,
}

fn modules() -> MutexGuard<'static, Modules> {
    MODULES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn live() -> usize {
    modules().loaded.len()
}

/// The names of the kernels in PTX.
fn kernels(text: &str) -> Result<HashSet<String>, Code> {
    if !text.starts_with(".version") {
        return Err(INVALID_PTX);
    }
    let entries = text.split(".visible .entry ").skip(1);
    Ok(entries.filter_map(|entry| Some(entry.split_once('(')?.0.to_owned())).collect())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: Out<'_, usize>, image: *const c_void) -> c_int {
    call("cuModuleLoadData", || {
        current()?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: from_ptr requires a text that ends with a NUL, as this function does.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let kernels = kernels(text.to_str().map_err(|_| INVALID_PTX)?)?;
        let handle = new_handle();
        put(module, handle)?;
        modules().loaded.insert(handle, kernels);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: usize) -> c_int {
    call("cuModuleUnload", || {
        let mut modules = modules();
        modules.functions.retain(|_, (of, _)| *of != module);
        modules.loaded.remove(&module).map(drop).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(function: Out<'_, usize>, module: usize, name: *const c_char) -> c_int {
    call("cuModuleGetFunction", || {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: from_ptr requires a text that ends with a NUL, as this function does.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let mut modules = modules();
        if !modules.loaded.get(&module).ok_or(INVALID_HANDLE)?.contains(&name) {
            return Err(NOT_FOUND);
        }
        let handle = new_handle();
        put(function, handle)?;
        modules.functions.insert(handle, (module, name));
        Ok(())
    })
}

/// A reduction that waits in a stream.
struct Reduction {
    scalar: Scalar,
    operation: Operation,
    into: usize,
    operands: Vec<usize>,
    count: usize,
    vectors: usize,
}

impl Reduction {
    /// Reads the parameters of a kernel.
    ///
    /// # Safety
    ///
    /// The kernel's parameters are those of a kernel of this name in `rdma-cuda`.
    unsafe fn new(kernel: &str, parameters: *mut *mut c_void) -> Option<Self> {
        let (operation, scalar) = kernel.split_once('_')?;
        let is = |name: String, wanted: &str| name.eq_ignore_ascii_case(wanted);
        let operation = Operation::ALL.into_iter().find(|known| is(format!("{known:?}"), operation))?;
        let scalar = Scalar::ALL.into_iter().find(|known| is(format!("{known:?}"), scalar))?;
        // SAFETY: read requires five pointers: this function requires a pointer for each parameter.
        let [into, operands, operand_count, count, vectors] = unsafe { parameters.cast::<[*const c_void; 5]>().read() };
        // SAFETY: read requires the type of the parameter, `.u64`.
        let into = unsafe { into.cast::<usize>().read() };
        // SAFETY: read requires the type of the parameter, a table of `.u64`.
        let operands = unsafe { operands.cast::<[usize; MOST_OPERANDS]>().read() };
        // SAFETY: read requires the type of the parameter, `.u32`.
        let operand_count = unsafe { operand_count.cast::<c_uint>().read() };
        // SAFETY: read requires the type of the parameter, `.u64`.
        let count = unsafe { count.cast::<usize>().read() };
        // SAFETY: read requires the type of the parameter, `.u64`.
        let vectors = unsafe { vectors.cast::<usize>().read() };
        let operands = operands.get(..usize::try_from(operand_count).ok()?)?.to_vec();
        Some(Self { scalar, operation, into, operands, count, vectors })
    }

    /// Does the work of the kernel, or says how it would end.
    fn run(&self, space: &Space) -> Result<(), Code> {
        let size = self.count * self.scalar.size();
        let addresses = [&[self.into], &self.operands[..]].concat();
        if self.vectors > 0 && addresses.iter().any(|address| address % VECTOR != 0) {
            return Err(MISALIGNED_ADDRESS);
        }
        let is_within = self.vectors.checked_mul(VECTOR).is_some_and(|vectors| vectors <= size);
        if is_within { self.reduce(space, size).ok_or(ILLEGAL_ADDRESS) } else { Err(ILLEGAL_ADDRESS) }
    }

    /// Reduces `size` bytes of each operand; `None` if memory is not there.
    fn reduce(&self, space: &Space, size: usize) -> Option<()> {
        let start = |address| space.bytes(address, size).map(|bytes| bytes.as_ptr().cast::<u8>());
        // SAFETY: from_raw requires bytes that stay valid and see no plain access: `bytes` has
        // checked that they are mapped, the lock of the space keeps them so, and copies run under
        // it too.
        let into = unsafe { SharedSliceMut::from_raw(start(self.into)?, size) };
        let mut operands = Vec::new();
        for &operand in &self.operands {
            // SAFETY: from_raw requires bytes that stay valid and see no plain access, as for
            // `into`: the same check and lock.
            operands.push(unsafe { SharedSlice::from_raw(start(operand)?, size) });
        }
        reduce(self.scalar, self.operation, into, &operands, Stores::Cached).ok()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    in_stream: usize,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_int {
    call("cuLaunchKernel", || {
        let stream = stream::stream(in_stream)?;
        let (_, kernel) = modules().functions.get(&function).cloned().ok_or(INVALID_HANDLE)?;
        if [grid_x, grid_y, grid_z, block_x, block_y, block_z].contains(&0) || block_x > 1024 || parameters.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: Reduction::new requires the parameters of a kernel of rdma-cuda, which is the
        // only caller that has kernels with these names.
        let reduction = unsafe { Reduction::new(&kernel, parameters) }.ok_or(INVALID_VALUE)?;
        stream.push(move |failed| failed.or_else(|| reduction.run(&space()).err()));
        Ok(())
    })
}
