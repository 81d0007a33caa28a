//! Links between ranks of a host: the receiver of a message reads it where it lies.

use std::ops::Range;
use std::sync::Arc;

use rdma_mem::{Segment, SegmentView, SharedSlice, SharedSliceMut, reduce};

use super::all_reduce::{operation, stores};
use super::failed;
use super::host::{Host, SharedTensor};
use super::mail::Announcement;
use crate::Failure;
use crate::collectives::blocks::Blocks;
use crate::collectives::element::{Element, Reduction};
use crate::collectives::link::{Links, Slice, Ticket};
use crate::collectives::wait::Wait;

/// Messages are not cut into pieces.
const PIECE: usize = 1 << 40;

/// Some bytes of a segment: this rank's, or another's.
#[derive(Clone, Debug)]
pub(crate) struct HostSlice {
    memory: SliceMemory,
    /// The number of the segment.
    number: u64,
    bytes: Range<usize>,
}

#[derive(Clone, Debug)]
enum SliceMemory {
    Own(Arc<Segment>),
    Other(Arc<SegmentView>),
}

impl HostSlice {
    /// Bytes of a segment of this rank.
    pub(super) fn own(segment: &Arc<Segment>, number: u64, bytes: Range<usize>) -> Result<Self, Failure> {
        let slice = Self { memory: SliceMemory::Own(Arc::clone(segment)), number, bytes };
        slice.read()?;
        Ok(slice)
    }

    /// Bytes of a segment of another rank.
    fn other(view: Arc<SegmentView>, number: u64, bytes: Range<usize>) -> Result<Self, Failure> {
        let slice = Self { memory: SliceMemory::Other(view), number, bytes };
        slice.read()?;
        Ok(slice)
    }

    fn read(&self) -> Result<SharedSlice<'_>, Failure> {
        let all = match &self.memory {
            SliceMemory::Own(segment) => segment.bytes().as_shared(),
            SliceMemory::Other(view) => view.bytes(),
        };
        all.slice(self.bytes.clone()).map_err(failed)
    }

    fn write(&self) -> Result<SharedSliceMut<'_>, Failure> {
        match &self.memory {
            SliceMemory::Own(segment) => segment.bytes().slice(self.bytes.clone()).map_err(failed),
            SliceMemory::Other(_) => Err(failed("a rank writes its own memory alone")),
        }
    }
}

impl Slice for HostSlice {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn part(&self, bytes: Range<usize>) -> Result<Self, Failure> {
        if bytes.start > bytes.end || bytes.end > self.bytes.len() {
            return Err(failed("a schedule goes beyond its memory"));
        }
        let start = self.bytes.start;
        Ok(Self { bytes: start + bytes.start..start + bytes.end, ..self.clone() })
    }

    fn addresses(&self) -> Result<Range<u64>, Failure> {
        let start = self.read()?.as_ptr().addr() as u64;
        Ok(start..start + self.bytes.len() as u64)
    }

    fn reduce<T: Element>(&self, reduction: Reduction, operands: &[Self], _: &mut Blocks) -> Result<(), Failure> {
        let operands = operands.iter().map(Self::read).collect::<Result<Vec<_>, _>>()?;
        reduce(T::SCALAR, operation(reduction), self.write()?, &operands, stores(self.len())).map_err(failed)
    }
}

/// The links of a rank, for one collective on some tensors.
#[derive(Debug)]
pub(crate) struct HostLinks<'a> {
    host: &'a mut Host,
    tensors: Vec<&'a SharedTensor>,
}

impl<'a> HostLinks<'a> {
    /// Links that reach these tensors, of which no rank reads the result of an earlier collective
    /// any more.
    pub(crate) fn new(host: &'a mut Host, tensors: impl Iterator<Item = &'a SharedTensor>) -> Result<Self, Failure> {
        host.clock().settle()?;
        Ok(Self { host, tensors: tensors.collect() })
    }

    /// The segment that a rank has announced.
    fn view(&mut self, from: usize, segment: u64) -> Result<Arc<SegmentView>, Failure> {
        match self.tensors.iter().find(|tensor| tensor.number() == segment) {
            Some(tensor) => tensor.view(from),
            None => self.host.scratch_of(from, segment),
        }
    }
}

impl Links for HostLinks<'_> {
    type Slice = HostSlice;

    fn piece(&self) -> usize {
        PIECE
    }

    fn post(&mut self, to: usize, message: HostSlice) -> Result<Ticket, Failure> {
        let (start, len) = (message.bytes.start as u64, message.bytes.len() as u64);
        let number = self.host.post(to, Announcement { segment: message.number, start, len })?;
        Ok(Ticket { to, number })
    }

    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Failure> {
        self.host.mail().is_taken(ticket.to, ticket.number)
    }

    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<HostSlice>, Failure> {
        let Some(Announcement { segment, start, len }) = self.host.mail().next(from)? else { return Ok(None) };
        if len != length as u64 {
            return Err(Failure::new(format!("rank {from} sent {len} bytes in place of {length}")));
        }
        let view = self.view(from, segment)?;
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        HostSlice::other(view, segment, start..start.saturating_add(length)).map(Some)
    }

    fn release(&mut self, from: usize) -> Result<(), Failure> {
        self.host.mail().take(from)
    }

    fn pause(&mut self, wait: &mut Wait) -> Result<(), Failure> {
        self.host.push_all()?;
        self.host.clock().pause(wait)
    }
}
