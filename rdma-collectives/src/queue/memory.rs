//! Memory that moves into a started operation.

use std::sync::Arc;

use crate::element::Element;
use crate::memory::{Source, Target};
use crate::tensor::Tensor;

/// Memory that a started operation reads. It moves into the operation, and comes back.
///
/// As with [`Source`], all ranks give the same kind for an operation, a tensor or memory of the
/// program.
pub trait OwnedSource: Send + 'static {
    /// The type of the elements.
    type Element: Element;

    /// The memory, as what an operation reads.
    fn source(&self) -> Source<'_, Self::Element>;
}

/// Memory that a started operation writes, or works on in place. It moves into the operation, and
/// comes back.
pub trait OwnedTarget: OwnedSource {
    /// The memory, as what an operation writes.
    fn target(&mut self) -> Target<'_, Self::Element>;
}

impl<T: Element> OwnedSource for Tensor<T> {
    type Element = T;

    fn source(&self) -> Source<'_, T> {
        self.into()
    }
}

impl<T: Element> OwnedTarget for Tensor<T> {
    fn target(&mut self) -> Target<'_, T> {
        (&*self).into()
    }
}

/// So many elements of a tensor, from the first on.
impl<T: Element> OwnedSource for (Tensor<T>, usize) {
    type Element = T;

    fn source(&self) -> Source<'_, T> {
        self.0.source(self.1)
    }
}

impl<T: Element> OwnedTarget for (Tensor<T>, usize) {
    fn target(&mut self) -> Target<'_, T> {
        self.0.target(self.1)
    }
}

/// A tensor of which the program keeps another handle, for example to start several operations on
/// it. What is written to it meanwhile, or read from it, may be anything.
impl<T: Element> OwnedSource for Arc<Tensor<T>> {
    type Element = T;

    fn source(&self) -> Source<'_, T> {
        (&**self).into()
    }
}

impl<T: Element> OwnedTarget for Arc<Tensor<T>> {
    fn target(&mut self) -> Target<'_, T> {
        (&**self).into()
    }
}

/// Memory of which the program keeps another handle.
impl<T: Element> OwnedSource for Arc<[T]> {
    type Element = T;

    fn source(&self) -> Source<'_, T> {
        Source::Slice(self)
    }
}

/// Constants of the program.
impl<T: Element> OwnedSource for &'static [T] {
    type Element = T;

    fn source(&self) -> Source<'_, T> {
        Source::Slice(self)
    }
}

/// Memory of the program, as owned by these types.
macro_rules! of_the_program {
    ($($(const $n:ident;)? $type:ty;)+) => {$(
        impl<T: Element $(, const $n: usize)?> OwnedSource for $type {
            type Element = T;

            fn source(&self) -> Source<'_, T> {
                Source::Slice(&self[..])
            }
        }

        impl<T: Element $(, const $n: usize)?> OwnedTarget for $type {
            fn target(&mut self) -> Target<'_, T> {
                Target::Slice(&mut self[..])
            }
        }
    )+};
}

of_the_program! {
    Vec<T>;
    Box<[T]>;
    const N; [T; N];
    const N; Box<[T; N]>;
}
