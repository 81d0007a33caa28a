//! Tensors of [DLPack](https://dmlc.github.io/dlpack/latest/), which PyTorch, JAX, CuPy and others
//! exchange without a copy.
//!
//! A [`ManagedTensor`] owns a `DLManagedTensor`: one from another library becomes a [`GpuSlice`],
//! and a slice becomes one for another library. Each keeps the memory.
//!
//! DLPack says nothing of the order of work. Wait for the work of the library that gives a tensor
//! before you use it (in PyTorch `torch.cuda.synchronize()`), and for the work of a
//! [`Stream`](crate::Stream) before you give one. The example `pytorch` of this crate writes a
//! tensor of PyTorch into another one.
//!
//! # Safety
//!
//! 1. A tensor's pointer, its shape and its strides stay valid until its deleter is called, which
//!    happens once, by the owner's `Drop`: the condition of [`ManagedTensor::from_raw`], and met by
//!    `Exported`.
//! 2. Any thread may do so: the same condition.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
use rdma_mem::Scalar;

use crate::gpu::Gpu;
use crate::memory::{DeviceMemory, GpuSlice};
use crate::panics;

/// `kDLCUDA`
const CUDA: i32 = 2;

/// `DLDevice`
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "C's names")]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

/// `DLDataType`
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "C's names")]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// `DLTensor`
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "C's names")]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    /// In elements; NULL for a tensor without gaps whose last index varies fastest.
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// `DLManagedTensor`, the content of a Python capsule named `dltensor`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "C's names")]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A `DLManagedTensor` with its memory; given back to its library when dropped.
pub struct ManagedTensor(NonNull<DLManagedTensor>);

// SAFETY: Send requires that another thread may use and drop the tensor: (2).
unsafe impl Send for ManagedTensor {}
// SAFETY: Sync requires that threads may share it: the shared methods only read.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    /// Takes over a tensor of another library. A Python capsule must be renamed to `used_dltensor`
    /// then.
    ///
    /// # Safety
    ///
    /// The pointer, shape and strides stay valid until the deleter is called, which only the result
    /// does, from any thread. If the tensor is on a GPU, then until the deleter is called its
    /// elements are memory of that GPU that its primary context may access, stay in place, and no
    /// Rust reference to them exists.
    #[must_use]
    pub unsafe fn from_raw(raw: NonNull<DLManagedTensor>) -> Self {
        Self(raw)
    }

    /// Gives the tensor to another library, which calls its deleter in the end.
    #[must_use]
    pub fn into_raw(self) -> NonNull<DLManagedTensor> {
        std::mem::ManuallyDrop::new(self).0
    }

    /// A tensor of one dimension with the elements of a slice, whose type is `scalar`.
    ///
    /// # Errors
    ///
    /// [`TensorError::Element`] if the elements of the slice have another size.
    pub fn new<T: Pod>(slice: GpuSlice<T>, scalar: Scalar) -> Result<Self, TensorError> {
        let dtype = data_type(scalar);
        if size_of::<T>() != scalar.size() {
            return Err(TensorError::Element { dtype, wanted: size_of::<T>() });
        }
        let (data, ordinal) = (std::ptr::without_provenance_mut(address(&slice)), slice.gpu().ordinal());
        let exported = NonNull::from(Box::leak(Box::new(Exported {
            tensor: DLManagedTensor {
                dl_tensor: DLTensor {
                    data,
                    device: DLDevice { device_type: CUDA, device_id: ordinal },
                    ndim: 1,
                    dtype,
                    shape: std::ptr::null_mut(),
                    strides: std::ptr::null_mut(),
                    byte_offset: 0,
                },
                manager_ctx: std::ptr::null_mut(),
                deleter: Some(delete),
            },
            shape: [i64::try_from(slice.len()).unwrap_or(i64::MAX)],
            _memory: Arc::clone(slice.memory()),
        })));
        // SAFETY: the place of a field requires a pointer to the whole: that of a leaked box.
        let shape = unsafe { &raw mut (*exported.as_ptr()).shape };
        // SAFETY: a write requires a place that nobody else uses: one of the box.
        unsafe { (*exported.as_ptr()).tensor.dl_tensor.shape = shape.cast() };
        Ok(Self(exported.cast()))
    }

    /// The tensor's description.
    #[must_use]
    pub fn tensor(&self) -> &DLTensor {
        // SAFETY: as_ref requires a valid pointer to what nobody changes: (1).
        &unsafe { self.0.as_ref() }.dl_tensor
    }

    /// The size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        self.sizes(self.tensor().shape).unwrap_or_default()
    }

    /// The type of the elements, if it is one that can be reduced.
    #[must_use]
    pub fn scalar(&self) -> Option<Scalar> {
        Scalar::ALL.into_iter().find(|&scalar| data_type(scalar) == self.tensor().dtype)
    }

    /// The elements of a tensor on a GPU, in the order of its indexes; the slice keeps the tensor.
    ///
    /// # Errors
    ///
    /// With the tensor: [`TensorError`].
    pub fn into_slice<T: Pod>(self, gpu: &Gpu) -> Result<GpuSlice<T>, (TensorError, Self)> {
        match self.check::<T>(gpu) {
            Ok((address, size)) => {
                let imported = Imported { address, size, gpu: gpu.clone(), _tensor: self };
                Ok(GpuSlice::new(Arc::new(imported)))
            }
            Err(error) => Err((error, self)),
        }
    }

    /// The address and the size of the elements.
    fn check<T: Pod>(&self, gpu: &Gpu) -> Result<(u64, usize), TensorError> {
        let tensor = self.tensor();
        let DLDevice { device_type, device_id } = tensor.device;
        if device_type != CUDA || device_id != gpu.ordinal() {
            return Err(TensorError::Device { device: tensor.device, wanted: gpu.ordinal() });
        }
        let DLDataType { bits, lanes, .. } = tensor.dtype;
        if usize::from(bits) * usize::from(lanes) != 8 * size_of::<T>() {
            return Err(TensorError::Element { dtype: tensor.dtype, wanted: size_of::<T>() });
        }
        let count = self.count().ok_or(TensorError::Shape)?;
        let size = count.checked_mul(size_of::<T>()).ok_or(TensorError::Shape)?;
        if !self.has_no_gaps() {
            return Err(TensorError::Gaps);
        }
        let start = (tensor.data.addr() as u64).checked_add(tensor.byte_offset).ok_or(TensorError::Shape)?;
        start.checked_add(size as u64).ok_or(TensorError::Shape)?;
        Ok((start, size))
    }

    /// The number of elements; `None` if the shape is none.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        if usize::try_from(self.tensor().ndim) != Ok(self.shape().len()) {
            return None;
        }
        let sizes = self.shape().iter().map(|&size| usize::try_from(size).ok());
        sizes.into_iter().try_fold(1_usize, |count, size| count.checked_mul(size?))
    }

    /// Whether the elements lie one after the other, the last index varying fastest.
    #[must_use]
    pub fn has_no_gaps(&self) -> bool {
        let Some(strides) = self.sizes(self.tensor().strides) else { return true };
        if self.count() == Some(0) {
            return true;
        }
        let mut distance = 1_i64;
        self.shape().iter().zip(strides).rev().all(|(&size, &stride)| {
            // The stride of an index that is always 0 means nothing.
            let fits = size == 1 || stride == distance;
            distance = distance.saturating_mul(size);
            fits
        })
    }

    /// The list of one number for each dimension; `None` for NULL.
    fn sizes(&self, list: *const i64) -> Option<&[i64]> {
        let dimensions = usize::try_from(self.tensor().ndim).unwrap_or(0);
        // SAFETY: from_raw_parts requires initialised numbers that nobody changes: (1).
        (!list.is_null()).then(|| unsafe { std::slice::from_raw_parts(list, dimensions) })
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: as_ref requires a valid pointer: (1).
        if let Some(deleter) = unsafe { self.0.as_ref() }.deleter {
            // SAFETY: the deleter requires the tensor, once: (1).
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

impl fmt::Debug for ManagedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DLTensor { device, dtype, .. } = self.tensor();
        write!(f, "ManagedTensor({:?}, {dtype:?}, {device:?})", self.shape())
    }
}

