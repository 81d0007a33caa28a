//! Links between ranks of a host: the receiver of a message reads it where it lies.

use std::sync::Arc;

use rdma_mem::SegmentView;

use super::host::{Host, SharedTensor};
use super::mail::Announcement;
use super::slice::HostSlice;
use crate::Error;
use crate::link::{Links, Ticket};
use crate::wait::Wait;

/// Bytes of a piece where messages are not cut.
pub(crate) const UNCUT: usize = 1 << 40;

/// The links of a rank inside its host, for one collective on some tensors.
#[derive(Debug)]
pub(crate) struct HostLinks<'a> {
    host: &'a mut Host,
    tensors: Vec<&'a SharedTensor>,
    /// Bytes of a piece.
    piece: usize,
}

impl<'a> HostLinks<'a> {
    /// Links that reach these tensors, of which no rank reads the result of an earlier collective
    /// any more.
    pub(crate) fn new(
        host: &'a mut Host,
        tensors: impl Iterator<Item = &'a SharedTensor>,
        piece: usize,
    ) -> Result<Self, Error> {
        host.clock().settle()?;
        Ok(Self { host, tensors: tensors.collect(), piece })
    }

    /// Whether memory is shared with a rank.
    pub(crate) fn reaches(&self, rank: usize) -> bool {
        self.host.reaches(rank)
    }

    /// Announces the posted messages for which there is space.
    pub(crate) fn push(&mut self) -> Result<(), Error> {
        self.host.push_all()
    }

    /// The message that a rank has announced, and the length of its next piece.
    fn next(&mut self, from: usize) -> Result<Option<(Announcement, usize)>, Error> {
        let Some(message) = self.host.mail().next(from)? else { return Ok(None) };
        let len = usize::try_from(message.len).unwrap_or(usize::MAX);
        Ok(Some((message, len.saturating_sub(*self.host.released(from)).min(self.piece))))
    }

    /// The segment that a rank has announced.
    fn view(&mut self, from: usize, segment: u64) -> Result<Arc<SegmentView>, Error> {
        match self.tensors.iter().find(|tensor| tensor.number() == segment) {
            Some(tensor) => tensor.view(from),
            None => self.host.scratch_of(from, segment),
        }
    }
}

impl Links for HostLinks<'_> {
    type Slice = HostSlice;

    fn piece(&self) -> usize {
        self.piece
    }

    fn post(&mut self, to: usize, message: HostSlice) -> Result<Ticket, Error> {
        let number = self.host.post(to, message.announcement()?)?;
        Ok(Ticket { to, number })
    }

    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Error> {
        self.host.mail().is_taken(ticket.to, ticket.number)
    }

    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<HostSlice>, Error> {
        let Some((Announcement { segment, start, .. }, piece)) = self.next(from)? else { return Ok(None) };
        if piece != length {
            return Err(Error::new(format!("rank {from} sent {piece} bytes in place of {length}")));
        }
        let view = self.view(from, segment)?;
        let start = usize::try_from(start).unwrap_or(usize::MAX).saturating_add(*self.host.released(from));
        HostSlice::other(view, start..start.saturating_add(length)).map(Some)
    }

    fn release(&mut self, from: usize) -> Result<(), Error> {
        let Some((Announcement { len, .. }, piece)) = self.next(from)? else { return Ok(()) };
        let released = self.host.released(from);
        *released += piece;
        if (*released as u64) < len {
            return Ok(());
        }
        *released = 0;
        self.host.mail().take(from)
    }

    fn pause(&mut self, wait: &mut Wait) -> Result<(), Error> {
        self.push()?;
        self.host.clock().pause(wait)
    }
}
