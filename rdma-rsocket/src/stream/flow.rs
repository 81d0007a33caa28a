//! Flow control of a stream, without input or output: buffers, credits and their limits.
//!
//! A receiver divides its ring into two halves and offers them to the peer in turn, each time a
//! half is free. The peer fills an offered half before it begins the next, so the ring holds the
//! stream in order. Each data message also needs one of the receiver's credits.

use std::collections::VecDeque;

use nix::errno::Errno;

use crate::wire::Range;

/// Up to two ranges of a ring, as offset and length: the second begins at offset 0.
pub(crate) type Pieces = [(usize, usize); 2];

/// The pieces of `len` bytes from `offset` of a ring of `size` bytes.
fn pieces(size: usize, offset: usize, len: usize) -> Pieces {
    let first = len.min(size - offset);
    [(offset, first), (0, len - first)]
}

/// The receiving direction.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// Bytes of the ring.
    size: usize,
    /// Data messages that the peer may send beyond those that were read.
    credits: u16,
    /// The unread bytes of each message.
    messages: VecDeque<u32>,
    /// The offset of the first unread byte.
    read_at: usize,
    unread: usize,
    /// Bytes that were offered and not written yet.
    offered: usize,
    /// Bytes that were read and not offered again.
    free: usize,
    /// The offset of the half to offer next.
    offer_at: usize,
    /// Messages that were read.
    read: u16,
    /// The value of `read` at which the peer gets new credits.
    grant_at: u16,
}

/// News for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The peer may send until its count of messages is this.
    pub(crate) limit: u16,
    /// The offset and length of a free part of the ring.
    pub(crate) buffer: Option<(usize, usize)>,
}

impl Inbound {
    /// A ring of `size` bytes, an even number. The connection data offers its first half.
    pub(crate) fn new(size: usize, credits: u16) -> Self {
        let half = size / 2;
        Self {
            size,
            credits,
            messages: VecDeque::new(),
            read_at: 0,
            unread: 0,
            offered: half,
            free: half,
            offer_at: half,
            read: 0,
            grant_at: credits / 2,
        }
    }

    /// Takes a message of `len` bytes. `EPROTO` if the peer had no space or no credit for it.
    pub(crate) fn receive(&mut self, len: u32) -> Result<(), Errno> {
        let bytes = usize::try_from(len).map_err(|_| Errno::EPROTO)?;
        if bytes > self.offered || self.messages.len() >= self.credits.into() {
            return Err(Errno::EPROTO);
        }
        self.offered -= bytes;
        self.unread += bytes;
        self.messages.push_back(len);
        Ok(())
    }

    /// How many bytes can be read.
    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    /// Where the bytes from `skip` unread bytes on lie, up to `len`.
    pub(crate) fn peek(&self, skip: usize, len: usize) -> Pieces {
        let len = len.min(self.unread.saturating_sub(skip));
        pieces(self.size, (self.read_at + skip) % self.size, len)
    }

    /// Marks the first `len` unread bytes as read.
    pub(crate) fn consume(&mut self, len: usize) {
        let mut left = len.min(self.unread);
        self.read_at = (self.read_at + left) % self.size;
        self.unread -= left;
        self.free += left;
        while let Some(message) = self.messages.front_mut() {
            let bytes = left.min(usize::try_from(*message).unwrap_or(usize::MAX));
            left -= bytes;
            #[allow(clippy::cast_possible_truncation, reason = "at most the message")]
            let rest = *message - bytes as u32;
            *message = rest;
            if rest > 0 {
                break;
            }
            self.messages.pop_front();
            self.read = self.read.wrapping_add(1);
        }
    }

    /// Whether the peer should get a grant.
    pub(crate) fn is_grant_due(&self) -> bool {
        self.free >= self.size / 2 || self.read.wrapping_sub(self.grant_at) < 1 << 15
    }

    /// What the peer may do from now on.
    pub(crate) fn grant(&mut self) -> Grant {
        self.grant_at = self.read.wrapping_add(self.credits / 2);
        let half = self.size / 2;
        let buffer = (self.free >= half).then_some((self.offer_at, half));
        if buffer.is_some() {
            self.free -= half;
            self.offered += half;
            self.offer_at = (self.offer_at + half) % self.size;
        }
        Grant { limit: self.read.wrapping_add(self.credits), buffer }
    }
}

/// The sending direction.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Data messages sent.
    sent: u16,
    /// The value of `sent` at which the credits are used up.
    limit: u16,
    /// The rest of the peer's buffer.
    target: Range,
}

impl Outbound {
    /// With the credits and the first buffer of the connection data.
    pub(crate) fn new(credits: u16, target: Range) -> Self {
        Self { sent: 0, limit: credits, target }
    }

    /// Takes the peer's new limit.
    pub(crate) fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Whether the next buffer of the peer's list is needed.
    pub(crate) fn is_full(&self) -> bool {
        self.target.len == 0
    }

    /// Takes the next buffer.
    pub(crate) fn set_target(&mut self, target: Range) {
        self.target = target;
    }

    /// How many bytes the next message may have.
    pub(crate) fn room(&self) -> u32 {
        if self.sent == self.limit { 0 } else { self.target.len }
    }

    /// Counts a message of `len` bytes, at most [`Self::room`], and returns its destination.
    pub(crate) fn send(&mut self, len: u32) -> Range {
        let destination = Range { len, ..self.target };
        self.sent = self.sent.wrapping_add(1);
        self.target.address = self.target.address.wrapping_add(len.into());
        self.target.len = self.target.len.saturating_sub(len);
        destination
    }
}

/// The memory that sends are copied to until the device has sent them, in order.
#[derive(Debug)]
pub(crate) struct SendRing {
    size: usize,
    at: usize,
    free: usize,
}

impl SendRing {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, at: 0, free: size }
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Takes `len` bytes, at most [`Self::free`].
    pub(crate) fn take(&mut self, len: usize) -> Pieces {
        let taken = pieces(self.size, self.at, len.min(self.free));
        self.at = (self.at + len) % self.size;
        self.free = self.free.saturating_sub(len);
        taken
    }

    /// Gives back the oldest `len` bytes.
    pub(crate) fn give_back(&mut self, len: usize) {
        self.free = (self.free + len).min(self.size);
    }
}

#[cfg(test)]
mod tests;
