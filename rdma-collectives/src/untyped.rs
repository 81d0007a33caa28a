//! Memory whose type of elements is known at run time, for programs that learn it from a file, a
//! message or another language: bytes with a [`DataType`].
//!
//! The operations on it are those of [`Communicator::untyped`], which have the names of the typed
//! ones, and do the same. Nothing is copied beside: bytes become a slice of elements, after a look
//! at their length and alignment.

mod operations;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;

use rdma_mem::{SharedSlice, SharedSliceMut};

use crate::Error;
use crate::communicator::Communicator;
use crate::element::{DataType, Element, ElementVisitor};
use crate::memory::{Source, Target};
use crate::tensor::Tensor;

pub use self::operations::Untyped;

/// What an operation of [`Untyped`] reads: bytes of the program, or elements of a tensor, with
/// their type.
///
/// ```
/// use rdma_collectives::{DataType, UntypedSource};
///
/// let bytes = 1.5_f64.to_ne_bytes();
/// assert_eq!(UntypedSource::new(DataType::U8, &bytes)?.len(), 8);
/// assert!(UntypedSource::new(DataType::F64, &bytes[..7]).is_err());
/// let typed = UntypedSource::from(&[1.5_f32, 2.5]);
/// assert_eq!((typed.data_type(), typed.len()), (DataType::F32, 2));
/// # Ok::<(), rdma_collectives::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UntypedSource<'a> {
    data_type: DataType,
    memory: SourceMemory<'a>,
}

/// What an operation of [`Untyped`] writes, as [`UntypedSource`] is what it reads.
#[derive(Debug)]
pub struct UntypedTarget<'a> {
    data_type: DataType,
    memory: TargetMemory<'a>,
}

/// A [`Tensor`] whose type of elements is known at run time.
pub struct UntypedTensor {
    data_type: DataType,
    count: usize,
    /// A tensor of the data type.
    tensor: Box<dyn Any + Send + Sync>,
}

