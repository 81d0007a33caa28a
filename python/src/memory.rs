//! The memory of Python's objects, held while an operation uses it.
//!
//! An object is given by the buffer protocol or, if it has none, by DLPack. `_memory.py` chooses
//! for objects of PyTorch. Memory of host alone is taken.

use std::ffi::CStr;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError, TryLockError};

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rdma_collectives::{
    DataType, Error, OwnedSource, OwnedTarget, Reduction, Source, Target, UntypedSource, UntypedTarget,
};
use rdma_cuda::interop::dlpack::{DLManagedTensor, ManagedTensor};
use rdma_mem::{SharedSlice, SharedSliceMut};

use crate::error::invalid;

/// DLPack's types of devices with memory that the processor reaches: `kDLCPU` and `kDLCUDAHost`.
const HOST: [i32; 2] = [1, 3];

/// Holds whose operation has ended, for [`release`].
static ENDED: Mutex<Vec<Hold>> = Mutex::new(Vec::new());

/// Memory of a Python object, which is held.
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
    kind: Kind,
    /// Whether the exporter was asked for memory that can be written.
    is_writable: bool,
    /// Only taken by `Drop`.
    hold: Option<Hold>,
}

/// The contents of an object's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Elements that can be reduced.
    Elements(DataType),
    /// Items of so many bytes, which can only be moved.
    Items(usize),
}

/// A hold that keeps an object's memory valid.
enum Hold {
    Buffer(Pin<Box<ffi::Py_buffer>>),
    /// Only dropped.
    Tensor(ManagedTensor),
}

// SAFETY: Send requires that another thread may own the hold: it only moves it, since `Drop` of
// `Memory` puts it into a list, which a thread with the interpreter's lock empties (2).
unsafe impl Send for Hold {}
// SAFETY: Send requires that another thread may use the memory: it is valid in all threads (1), and
// the only accesses are copies that may race (3).
unsafe impl Send for Memory {}