/// Why a tensor cannot be exchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The tensor is not on the GPU.
    #[error(
        "the tensor is on device {} of type {}, not on GPU {wanted} (type 2): copy it there first",
        .device.device_id, .device.device_type
    )]
    Device {
        /// The tensor's device.
        device: DLDevice,
        /// The number of the GPU.
        wanted: i32,
    },
    /// Elements differ in size.
    #[error("the tensor's elements have {} times {} bits, the slice's {wanted} bytes", .dtype.lanes, .dtype.bits)]
    Element {
        /// The tensor's type.
        dtype: DLDataType,
        /// The size of the slice's elements in bytes.
        wanted: usize,
    },
    /// The tensor has more elements than can be, or a negative number of elements or dimensions.
    #[error("the tensor's shape is none")]
    Shape,
    /// The elements do not lie one after the other.
    #[error("the tensor has gaps or another order: make it contiguous first")]
    Gaps,
}

/// The type of DLPack for an element type.
fn data_type(scalar: Scalar) -> DLDataType {
    let code = match scalar {
        Scalar::I8 | Scalar::I32 | Scalar::I64 => 0,
        Scalar::U8 | Scalar::U32 | Scalar::U64 => 1,
        Scalar::F16 | Scalar::F32 | Scalar::F64 => 2,
        Scalar::Bf16 => 4,
    };
    DLDataType { code, bits: u8::try_from(8 * scalar.size()).unwrap_or(0), lanes: 1 }
}

fn address<T: Pod>(slice: &GpuSlice<T>) -> usize {
    usize::try_from(slice.address()).unwrap_or_default()
}

/// A tensor for another library.
#[repr(C)]
struct Exported {
    /// The first field: its address is that of the whole.
    tensor: DLManagedTensor,
    shape: [i64; 1],
    /// Only kept.
    _memory: Arc<dyn DeviceMemory>,
}

/// # Safety
///
/// The tensor is the first field of a leaked [`Exported`], and is not used afterwards.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    // SAFETY: from_raw requires a leaked box, whose first field has its address; this function
    // requires the same.
    let exported = unsafe { Box::from_raw(tensor.cast::<Exported>()) };
    // A panic must not reach the other library's frames, that of a log subscriber neither.
    if !panics::contain(|| drop(exported)) {
        panics::contain(|| tracing::error!("the owner of a tensor's memory has panicked when it was dropped"));
    }
}

/// Memory of a tensor of another library.
#[derive(Debug)]
struct Imported {
    address: u64,
    size: usize,
    gpu: Gpu,
    /// Only kept.
    _tensor: ManagedTensor,
}

// SAFETY: (1) and (4) are conditions of `ManagedTensor::from_raw`, and `check` has computed the
// bytes of the elements from what the tensor says. (2) The tensor keeps them until it is dropped
// with the owner. (3) The fields never change.
unsafe impl DeviceMemory for Imported {
    fn address(&self) -> u64 {
        self.address
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

#[cfg(test)]
mod tests;