#[derive(Clone, Copy, Debug)]
enum SourceMemory<'a> {
    /// So many elements of a tensor of the data type, from the first on.
    Tensor(&'a dyn Any, usize),
    /// Whole elements, at an address that elements of the type may have.
    Bytes(&'a [u8]),
    /// Whole elements, at any address.
    Shared(SharedSlice<'a>),
}

#[derive(Debug)]
enum TargetMemory<'a> {
    Tensor(&'a dyn Any, usize),
    Bytes(&'a mut [u8]),
    Shared(SharedSliceMut<'a>),
}

impl<'a> UntypedSource<'a> {
    /// Elements of the program, in this machine's order of bytes.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes are no whole number of elements, or lie at an address that such
    /// elements cannot have.
    pub fn new(data_type: DataType, bytes: &'a [u8]) -> Result<Self, Error> {
        check(data_type, bytes)?;
        Ok(Self { data_type, memory: SourceMemory::Bytes(bytes) })
    }

    /// Elements that others may write at the same time, such as those of an object of another
    /// language: see [`Source::Shared`].
    ///
    /// # Errors
    /// `InvalidInput` if the bytes are no whole number of elements.
    pub fn shared(data_type: DataType, bytes: SharedSlice<'a>) -> Result<Self, Error> {
        check_whole(data_type, bytes.len())?;
        Ok(Self { data_type, memory: SourceMemory::Shared(bytes) })
    }

    /// The type of the elements.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.memory {
            SourceMemory::Tensor(_, count) => count,
            SourceMemory::Bytes(bytes) => bytes.len() / self.data_type.size(),
            SourceMemory::Shared(bytes) => bytes.len() / self.data_type.size(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same memory for code of one type.
    ///
    /// # Errors
    /// `InvalidInput` if the elements have another type.
    pub fn typed<T: Element>(self) -> Result<Source<'a, T>, Error> {
        match self.memory {
            _ if self.data_type != T::TYPE => Err(other_type(self.data_type, T::TYPE)),
            SourceMemory::Tensor(tensor, count) => Ok(Source::Tensor(tensor_of(tensor)?, count)),
            SourceMemory::Shared(bytes) => Ok(Source::Shared(bytes)),
            SourceMemory::Bytes([]) => Ok(Source::Slice(&[])),
            SourceMemory::Bytes(bytes) => {
                let elements = bytemuck::try_cast_slice(bytes).map_err(|_| misplaced(T::TYPE))?;
                Ok(Source::Slice(elements))
            }
        }
    }
}

impl<'a> UntypedTarget<'a> {
    /// Elements of the program, in this machine's order of bytes.
    ///
    /// # Errors
    /// As for [`UntypedSource::new`].
    pub fn new(data_type: DataType, bytes: &'a mut [u8]) -> Result<Self, Error> {
        check(data_type, bytes)?;
        Ok(Self { data_type, memory: TargetMemory::Bytes(bytes) })
    }

    /// Elements that others may read and write at the same time: see [`Target::Shared`].
    ///
    /// # Errors
    /// `InvalidInput` if the bytes are no whole number of elements.
    pub fn shared(data_type: DataType, bytes: SharedSliceMut<'a>) -> Result<Self, Error> {
        check_whole(data_type, bytes.len())?;
        Ok(Self { data_type, memory: TargetMemory::Shared(bytes) })
    }

    /// The type of the elements.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.memory {
            TargetMemory::Tensor(_, count) => *count,
            TargetMemory::Bytes(bytes) => bytes.len() / self.data_type.size(),
            TargetMemory::Shared(bytes) => bytes.len() / self.data_type.size(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same memory for code of one type.
    ///
    /// # Errors
    /// `InvalidInput` if the elements have another type.
    pub fn typed<T: Element>(self) -> Result<Target<'a, T>, Error> {
        match self.memory {
            _ if self.data_type != T::TYPE => Err(other_type(self.data_type, T::TYPE)),
            TargetMemory::Tensor(tensor, count) => Ok(Target::Tensor(tensor_of(tensor)?, count)),
            TargetMemory::Shared(bytes) => Ok(Target::Shared(bytes)),
            TargetMemory::Bytes([]) => Ok(Target::Slice(&mut [])),
            TargetMemory::Bytes(bytes) => {
                let elements = bytemuck::try_cast_slice_mut(bytes).map_err(|_| misplaced(T::TYPE))?;
                Ok(Target::Slice(elements))
            }
        }
    }
}

impl UntypedTensor {
    /// The type of the elements.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Number of elements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The tensor for code of one type; `None` if its elements have another one.
    #[must_use]
    pub fn typed<T: Element>(&self) -> Option<&Tensor<T>> {
        self.tensor.downcast_ref()
    }

    /// The first `count` elements, as what an operation reads. A count beyond the tensor's makes
    /// the operation fail.
    #[must_use]
    pub fn source(&self, count: usize) -> UntypedSource<'_> {
        UntypedSource { data_type: self.data_type, memory: SourceMemory::Tensor(&*self.tensor, count) }
    }

    /// The first `count` elements, as what an operation writes. A count beyond the tensor's makes
    /// the operation fail.
    #[must_use]
    pub fn target(&self, count: usize) -> UntypedTarget<'_> {
        UntypedTarget { data_type: self.data_type, memory: TargetMemory::Tensor(&*self.tensor, count) }
    }

    /// Copies bytes into the tensor, the first to the element `start`.
    ///
    /// # Errors
    /// If the bytes do not fit, or are no whole elements.
    pub fn write(&self, start: usize, bytes: &[u8]) -> Result<(), Error> {
        check_whole(self.data_type, bytes.len())?;
        struct Write<'a>(&'a UntypedTensor, usize, &'a [u8]);
        impl ElementVisitor for Write<'_> {
            type Output = Result<(), Error>;
            fn visit<T: Element>(self) -> Self::Output {
                let Self(UntypedTensor { tensor, .. }, start, bytes) = self;
                tensor_of::<T>(&**tensor)?.write_bytes(start, bytes)
            }
        }
        self.data_type.visit(Write(self, start, bytes))
    }

    /// Copies bytes out of the tensor, the first from the element `start`.
    ///
    /// # Errors
    /// If the tensor has fewer, or the bytes are no whole elements.
    pub fn read(&self, start: usize, bytes: &mut [u8]) -> Result<(), Error> {
        check_whole(self.data_type, bytes.len())?;
        struct Read<'a>(&'a UntypedTensor, usize, &'a mut [u8]);
        impl ElementVisitor for Read<'_> {
            type Output = Result<(), Error>;
            fn visit<T: Element>(self) -> Self::Output {
                let Self(UntypedTensor { tensor, .. }, start, bytes) = self;
                tensor_of::<T>(&**tensor)?.read_bytes(start, bytes)
            }
        }
        self.data_type.visit(Read(self, start, bytes))
    }
}

impl fmt::Debug for UntypedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data_type, count, .. } = self;
        f.debug_struct("UntypedTensor").field("data_type", data_type).field("count", count).finish_non_exhaustive()
    }
}

impl<T: Element> From<Tensor<T>> for UntypedTensor {
    fn from(tensor: Tensor<T>) -> Self {
        Self { data_type: T::TYPE, count: tensor.count(), tensor: Box::new(tensor) }
    }
}

