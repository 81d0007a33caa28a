//! The operations of a communicator on memory whose type of elements is known at run time.

use super::{UntypedSource, UntypedTarget, UntypedTensor, other_type, tensor_of};
use crate::Error;
use crate::communicator::Communicator;
use crate::element::{DataType, Element, ElementVisitor, Reduction, by_type};
use crate::memory::Source;
use crate::messages::Transfer;
use crate::operation::{Operation, Request};

/// A communicator whose operations take memory with a type of elements that is known at run time:
/// [`Communicator::untyped`].
///
/// Memory of the types that the typed operations take becomes [`UntypedSource`] and
/// [`UntypedTarget`] too. All memory of one operation has the same type, at all ranks.
#[derive(Debug)]
pub struct Untyped<'c>(&'c mut Communicator);

impl Communicator {
    /// The operations on memory whose type of elements is known at run time.
    ///
    /// ```no_run
    /// use rdma_collectives::{Communicator, DataType, Error, Reduction, UntypedTarget};
    ///
    /// fn largest(comm: &mut Communicator, data_type: &str, bytes: &mut [u8]) -> Result<(), Error> {
    ///     let data_type = DataType::named(data_type).ok_or_else(|| Error::invalid("no such type"))?;
    ///     let memory = UntypedTarget::new(data_type, bytes)?;
    ///     comm.untyped().all_reduce_in_place(memory, Reduction::Max)
    /// }
    /// ```
    pub fn untyped(&mut self) -> Untyped<'_> {
        Untyped(self)
    }
}

/// Defines operations with an input and an output.
macro_rules! with_input_and_output {
    ($($name:ident($($argument:ident: $argument_type:ty),*) -> $result:ty;)+) => {$(
        #[doc = concat!("[`", stringify!($name), "`](Communicator::", stringify!($name), ")")]
        #[doc = "of elements whose type is known at run time."]
        #[doc = ""]
        #[doc = "# Errors"]
        #[doc = "`InvalidInput` if input and output differ in type; otherwise as the typed operation."]
        pub fn $name<'a>(
            &mut self,
            input: impl Into<UntypedSource<'a>>,
            output: impl Into<UntypedTarget<'a>>
            $(, $argument: $argument_type)*
        ) -> Result<$result, Error> {
            let (input, output) = (input.into(), output.into());
            by_type!(input.data_type(), T => self.0.$name(input.typed::<T>()?, output.typed::<T>()? $(, $argument)*))
        }
    )+};
}

/// Defines operations on one memory.
macro_rules! with_one_memory {
    ($($name:ident($memory:ty $(, $argument:ident: $argument_type:ty)*) -> $result:ty;)+) => {$(
        #[doc = concat!("[`", stringify!($name), "`](Communicator::", stringify!($name), ")")]
        #[doc = "of elements whose type is known at run time."]
        #[doc = ""]
        #[doc = "# Errors"]
        #[doc = "As the typed operation."]
        pub fn $name<'a>(
            &mut self,
            memory: impl Into<$memory>
            $(, $argument: $argument_type)*
        ) -> Result<$result, Error> {
            let memory = memory.into();
            by_type!(memory.data_type(), T => self.0.$name(memory.typed::<T>()? $(, $argument)*))
        }
    )+};
}

