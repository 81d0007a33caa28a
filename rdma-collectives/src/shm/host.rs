//! The ranks of a host, and the memory that they share.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma::ProtectionDomain;
use rdma_mem::{Segment, SegmentView, SharedSlice, SharedSliceMut, pass};

use super::all_reduce::AllReduce;
use super::clock::{self, Clock};
use super::failed;
use super::mail::{self, Announcement, Mail};
use super::meet::{self, Meeting};
use super::slice::{HostSlice, OwnMemory};
use super::staging::Staging;
use crate::Error;
use crate::bootstrap::Group;
use crate::wait::{Patience, Wait};

/// Bytes of a record between two ranks: the number of a segment, and its length.
const RECORD: usize = 16;
/// Added to the number of a rank's scratch memory, which counts apart from the common segments.
const SCRATCH: u64 = 1 << 63;

/// The ranks of a host, which map each other's tensors.
#[derive(Debug)]
pub(crate) struct Host {
    rank: usize,
    /// Whether all ranks of the job are here.
    is_whole: bool,
    /// The domains of the devices that send from the tensors to other ranks, rail by rail.
    domains: Vec<ProtectionDomain>,
    peers: Vec<Neighbour>,
    clock: Arc<Clock>,
    staging: Staging,
    mail: Mail,
    /// Common segments given so far; equal at all ranks.
    segments: u64,
    /// This rank's scratch memory, and its number.
    scratch: (u64, Option<Arc<OwnMemory>>),
    /// Bytes released of the message that each rank has announced.
    released: Vec<usize>,
}

/// Waits for a moment, or says why the wait has to end.
type Pause<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// Another rank of the host.
#[derive(Debug)]
struct Neighbour {
    rank: usize,
    stream: UnixStream,
    /// The rank's scratch memory, and its number.
    scratch: Option<(u64, Arc<SegmentView>)>,
    /// Messages posted, and those of them that are not announced yet.
    posted: u64,
    unsent: VecDeque<Announcement>,
}

impl Host {
    /// Connects the ranks of each host of a group; collective. Returns the host of this rank, and
    /// the reason why a pair of its ranks, or of another host's, cannot share memory.
    pub(crate) fn connect(group: &mut Group, patience: Patience) -> Result<(Self, Option<String>), Error> {
        let Meeting { streams, why_not } = meet::connect(group)?;
        Ok((Self::new(group, streams, patience)?, why_not))
    }

    /// Makes hosts of one rank each, which share no memory; collective.
    pub(crate) fn alone(group: &mut Group, patience: Patience) -> Result<Self, Error> {
        Self::new(group, Vec::new(), patience)
    }

    fn new(group: &mut Group, streams: Vec<Option<UnixStream>>, patience: Patience) -> Result<Self, Error> {
        let neighbour = |(rank, stream): (usize, Option<UnixStream>)| {
            Some(Neighbour { rank, stream: stream?, scratch: None, posted: 0, unsent: VecDeque::new() })
        };
        let mut peers: Vec<Neighbour> = streams.into_iter().enumerate().filter_map(neighbour).collect();
        let (own, views) = share(group, &mut peers, 0, "the shared counters", clock::MEMORY)?;
        let clock = Arc::new(Clock::new(own, views, patience)?);
        let (own, views) = share(group, &mut peers, 1, "the shared queues", mail::memory(group.ranks()))?;
        let mail = Mail::new(group.rank(), group.ranks(), own, views);
        let most = AllReduce::most_staged(peers.len() + 1);
        // A rank alone stages nothing.
        let memory = if peers.is_empty() { 1 } else { Staging::memory(most) };
        let (own, views) = share(group, &mut peers, 2, "the staging memory", memory)?;
        let staging = Staging::new(own, views, most);
        let (is_whole, scratch) = (peers.len() + 1 == group.ranks(), (SCRATCH, None));
        let (rank, domains, released) = (group.rank(), Vec::new(), vec![0; group.ranks()]);
        Ok(Self { rank, is_whole, domains, peers, clock, staging, mail, segments: 2, scratch, released })
    }

    /// Registers the memory that is allocated from now on with each rail, which sends it to other
    /// ranks.
    pub(crate) fn register_with(&mut self, domains: Vec<ProtectionDomain>) {
        self.domains = domains;
    }

    /// Tells whether all ranks of the job share memory, which all ranks have to know alike.
    pub(crate) fn set_whole(&mut self, is_whole: bool) {
        self.is_whole = is_whole;
    }

    /// Whether all ranks of the job share memory.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether a rank shares memory with this one.
    pub(crate) fn reaches(&self, rank: usize) -> bool {
        self.peers.iter().any(|peer| peer.rank == rank)
    }

