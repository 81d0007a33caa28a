//! Errors of the driver. A code is an integer, because a newer driver may return codes that this
//! crate does not know.

use std::fmt;

/// A call of CUDA's driver failed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code}): {description}")]
pub struct CudaError {
    code: i32,
    name: &'static str,
    description: &'static str,
    call: &'static str,
}

impl CudaError {
    /// `CUDA_ERROR_INVALID_VALUE`
    pub const INVALID_VALUE: i32 = 1;
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub const OUT_OF_MEMORY: i32 = 2;
    /// `CUDA_ERROR_NO_DEVICE`
    pub const NO_DEVICE: i32 = 100;
    /// `CUDA_ERROR_INVALID_DEVICE`
    pub const INVALID_DEVICE: i32 = 101;
    /// `CUDA_ERROR_NOT_FOUND`
    pub const NOT_FOUND: i32 = 500;
    /// `CUDA_ERROR_NOT_READY`
    pub const NOT_READY: i32 = 600;
    /// `CUDA_ERROR_NOT_PERMITTED`
    pub const NOT_PERMITTED: i32 = 800;
    /// `CUDA_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: i32 = 801;
    /// `CUDA_ERROR_UNKNOWN`
    pub const UNKNOWN: i32 = 999;

    pub(crate) fn new(call: &'static str, code: i32, name: &'static str, description: &'static str) -> Self {
        Self { code, name, description, call }
    }

    /// The error of a function that the loaded driver lacks.
    pub(crate) fn missing(call: &'static str, since: &'static str) -> Self {
        Self::new(call, Self::NOT_FOUND, "CUDA_ERROR_NOT_FOUND", since)
    }

    /// The driver's code, a `CUresult`; it may be one that this crate does not know.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The driver's name of the code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The function of the driver that failed, such as `cuMemAlloc_v2`.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.call
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaError({self})")
    }
}
