//! The ranks of a host, and the memory that they share.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rdma_mem::{Segment, SegmentView, SharedSlice, SharedSliceMut, pass};

use super::clock::{self, Clock};
use super::{failed, meet};
use crate::Failure;
use crate::bootstrap::Group;
use crate::collectives::wait::Patience;

/// Bytes of a record between two ranks: the number of a segment, and its length.
const RECORD: usize = 16;

/// The ranks of a host, which map each other's tensors.
#[derive(Debug)]
pub(crate) struct Host {
    rank: usize,
    peers: Vec<Neighbour>,
    clock: Arc<Clock>,
    /// Segments given so far; equal at all ranks.
    segments: u64,
}

/// Another rank of the host.
#[derive(Debug)]
struct Neighbour {
    rank: usize,
    stream: UnixStream,
}

impl Host {
    /// Connects the ranks of a group, if they are on one host; collective. The inner error says why
    /// they cannot share memory.
    pub(crate) fn connect(group: &mut Group, patience: Patience) -> Result<Result<Self, String>, Failure> {
        if !group.is_on_one_host() {
            return Ok(Err("the ranks are on several hosts".to_owned()));
        }
        let streams = match meet::connect(group)? {
            Ok(streams) => streams,
            Err(why) => return Ok(Err(why)),
        };
        let neighbour = |(rank, stream): (usize, Option<UnixStream>)| Some(Neighbour { rank, stream: stream? });
        let peers: Vec<Neighbour> = streams.into_iter().enumerate().filter_map(neighbour).collect();
        let own = group.agree("the shared counters", Segment::new(clock::MEMORY).map_err(failed))?;
        let views = group.agree("the counters of the other ranks", exchange(&peers, 0, &own))?;
        let clock = Arc::new(Clock::new(own, views, patience));
        Ok(Ok(Self { rank: group.rank(), peers, clock, segments: 0 }))
    }

    /// Allocates a tensor of `bytes` bytes at every rank; collective.
    pub(crate) fn allocate(&mut self, group: &mut Group, bytes: usize) -> Result<SharedTensor, Failure> {
        self.segments += 1;
        let own = group.agree("the tensors", Segment::new(bytes.max(1)).map_err(failed))?;
        let views = exchange(&self.peers, self.segments, &own);
        let views = group.agree("the tensors of the other ranks", views)?;
        Ok(SharedTensor { own, views, clock: Arc::clone(&self.clock) })
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world(&self) -> usize {
        self.peers.len() + 1
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// Gives a segment to all other ranks, and maps those that they give under the same number.
fn exchange(peers: &[Neighbour], number: u64, own: &Segment) -> Result<Vec<(usize, SegmentView)>, Failure> {
    peers.iter().try_for_each(|peer| peer.give(number, own))?;
    peers.iter().map(|peer| Ok((peer.rank, peer.take(number, own.len())?))).collect()
}

impl Neighbour {
    fn give(&self, number: u64, segment: &Segment) -> Result<(), Failure> {
        let sent = pass::send(&self.stream, &record(number, segment.len()), Some(segment.fd()));
        sent.map_err(|error| Failure::new(format!("cannot give memory to rank {}: {error}", self.rank)))
    }

    fn take(&self, number: u64, len: usize) -> Result<SegmentView, Failure> {
        let mut received = [0; RECORD];
        match pass::receive(&self.stream, &mut received) {
            Ok(Some(fd)) if received == record(number, len) => SegmentView::map(fd.as_fd(), len).map_err(failed),
            Ok(_) => Err(Failure::new(format!("rank {} gave other memory than agreed", self.rank))),
            Err(error) => Err(Failure::new(format!("cannot get memory from rank {}: {error}", self.rank))),
        }
    }
}

fn record(number: u64, len: usize) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&number.to_be_bytes());
    record[8..].copy_from_slice(&(len as u64).to_be_bytes());
    record
}

/// A tensor in shared memory: this rank's, and those of the other ranks.
#[derive(Debug)]
pub(crate) struct SharedTensor {
    own: Segment,
    views: Vec<(usize, SegmentView)>,
    clock: Arc<Clock>,
}

impl SharedTensor {
    /// Copies bytes into the tensor, once no rank reads it any more.
    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        self.clock.settle()?;
        let place = self.own.bytes().slice(at..at.saturating_add(bytes.len())).map_err(failed)?;
        place.copy_from(bytes.into()).map_err(failed)
    }

    /// Copies bytes out of the tensor.
    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        let place = self.own.bytes().slice(at..at.saturating_add(bytes.len())).map_err(failed)?;
        place.as_shared().copy_to(bytes).map_err(failed)
    }

    /// This rank's memory.
    pub(super) fn own(&self) -> SharedSliceMut<'_> {
        self.own.bytes()
    }

    /// The memory of the other ranks, by rank.
    pub(super) fn others(&self) -> impl Iterator<Item = (usize, SharedSlice<'_>)> {
        self.views.iter().map(|(rank, view)| (*rank, view.bytes()))
    }
}
