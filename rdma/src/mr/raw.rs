//! Memory that something else keeps: an arena, an allocator, another library.

use std::fmt;
use std::io;
use std::ptr::NonNull;

use super::exposed::ExposedRegion;
use super::memory::{Host, MemoryOwner};
use super::options::RegisterOptions;
use crate::error::{Failed, Result};
use crate::pd::ProtectionDomain;

impl ProtectionDomain {
    /// Registers memory that something else keeps: a part of an arena, of an allocator's heap, of a
    /// file's map, or of another library's memory.
    ///
    /// `keep_alive` is dropped once the memory is deregistered, and returned by
    /// [`ExposedRegion::deregister`] within a [`RawOwner`].
    ///
    /// # Errors
    ///
    /// With `keep_alive`: `InvalidInput` if `len` is 0; options that the memory may not have, or
    /// that the device lacks; errors of the device.
    ///
    /// # Safety
    ///
    /// The contract of [`RawOwner::new`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use std::ptr::NonNull;
    /// use std::sync::Arc;
    /// use std::sync::atomic::AtomicU64;
    ///
    /// use rdma::{RawOwner, RegisterOptions, RemoteAccess};
    ///
    /// // Counters that this program changes, and that peers read at any time.
    /// let counters: Arc<[AtomicU64]> = (0..512).map(AtomicU64::new).collect();
    /// let (at, len) = (NonNull::from(&counters[..]).cast(), size_of_val(&counters[..]));
    /// let options = RegisterOptions::new().remote_access(RemoteAccess::READ);
    /// // SAFETY: the counters stay in place while an Arc keeps them, they are initialised integers,
    /// // and this program accesses them in atomic words alone, as the region does.
    /// let region = unsafe { pd.register_raw(at, len, Arc::clone(&counters), &options)? };
    /// assert_eq!(region.load_u64(8, std::sync::atomic::Ordering::Relaxed)?, 1);
    ///
    /// let owner: RawOwner<Arc<[AtomicU64]>> = region.deregister()?;
    /// assert!(Arc::ptr_eq(&owner.into_keep_alive(), &counters));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw<K: Send + 'static>(
        &self,
        at: NonNull<u8>,
        len: usize,
        keep_alive: K,
        options: &RegisterOptions,
    ) -> Result<ExposedRegion, Failed<K>> {
        // SAFETY: `RawOwner::new` has the same contract as this function.
        let owner = unsafe { RawOwner::new(at, len, keep_alive) };
        self.register_exposed_with(owner, options).map_err(|failed| failed.map(RawOwner::into_keep_alive))
    }
}

/// Owner of memory that a value of another kind keeps valid.
///
/// It can be registered as exposed memory, with or without rights for peers. It is never lent as
/// bytes, because other code may access it: [`register`](ProtectionDomain::register) and
/// [`revoke`](ExposedRegion::revoke) fail with `NotSupported`.
pub struct RawOwner<K> {
    at: NonNull<u8>,
    len: usize,
    keep_alive: K,
}

// SAFETY: the value holds an address, which it does not dereference, and a value that is Send.
unsafe impl<K: Send> Send for RawOwner<K> {}
// SAFETY: a shared reference gives no access to the memory or to `keep_alive`.
unsafe impl<K> Sync for RawOwner<K> {}

impl<K: Send + 'static> RawOwner<K> {
    /// Makes an owner of `len` bytes.
    ///
    /// # Safety
    ///
    /// Until `keep_alive` is dropped or taken back, and forever if that never happens:
    ///
    /// * The bytes are valid for reads and writes, initialised, and stay in place. For the map of a
    ///   file this means that no process shortens the file: an access behind its end raises
    ///   `SIGBUS`.
    /// * The device, peers and safe code may write any bytes: every value of every byte is valid
    ///   for whoever reads the memory meanwhile or afterwards.
    /// * Other code, of this process and of others, may access them at any time by the functions of
    ///   [`rdma_mem`] or in atomic words. Any other access, and any reference to them, ends before
    ///   a [`SharedOwner`](crate::SharedOwner) of the value exists, a request that uses these bytes
    ///   is posted, a peer is told of them, or this crate accesses them, and begins only after
    ///   that: the compiler and other threads may rely on plain memory to stay as it is.
    pub unsafe fn new(at: NonNull<u8>, len: usize, keep_alive: K) -> Self {
        Self { at, len, keep_alive }
    }

    /// Gives back the value that keeps the memory valid.
    #[must_use]
    pub fn into_keep_alive(self) -> K {
        self.keep_alive
    }
}

// SAFETY: MemoryOwner requires memory that is valid, initialised, of which all bytes that are
// written are values, in place, and accessed by others only as rdma_mem does until make_private
// succeeds: the contract of `RawOwner::new`, as long as the parts, which hold `keep_alive`, are not
// dropped; make_private never succeeds. Moving an address asserts nothing.
unsafe impl<K: Send + 'static> MemoryOwner for RawOwner<K> {
    type Placement = Host;
    type Parts = Self;

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        (self.at, self.len, self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }

    /// Fails: others access the memory for as long as they want.
    fn make_private(_: &mut Self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl<K> fmt::Debug for RawOwner<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawOwner").field("address", &self.at).field("len", &self.len).finish_non_exhaustive()
    }
}
