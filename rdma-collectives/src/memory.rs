//! The memory that an operation takes: tensors, or any memory of the program.

use std::ops::Range;

use rdma_mem::{SharedSlice, SharedSliceMut};

use crate::Error;
use crate::blocks::{BLOCK, bytes, parts};
use crate::element::Element;
use crate::tensor::Tensor;

/// What an operation reads: the first elements of a [`Tensor`], where they lie, or a slice of the
/// program's own memory, which is copied through tensors of the communicator.
///
/// All ranks give the same kind for an operation: ranks of which some give a tensor and others a
/// slice wait for each other in vain. [`Slice`](Self::Slice) and [`Shared`](Self::Shared) are of
/// one kind.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a, T> {
    /// So many elements of a tensor, from the first on.
    Tensor(&'a Tensor<T>, usize),
    /// Memory of the program.
    Slice(&'a [T]),
    /// Memory of the program that others may write at the same time, such as that of an object of
    /// another language: the elements that lie in these bytes, at any address. Those that change
    /// during the operation are old, new, or a mixture of both.
    Shared(SharedSlice<'a>),
}

/// What an operation writes, as [`Source`] is what it reads, and in the same way of one kind at all
/// ranks.
#[derive(Debug)]
pub enum Target<'a, T> {
    /// So many elements of a tensor, from the first on.
    Tensor(&'a Tensor<T>, usize),
    /// Memory of the program.
    Slice(&'a mut [T]),
    /// Memory of the program that others may read and write at the same time: the elements that lie
    /// in these bytes, at any address.
    Shared(SharedSliceMut<'a>),
}

impl<T: Element> Source<'_, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Tensor(_, count) => *count,
            Self::Slice(elements) => elements.len(),
            Self::Shared(bytes) => bytes.len() / size_of::<T>(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads some elements.
    pub(crate) fn read(&self, elements: Range<usize>, into: &mut Vec<T>) -> Result<(), Error> {
        into.clear();
        match self {
            Self::Slice(all) => into.extend_from_slice(part(all, elements)?),
            Self::Tensor(tensor, _) => {
                into.resize(elements.len(), T::zeroed());
                tensor.read(elements.start, into)?;
            }
            Self::Shared(all) => {
                into.resize(elements.len(), T::zeroed());
                let some = all.slice(bytes::<T>(elements)).map_err(|_| beyond())?;
                some.copy_to(bytemuck::cast_slice_mut(into)).map_err(|_| beyond())?;
            }
        }
        Ok(())
    }

    /// Copies some elements into a tensor, the first to index `start`.
    pub(crate) fn copy_to(&self, elements: Range<usize>, into: &Tensor<T>, start: usize) -> Result<(), Error> {
        match self {
            Self::Slice(all) => into.write(start, part(all, elements)?),
            Self::Tensor(tensor, _) => copy(tensor, elements, into, start),
            Self::Shared(all) => into.write_shared(start, all.slice(bytes::<T>(elements)).map_err(|_| beyond())?),
        }
    }
}

impl<T: Element> Target<'_, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_source().len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same memory, to be read.
    pub(crate) fn as_source(&self) -> Source<'_, T> {
        match self {
            Self::Tensor(tensor, count) => Source::Tensor(tensor, *count),
            Self::Slice(elements) => Source::Slice(elements),
            Self::Shared(bytes) => Source::Shared(bytes.as_shared()),
        }
    }

    /// Writes elements, the first to index `start`.
    pub(crate) fn write(&mut self, start: usize, elements: &[T]) -> Result<(), Error> {
        match self {
            Self::Slice(all) => {
                let into = all.get_mut(start..start + elements.len()).ok_or_else(beyond)?;
                into.copy_from_slice(elements);
                Ok(())
            }
            Self::Tensor(tensor, _) => tensor.write(start, elements),
            Self::Shared(all) => {
                let into = all.slice(bytes::<T>(start..start + elements.len())).map_err(|_| beyond())?;
                into.copy_from(bytemuck::cast_slice(elements).into()).map_err(|_| beyond())
            }
        }
    }

    /// Multiplies all elements.
    pub(crate) fn scale(&mut self, factor: T) -> Result<(), Error> {
        match self {
            Self::Slice(all) => {
                T::scale(all, factor);
                Ok(())
            }
            Self::Tensor(tensor, count) => tensor.part(0..*count).change(|elements| T::scale(elements, factor)),
            Self::Shared(_) => {
                let mut block = Vec::new();
                parts(0..self.len(), BLOCK / size_of::<T>()).try_for_each(|part| {
                    self.as_source().read(part.clone(), &mut block)?;
                    T::scale(&mut block, factor);
                    self.write(part.start, &block)
                })
            }
        }
    }

    /// Copies elements of a tensor, the first from index `start`, to some of these.
    pub(crate) fn copy_from(&mut self, elements: Range<usize>, from: &Tensor<T>, start: usize) -> Result<(), Error> {
        match self {
            Self::Slice(all) => {
                let all = all.get_mut(elements).ok_or_else(beyond)?;
                from.read(start, all)
            }
            Self::Tensor(tensor, _) => copy(from, start..start + elements.len(), tensor, elements.start),
            Self::Shared(all) => from.read_shared(start, all.slice(bytes::<T>(elements)).map_err(|_| beyond())?),
        }
    }
}

fn part<T>(all: &[T], elements: Range<usize>) -> Result<&[T], Error> {
    all.get(elements).ok_or_else(beyond)
}

fn beyond() -> Error {
    Error::invalid("the memory of an operation has fewer elements than the operation")
}

/// Copies elements between tensors.
fn copy<T: Element>(from: &Tensor<T>, elements: Range<usize>, into: &Tensor<T>, start: usize) -> Result<(), Error> {
    let mut copied = Ok(());
    from.for_each(elements, |at, block| {
        if copied.is_ok() {
            copied = into.write(start + at, block);
        }
    })?;
    copied
}

impl<'a, T: Element> From<&'a Tensor<T>> for Source<'a, T> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        Self::Tensor(tensor, tensor.count())
    }
}

