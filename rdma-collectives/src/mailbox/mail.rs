//! The messages of a mailbox at this rank, of memory of any type.

use std::fmt;
use std::ops::Range;

use crate::Error;
use crate::element::Element;
use crate::memory::{Source, Target};
use crate::queue::{OperationError, Outcome, OwnedSource, OwnedTarget};

/// A message that is posted.
#[derive(Debug)]
pub(super) enum Letter {
    /// A message to a rank.
    Send(usize, Outgoing),
    Recv(Incoming),
}

/// A message that is sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    tag: u64,
    len: usize,
    has_head: bool,
    sent: usize,
    memory: Box<dyn Sent>,
}

/// A receive.
#[derive(Debug)]
pub(super) struct Incoming {
    from: Option<usize>,
    tag: u64,
    len: usize,
    memory: Box<dyn Received>,
}

/// The memory of a message that is sent, and where its result goes.
trait Sent: Send + fmt::Debug {
    /// Number of bytes.
    fn len(&self) -> usize;
    /// Copies some bytes of whole elements.
    fn read(&self, bytes: Range<usize>, into: &mut [u8]) -> Result<(), Error>;
    fn end(self: Box<Self>, result: Result<(), Error>);
}

/// The memory of a receive, and where its result goes.
trait Received: Send + fmt::Debug {
    fn len(&self) -> usize;
    /// Copies bytes of whole elements to a place.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error>;
    fn end(self: Box<Self>, result: Result<usize, Error>);
}

impl Outgoing {
    pub(super) fn new<M: OwnedSource>(tag: u64, outcome: Outcome<M, (M, ()), OperationError<M>>) -> Self {
        let memory: Box<dyn Sent> = Box::new(Answer(outcome));
        Self { tag, len: memory.len(), has_head: false, sent: 0, memory }
    }

    /// Fills `block` with what is posted next: the head, or a piece of so many bytes at most.
    pub(super) fn next(&mut self, piece: usize, block: &mut Vec<u8>) -> Result<(), Error> {
        block.clear();
        if !self.has_head {
            self.has_head = true;
            block.extend_from_slice(bytemuck::cast_slice(&[self.len as u64, self.tag]));
            return Ok(());
        }
        let end = (self.sent + piece).min(self.len);
        block.resize(end - self.sent, 0);
        self.memory.read(self.sent..end, block)?;
        self.sent = end;
        Ok(())
    }

    /// Whether all of the message is posted.
    pub(super) fn is_posted(&self) -> bool {
        self.has_head && self.sent == self.len
    }

    pub(super) fn end(self, result: Result<(), Error>) {
        self.memory.end(result);
    }
}

impl Incoming {
    pub(super) fn new<M: OwnedTarget>(
        from: Option<usize>,
        tag: u64,
        outcome: Outcome<M, (M, usize), OperationError<M>>,
    ) -> Self {
        let memory: Box<dyn Received> = Box::new(Answer(outcome));
        Self { from, tag, len: memory.len(), memory }
    }

    /// The rank of which a message is wanted; `None` for any.
    pub(super) fn from(&self) -> Option<usize> {
        self.from
    }

    /// Number of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn accepts(&self, from: usize, tag: u64) -> bool {
        tag == self.tag && self.from.is_none_or(|wanted| wanted == from)
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write(at, bytes)
    }

    pub(super) fn end(self, result: Result<usize, Error>) {
        self.memory.end(result);
    }
}

/// Memory of a type, and the side of its handle that gets the result.
struct Answer<M, V>(Outcome<M, (M, V), OperationError<M>>);

impl<M, V> fmt::Debug for Answer<M, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

fn byte_count<M: OwnedSource>(memory: &M) -> usize {
    memory.source().len().saturating_mul(size_of::<M::Element>())
}

fn gone() -> Error {
    Error::new("the memory of a message is gone")
}

impl<M: OwnedSource> Sent for Answer<M, ()> {
    fn len(&self) -> usize {
        self.0.memory().map_or(0, byte_count)
    }

    fn read(&self, bytes: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
        copy_out(self.0.memory().ok_or_else(gone)?.source(), bytes, into)
    }

    fn end(self: Box<Self>, result: Result<(), Error>) {
        self.0.end(result, |memory, value| (memory, value));
    }
}

impl<M: OwnedTarget> Received for Answer<M, usize> {
    fn len(&self) -> usize {
        self.0.memory().map_or(0, byte_count)
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        copy_in(self.0.memory_mut().ok_or_else(gone)?.target(), at, bytes)
    }

    fn end(self: Box<Self>, result: Result<usize, Error>) {
        self.0.end(result, |memory, value| (memory, value));
    }
}

fn beyond() -> Error {
    Error::invalid("the memory of a message has become shorter")
}

fn copy_out<T: Element>(source: Source<'_, T>, bytes: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
    match source {
        Source::Slice(all) => {
            let all: &[u8] = bytemuck::cast_slice(all);
            into.copy_from_slice(all.get(bytes).ok_or_else(beyond)?);
            Ok(())
        }
        Source::Shared(all) => all.slice(bytes).and_then(|part| part.copy_to(into)).map_err(|_| beyond()),
        Source::Tensor(tensor, _) => tensor.read_bytes(bytes.start / size_of::<T>(), into),
    }
}

fn copy_in<T: Element>(target: Target<'_, T>, at: usize, bytes: &[u8]) -> Result<(), Error> {
    let range = at..at.saturating_add(bytes.len());
    match target {
        Target::Slice(all) => {
            let all: &mut [u8] = bytemuck::cast_slice_mut(all);
            all.get_mut(range).ok_or_else(beyond)?.copy_from_slice(bytes);
            Ok(())
        }
        Target::Shared(all) => all.slice(range).and_then(|part| part.copy_from(bytes.into())).map_err(|_| beyond()),
        Target::Tensor(tensor, _) => tensor.write_bytes(at / size_of::<T>(), bytes),
    }
}
