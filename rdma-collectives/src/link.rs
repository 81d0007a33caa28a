//! Messages between ranks, as the steps of a schedule need them.

use std::ops::Range;

use crate::Error;
use crate::blocks::Blocks;
use crate::element::{Element, Reduction};
use crate::wait::Wait;

/// A message that was offered to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The receiving rank.
    pub(crate) to: usize,
    /// The number of the message among those to that rank, from 1.
    pub(crate) number: u64,
}

/// Memory of this rank, or a message where it lies. Other ranks may access it at any time.
pub(crate) trait Slice: Clone {
    /// Number of bytes.
    fn len(&self) -> usize;

    /// A part of the bytes.
    fn part(&self, bytes: Range<usize>) -> Result<Self, Error>;

    /// The addresses, by which overlapping slices are found.
    fn addresses(&self) -> Result<Range<u64>, Error>;

    /// Stores the reduction of operands of this length in this slice.
    fn reduce<T: Element>(&self, reduction: Reduction, operands: &[Self], blocks: &mut Blocks) -> Result<(), Error>;
}

/// The links of a rank to the other ranks.
///
/// Messages from one rank to another arrive in the order of their posts. They travel in pieces, of
/// which all but the last of a message have the same length, so a long message needs no more memory
/// than a short one.
pub(crate) trait Links {
    /// The memory that these links reach.
    type Slice: Slice;

    /// Bytes of a piece; a multiple of the size of every element, and equal at every rank.
    fn piece(&self) -> usize;

    /// Offers memory to a rank as its next message. Does not wait. The memory must not change until
    /// the message [is taken](Self::is_taken).
    fn post(&mut self, to: usize, message: Self::Slice) -> Result<Ticket, Error>;

    /// Whether the memory of a message may change.
    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Error>;

    /// The next piece of `length` bytes from a rank, if it has arrived.
    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<Self::Slice>, Error>;

    /// Hands the piece from a rank that [has arrived](Self::arrived) back; its memory may change
    /// from now on.
    fn release(&mut self, from: usize) -> Result<(), Error>;

    /// Pauses once in a wait for any of the above. Whoever waits calls this repeatedly, since it
    /// also sends what was posted.
    fn pause(&mut self, wait: &mut Wait) -> Result<(), Error>;
}