    /// Allocates a tensor of `bytes` bytes at every rank; collective.
    pub(crate) fn allocate(&mut self, group: &mut Group, bytes: usize) -> Result<SharedTensor, Error> {
        self.segments += 1;
        let number = self.segments;
        let (own, views) = share(group, &mut self.peers, number, "the tensors", bytes.max(1))?;
        let views = views.into_iter().map(|(rank, view)| (rank, Arc::new(view))).collect();
        let own = group.agree("the tensors", OwnMemory::new(own, number, &self.domains))?;
        Ok(SharedTensor { own: Arc::new(own), views, clock: Arc::clone(&self.clock), last_use: AtomicU64::new(0) })
    }

    /// This rank's scratch memory, of at least `bytes` bytes.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<HostSlice, Error> {
        let (number, scratch) = &mut self.scratch;
        let scratch = match scratch {
            Some(scratch) if scratch.bytes().len() >= bytes => scratch,
            _ => {
                // The other ranks take only scratch memory of twice the bytes, or more.
                let larger = bytes.checked_next_power_of_two().ok_or_else(|| failed("no machine has so much"))?;
                let larger = Segment::new(larger.max(4096))?;
                *number += 1;
                // The other ranks map it when a message lies in it.
                self.peers.iter().try_for_each(|peer| peer.give(*number, &larger))?;
                scratch.insert(Arc::new(OwnMemory::new(larger, *number, &self.domains)?))
            }
        };
        HostSlice::own(scratch, 0..bytes)
    }

    /// The scratch memory of a rank, under the number that it has announced.
    pub(super) fn scratch_of(&mut self, rank: usize, number: u64) -> Result<Arc<SegmentView>, Error> {
        let peer = self.peers.iter_mut().find(|peer| peer.rank == rank);
        let peer = peer.ok_or_else(|| failed(format!("no rank {rank} on this host")))?;
        let mut wait = Wait::default();
        peer.scratch(number, &mut || self.clock.pause(&mut wait))
    }

    /// Posts a message to a rank, and returns its number.
    pub(super) fn post(&mut self, to: usize, message: Announcement) -> Result<u64, Error> {
        let peer = self.peers.iter_mut().find(|peer| peer.rank == to);
        let peer = peer.ok_or_else(|| failed(format!("no rank {to} on this host")))?;
        peer.posted += 1;
        peer.unsent.push_back(message);
        peer.push(&mut self.mail)?;
        Ok(peer.posted)
    }

    /// Bytes released of the message that a rank has announced.
    pub(super) fn released(&mut self, from: usize) -> &mut usize {
        &mut self.released[from]
    }

    /// Announces all posted messages for which there is space.
    pub(super) fn push_all(&mut self) -> Result<(), Error> {
        self.peers.iter_mut().try_for_each(|peer| peer.push(&mut self.mail))
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks that share memory.
    pub(super) fn world(&self) -> usize {
        self.peers.len() + 1
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }

    pub(super) fn mail(&mut self) -> &mut Mail {
        &mut self.mail
    }
}

/// Allocates a segment at every rank, and gives it to the others of its host; collective. Returns
/// this rank's, and the others' by rank.
fn share(
    group: &mut Group,
    peers: &mut [Neighbour],
    number: u64,
    what: &str,
    bytes: usize,
) -> Result<(Segment, Vec<(usize, SegmentView)>), Error> {
    let own = group.agree(what, Segment::new(bytes).map_err(Error::from))?;
    let given = peers.iter().try_for_each(|peer| peer.give(number, &own));
    // One wait for all: the step as a whole has a limit, and ends with the failure of any rank.
    let (patience, mut wait) = (patience_of(group), Wait::default());
    let mut take = |peer: &mut Neighbour| peer.take(number, bytes, &mut || patience.rest(&mut wait));
    let views = given.and_then(|()| peers.iter_mut().map(|peer| Ok((peer.rank, take(peer)?))).collect());
    Ok((own, group.agree(what, views)?))
}

/// The waits of a step of an operation, which has the limit of the operation if there is one.
fn patience_of(group: &Group) -> Patience {
    let patience = Patience::new(group.watch(), true, group.timeout());
    patience.limit_rest(group.time_left());
    patience
}

impl Neighbour {
    fn give(&self, number: u64, segment: &Segment) -> Result<(), Error> {
        match pass::send(&self.stream, &record(number, segment.len()), Some(segment.fd())) {
            // A rank that has gone needs no memory. Who waits for it hears of its end.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
            sent => sent.map_err(|error| Error::new(format!("cannot give memory to rank {}: {error}", self.rank))),
        }
    }

    /// Maps the common segment that the rank gives next.
    fn take(&mut self, number: u64, len: usize, pause: Pause<'_>) -> Result<SegmentView, Error> {
        loop {
            let (given, view) = self.receive(pause)?;
            let size = view.bytes().len();
            if given > SCRATCH {
                self.keep_scratch(given, view)?;
            } else if given != number {
                return Err(self.astray());
            } else if size == len {
                return Ok(view);
            } else {
                return Err(Error::invalid(format!(
                    "rank {} gave other memory than agreed: {size} bytes, and {len} at this rank; give all ranks the \
                     same sizes",
                    self.rank
                )));
            }
        }
    }

