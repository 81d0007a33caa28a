//! The memory that a collective works on.

use std::marker::PhantomData;
use std::ops::Range;

use rdma::{ExposedRegion, ExposedSlice, RemoteSlice};
use rdma_mem::{SharedSlice, SharedSliceMut};

use crate::Error;
use crate::blocks::{BLOCK, Blocks, bytes, parts};
use crate::element::{Element, Reduction};
use crate::fabric::{Fabric, Lane};
use crate::gpu::{GpuPart, GpuTensor};
use crate::shm::{HostSlice, SharedTensor};

/// A tensor: the same number of elements at every rank, in memory that the other ranks may access.
///
/// A collective writes its result here without another copy. The memory is never borrowed as a
/// slice, since other ranks may access it at any time; [`read`](Self::read) and
/// [`write`](Self::write) copy.
#[derive(Debug)]
pub struct Tensor<T> {
    memory: TensorMemory,
    count: usize,
    /// The number of the communicator that has allocated the tensor.
    owner: u64,
    element: PhantomData<T>,
}

/// The memory of a tensor.
#[derive(Debug)]
pub(crate) enum TensorMemory {
    /// Memory that the other ranks write, and the same of the other ranks.
    Exposed(ExposedRegion, Vec<RemoteSlice>),
    /// Memory that the other ranks of the host read, and that is sent to ranks of other hosts.
    Shared(SharedTensor),
    /// Memory of a GPU.
    Gpu(GpuTensor),
}

impl TensorMemory {
    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Exposed(region, _) => region.len(),
            Self::Shared(tensor) => tensor.len(),
            Self::Gpu(tensor) => tensor.len(),
        }
    }

    /// Bytes that a copy of many elements moves at a time.
    fn block(&self) -> usize {
        match self {
            Self::Exposed(..) | Self::Shared(_) => BLOCK,
            // A copy from or to a GPU takes some microseconds even if it is short.
            Self::Gpu(_) => 256 * BLOCK,
        }
    }
}

impl<T: Element> Tensor<T> {
    pub(crate) fn new(memory: TensorMemory, count: usize, owner: u64) -> Self {
        Self { memory, count, owner, element: PhantomData }
    }

    /// The memory, for a tensor of other elements.
    pub(crate) fn into_memory(self) -> TensorMemory {
        self.memory
    }

    /// Number of elements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Copies elements into the tensor, the first to index `start`.
    ///
    /// # Errors
    /// If the elements do not fit.
    pub fn write(&self, start: usize, elements: &[T]) -> Result<(), Error> {
        self.write_bytes(start, bytemuck::cast_slice(elements))
    }

    /// The same for the bytes of elements.
    pub(crate) fn write_bytes(&self, start: usize, bytes: &[u8]) -> Result<(), Error> {
        let at = self::bytes::<T>(start..start).start;
        let written = match &self.memory {
            TensorMemory::Exposed(region, _) => region.copy_in(at, bytes).map_err(Error::from),
            TensorMemory::Shared(tensor) => tensor.copy_in(at, bytes),
            TensorMemory::Gpu(tensor) => tensor.copy_in(at, bytes),
        };
        written.map_err(|error| self.beyond("written", start, bytes.len()).unwrap_or(error))
    }

    /// Copies elements out of the tensor, the first from index `start`.
    ///
    /// # Errors
    /// If the tensor has fewer elements.
    pub fn read(&self, start: usize, elements: &mut [T]) -> Result<(), Error> {
        self.read_bytes(start, bytemuck::cast_slice_mut(elements))
    }

    /// The same for the bytes of elements.
    pub(crate) fn read_bytes(&self, start: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let at = self::bytes::<T>(start..start).start;
        let length = bytes.len();
        let read = match &self.memory {
            TensorMemory::Exposed(region, _) => region.copy_out(at, bytes).map_err(Error::from),
            TensorMemory::Shared(tensor) => tensor.copy_out(at, bytes),
            TensorMemory::Gpu(tensor) => tensor.copy_out(at, bytes),
        };
        read.map_err(|error| self.beyond("read", start, length).unwrap_or(error))
    }