impl<'a> From<&'a UntypedTensor> for UntypedSource<'a> {
    fn from(tensor: &'a UntypedTensor) -> Self {
        tensor.source(tensor.count)
    }
}

impl<'a> From<&'a UntypedTensor> for UntypedTarget<'a> {
    fn from(tensor: &'a UntypedTensor) -> Self {
        tensor.target(tensor.count)
    }
}

impl<'a, T: Element> From<Source<'a, T>> for UntypedSource<'a> {
    fn from(memory: Source<'a, T>) -> Self {
        let memory = match memory {
            Source::Tensor(tensor, count) => SourceMemory::Tensor(tensor, count),
            Source::Slice(elements) => SourceMemory::Bytes(bytemuck::cast_slice(elements)),
            Source::Shared(bytes) => SourceMemory::Shared(bytes),
        };
        Self { data_type: T::TYPE, memory }
    }
}

impl<'a, T: Element> From<Target<'a, T>> for UntypedTarget<'a> {
    fn from(memory: Target<'a, T>) -> Self {
        let memory = match memory {
            Target::Tensor(tensor, count) => TargetMemory::Tensor(tensor, count),
            Target::Slice(elements) => TargetMemory::Bytes(bytemuck::cast_slice_mut(elements)),
            Target::Shared(bytes) => TargetMemory::Shared(bytes),
        };
        Self { data_type: T::TYPE, memory }
    }
}

/// Typed memory, which becomes untyped as it becomes a [`Source`] or a [`Target`].
macro_rules! from_typed {
    ($($(const $n:ident;)? $type:ty;)+) => {$(
        impl<'a, T: Element $(, const $n: usize)?> From<&'a $type> for UntypedSource<'a> {
            fn from(memory: &'a $type) -> Self {
                Source::from(memory).into()
            }
        }
    )+};
}

from_typed! {
    Tensor<T>;
    [T];
    Vec<T>;
    const N; [T; N];
}

impl<'a, T: Element> From<&'a Tensor<T>> for UntypedTarget<'a> {
    fn from(memory: &'a Tensor<T>) -> Self {
        Target::from(memory).into()
    }
}

impl<'a, T: Element> From<&'a mut [T]> for UntypedTarget<'a> {
    fn from(memory: &'a mut [T]) -> Self {
        Target::from(memory).into()
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for UntypedTarget<'a> {
    fn from(memory: &'a mut Vec<T>) -> Self {
        Target::from(memory).into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a mut [T; N]> for UntypedTarget<'a> {
    fn from(memory: &'a mut [T; N]) -> Self {
        Target::from(memory).into()
    }
}

impl Communicator {
    /// Allocates a tensor as [`allocate`](Self::allocate) does, of a type that is known at run
    /// time; collective.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn allocate_untyped(&mut self, data_type: DataType, count: usize) -> Result<UntypedTensor, Error> {
        struct Allocate<'a>(&'a mut Communicator, usize);
        impl ElementVisitor for Allocate<'_> {
            type Output = Result<UntypedTensor, Error>;
            fn visit<T: Element>(self) -> Self::Output {
                Ok(self.0.allocate::<T>(self.1)?.into())
            }
        }
        data_type.visit(Allocate(self, count))
    }
}

/// Checks that bytes are whole elements, at an address that such elements may have.
fn check(data_type: DataType, bytes: &[u8]) -> Result<(), Error> {
    struct IsAligned<'a>(&'a [u8]);
    impl ElementVisitor for IsAligned<'_> {
        type Output = bool;
        fn visit<T: Element>(self) -> bool {
            self.0.is_empty() || bytemuck::try_cast_slice::<u8, T>(self.0).is_ok()
        }
    }
    check_whole(data_type, bytes.len())?;
    if data_type.visit(IsAligned(bytes)) { Ok(()) } else { Err(misplaced(data_type)) }
}

/// Checks that so many bytes are whole elements.
fn check_whole(data_type: DataType, bytes: usize) -> Result<(), Error> {
    let size = data_type.size();
    match bytes % size {
        0 => Ok(()),
        _ => Err(Error::invalid(format!("{bytes} bytes are no whole number of {data_type}, which has {size} bytes"))),
    }
}

fn misplaced(data_type: DataType) -> Error {
    Error::invalid(format!("memory of {data_type} begins at an address that is not aligned for the type"))
}

fn other_type(has: DataType, wanted: DataType) -> Error {
    Error::invalid(format!("an operation on {wanted} is given memory of {has}"))
}

/// A tensor of a known type.
fn tensor_of<T: Element>(tensor: &dyn Any) -> Result<&Tensor<T>, Error> {
    tensor.downcast_ref().ok_or_else(|| Error::invalid(format!("a tensor is not one of {}", T::TYPE)))
}
