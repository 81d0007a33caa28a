//! The interface of copiers, which copy memory that a device does not access itself, such as a
//! GPU's.

/// Copies between host memory and memory that a device does not access itself: that of a GPU, or
/// memory that may be unmapped at any time.
///
/// Each call returns when its copy is done; several may run at the same time. Host bytes are passed
/// by value, so that a copier whose copy may still be running can keep them.
pub trait Copier: Send + Sync + 'static {
    /// Fills `bytes` with the memory at `address`, and returns them.
    ///
    /// # Errors
    ///
    /// [`CopyFailed`], which says whether the copy may still be running.
    ///
    /// # Safety
    ///
    /// As many bytes at `address` are memory that this copier may access until the call returns; if
    /// it returns [`CopyFailed::Unknown`], for ever.
    unsafe fn read(&self, address: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed>;

    /// Copies `bytes` to the memory at `address`, and returns them.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Safety
    ///
    /// As for [`read`](Self::read).
    unsafe fn write(&self, address: u64, bytes: Vec<u8>) -> Result<Vec<u8>, CopyFailed>;
}

/// The error of a [`Copier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFailed {
    /// The copy has ended without success: nothing accesses the memory any more.
    Ended,
    /// Like `Ended`; the reason is that the memory is not mapped or not accessible.
    Fault,
    /// The copy may still be running. The memory must not be given back.
    Unknown,
}