    /// Copies whole elements of memory that others may write into the tensor.
    pub(crate) fn write_shared(&self, start: usize, from: SharedSlice<'_>) -> Result<(), Error> {
        if let TensorMemory::Shared(tensor) = &self.memory {
            let written = tensor.copy_in_shared(bytes::<T>(start..start).start, from);
            return written.map_err(|error| self.beyond("written", start, from.len()).unwrap_or(error));
        }
        let mut copied = Ok(());
        self.fill(start..start + from.len() / size_of::<T>(), |at, block| {
            let part = from.slice(bytes::<T>(at..at + block.len()));
            copied = copied.and(part.and_then(|part| part.copy_to(bytemuck::cast_slice_mut(block))));
        })?;
        copied.map_err(|error| Error::new(error.to_string()))
    }

    /// Copies elements of the tensor into memory that others may access.
    pub(crate) fn read_shared(&self, start: usize, into: SharedSliceMut<'_>) -> Result<(), Error> {
        if let TensorMemory::Shared(tensor) = &self.memory {
            let read = tensor.copy_out_shared(bytes::<T>(start..start).start, into);
            return read.map_err(|error| self.beyond("read", start, into.len()).unwrap_or(error));
        }
        let mut copied = Ok(());
        self.for_each(start..start + into.len() / size_of::<T>(), |at, block| {
            let part = into.slice(bytes::<T>(at..at + block.len()));
            copied = copied.and(part.and_then(|part| part.copy_from(bytemuck::cast_slice(block).into())));
        })?;
        copied.map_err(|error| Error::new(error.to_string()))
    }

    /// The error for so many bytes that are not in the tensor; `None` if they are.
    #[cold]
    fn beyond(&self, done: &str, start: usize, bytes: usize) -> Option<Error> {
        let (count, size, name) = (self.count, size_of::<T>(), T::NAME);
        let elements = bytes.div_ceil(size);
        if start.checked_add(elements).is_some_and(|end| end <= count) {
            return None;
        }
        Some(Error::invalid(format!(
            "{elements} elements of {name} ({bytes} bytes) cannot be {done} from element {start} on: the tensor has \
             {count} ({} bytes)",
            count.saturating_mul(size)
        )))
    }

    /// Calls `fill` for blocks of some elements, with the position of the block among them, and
    /// copies each filled block into the tensor.
    ///
    /// # Errors
    /// If the tensor has fewer elements.
    pub fn fill(&self, elements: Range<usize>, mut fill: impl FnMut(usize, &mut [T])) -> Result<(), Error> {
        let mut block = self.new_block(elements.len());
        for part in parts(elements.clone(), block.len()) {
            let block = &mut block[..part.len()];
            fill(part.start - elements.start, block);
            self.write(part.start, block)?;
        }
        Ok(())
    }

    /// Calls `look` with copies of blocks of some elements, and their position among them.
    ///
    /// # Errors
    /// If the tensor has fewer elements.
    pub fn for_each(&self, elements: Range<usize>, mut look: impl FnMut(usize, &[T])) -> Result<(), Error> {
        let mut block = self.new_block(elements.len());
        for part in parts(elements.clone(), block.len()) {
            let block = &mut block[..part.len()];
            self.read(part.start, block)?;
            look(part.start - elements.start, block);
        }
        Ok(())
    }

    /// Space for the elements of one copy, of `count` elements at most.
    fn new_block(&self, count: usize) -> Vec<T> {
        vec![T::zeroed(); (self.memory.block() / size_of::<T>()).min(count)]
    }

