//! One owner for several regions: one memory on several devices.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mem::SharedSliceMut;

use super::memory::{Host, MemoryOwner, RawMemory};
use super::placed::Placed;

/// An owner that several regions share, to register one memory with several devices or domains.
///
/// Clones are handles to the same memory. It can be registered as exposed memory, with or without
/// rights for peers, and is accessed by copies and atomic words alone, because each device writes
/// to it at any time. It is never lent as bytes: [`register`](crate::ProtectionDomain::register)
/// and [`revoke`](crate::ExposedRegion::revoke) fail with `NotSupported`. After the last region,
/// [`into_owner`](Self::into_owner) returns the owner.
///
/// Atomic operations of one device are not atomic to those of another.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// # let (pd_of_a, pd_of_b) = (context.alloc_pd()?, context.alloc_pd()?);
/// use rdma::{RemoteAccess, SharedOwner};
///
/// let table = SharedOwner::new(vec![0_u64; 512]);
/// let on_a = pd_of_a.register_exposed(table.clone(), RemoteAccess::READ)?;
/// let on_b = pd_of_b.register_exposed(table.clone(), RemoteAccess::READ)?;
/// on_a.copy_in(0, &7_u64.to_ne_bytes())?;
/// assert_eq!(on_b.load_u64(0, std::sync::atomic::Ordering::Relaxed)?, 7);
///
/// drop((on_a, on_b));
/// let words: Vec<u64> = table.into_owner().expect("no region has it");
/// assert_eq!(words[0], 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedOwner<O> {
    memory: Arc<RawMemory>,
    owner: PhantomData<fn() -> O>,
}

impl<O: MemoryOwner<Placement = Host>> SharedOwner<O> {
    /// Takes an owner, to be shared.
    #[must_use]
    pub fn new(owner: O) -> Self {
        Self { memory: Arc::new(RawMemory::new(owner)), owner: PhantomData }
    }

    /// The bytes, for the copies and reductions of [`rdma_mem`].
    #[must_use]
    pub fn bytes(&self) -> SharedSliceMut<'_> {
        // SAFETY: from_raw requires bytes that are readable and writable, without plain accesses,
        // for the borrow of `self`: the contract of the owner, which `memory` has taken apart; its
        // regions are exposed ones (`make_private` fails), to which no reference exists (M5).
        unsafe { SharedSliceMut::from_raw(self.memory.address().as_ptr(), self.memory.len()) }
    }

    /// Returns the owner, if no region and no other clone has it.
    ///
    /// # Errors
    ///
    /// This handle, if there are others.
    pub fn into_owner(self) -> Result<O, Self> {
        // `give_back` requires memory that is not registered, because a region would have a clone,
        // and that a Memory is private: it was when it came here, and stays so.
        Arc::try_unwrap(self.memory).map(RawMemory::give_back).map_err(|memory| Self { memory, owner: PhantomData })
    }
}

impl<O> Clone for SharedOwner<O> {
    fn clone(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), owner: PhantomData }
    }
}

// SAFETY: MemoryOwner requires memory that is valid, initialised, in place, and accessed by others
// only as rdma_mem does until make_private succeeds: the owner that was taken apart promises the
// former, and the parts, a handle, keep it so. The other handles access it by `bytes`, and the
// other regions are exposed, because make_private never succeeds.
unsafe impl<O: MemoryOwner<Placement = Host>> MemoryOwner for SharedOwner<O> {
    type Placement = Host;
    type Parts = Self;
    const MAY_FAULT: bool = O::MAY_FAULT;

    fn placed(&self) -> Placed {
        self.memory.placed()
    }

    fn into_parts(self) -> (NonNull<u8>, usize, Self) {
        (self.memory.address(), self.memory.len(), self)
    }

    unsafe fn from_parts(_: NonNull<u8>, _: usize, parts: Self) -> Self {
        parts
    }

    /// Fails: other handles and regions access the memory for as long as they want.
    fn make_private(_: &mut Self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl<O> fmt::Debug for SharedOwner<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = &self.memory;
        f.debug_struct("SharedOwner").field("address", &memory.address()).field("len", &memory.len()).finish()
    }
}
