//! The order between a GPU and a NIC, as types.
//!
//! *Sending.* What a kernel or a copy has written can be read by a NIC only after the processor has
//! seen the end of that work. So a NIC gets a [`Ready`] slice, which an event or a stream makes, or
//! the program's word ([`Ready::assume`]).
//!
//! *Receiving.* A completion in host memory does not say that the bytes are visible to the GPU: the
//! completion and the bytes go different ways. So a received slice is [`Landed`], and only
//! [`Landed::visible`] makes one that a kernel may be given.
//!
//! So a region gives sends the memory of a [`Ready`] slice alone. What it gives receives and reads
//! is a `SinkSlice`, which no send takes, and `GpuRegion::landed` takes what a completion returns.

use crate::error::{Error, Result};
use crate::flush::FlushMethod;
use crate::gpu::Gpu;
use crate::memory::GpuSlice;

/// A value in the memory of a GPU.
pub trait OnGpu {
    /// The GPU that has the memory.
    fn gpu(&self) -> &Gpu;
}

impl<T: bytemuck::Pod> OnGpu for GpuSlice<T> {
    fn gpu(&self) -> &Gpu {
        Self::gpu(self)
    }
}

/// A slice that a NIC may read: the work that wrote it is done.
///
/// Made by [`Stream::ready`](crate::Stream::ready),
/// [`Stream::ready_later`](crate::Stream::ready_later) and [`Event::ready`](crate::Event::ready).
#[derive(Debug, Clone)]
pub struct Ready<S>(S);

impl<S> Ready<S> {
    pub(crate) fn new(slice: S) -> Self {
        Self(slice)
    }

    /// Declares a slice ready without waiting, for memory that no work of the GPU writes.
    ///
    /// If work writes it all the same, the NIC sends old or mixed bytes.
    #[must_use]
    pub fn assume(slice: S) -> Self {
        Self(slice)
    }

    /// The slice.
    #[must_use]
    pub fn get(&self) -> &S {
        &self.0
    }

    /// Takes the slice.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.0
    }
}

/// A slice that a NIC has written, which the GPU may not see yet.
///
/// Made by [`GpuRegion::landed`](crate::GpuRegion::landed) of what a completion returns.
#[derive(Debug)]
#[must_use = "the received bytes may not be visible to the GPU"]
pub struct Landed<S>(S);

impl<S: OnGpu> Landed<S> {
    /// A slice whose receive, or read, has completed, or that a peer has written.
    pub fn new(slice: S) -> Self {
        Self(slice)
    }

    /// Makes the received bytes visible to all work that is launched on the GPU from now on.
    ///
    /// # Errors
    ///
    /// With the slice: [`Error::NeedsReadBack`] if only a read by the NIC does
    /// ([`visible_by`](Self::visible_by)); errors of `cuFlushGPUDirectRDMAWrites`.
    pub fn visible(self) -> Result<Visible<S>, NotVisible<S>> {
        let gpu = self.0.gpu();
        let method = gpu.flush_method();
        let done = match method {
            FlushMethod::None => Ok(()),
            FlushMethod::Driver => gpu.flush_rdma_writes(),
            FlushMethod::ReadBack => Err(Error::NeedsReadBack),
        };
        match done {
            Ok(()) => Ok(Visible { slice: self.0, method }),
            Err(error) => Err(NotVisible { landed: self, error }),
        }
    }

    /// As [`visible`](Self::visible); if only a read by the NIC makes the bytes visible, calls
    /// `read_back`, which reads at least a byte of the slice into host memory by the NIC that wrote
    /// the slice, and returns when that read has completed.
    ///
    /// # Errors
    ///
    /// The error of `read_back`, or of `cuFlushGPUDirectRDMAWrites`.
    pub fn visible_by<E: From<Error>>(self, read_back: impl FnOnce(&S) -> Result<(), E>) -> Result<Visible<S>, E> {
        let NotVisible { landed, error } = match self.visible() {
            Ok(visible) => return Ok(visible),
            Err(not) => not,
        };
        if !matches!(error, Error::NeedsReadBack) {
            return Err(error.into());
        }
        read_back(&landed.0)?;
        Ok(Visible { slice: landed.0, method: FlushMethod::ReadBack })
    }
}

/// A received slice that a kernel may be given.
#[derive(Debug, Clone)]
pub struct Visible<S> {
    slice: S,
    method: FlushMethod,
}

impl<S> Visible<S> {
    /// The slice.
    #[must_use]
    pub fn get(&self) -> &S {
        &self.slice
    }

    /// Takes the slice.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.slice
    }

    /// The method that made the bytes visible.
    #[must_use]
    pub fn method(&self) -> FlushMethod {
        self.method
    }
}

/// A received slice could not be made visible.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotVisible<S> {
    /// The slice.
    pub landed: Landed<S>,
    /// The reason.
    pub error: Error,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuBuffer, testing};

    fn landed(ordinal: i32) -> Landed<GpuSlice<u8>> {
        let gpu = testing::stand_in().gpu(ordinal).unwrap();
        Landed::new(GpuBuffer::new(&gpu, 64).unwrap().slice())
    }

    #[test]
    fn the_gpu_decides_what_makes_writes_visible() {
        assert_eq!(landed(0).visible().unwrap().method(), FlushMethod::None);
        assert_eq!(landed(1).visible().unwrap().method(), FlushMethod::Driver);
        let not = landed(3).visible().unwrap_err();
        assert_eq!(not.error, Error::NeedsReadBack);
        assert!(not.to_string().contains("loopback"), "{not}");
    }

    #[test]
    fn a_read_back_is_done_where_nothing_else_helps() {
        let mut reads = 0;
        for ordinal in [0, 1, 3] {
            let visible = landed(ordinal).visible_by(|_| -> Result<()> {
                reads += 1;
                Ok(())
            });
            assert_eq!(visible.unwrap().get().len(), 64);
        }
        assert_eq!(reads, 1);
    }

    #[test]
    fn a_failed_read_back_makes_nothing_visible() {
        let result = landed(3).visible_by(|_| Err(Error::LengthMismatch { from: 1, to: 0 }));
        assert_eq!(result.unwrap_err(), Error::LengthMismatch { from: 1, to: 0 });
    }

    #[test]
    fn a_failed_flush_returns_the_slice() {
        let landed = landed(1);
        rdma_cuda_stand_in::Control::new().fail_next("cuFlushGPUDirectRDMAWrites", 801);
        let not = landed.visible().unwrap_err();
        assert_eq!(not.error.cuda().unwrap().call(), "cuFlushGPUDirectRDMAWrites");
        assert_eq!(not.landed.visible().unwrap().method(), FlushMethod::Driver);
    }
}