    /// Some elements, as the input or output of a collective.
    #[must_use]
    pub fn part(&self, elements: Range<usize>) -> Part<'_, T> {
        Part { tensor: self, elements }
    }

    /// The local memory of some elements.
    pub(crate) fn local(&self, elements: Range<usize>) -> Result<ExposedSlice, Error> {
        self.exposed()?.0.slice(bytes::<T>(elements)).map_err(Error::from)
    }

    /// The memory of the same elements at another rank.
    pub(crate) fn remote(&self, rank: usize, elements: Range<usize>) -> Result<RemoteSlice, Error> {
        self.exposed()?.1[rank].slice(bytes::<T>(elements)).map_err(Error::from)
    }

    /// The memory that the other ranks write.
    pub(crate) fn exposed(&self) -> Result<(&ExposedRegion, &[RemoteSlice]), Error> {
        match &self.memory {
            TensorMemory::Exposed(region, remotes) => Ok((region, remotes)),
            TensorMemory::Shared(_) => Err(Error::new("the tensor is in shared memory, which RDMA does not reach")),
            TensorMemory::Gpu(_) => {
                Err(Error::new("the tensor is in the memory of a GPU, which only schedules work on"))
            }
        }
    }

    /// The memory that the other ranks read.
    pub(crate) fn shared(&self) -> Option<&SharedTensor> {
        match &self.memory {
            TensorMemory::Shared(tensor) => Some(tensor),
            TensorMemory::Exposed(..) | TensorMemory::Gpu(_) => None,
        }
    }

    /// The number of the communicator whose operations the tensor is for.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// Whether two references name the same tensor.
    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// Some elements of a tensor.
#[derive(Clone, Debug)]
pub struct Part<'a, T> {
    tensor: &'a Tensor<T>,
    elements: Range<usize>,
}

impl<T: Element> Part<'_, T> {
    /// The local memory of the elements.
    pub(crate) fn slice(&self) -> Result<HostSlice, Error> {
        let bytes = bytes::<T>(self.elements.clone());
        match &self.tensor.memory {
            TensorMemory::Exposed(region, _) => Ok(region.slice(bytes)?.into()),
            TensorMemory::Shared(tensor) => tensor.slice(bytes),
            TensorMemory::Gpu(_) => Err(Error::new("a collective has one tensor on a GPU and one in host memory")),
        }
    }

    /// The memory of the elements, if the tensor is on a GPU.
    pub(crate) fn gpu(&self) -> Option<Result<GpuPart, Error>> {
        match &self.tensor.memory {
            TensorMemory::Gpu(tensor) => Some(tensor.part(bytes::<T>(self.elements.clone()))),
            TensorMemory::Exposed(..) | TensorMemory::Shared(_) => None,
        }
    }

    /// The tensor.
    pub(crate) fn tensor(&self) -> &Tensor<T> {
        self.tensor
    }

    /// Replaces each element; `change` is called with blocks.
    pub(crate) fn change(&self, mut change: impl FnMut(&mut [T])) -> Result<(), Error> {
        let mut block = self.tensor.new_block(self.elements.len());
        for part in parts(self.elements.clone(), block.len()) {
            let block = &mut block[..part.len()];
            self.tensor.read(part.start, block)?;
            change(block);
            self.tensor.write(part.start, block)?;
        }
        Ok(())
    }
}

/// Divides sums by the number of ranks if the reduction is the average.
pub(crate) fn finish<T: Element>(sums: &Part<'_, T>, reduction: Reduction, ranks: usize) -> Result<(), Error> {
    if reduction != Reduction::Avg {
        return Ok(());
    }
    sums.change(|elements| reduction.finish(elements, ranks))
}

/// One all-reduce in progress.
#[derive(Debug)]
pub(crate) struct Operation<'a, T> {
    pub(crate) fabric: &'a mut Fabric,
    pub(crate) blocks: &'a mut Blocks,
    pub(crate) input: &'a Tensor<T>,
    pub(crate) output: &'a Tensor<T>,
    pub(crate) count: usize,
    pub(crate) reduction: Reduction,
}

impl<T: Element> Operation<'_, T> {
    /// Sends finished elements to their place in a rank's output.
    pub(crate) fn send_result(&mut self, to: usize, lane: Lane, elements: Range<usize>) -> Result<(), Error> {
        let place = self.output.remote(to, elements.clone())?;
        self.fabric.send(to, lane, self.output.local(elements)?, place).map(drop)
    }
}
