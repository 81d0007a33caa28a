//! Memory of a host: of this rank, of another rank, or registered with a device.

use std::ops::Range;
use std::sync::Arc;

use rdma::{ExposedRegion, ExposedSlice, ProtectionDomain, RemoteAccess};
use rdma_mem::{Segment, SegmentView, SharedSlice, SharedSliceMut, Stores, reduce};

use super::failed;
use super::mail::Announcement;
use crate::Error;
use crate::blocks::Blocks;
use crate::element::{Element, Reduction};
use crate::link::Slice;

/// From this size in bytes on, the results of other ranks are stored past the caches.
const STREAMED: usize = 8 << 20;

/// Some bytes of this host's memory.
#[derive(Clone, Debug)]
pub(crate) struct HostSlice {
    memory: SliceMemory,
    bytes: Range<usize>,
}

#[derive(Clone, Debug)]
enum SliceMemory {
    /// A segment of this rank.
    Own(Arc<OwnMemory>),
    /// A segment of another rank.
    Other(Arc<SegmentView>),
    /// Memory of this rank that is registered with the first rail, and that no other rank maps.
    Exposed(ExposedSlice),
}

impl HostSlice {
    /// Bytes of a segment of this rank.
    pub(super) fn own(memory: &Arc<OwnMemory>, bytes: Range<usize>) -> Result<Self, Error> {
        Self::new(SliceMemory::Own(Arc::clone(memory)), bytes)
    }

    /// Bytes of a segment of another rank.
    pub(super) fn other(view: Arc<SegmentView>, bytes: Range<usize>) -> Result<Self, Error> {
        Self::new(SliceMemory::Other(view), bytes)
    }

    fn new(memory: SliceMemory, bytes: Range<usize>) -> Result<Self, Error> {
        let slice = Self { memory, bytes };
        slice.read()?;
        Ok(slice)
    }

    /// Copies bytes into the slice, from its byte `at` on.
    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let place = self.write()?.slice(at..at.saturating_add(bytes.len())).map_err(failed)?;
        place.copy_from(bytes.into()).map_err(failed)
    }

    /// Copies bytes out of the slice, from its byte `at` on.
    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let place = self.read()?.slice(at..at.saturating_add(bytes.len())).map_err(failed)?;
        place.copy_to(bytes).map_err(failed)
    }

    /// The place of the bytes, for the other ranks of the host.
    pub(super) fn announcement(&self) -> Result<Announcement, Error> {
        let SliceMemory::Own(memory) = &self.memory else {
            return Err(failed("only a segment of this rank can be announced"));
        };
        let (start, len) = (self.bytes.start as u64, self.bytes.len() as u64);
        Ok(Announcement { segment: memory.number, start, len })
    }

    /// The same bytes, for a rail to send.
    pub(crate) fn registered(&self, rail: usize) -> Result<ExposedSlice, Error> {
        match &self.memory {
            SliceMemory::Own(memory) => memory.registered(rail, self.bytes.clone()),
            SliceMemory::Exposed(_) if rail > 0 => Err(failed("it is not registered with this device")),
            SliceMemory::Exposed(slice) => slice.slice(self.bytes.clone()).map_err(Error::from),
            SliceMemory::Other(_) => Err(failed("a rank sends its own memory alone")),
        }
    }

    fn read(&self) -> Result<SharedSlice<'_>, Error> {
        let all = match &self.memory {
            SliceMemory::Own(memory) => memory.bytes().as_shared(),
            SliceMemory::Other(view) => view.bytes(),
            SliceMemory::Exposed(slice) => slice.bytes().as_shared(),
        };
        all.slice(self.bytes.clone()).map_err(failed)
    }

    fn write(&self) -> Result<SharedSliceMut<'_>, Error> {
        let all = match &self.memory {
            SliceMemory::Own(memory) => memory.bytes(),
            SliceMemory::Exposed(slice) => slice.bytes(),
            SliceMemory::Other(_) => return Err(failed("a rank writes its own memory alone")),
        };
        all.slice(self.bytes.clone()).map_err(failed)
    }
}

impl From<ExposedSlice> for HostSlice {
    fn from(slice: ExposedSlice) -> Self {
        let bytes = 0..slice.len();
        Self { memory: SliceMemory::Exposed(slice), bytes }
    }
}

impl Slice for HostSlice {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn part(&self, bytes: Range<usize>) -> Result<Self, Error> {
        if bytes.start > bytes.end || bytes.end > self.bytes.len() {
            return Err(failed("a schedule goes beyond its memory"));
        }
        let start = self.bytes.start;
        Ok(Self { bytes: start + bytes.start..start + bytes.end, ..self.clone() })
    }

    fn addresses(&self) -> Result<Range<u64>, Error> {
        let start = self.read()?.as_ptr().addr() as u64;
        Ok(start..start + self.bytes.len() as u64)
    }

    fn reduce<T: Element>(&self, reduction: Reduction, operands: &[Self], _: &mut Blocks) -> Result<(), Error> {
        let operands = operands.iter().map(Self::read).collect::<Result<Vec<_>, _>>()?;
        reduce(T::SCALAR, reduction.operation(), self.write()?, &operands, stores(self.len())).map_err(failed)
    }
}

/// A segment of this rank.
#[derive(Debug)]
pub(super) struct OwnMemory {
    /// The number by which the other ranks know it.
    pub(super) number: u64,
    segment: Arc<Segment>,
    /// The same memory, registered to be sent, rail by rail.
    registered: Vec<ExposedRegion>,
}

impl OwnMemory {
    pub(super) fn new(segment: Segment, number: u64, domains: &[ProtectionDomain]) -> Result<Self, Error> {
        let segment = Arc::new(segment);
        // The device sends it: peers of other hosts need no access.
        let register = |pd: &ProtectionDomain| pd.register_exposed(Arc::clone(&segment), RemoteAccess::empty());
        let registered = domains.iter().map(register).collect::<Result<_, _>>()?;
        Ok(Self { number, segment, registered })
    }

    /// The memory.
    pub(super) fn bytes(&self) -> SharedSliceMut<'_> {
        self.segment.bytes()
    }

    /// Some bytes of the memory, for a rail to send.
    pub(super) fn registered(&self, rail: usize, bytes: Range<usize>) -> Result<ExposedSlice, Error> {
        let region = self.registered.get(rail).ok_or_else(|| failed("it is not registered with a device"))?;
        region.slice(bytes).map_err(Error::from)
    }
}

/// The stores of a result of so many bytes that its rank does not read soon.
fn stores(bytes: usize) -> Stores {
    if bytes >= STREAMED { Stores::Streaming } else { Stores::Cached }
}
