//! Links of which each pair of ranks has its own: shared memory in a host, verbs otherwise.

use crate::Error;
use crate::link::{Links, Ticket};
use crate::shm::{HostLinks, HostSlice, UNCUT};
use crate::streams::StreamLinks;
use crate::wait::Wait;

/// The links of a rank to all others.
#[derive(Debug)]
pub(crate) struct PairLinks<'a> {
    /// The links to the ranks that share memory with this one.
    pub(crate) host: Option<HostLinks<'a>>,
    /// The links to the other ranks.
    pub(crate) streams: Option<StreamLinks<'a>>,
}

/// The links that reach a rank.
type Reaching<'a> = dyn Links<Slice = HostSlice> + 'a;

impl<'a> PairLinks<'a> {
    fn to(&mut self, rank: usize) -> Result<&mut Reaching<'a>, Error> {
        match (&mut self.host, &mut self.streams) {
            (Some(host), _) if host.reaches(rank) => Ok(host),
            (_, Some(streams)) => Ok(streams),
            _ => Err(Error::new(format!("no transport reaches rank {rank}"))),
        }
    }
}

impl Links for PairLinks<'_> {
    type Slice = HostSlice;

    fn piece(&self) -> usize {
        self.streams.as_ref().map_or(UNCUT, StreamLinks::piece)
    }

    fn post(&mut self, to: usize, message: HostSlice) -> Result<Ticket, Error> {
        self.to(to)?.post(to, message)
    }

    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Error> {
        self.to(ticket.to)?.is_taken(ticket)
    }

    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<HostSlice>, Error> {
        self.to(from)?.arrived(from, length)
    }

    fn release(&mut self, from: usize) -> Result<(), Error> {
        self.to(from)?.release(from)
    }

    fn pause(&mut self, wait: &mut Wait) -> Result<(), Error> {
        match (&mut self.host, &mut self.streams) {
            (Some(host), None) => host.pause(wait),
            (host, Some(streams)) => {
                host.as_mut().map_or(Ok(()), HostLinks::push)?;
                streams.pause(wait)
            }
            (None, None) => Ok(()),
        }
    }
}
