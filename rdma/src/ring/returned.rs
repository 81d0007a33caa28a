//! Memory of an ended request, outside of its slot.

use std::vec;

use crate::mr::{Kind, Segment};

/// The segments of an ended request, in order. One segment needs no allocation.
// Public only because a hidden method of a sealed trait takes it.
#[allow(missing_debug_implementations, reason = "nobody can name it")]
pub struct ReturnedMemory {
    first: Option<Segment>,
    /// The others, in a box that keeps the common value small.
    rest: Option<Box<vec::IntoIter<Segment>>>,
}

impl ReturnedMemory {
    #[cfg(feature = "aio")]
    #[inline]
    pub(crate) fn single(segment: Segment) -> Self {
        Self { first: Some(segment), rest: None }
    }

    #[cfg(feature = "aio")]
    pub(crate) fn new(first: Option<Segment>, rest: Vec<Segment>) -> Self {
        let rest = if rest.is_empty() { None } else { Some(Box::new(rest.into_iter())) };
        Self { first, rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peek().is_none()
    }

    /// The next segment, without taking it.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&Segment> {
        self.first.as_ref().or_else(|| self.rest.as_ref()?.as_slice().first())
    }

    /// Whether the next segment is the request's first one.
    #[cfg(feature = "aio")]
    pub(crate) fn is_untouched(&self) -> bool {
        self.first.is_some()
    }

    /// Takes the next segment, if it is of kind `kind`.
    #[inline]
    pub(crate) fn take_if(&mut self, kind: Kind) -> Option<Segment> {
        if self.peek()?.kind() != kind {
            return None;
        }
        self.first.take().or_else(|| self.rest.as_mut()?.next())
    }
}
