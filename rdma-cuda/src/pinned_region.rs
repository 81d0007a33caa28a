//! Pinned host memory that peers access, for programs that stage messages themselves.
//!
//! # Safety
//!
//! 1. The region of a [`PinnedRegion`] is never revoked, so the pinned memory is lent to nobody
//!    while a GPU's copy engine may access it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rdma::{ExposedRegion, ExposedSlice, ProtectionDomain, RemoteAccess};

use crate::error::{Error, Result};
use crate::event::Event;
use crate::gpu::Gpu;
use crate::memory::{GpuSlice, PinnedBuffer, PinnedMemory};
use crate::stream::Stream;

/// Host memory that a NIC, its peers and a GPU's copy engine access at any time.
///
/// Nothing orders these accesses but the events of the copies and the completions of the NIC: bytes
/// that one changes while another reads them are old or new.
///
/// # Examples
///
/// ```no_run
/// use rdma::RemoteAccess;
/// use rdma_cuda::{Gpu, GpuBuffer, PinnedRegion, Stream};
///
/// # fn f(pd: &rdma::ProtectionDomain) -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Gpu::new(0)?;
/// let (stream, buffer) = (Stream::new(&gpu)?, GpuBuffer::<u8>::new(&gpu, 4096)?);
/// let pinned = PinnedRegion::new(&gpu, pd, 4096, RemoteAccess::READ)?;
/// let target = pinned.region().slice(..)?;
/// pinned.download(&stream, &buffer.slice(), &target)?.wait()?;
/// let advertised = target.remote(..)?;
/// # let _ = advertised; Ok(()) }
/// ```
pub struct PinnedRegion {
    region: ExposedRegion,
    memory: Arc<PinnedMemory>,
}

impl PinnedRegion {
    /// Allocates and registers `len` bytes, which are zeroed.
    ///
    /// # Errors
    ///
    /// [`Error::BufferSize`] for 0 bytes; errors of the driver and the device.
    pub fn new(gpu: &Gpu, pd: &ProtectionDomain, len: usize, access: RemoteAccess) -> Result<Self> {
        let pinned = PinnedBuffer::<u8>::new(gpu, len)?;
        let memory = pinned.memory();
        Ok(Self { region: pd.register_exposed(pinned, access).map_err(|failed| failed.error)?, memory })
    }

    /// The registered memory.
    #[must_use]
    pub fn region(&self) -> &ExposedRegion {
        &self.region
    }

    /// Begins a copy from the GPU to a slice of the region, and returns its end.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`]; [`Error::OutOfBounds`] if the slice is one of another region;
    /// [`Error::OtherGpu`]; errors of the driver.
    pub fn download(&self, stream: &Stream, from: &GpuSlice<u8>, to: &ExposedSlice) -> Result<Event> {
        stream.check_gpu(from)?;
        let target = self.place(to, from.size())?;
        stream.submit((from.clone(), Arc::clone(&self.memory)), |driver, stream| {
            // SAFETY: cuMemcpyDtoHAsync requires as many bytes on both sides until the copy is
            // done: `place` has checked the host's, and the stream keeps both. No reference to the
            // host's bytes exists: `register_exposed` has taken their owner, which nobody gets
            // back.
            unsafe { driver.cuMemcpyDtoHAsync_v2(target.cast(), from.address(), from.size(), stream) }
        })
    }

    /// Begins a copy of a slice of the region to the GPU, and returns its end.
    ///
    /// # Errors
    ///
    /// As [`Self::download`].
    pub fn upload(&self, stream: &Stream, from: &ExposedSlice, to: &GpuSlice<u8>) -> Result<Event> {
        stream.check_gpu(to)?;
        let source = self.place(from, to.size())?;
        stream.submit((to.clone(), Arc::clone(&self.memory)), |driver, stream| {
            // SAFETY: cuMemcpyHtoDAsync requires as many bytes on both sides until the copy is
            // done: `place` has checked the host's, and the stream keeps both.
            unsafe { driver.cuMemcpyHtoDAsync_v2(to.address(), source.cast(), to.size(), stream) }
        })
    }

    /// The first byte of a slice, `len` bytes of this region.
    fn place(&self, slice: &ExposedSlice, len: usize) -> Result<*mut u8> {
        if slice.len() != len {
            return Err(Error::LengthMismatch { from: len, to: slice.len() });
        }
        let [region, slice] = [self.region.remote(..)?.address(), slice.remote(..)?.address()];
        let start = usize::try_from(slice.wrapping_sub(region)).unwrap_or(usize::MAX);
        let Range { start, end } = start..start.saturating_add(len);
        if end > self.region.len() {
            return Err(Error::OutOfBounds { start, end, len: self.region.len() });
        }
        // SAFETY: add requires a place in the allocation: it has the region's length.
        Ok(unsafe { self.memory.start().as_ptr().add(start) })
    }
}

impl fmt::Debug for PinnedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedRegion({:?})", self.region)
    }
}

#[cfg(test)]
mod tests {
    use rdma::DeviceSelector;

    use super::*;
    use crate::{GpuBuffer, testing};

    fn domain() -> ProtectionDomain {
        let selector: DeviceSelector = "soft0".parse().unwrap();
        rdma::open(&selector).unwrap().context.alloc_pd().unwrap()
    }

    #[test]
    fn bytes_go_to_the_gpu_and_back() {
        let (gpu, pd) = (testing::driver().gpu(0).unwrap(), domain());
        let pinned = PinnedRegion::new(&gpu, &pd, 8192, RemoteAccess::WRITE).unwrap();
        let (stream, buffer) = (Stream::new(&gpu).unwrap(), GpuBuffer::<u8>::new(&gpu, 4096).unwrap());
        let part = |range: Range<usize>| pinned.region().slice(range).unwrap();
        pinned.region().fill(0, 4096, 7).unwrap();
        pinned.upload(&stream, &part(0..4096), &buffer.slice()).unwrap();
        pinned.download(&stream, &buffer.slice().range(..100).unwrap(), &part(8092..8192)).unwrap().wait().unwrap();
        let mut bytes = [0; 101];
        pinned.region().copy_out(8091, &mut bytes).unwrap();
        assert_eq!((bytes[0], &bytes[1..]), (0, &[7; 100][..]));
    }

    #[test]
    fn slices_of_other_memory_are_refused() {
        let (gpu, pd) = (testing::driver().gpu(0).unwrap(), domain());
        let [pinned, other] = [0, 1].map(|_| PinnedRegion::new(&gpu, &pd, 64, RemoteAccess::WRITE).unwrap());
        let (stream, buffer) = (Stream::new(&gpu).unwrap(), GpuBuffer::<u8>::new(&gpu, 64).unwrap());
        let foreign = pinned.download(&stream, &buffer.slice(), &other.region().slice(..).unwrap());
        assert!(matches!(foreign, Err(Error::OutOfBounds { .. })), "{foreign:?}");
        let there = GpuBuffer::<u8>::new(&testing::stand_in().gpu(1).unwrap(), 64).unwrap().slice();
        let here = Stream::new(&testing::stand_in().gpu(0).unwrap()).unwrap();
        let whole = pinned.region().slice(..).unwrap();
        assert_eq!(pinned.upload(&here, &whole, &there).map(drop), Err(Error::OtherGpu));
        assert_eq!(pinned.download(&here, &there, &whole).map(drop), Err(Error::OtherGpu));
        let short = pinned.upload(&stream, &pinned.region().slice(1..).unwrap(), &buffer.slice());
        assert!(matches!(short, Err(Error::LengthMismatch { .. })), "{short:?}");
    }
}
