//! Memory that is registered while it is borrowed.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, RangeBounds};
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;

use super::buffer::resolve;
use super::local::{Lent, LentSlice, LentSliceMut};
use super::memory::RawMemory;
use super::options::RegisterOptions;
use super::{Kind, Reach, Region};
use crate::error::{ErrorKind, Result};
use crate::handle::Handle;
use crate::pd::ProtectionDomain;

impl ProtectionDomain {
    /// Registers memory of the caller for the duration of `body`, for the local device only. Its
    /// parts are lent to [scopes](crate::QueuePair::scope) of queue pairs.
    ///
    /// Each call registers and deregisters the memory. On a NIC that is two system calls and the
    /// pinning of each page, from some microseconds for a page to a tenth of a second or more for a
    /// gigabyte: memory that is used again is better given away with
    /// [`register`](Self::register). The pages hold other data of the caller, too; the device's
    /// access ends at the last byte of the memory.
    ///
    /// If the memory cannot be deregistered, the device may still access it when its borrow ends,
    /// and the process is aborted. A panic of the body goes on after deregistration.
    ///
    /// # Errors
    ///
    /// `body` was not called: `InvalidInput` if the memory has no bytes; errors of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, b: _b, .. } = pair()?;
    /// # let region = pd.allocate_exposed(64, rdma::RemoteAccess::READ)?;
    /// # region.copy_in(0, &[1; 64])?;
    /// use std::time::Duration;
    ///
    /// use rdma::op;
    ///
    /// let mut counters = [0_u32; 16];
    /// let remote = region.remote(..)?;
    /// pd.register_scoped(&mut counters, |memory| {
    ///     let lent = memory.lend_mut(..8);
    ///     a.scope(&mut poller, Duration::from_secs(5), |scope| {
    ///         scope.post_send(op::read(lent, remote)).map_err(|refused| refused.error())
    ///     })
    /// })???;
    /// assert_eq!((counters[7], counters[8]), (0x0101_0101, 0));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_scoped<T: Pod, R>(
        &self,
        memory: &mut [T],
        body: impl FnOnce(&mut ScopedMemory<'_, T>) -> R,
    ) -> Result<R> {
        self.register_scoped_with(memory, &RegisterOptions::new(), body)
    }

    /// Registers memory for the duration of `body` as [`register_scoped`](Self::register_scoped)
    /// does, with options.
    ///
    /// # Errors
    ///
    /// `body` was not called: options that local memory may not have, or that the device lacks;
    /// otherwise as for [`register_scoped`](Self::register_scoped).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_scoped_with<T: Pod, R>(
        &self,
        memory: &mut [T],
        options: &RegisterOptions,
        body: impl FnOnce(&mut ScopedMemory<'_, T>) -> R,
    ) -> Result<R> {
        let (len, count) = (size_of_val(memory), memory.len());
        let pointer = NonNull::from(memory).cast::<u8>();
        // The memory of the region is borrowed until the region has ended, or the process has: no
        // statement in between returns or unwinds (M1).
        let memory = RawMemory::borrowed(pointer, len);
        let region = Region::new(&self.inner, memory, Kind::LocalHost, options, Reach::Address);
        let region = region.map_err(|(error, _)| error)?;
        let mut scoped = ScopedMemory { lent: Lent::whole(&region), count, memory: PhantomData, scope: PhantomData };
        let result = panic::catch_unwind(AssertUnwindSafe(|| body(&mut scoped)));
        end(region);
        Ok(result.unwrap_or_else(|panic| panic::resume_unwind(panic)))
    }
}

/// Ends the region of borrowed memory, or the process. No request uses the memory any more: lent
/// parts are borrowed from the [`ScopedMemory`], whose borrow has ended, and a queue pair's scope
/// keeps the borrow until its requests have ended.
fn end(region: Arc<Handle<Region>>) {
    // A failure is not dropped, which might unwind.
    let Err(failed) = Handle::close(region).map(drop).map_err(ManuallyDrop::new) else { return };
    if failed.error.kind() == ErrorKind::Forked {
        // The parent's region has the parent's memory, and not this child's copy.
        return;
    }
    let error = failed.error;
    // A subscriber may panic.
    let logged = panic::catch_unwind(|| {
        tracing::error!(
            name: "lent_memory_kept", target: "rdma",
            %error, "the device keeps access to memory that was only lent to it; the process is aborted"
        );
    });
    let _ = ManuallyDrop::new(logged);
    process::abort();
}

/// Registered memory of the caller, while [`register_scoped`](ProtectionDomain::register_scoped)
/// runs a function. It derefs to the elements.
pub struct ScopedMemory<'scope, T> {
    lent: Lent,
    count: usize,
    memory: PhantomData<&'scope mut [T]>,
    /// Makes the lifetime invariant, so that the memories of two calls cannot be swapped.
    scope: PhantomData<fn(&'scope ()) -> &'scope ()>,
}

impl<T: Pod> ScopedMemory<'_, T> {
    /// Lends elements to the device, to read, for the duration of a
    /// [scope](crate::QueuePair::scope).
    ///
    /// # Panics
    ///
    /// If the range does not lie in the memory, as when indexing a slice.
    #[must_use]
    #[track_caller]
    pub fn lend(&self, range: impl RangeBounds<usize>) -> LentSlice<'_> {
        LentSlice::of_lent(self.part(range))
    }

    /// Lends elements to the device, to write, for the duration of a
    /// [scope](crate::QueuePair::scope).
    ///
    /// # Panics
    ///
    /// If the range does not lie in the memory, as when indexing a slice.
    #[must_use]
    #[track_caller]
    pub fn lend_mut(&mut self, range: impl RangeBounds<usize>) -> LentSliceMut<'_> {
        LentSliceMut::of_lent(self.part(range))
    }

    #[track_caller]
    fn part(&self, range: impl RangeBounds<usize>) -> Lent {
        let range = resolve(range, self.count).expect("the range lies in the memory");
        self.lent.part(range.start * size_of::<T>()..range.end * size_of::<T>())
    }
}

impl<T: Pod> Deref for ScopedMemory<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: from_raw_parts requires `count` valid, aligned elements, which nobody writes
        // during the borrow: they are those of a slice that is borrowed exclusively for the
        // lifetime of the scope; whatever a device has written is a value of a `Pod`; a device
        // writes only while a `LentSliceMut` borrows `self` exclusively.
        unsafe { slice::from_raw_parts(self.lent.pointer.as_ptr().cast(), self.count) }
    }
}

impl<T: Pod> DerefMut for ScopedMemory<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: from_raw_parts_mut requires `count` valid, aligned elements without other
        // accesses: as in `deref`, and a device reads only while a `LentSlice` borrows `self`.
        unsafe { slice::from_raw_parts_mut(self.lent.pointer.as_ptr().cast(), self.count) }
    }
}

impl<T> fmt::Debug for ScopedMemory<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedMemory").field("len", &self.count).finish_non_exhaustive()
    }
}
