//! Finds the driver library.

use std::ffi::OsString;
use std::path::PathBuf;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::cuda_error::CudaError;

/// The environment variable that names a library to load in place of the system's.
const VARIABLE: &str = "RDMA_LIBCUDA_PATH";
/// The names that the dynamic loader searches for. The first is that of NVIDIA's driver; some
/// installations have only the second.
const SONAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// One path from which the driver could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The path, or a bare name for the dynamic loader to search.
    pub path: PathBuf,
    /// The reason, in the dynamic loader's words.
    pub reason: String,
}

/// There is no usable CUDA driver on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDriver {
    /// No library was found.
    #[error("no CUDA driver: {} (install NVIDIA's driver, or set {VARIABLE} to the path of its libcuda.so.1)", list(.attempts))]
    NotFound {
        /// All attempts, in order; never empty.
        attempts: Vec<Attempt>,
    },
    /// The library lacks functions that every driver from CUDA 11.0 on has.
    #[error(
        "{} lacks {}: it is no CUDA driver, or one older than CUDA 11.0 (update NVIDIA's driver)",
        .path.display(), .functions.join(", ")
    )]
    MissingFunctions {
        /// The library.
        path: PathBuf,
        /// The names of the functions.
        functions: Vec<&'static str>,
    },
    /// The driver refused to start.
    #[error("the CUDA driver {} does not start: {error} ({})", .path.display(), advice(.error))]
    Failed {
        /// The library.
        path: PathBuf,
        /// The call that failed.
        error: CudaError,
    },
}

fn list(attempts: &[Attempt]) -> String {
    let tried = |Attempt { path, reason }: &Attempt| format!("tried {}: {reason}", path.display());
    attempts.iter().map(tried).collect::<Vec<_>>().join("; ")
}

/// A remedy for an error of `cuInit`.
fn advice(error: &CudaError) -> &'static str {
    match error.code() {
        CudaError::NO_DEVICE => "there is no GPU, or CUDA_VISIBLE_DEVICES hides it",
        // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        803 => "the library and the kernel's nvidia module differ in version: restart after an update of the driver",
        // CUDA_ERROR_SYSTEM_NOT_READY
        802 => "the fabric manager of an NVSwitch system does not run",
        _ => "see `nvidia-smi` and the kernel's log for lines of NVRM",
    }
}

/// The paths to try, the best first. A set-user-ID program takes none from its caller.
pub(super) fn candidates() -> Vec<OsString> {
    match rdma::trusted_variable(VARIABLE) {
        Some(path) => vec![path],
        None => SONAMES.iter().map(OsString::from).collect(),
    }
}

/// Loads the first library that can be loaded, for the rest of the program's life.
pub(super) fn open(candidates: &[OsString]) -> Result<(PathBuf, &'static Library), NoDriver> {
    let mut attempts = Vec::new();
    for path in candidates {
        // SAFETY: open requires that the library's initialisers may run. NVIDIA's demand nothing of
        // a program; another path is the user's choice of code to run, as LD_PRELOAD is.
        match unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok((path.into(), Box::leak(Box::new(library)))),
            Err(error) => attempts.push(Attempt { path: path.into(), reason: reason(&error) }),
        }
    }
    Err(NoDriver::NotFound { attempts })
}

/// The text of `dlerror`, because libloading's own text only says that `dlopen` failed.
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { desc } => format!("{desc:?}").trim_matches('"').to_owned(),
        other => other.to_string(),
    }
}