/// The use of memory by an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Memory {
    /// Holds the memory of an object. `name` is the argument's, and `data_type` the type of its
    /// elements if the object does not tell it.
    pub(crate) fn of(object: &Bound<'_, PyAny>, name: &str, usage: Use, data_type: Option<&str>) -> PyResult<Self> {
        let py = object.py();
        let memory = match ffi_has_buffer(object) {
            true => Self::of_buffer(object, name, usage)?,
            false => {
                let module = py.import(intern!(py, "rdma_collectives._memory"))?;
                let (exported, told): (Bound<'_, PyAny>, Option<String>) =
                    module.call_method1(intern!(py, "exported"), (object, name))?.extract()?;
                let memory = match ffi_has_buffer(&exported) {
                    true => Self::of_buffer(&exported, name, usage)?,
                    false => Self::of_tensor(&exported, name, usage)?,
                };
                memory.with_type(py, name, told.as_deref())?
            }
        };
        memory.with_type(py, name, data_type)
    }

    /// No memory, of a rank that has no part in an operation.
    pub(crate) fn none(kind: Kind) -> Self {
        Self { start: NonNull::dangling().as_ptr(), len: 0, kind, is_writable: true, hold: None }
    }

    fn of_buffer(object: &Bound<'_, PyAny>, name: &str, usage: Use) -> PyResult<Self> {
        let py = object.py();
        let mut view = Box::pin(ffi::Py_buffer::new());
        let access = if usage == Use::Write { ffi::PyBUF_WRITABLE } else { 0 };
        let flags = ffi::PyBUF_FORMAT | ffi::PyBUF_ND | ffi::PyBUF_C_CONTIGUOUS | access;
        // SAFETY: PyObject_GetBuffer requires the interpreter's lock, which `object` shows, an
        // object, and a place for the view that stays where it is: a pinned box.
        let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) };
        if got != 0 {
            let error = PyErr::take(py);
            let why = error.map_or_else(String::new, |error| error.value(py).to_string());
            let is_read_only = usage == Use::Write && buffer_is_readable(object);
            let advice = if is_read_only { "it cannot be written" } else { "make it contiguous first" };
            return Err(invalid(py, &format!("`{name}` ({}): {why}; {advice}", type_name(object))));
        }
        let format = if view.format.is_null() {
            "B".to_owned()
        } else {
            // SAFETY: from_ptr requires a string that ends with 0 and stays for the call: the view
            // has it until it is released.
            unsafe { CStr::from_ptr(view.format) }.to_string_lossy().into_owned()
        };
        let len = usize::try_from(view.len).unwrap_or(0);
        let item = usize::try_from(view.itemsize).unwrap_or(1).max(1);
        let kind = of_format(&format, item);
        let start = if len == 0 { NonNull::dangling().as_ptr() } else { view.buf.cast() };
        Ok(Self { start, len, kind, is_writable: usage == Use::Write, hold: Some(Hold::Buffer(view)) })
    }

    fn of_tensor(object: &Bound<'_, PyAny>, name: &str, usage: Use) -> PyResult<Self> {
        let py = object.py();
        let refused = |why: &str| invalid(py, &format!("`{name}` ({}): {why}", type_name(object)));
        let Ok(device) = object.call_method0(intern!(py, "__dlpack_device__")) else {
            return Err(refused("it has neither the buffer protocol nor DLPack"));
        };
        let (device, _): (i32, i64) = device.extract()?;
        if !HOST.contains(&device) {
            return Err(refused("its memory is not the host's: copy it there first"));
        }
        if usage == Use::Write && type_name(object).starts_with("jax") {
            return Err(refused("arrays of JAX do not change: give another array for the result"));
        }
        let capsule = object.call_method0(intern!(py, "__dlpack__"))?;
        let capsule = capsule.cast::<PyCapsule>().map_err(|_| refused("its __dlpack__ returns no capsule"))?;
        let tensor = taken(capsule).ok_or_else(|| refused("its __dlpack__ returns a capsule that was used"))?;
        if !tensor.has_no_gaps() {
            return Err(refused("its elements do not lie one after the other: make it contiguous first"));
        }
        let described = tensor.tensor();
        // The object may have told another device than that of its tensor.
        if !HOST.contains(&described.device.device_type) {
            return Err(refused("its tensor is not in the host's memory: copy it there first"));
        }
        let item = usize::from(described.dtype.bits) * usize::from(described.dtype.lanes) / 8;
        let kind = match tensor.scalar() {
            Some(scalar) => of_scalar(scalar.name()).map_or(Kind::Items(item), Kind::Elements),
            None => Kind::Items(item),
        };
        let bytes = tensor.count().and_then(|count| count.checked_mul(item));
        let (Some(len), Ok(offset), 1..) = (bytes, usize::try_from(described.byte_offset), item) else {
            return Err(refused("its shape or its type makes no sense"));
        };
        let start = described.data.cast::<u8>().wrapping_add(offset);
        let start = if len == 0 { NonNull::dangling().as_ptr() } else { start };
        Ok(Self { start, len, kind, is_writable: usage == Use::Write, hold: Some(Hold::Tensor(tensor)) })
    }

    /// The memory with elements of another type of the same size.
    fn with_type(mut self, py: Python<'_>, name: &str, data_type: Option<&str>) -> PyResult<Self> {
        let Some(data_type) = data_type else { return Ok(self) };
        let wanted = DataType::named(data_type);
        match (wanted, self.kind.size()) {
            (Some(wanted), size) if wanted.size() == size => self.kind = Kind::Elements(wanted),
            (None, _) if data_type == "items" => self.kind = Kind::Items(self.kind.size()),
            (Some(wanted), size) => {
                let text = format!("`{name}`: elements of {size} bytes are no {wanted}");
                return Err(invalid(py, &text));
            }
            (None, _) => {
                let names: Vec<&str> = DataType::ALL.iter().map(|known| known.name()).collect();
                let text = format!("dtype {data_type:?}: give one of {}", names.join(", "));
                return Err(invalid(py, &text));
            }
        }
        Ok(self)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Number of elements.
    pub(crate) fn count(&self) -> usize {
        self.len / self.kind.size()
    }

    /// The type that an operation has to this memory, and its elements for each element of it.
    pub(crate) fn unit(&self) -> (DataType, usize) {
        match self.kind {
            Kind::Elements(data_type) => (data_type, 1),
            Kind::Items(size) => (DataType::U8, size),
        }
    }

    /// The source of an operation.
    pub(crate) fn input(&self) -> Result<UntypedSource<'_>, Error> {
        UntypedSource::shared(self.unit().0, self.bytes())
    }

    /// The target of an operation; of memory that was held for writes.
    pub(crate) fn output(&mut self) -> Result<UntypedTarget<'_>, Error> {
        UntypedTarget::shared(self.unit().0, self.bytes_mut())
    }

    fn bytes(&self) -> SharedSlice<'_> {
        // SAFETY: from_raw requires bytes that are valid for reads for the borrow, without plain
        // writes of this program: the hold lives as long as `self` (1), and only copies of
        // `rdma_mem` go to them (3).
        unsafe { SharedSlice::from_raw(self.start, self.len) }
    }

    fn bytes_mut(&mut self) -> SharedSliceMut<'_> {
        assert!(self.is_writable, "memory that is only read was to be written");
        // SAFETY: from_raw requires bytes that are valid for reads and writes for the borrow,
        // without plain accesses of this program: the hold lives as long as `self` (1) and was got
        // for writes, which the line above checks; only copies of `rdma_mem` go to them (3).
        unsafe { SharedSliceMut::from_raw(self.start, self.len) }
    }

    /// Whether elements have a reduction.
    pub(crate) fn check(&self, py: Python<'_>, name: &str, reduction: Reduction) -> PyResult<()> {
        match self.kind {
            Kind::Elements(data_type) => {
                reduction.check(data_type).map_err(|error| invalid(py, &format!("`{name}`: {error}")))
            }
            Kind::Items(size) => {
                let text = format!("`{name}`: items of {size} bytes of this type have no reduction {reduction}");
                Err(invalid(py, &text))
            }
        }
    }
}

