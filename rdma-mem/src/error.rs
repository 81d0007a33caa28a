//! The reasons why memory could not be shared.

use std::io;

use nix::errno::Errno;

/// The reason why memory could not be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// The kernel refused a system call.
    #[error("{call}: {error}")]
    System {
        /// The name of the call.
        call: &'static str,
        /// The call's error.
        #[source]
        error: io::Error,
    },
    /// The size is zero, or larger than the address space.
    #[error("shared memory of no bytes, or of more than the address space holds")]
    Size,
    /// The system has less memory available than asked for.
    #[error("less memory is available than asked for")]
    OutOfMemory,
    /// The peer sent a descriptor that is not safe to map.
    #[error("the peer's memory {0}")]
    Untrusted(&'static str),
    /// The memory belongs to the process that forked this one.
    #[error("the memory belongs to the parent process")]
    Forked,
}

impl SharedMemoryError {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { call, error: errno.into() }
    }

    pub(crate) fn mapping(error: io::Error) -> Self {
        Self::System { call: "mmap", error }
    }

    /// The errno value of a refused system call, and `ENOMEM` for
    /// [`OutOfMemory`](Self::OutOfMemory).
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::System { error, .. } => error.raw_os_error(),
            Self::OutOfMemory => Some(libc::ENOMEM),
            Self::Size | Self::Untrusted(_) | Self::Forked => None,
        }
    }
}

/// Keeps the errno value if there is one.
impl From<SharedMemoryError> for io::Error {
    fn from(error: SharedMemoryError) -> Self {
        let kind = match error {
            SharedMemoryError::System { error, .. } => return error,
            SharedMemoryError::OutOfMemory => return Self::from_raw_os_error(libc::ENOMEM),
            SharedMemoryError::Size => io::ErrorKind::InvalidInput,
            SharedMemoryError::Untrusted(_) => io::ErrorKind::InvalidData,
            SharedMemoryError::Forked => io::ErrorKind::Unsupported,
        };
        Self::new(kind, error)
    }
}
