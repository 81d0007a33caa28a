//! Registered memory, which the device and peers may access at any time.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::errno::Errno;
use rdma_mem::{SharedMemory, SharedSliceMut};
use rdma_sys::{ibv_access_flags, ibv_mr};

use super::id::RawId;
use super::{Id, pointer};

/// Who may access a region besides this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The device.
    Local,
    /// The device, and peers that know the key may write.
    PeerWrites,
}

impl Access {
    pub(super) fn flags(self) -> libc::c_uint {
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        match self {
            Self::Local => local,
            Self::PeerWrites => local | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        }
    }
}

/// Memory of our own, registered for as long as the value lives. It leaks if its registration
/// cannot be ended.
#[derive(Debug)]
pub(crate) struct Region {
    registration: ManuallyDrop<Registration>,
    memory: ManuallyDrop<SharedMemory>,
}

impl Region {
    /// Allocates and registers `len` bytes, all zero.
    pub(super) fn new(id: &Id, len: usize, access: Access) -> Result<Self, Errno> {
        let memory =
            SharedMemory::new(len).map_err(|error| error.raw_os_error().map_or(Errno::ENOMEM, Errno::from_raw))?;
        // SAFETY: `new` requires memory that stays valid while it is registered: the drop gives it
        // back only once the registration has ended.
        let registration = unsafe { Registration::new(id, memory.as_ptr(), len, access) }?;
        Ok(Self { registration: ManuallyDrop::new(registration), memory: ManuallyDrop::new(memory) })
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// The address for peers of the byte at `offset`.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.memory.as_ptr().wrapping_add(offset).expose_provenance() as u64
    }

    pub(crate) fn local_key(&self) -> u32 {
        self.registration.local_key
    }

    pub(crate) fn remote_key(&self) -> u32 {
        self.registration.remote_key
    }

    /// Copies bytes of the region. `EFAULT` if they do not lie in it.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Errno> {
        let part = self.bytes().slice(offset..offset.saturating_add(into.len())).map_err(|_| Errno::EFAULT)?;
        part.as_shared().copy_to(into).map_err(|_| Errno::EFAULT)
    }

    /// Copies bytes to the region. `EFAULT` if they do not fit.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Errno> {
        let part = self.bytes().slice(offset..offset.saturating_add(from.len())).map_err(|_| Errno::EFAULT)?;
        part.copy_from(from.into()).map_err(|_| Errno::EFAULT)
    }

    /// Loads the aligned word at `offset`; what its writer stored before is visible afterwards.
    pub(crate) fn load(&self, offset: usize) -> Result<u64, Errno> {
        self.bytes().as_shared().load_u64(offset).map_err(|_| Errno::EFAULT)
    }

    fn bytes(&self) -> SharedSliceMut<'_> {
        // SAFETY: from_raw requires memory that is valid for reads and writes while `self` is
        // borrowed, without plain accesses: the mapping lives as long as `self`, and the region is
        // accessed here only (5).
        unsafe { SharedSliceMut::from_raw(self.memory.as_ptr(), self.memory.len()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: take requires that the field is not used again: this is the drop.
        let registration = unsafe { ManuallyDrop::take(&mut self.registration) };
        match registration.end() {
            // SAFETY: drop requires that the field is not used again: this is the drop.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            // The device and peers may still access the memory.
            Err((registration, _)) => {
                let _leaked = ManuallyDrop::new(registration);
            }
        }
    }
}

/// A memory region of the device over memory of somebody else.
#[derive(Debug)]
pub(crate) struct Registration {
    /// The id whose domain this is (3).
    id: Arc<RawId>,
    /// `None` after its end.
    raw: Option<NonNull<ibv_mr>>,
    local_key: u32,
    remote_key: u32,
}

// SAFETY: Send requires that another thread may use and drop the value: verbs on a region may be
// called in any thread (4), and the value owns it (2).
unsafe impl Send for Registration {}

impl Registration {
    /// The key with which peers write the memory.
    pub(crate) fn remote_key(&self) -> u32 {
        self.remote_key
    }

    /// Registers memory.
    ///
    /// # Safety
    ///
    /// The memory stays valid for the accesses of `access` while the value lives.
    pub(super) unsafe fn new(id: &Id, address: *mut u8, len: usize, access: Access) -> Result<Self, Errno> {
        let (_, domain) = id.device()?;
        // SAFETY: ibv_reg_mr requires a live domain, that of a live id (2), and valid memory, this
        // function's condition.
        let raw = pointer(|| unsafe {
            id.libraries().verbs.ibv_reg_mr(domain.as_ptr(), address.cast(), len, access.flags())
        })?;
        // SAFETY: the read requires a live region, which was just made.
        let mr = unsafe { raw.read() };
        Ok(Self { id: id.share(), raw: Some(raw), local_key: mr.lkey, remote_key: mr.rkey })
    }

    /// Ends the registration. If that fails, the device and peers may still access the memory.
    pub(crate) fn end(mut self) -> Result<(), (Self, Errno)> {
        match self.deregister() {
            0 => Ok(()),
            kept => Err((self, Errno::from_raw(kept))),
        }
    }

    fn deregister(&mut self) -> libc::c_int {
        let Some(raw) = self.raw else { return 0 };
        // SAFETY: ibv_dereg_mr requires a live region that nobody uses after a success (2): the
        // pointer is forgotten then. A request that still names the region fails.
        let kept = unsafe { (self.id.libraries().verbs.ibv_dereg_mr)(raw.as_ptr()) };
        if kept == 0 {
            self.raw = None;
        }
        kept
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The memory is the application's, which keeps it as long as the socket.
        let _kept = self.deregister();
    }
}