/// The bytes of a message.
impl OwnedSource for Memory {
    type Element = u8;

    fn source(&self) -> Source<'_, u8> {
        Source::Shared(self.bytes())
    }
}

impl OwnedTarget for Memory {
    fn target(&mut self) -> Target<'_, u8> {
        Target::Shared(self.bytes_mut())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            ENDED.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
        }
    }
}

impl Kind {
    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Elements(data_type) => data_type.size(),
            Self::Items(size) => size,
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Elements(data_type) => data_type.to_string(),
            Self::Items(size) => format!("items of {size} bytes"),
        }
    }
}

/// Ends the holds of operations that have ended.
pub(crate) fn release(_py: Python<'_>) {
    // Not a lock that waits: a forked child may have a copy that another thread has locked, and
    // whoever has it locked now leaves it to a later call.
    let ended = match ENDED.try_lock() {
        Ok(mut ended) => std::mem::take(&mut *ended),
        Err(TryLockError::Poisoned(ended)) => std::mem::take(&mut *ended.into_inner()),
        Err(TryLockError::WouldBlock) => return,
    };
    for hold in ended {
        match hold {
            Hold::Buffer(mut view) => {
                // SAFETY: PyBuffer_Release requires the interpreter's lock, of which `_py` is the
                // proof, and a view of PyObject_GetBuffer that is where it was, once: it was moved
                // out of the list.
                unsafe { ffi::PyBuffer_Release(&raw mut *view) };
            }
            Hold::Tensor(tensor) => drop(tensor),
        }
    }
}

/// Whether an object has the buffer protocol.
fn ffi_has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: PyObject_CheckBuffer requires the interpreter's lock and an object: `object`.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// Whether the buffer of an object can be read, though perhaps not written.
fn buffer_is_readable(object: &Bound<'_, PyAny>) -> bool {
    let mut view = Box::pin(ffi::Py_buffer::new());
    let flags = ffi::PyBUF_ND | ffi::PyBUF_C_CONTIGUOUS;
    // SAFETY: PyObject_GetBuffer requires the lock and an object, which `object` is, and a place
    // for the view that stays where it is: a pinned box.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0 {
        drop(PyErr::take(object.py()));
        return false;
    }
    // SAFETY: PyBuffer_Release requires the lock and a view that was got, once: the one above.
    unsafe { ffi::PyBuffer_Release(&raw mut *view) };
    true
}

/// Takes the tensor of a capsule, which is renamed, as DLPack asks.
fn taken(capsule: &Bound<'_, PyCapsule>) -> Option<ManagedTensor> {
    let (fresh, used) = (c"dltensor", c"used_dltensor");
    // SAFETY: PyCapsule_GetPointer requires the lock and a capsule, and returns NULL for one of
    // another name: `capsule`.
    let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), fresh.as_ptr()) };
    let Some(tensor) = NonNull::new(tensor.cast::<DLManagedTensor>()) else {
        drop(PyErr::take(capsule.py()));
        return None;
    };
    // SAFETY: PyCapsule_SetName requires a capsule and a name that outlives it: a constant.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        drop(PyErr::take(capsule.py()));
        return None;
    }
    // SAFETY: from_raw requires a tensor that is valid until its deleter is called, by the result
    // alone: DLPack's contract for a capsule that was renamed, which this one was. The tensor is
    // used in host memory only, and its deleter is called with the interpreter's lock (2).
    Some(unsafe { ManagedTensor::from_raw(tensor) })
}

/// The name of an object's type.
fn type_name(object: &Bound<'_, PyAny>) -> String {
    let class = object.get_type();
    class.fully_qualified_name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

/// The kind of items of a format of the module `struct`.
fn of_format(format: &str, item: usize) -> Kind {
    let code = format.trim_start_matches(['@', '=']);
    let code = if cfg!(target_endian = "little") { code.trim_start_matches('<') } else { code.trim_start_matches('>') };
    let data_type = match (code, item) {
        ("b", 1) => DataType::I8,
        ("B" | "c", 1) => DataType::U8,
        ("i" | "l", 4) => DataType::I32,
        ("I" | "L", 4) => DataType::U32,
        ("i" | "l" | "q" | "n", 8) => DataType::I64,
        ("I" | "L" | "Q" | "N", 8) => DataType::U64,
        ("e", 2) => DataType::F16,
        ("f", 4) => DataType::F32,
        ("d", 8) => DataType::F64,
        _ => return Kind::Items(item),
    };
    Kind::Elements(data_type)
}

fn of_scalar(name: &str) -> Option<DataType> {
    DataType::named(name)
}
