//! CUDA's driver library: found, loaded and initialised once, and never unloaded, because its
//! threads and `atexit` handlers run until the process ends.

mod load;
#[allow(non_snake_case, reason = "C's names")]
mod table;

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::Library;

use crate::cuda_error::CudaError;

pub use load::{Attempt, NoDriver};
pub(crate) use table::{
    AccessDescription, AllocationProperties, ContextHandle, DeviceHandle, EventHandle, FunctionHandle, ModuleHandle,
    POSIX_FILE_DESCRIPTOR, StreamHandle,
};

/// The driver of [`Driver::load`].
static LOADED: OnceLock<Driver> = OnceLock::new();

/// A loaded and initialised driver library.
pub struct Driver {
    table: table::Table,
    path: PathBuf,
    version: DriverVersion,
}

impl Driver {
    /// Loads the driver of this machine: the library in `RDMA_LIBCUDA_PATH` if that is set, else
    /// `libcuda.so.1`, else `libcuda.so`. Every call returns the same driver.
    ///
    /// # Errors
    ///
    /// [`NoDriver`], which says what was tried and why it failed. The next call tries again.
    pub fn load() -> Result<&'static Self, NoDriver> {
        if let Some(driver) = LOADED.get() {
            return Ok(driver);
        }
        let (path, library) = load::open(&load::candidates())?;
        let driver = Self::initialize(path, library)?;
        Ok(LOADED.get_or_init(|| driver))
    }

    /// Loads a driver from a file, beside that of [`Self::load`].
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    ///
    /// # Safety
    ///
    /// The file is an implementation of CUDA's driver API: each function has the type and keeps the
    /// promises that NVIDIA's documentation gives it.
    ///
    /// No call of this crate gets objects (GPUs, memory, streams, events) of this driver together
    /// with objects of a driver of another library: a handle means nothing to another library.
    pub unsafe fn load_from(path: &Path) -> Result<&'static Self, NoDriver> {
        let (path, library) = load::open(&[path.as_os_str().to_owned()])?;
        Ok(Box::leak(Box::new(Self::initialize(path, library)?)))
    }

    fn initialize(path: PathBuf, library: &'static Library) -> Result<Self, NoDriver> {
        let table = table::Table::find(library)
            .map_err(|functions| NoDriver::MissingFunctions { path: path.clone(), functions })?;
        let mut driver = Self { table, path, version: DriverVersion(0) };
        driver.version = driver.start().map_err(|error| NoDriver::Failed { path: driver.path.clone(), error })?;
        Ok(driver)
    }

    fn start(&self) -> Result<DriverVersion, CudaError> {
        // SAFETY: cuInit requires flags of 0, and may be called again.
        unsafe { self.cuInit(0) }?;
        let mut version = 0;
        // SAFETY: cuDriverGetVersion requires space for an integer.
        unsafe { self.cuDriverGetVersion(&raw mut version) }?;
        Ok(DriverVersion(version))
    }

    /// The file from which the driver was loaded, as the dynamic loader was asked for it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The newest version of CUDA that the driver supports.
    #[must_use]
    pub fn version(&self) -> DriverVersion {
        self.version
    }

    /// The optional functions that this driver lacks.
    #[cfg(test)]
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        self.table.missing()
    }

    /// The error of a result that is not 0.
    fn error(&self, call: &'static str, code: i32) -> CudaError {
        let (mut name, mut description) = (std::ptr::null(), std::ptr::null());
        // SAFETY: cuGetErrorName requires space for a pointer, takes any code, and needs no
        // context.
        let _code = unsafe { (self.table.cuGetErrorName)(code, &raw mut name) };
        // SAFETY: cuGetErrorString requires the same as cuGetErrorName.
        let _code = unsafe { (self.table.cuGetErrorString)(code, &raw mut description) };
        // SAFETY: text requires NULL or a string that lives on: both functions return constants of
        // the library, which is never unloaded.
        let name = unsafe { text(name) }.unwrap_or("an error that this driver cannot name");
        // SAFETY: the string is a constant of the library too.
        let description = unsafe { text(description) }.unwrap_or("no description");
        CudaError::new(call, code, name, description)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({}, CUDA {})", self.path.display(), self.version)
    }
}

/// A version of CUDA: 1000 times the major number plus 10 times the minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion(pub i32);

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The text at `string`, unless it is NULL or not UTF-8.
///
/// # Safety
///
/// `string` is NULL, or a C string that lives until the process ends.
unsafe fn text(string: *const c_char) -> Option<&'static str> {
    if string.is_null() {
        return None;
    }
    // SAFETY: from_ptr requires a C string that outlives the result, as this function does.
    unsafe { CStr::from_ptr(string) }.to_str().ok()
}

#[cfg(test)]
mod tests;