impl<'a, T: Element> From<&'a Tensor<T>> for Target<'a, T> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        Self::Tensor(tensor, tensor.count())
    }
}

impl<'a, T> From<&'a [T]> for Source<'a, T> {
    fn from(elements: &'a [T]) -> Self {
        Self::Slice(elements)
    }
}

impl<'a, T> From<&'a mut [T]> for Target<'a, T> {
    fn from(elements: &'a mut [T]) -> Self {
        Self::Slice(elements)
    }
}

impl<'a, T> From<&'a Vec<T>> for Source<'a, T> {
    fn from(elements: &'a Vec<T>) -> Self {
        Self::Slice(elements)
    }
}

impl<'a, T> From<&'a mut Vec<T>> for Target<'a, T> {
    fn from(elements: &'a mut Vec<T>) -> Self {
        Self::Slice(elements)
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Source<'a, T> {
    fn from(elements: &'a [T; N]) -> Self {
        Self::Slice(elements)
    }
}

impl<'a, T, const N: usize> From<&'a mut [T; N]> for Target<'a, T> {
    fn from(elements: &'a mut [T; N]) -> Self {
        Self::Slice(elements)
    }
}

impl<T: Element> Tensor<T> {
    /// The first `count` elements, as what an operation reads. A count beyond the tensor's makes
    /// the operation fail.
    #[must_use]
    pub fn source(&self, count: usize) -> Source<'_, T> {
        Source::Tensor(self, count)
    }

    /// The first `count` elements, as what an operation writes. A count beyond the tensor's makes
    /// the operation fail.
    #[must_use]
    pub fn target(&self, count: usize) -> Target<'_, T> {
        Target::Tensor(self, count)
    }
}