    /// The scratch memory of a number, which the rank gave before it announced a message there.
    fn scratch(&mut self, number: u64, pause: Pause<'_>) -> Result<Arc<SegmentView>, Error> {
        loop {
            match &self.scratch {
                Some((known, view)) if *known == number => return Ok(Arc::clone(view)),
                _ if number <= SCRATCH => return Err(self.astray()),
                _ => {}
            }
            let (given, view) = self.receive(pause)?;
            self.keep_scratch(given, view)?;
        }
    }

    /// Keeps scratch memory in place of the rank's last. Each has the next number and at least
    /// twice the bytes, so a rank gives less than 64 of them.
    fn keep_scratch(&mut self, number: u64, view: SegmentView) -> Result<(), Error> {
        let len = view.bytes().len();
        let last = self.scratch.as_ref().map_or((SCRATCH, 0), |(number, view)| (*number, view.bytes().len()));
        if number != last.0 + 1 || len <= last.1 || !len.is_power_of_two() {
            return Err(self.astray());
        }
        self.scratch = Some((number, Arc::new(view)));
        Ok(())
    }

    /// Maps the next segment that the rank gives; returns its number too.
    fn receive(&self, pause: Pause<'_>) -> Result<(u64, SegmentView), Error> {
        let from = |failure: Error| failure.context(format_args!("cannot get memory from rank {}", self.rank));
        let mut record = [0; RECORD];
        let fd = pass::receive(&self.stream, &mut record, pause).map_err(from)?;
        let fd = fd.ok_or_else(|| self.astray())?;
        let word = |at: usize| record[at..at + 8].iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let len = usize::try_from(word(8)).unwrap_or(usize::MAX);
        let view = SegmentView::map(fd.as_fd(), len).map_err(|error| from(error.into()))?;
        Ok((word(0), view))
    }

    /// Announces posted messages while there is space.
    fn push(&mut self, mail: &mut Mail) -> Result<(), Error> {
        while let Some(&message) = self.unsent.front() {
            if !mail.announce(self.rank, message)? {
                break;
            }
            self.unsent.pop_front();
        }
        Ok(())
    }

    fn astray(&self) -> Error {
        Error::new(format!("rank {} gave other memory than agreed", self.rank))
    }
}

fn record(number: u64, len: usize) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&number.to_be_bytes());
    record[8..].copy_from_slice(&(len as u64).to_be_bytes());
    record
}

/// A tensor in shared memory: this rank's, and those of the other ranks of its host.
#[derive(Debug)]
pub(crate) struct SharedTensor {
    own: Arc<OwnMemory>,
    views: Vec<(usize, Arc<SegmentView>)>,
    clock: Arc<Clock>,
    /// The step of this rank that ended the tensor's last use.
    last_use: AtomicU64,
}

impl SharedTensor {
    /// Records that a collective on the tensor has ended with this rank's present step: other ranks
    /// may read the tensor until they have done as many steps.
    pub(super) fn used(&self) {
        self.last_use.store(self.clock.now(), Ordering::Relaxed);
    }

    /// Copies bytes into the tensor, once no rank reads it any more. Collectives on other tensors
    /// may go on meanwhile.
    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.copy_in_shared(at, bytes.into())
    }

    /// The same of memory that others may write.
    pub(crate) fn copy_in_shared(&self, at: usize, from: SharedSlice<'_>) -> Result<(), Error> {
        self.clock.maker().check()?;
        self.clock.wait_for_end(self.last_use.load(Ordering::Relaxed))?;
        let place = self.own.bytes().slice(at..at.saturating_add(from.len())).map_err(failed)?;
        place.copy_from(from).map_err(failed)
    }

    /// Copies bytes out of the tensor.
    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.clock.maker().check()?;
        let place = self.own.bytes().slice(at..at.saturating_add(bytes.len())).map_err(failed)?;
        place.as_shared().copy_to(bytes).map_err(failed)
    }

    /// Copies bytes out of the tensor into memory that others may access.
    pub(crate) fn copy_out_shared(&self, at: usize, into: SharedSliceMut<'_>) -> Result<(), Error> {
        self.clock.maker().check()?;
        let place = self.own.bytes().slice(at..at.saturating_add(into.len())).map_err(failed)?;
        into.copy_from(place.as_shared()).map_err(failed)
    }

    /// Number of bytes of each rank's memory.
    pub(crate) fn len(&self) -> usize {
        self.own.bytes().len()
    }

    /// Some bytes of this rank's memory.
    pub(crate) fn slice(&self, bytes: Range<usize>) -> Result<HostSlice, Error> {
        HostSlice::own(&self.own, bytes)
    }

    /// The number that all ranks give to the tensor.
    pub(super) fn number(&self) -> u64 {
        self.own.number
    }

    /// The memory of another rank.
    pub(super) fn view(&self, rank: usize) -> Result<Arc<SegmentView>, Error> {
        let view = self.views.iter().find(|(peer, _)| *peer == rank);
        view.map(|(_, view)| Arc::clone(view)).ok_or_else(|| failed(format!("no rank {rank} on this host")))
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

#[cfg(test)]
mod tests;