/// The operations of [`Communicator`], by their names.
impl Untyped<'_> {
    with_input_and_output! {
        all_reduce(reduction: Reduction) -> ();
        all_gather() -> ();
        all_gather_v(counts: &[usize]) -> ();
        reduce_scatter(reduction: Reduction) -> ();
        reduce_scatter_v(counts: &[usize], reduction: Reduction) -> ();
        all_to_all() -> ();
        reduce(root: usize, reduction: Reduction) -> ();
        gather(root: usize) -> ();
        gather_v(counts: &[usize], root: usize) -> ();
        scatter(root: usize) -> ();
        scatter_v(counts: &[usize], root: usize) -> ();
    }

    with_one_memory! {
        all_reduce_in_place(UntypedTarget<'a>, reduction: Reduction) -> ();
        all_gather_in_place(UntypedTarget<'a>) -> ();
        reduce_scatter_in_place(UntypedTarget<'a>, reduction: Reduction) -> ();
        all_to_all_in_place(UntypedTarget<'a>) -> ();
        broadcast(UntypedTarget<'a>, root: usize) -> ();
        send(UntypedSource<'a>, to: usize) -> ();
        recv(UntypedTarget<'a>, from: usize) -> ();
        recv_any(UntypedTarget<'a>) -> usize;
    }

    /// [`all_reduce_scaled`](Communicator::all_reduce_scaled) of elements whose type is known at
    /// run time; the factor is one element.
    ///
    /// # Errors
    /// `InvalidInput` if the factor is not one element of the same type; otherwise as the typed
    /// operation.
    pub fn all_reduce_scaled<'a>(
        &mut self,
        memory: impl Into<UntypedTarget<'a>>,
        factor: impl Into<UntypedSource<'a>>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        let (memory, factor) = (memory.into(), factor.into());
        by_type!(memory.data_type(), T => {
            let Source::Slice(&[factor]) = factor.typed::<T>()? else {
                return Err(Error::invalid(format!("a factor of {} elements: give one, in a slice", factor.len())));
            };
            self.0.all_reduce_scaled(memory.typed::<T>()?, factor, reduction)
        })
    }

    /// [`all_to_all_v`](Communicator::all_to_all_v) of elements whose type is known at run time.
    ///
    /// # Errors
    /// `InvalidInput` if input and output differ in type; otherwise as the typed operation.
    pub fn all_to_all_v<'a>(
        &mut self,
        input: impl Into<UntypedSource<'a>>,
        counts: &[usize],
        output: impl Into<UntypedTarget<'a>>,
    ) -> Result<Vec<usize>, Error> {
        let (input, output) = (input.into(), output.into());
        by_type!(input.data_type(), T => self.0.all_to_all_v(input.typed::<T>()?, counts, output.typed::<T>()?))
    }

    /// [`exchange`](Communicator::exchange) of messages whose type of elements is known at run
    /// time: each memory of `sends` goes to the rank beside it, and each of `receives` takes a
    /// message of the rank beside it.
    ///
    /// # Errors
    /// `InvalidInput` if the messages differ in type; otherwise as the typed operation.
    pub fn exchange<'a>(
        &mut self,
        sends: impl IntoIterator<Item = (UntypedSource<'a>, usize)>,
        receives: impl IntoIterator<Item = (UntypedTarget<'a>, usize)>,
    ) -> Result<(), Error> {
        let (sends, receives): (Vec<_>, Vec<_>) = (sends.into_iter().collect(), receives.into_iter().collect());
        let first = sends.first().map(|(memory, _)| memory.data_type());
        let first = first.or_else(|| receives.first().map(|(memory, _)| memory.data_type()));
        by_type!(first.unwrap_or(DataType::U8), T => {
            let sends = sends.into_iter().map(|(memory, to)| Ok(Transfer::send(memory.typed::<T>()?, to)));
            let receives = receives.into_iter().map(|(memory, from)| Ok(Transfer::recv(memory.typed::<T>()?, from)));
            self.0.exchange(&mut sends.chain(receives).collect::<Result<Vec<_>, Error>>()?)
        })
    }

    /// [`prepare`](Communicator::prepare) for tensors of a type.
    ///
    /// # Errors
    /// As the typed operation.
    pub fn prepare(&self, data_type: DataType, request: Request) -> Result<Operation, Error> {
        struct Prepare<'a>(&'a Communicator, Request);
        impl ElementVisitor for Prepare<'_> {
            type Output = Result<Operation, Error>;
            fn visit<T: Element>(self) -> Self::Output {
                self.0.prepare::<T>(self.1)
            }
        }
        data_type.visit(Prepare(self.0, request))
    }

    /// [`perform`](Communicator::perform) on tensors whose type of elements is known at run time.
    ///
    /// # Errors
    /// `InvalidInput` if the tensors differ in type; otherwise as the typed operation.
    pub fn perform(
        &mut self,
        operation: &Operation,
        input: &UntypedTensor,
        output: &UntypedTensor,
    ) -> Result<(), Error> {
        if input.data_type() != output.data_type() {
            return Err(other_type(output.data_type(), input.data_type()));
        }
        by_type!(input.data_type(), T => {
            self.0.perform(operation, tensor_of::<T>(&*input.tensor)?, tensor_of::<T>(&*output.tensor)?)
        })
    }
}
