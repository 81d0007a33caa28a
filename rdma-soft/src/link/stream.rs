//! A link to a process of another host: frames over a TCP connection.
//!
//! ```text
//! length of the payload 4 | header 48 | payload
//! ```
//!
//! Numbers are little-endian. Where both sides want it, all of this lies in the records of TLS
//! ([`tls`](super::tls)). Both sides have proved that they hold the key before the first frame
//! (`hello`). Every byte that comes in is hostile all the same: a frame that is longer than
//! [`MAX_PAYLOAD`] ends the link, and the engine checks the rest.
//!
//! Small frames are copied into a buffer of 1 MiB, and sent in one system call after each
//! transmission. A frame with a large payload goes to the kernel from where it lies, behind those
//! that wait, because the payload may be read during the push alone. What the kernel does not take
//! at once waits in the buffer; when the socket is writable again, the agent goes on
//! (`node/agent.rs`). A peer that does not read blocks only the frames to itself.
//!
//! The receiver reads up to 256 KiB at once, and the engine handles the frames where they lie. The
//! payload of a large frame that has arrived in part is handled in parts: first the bytes that are
//! in the buffer, then those that the kernel or the decryption puts where the engine says
//! ([`Handler::fill`]), and the last ones from the buffer again, because a program may wait for
//! them in memory and then read those before. Nothing is left between two parts but the header of
//! the rest: each part is a frame to the engine, with all of its checks. Behind such a frame little
//! is read at once, since the next one is probably large, too.

use core::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;

use super::Backlog;
use super::hello::Identity;
use super::hosts::HostUse;
use super::tls::Records;
use crate::engine::{Gather, HEADER_WORDS, Header, Host, Outbound, Source, Target, Transmit};
use crate::os;
use crate::os::tcp::{Patience, Tcp};

/// The longest payload of a frame.
const MAX_PAYLOAD: usize = 64 << 10;
/// Bytes of a payload from which a frame is not copied: a system call takes as long as the copy.
const LARGE: usize = 16 << 10;
/// The bytes before a payload.
const HEAD: usize = 4 + 8 * HEADER_WORDS;
/// Bytes of frames that wait for the kernel.
const SEND_BUFFER: usize = 1 << 20;
/// Bytes that one call reads.
const RECEIVE_BUFFER: usize = 256 << 10;
/// Bytes that one call reads behind large frames, and the number of small frames that end this.
const SHORT_READ: usize = 4 << 10;
const SMALL_FRAMES: u32 = 16;
/// The last bytes of a payload, which are copied after those before them are in place.
const TAIL: usize = 64;
/// Bytes that are read behind a payload: its last ones, and the head of the next frame with the
/// first bytes of its payload, which are handled before the next ones have a place.
const BEHIND: usize = TAIL + HEAD + 64;
/// The fewest bytes that are read to their place by a call of their own.
const FEWEST: usize = 4 << 10;

/// The reason why a link has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The peer has closed the connection, or has died.
    Closed,
    /// The connection has failed: the peer's host is silent, or the network is down.
    Failed(os::Error),
    /// The peer has sent a frame that no device sends.
    Corrupt,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer has closed the connection"),
            Self::Failed(error) => write!(f, "the connection has failed: {error}"),
            Self::Corrupt => f.write_str("the peer has written an impossible value into the link"),
        }
    }
}

/// The handler of the frames of a link.
pub(crate) trait Handler {
    /// Handles a frame.
    fn handle(&mut self, header: &Header, payload: Source<'_>);

    /// Whether a frame with `len` bytes of payload may be handled in parts, each under the header
    /// [`behind`](Header::behind) the last.
    fn may_cut(&self, header: &Header, len: usize) -> bool;

    /// Has `read` put the next bytes of a frame's payload where they belong, at most `len`, and
    /// handles those whose number it returns. Returns that number; `None`, without a call of
    /// `read`, if the bytes have no place now.
    fn fill(&mut self, header: &Header, len: usize, read: impl FnOnce(Target<'_>) -> usize) -> Option<usize>;
}

/// A function that handles whole frames.
#[cfg(test)]
pub(crate) struct Each<F>(F);

#[cfg(test)]
impl<F: FnMut(&Header, Source<'_>)> Each<F> {
    pub(crate) fn new(handle: F) -> Self {
        Self(handle)
    }
}

#[cfg(test)]
impl<F: FnMut(&Header, Source<'_>)> Handler for Each<F> {
    fn handle(&mut self, header: &Header, payload: Source<'_>) {
        self.0(header, payload);
    }

    fn may_cut(&self, _header: &Header, _len: usize) -> bool {
        false
    }

    fn fill(&mut self, _header: &Header, _len: usize, _read: impl FnOnce(Target<'_>) -> usize) -> Option<usize> {
        None
    }
}

/// A frame of which some bytes were handled.
#[derive(Debug, Clone, Copy)]
struct Rest {
    header: Header,
    /// Bytes of the payload that are left.
    len: usize,
}

impl Rest {
    /// The rest after some more bytes.
    fn behind(self, count: usize) -> Option<Self> {
        let len = self.len.checked_sub(count).filter(|len| *len != 0)?;
        Some(Self { header: self.header.behind(u32::try_from(count).ok()?), len })
    }
}

/// The process at the other side of a connection.
#[derive(Debug)]
pub(crate) struct Far {
    /// The process's host, which stays in use as long as the link.
    pub(crate) host: HostUse,
    /// The process on that host.
    pub(crate) identity: Identity,
}

/// One side of a link to a process of another host.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The other process.
    pub(crate) far: Far,
    socket: Tcp,
    /// The encryption of the frames; `None` for frames in the clear.
    records: Option<Records>,
    out: SendBuffer,
    /// The kernel has refused frames, and no look has found the socket writable since. Looks cost
    /// one system call as they do otherwise, and the kernel tells the agent or a thread that waits.
    is_full: bool,
    inbound: ReceiveBuffer,
    /// The frame that is being handled in parts. The buffer begins behind those that were.
    rest: Option<Rest>,
    /// Small frames until reads are long again.
    short_reads: u32,
    /// Bytes may be waiting in the socket.
    may_read: bool,
    /// A look has read all that the socket had, and [`drain`](Self::drain) has not run since.
    is_emptied: bool,
    backlog: Backlog,
    patience: Patience,
    ended: Option<Ended>,
}

impl Stream {
    /// A link over a connection whose two sides have proved who they are.
    pub(crate) fn new(socket: Tcp, records: Option<Records>, far: Far) -> Self {
        Self {
            far,
            socket,
            records,
            out: SendBuffer::new(SEND_BUFFER),
            is_full: false,
            inbound: ReceiveBuffer::new(),
            rest: None,
            short_reads: 0,
            may_read: true,
            is_emptied: false,
            backlog: Backlog::None,
            patience: Patience::default(),
            ended: None,
        }
    }

    /// A link to a process of the host with an address, and the socket of that process.
    #[cfg(test)]
    pub(crate) fn on_a_socket(host: std::net::IpAddr) -> (Self, Tcp) {
        use std::sync::Arc;

        let [ours, theirs] = Tcp::pair();
        let host = Arc::new(super::hosts::Hosts::default()).hold(host).unwrap();
        let identity = Identity { slot: crate::engine::Slot(1), instance: [1; 16] };
        (Self::new(ours, None, Far { host, identity }), theirs)
    }

    /// The peer's host.
    pub(crate) fn host(&self) -> Host {
        self.far.host.id()
    }

    /// Whether there is nothing to receive or to send. Reads the socket, or asks the kernel about
    /// it while the socket is full.
    pub(crate) fn is_idle(&mut self) -> bool {
        // Only a drain knows where the rest of a frame belongs.
        if self.may_continue() || self.ended.is_some() || self.rest.is_some() || self.inbound.has_frame() {
            return false;
        }
        if self.is_full {
            let has_opened = self.records.as_ref().is_some_and(Records::has_bytes);
            let is_readable = self.look_at_full_socket() || has_opened;
            return !is_readable && self.is_full;
        }
        match self.read() {
            Ok(_) => {
                self.is_emptied = self.inbound.has_space();
                self.is_emptied && !self.inbound.has_frame() && self.large_part().is_none()
            }
            // The next drain reports the end.
            Err(ended) => {
                self.ended = Some(ended);
                false
            }
        }
    }

    /// Has the next drain read until the socket is empty, whatever a look has seen before.
    pub(crate) fn forget_look(&mut self) {
        self.is_emptied = false;
    }

    /// Passes inbound frames to `handler` until there is none or `budget` bytes were handled. True
    /// when frames may be left.
    pub(crate) fn drain(&mut self, budget: &mut usize, mut handler: impl Handler) -> Result<bool, Ended> {
        let (is_emptied, mut has_handled) = (core::mem::take(&mut self.is_emptied), false);
        if self.is_full {
            self.look_at_full_socket();
        }
        loop {
            while *budget > 0 {
                let Some(len) = self.handle_next(&mut handler).map_err(|ended| self.end(ended))? else { break };
                has_handled = true;
                *budget = budget.saturating_sub(HEAD + len);
            }
            if *budget == 0 {
                return Ok(true);
            }
            if let Some(ended) = self.ended {
                return Err(ended);
            }
            // A polling thread looks again soon. `may_read` stays, for a thread that goes to sleep.
            if is_emptied && has_handled {
                return Ok(false);
            }
            let len = self.fill(&mut handler).map_err(|ended| self.end(ended))?;
            has_handled |= len.is_some();
            *budget = budget.saturating_sub(len.unwrap_or(0));
            let has_read = match len {
                Some(len) => len > 0 || self.may_read,
                None => self.read().map_err(|ended| self.end(ended))?,
            };
            if !has_read {
                return Ok(false);
            }
        }
    }

    /// Passes the first frame in the buffer to `handler`, or a part of one. Returns the bytes of
    /// payload; `None` if nothing can be handled.
    fn handle_next(&mut self, handler: &mut impl Handler) -> Result<Option<usize>, Ended> {
        if let Some((header, len)) = self.large_part().filter(|(header, len)| handler.may_cut(header, *len)) {
            self.inbound.take(HEAD);
            self.rest = Some(Rest { header, len });
            self.short_reads = SMALL_FRAMES;
        }
        let Some(rest) = self.rest else {
            let Some((header, payload)) = self.inbound.next()? else { return Ok(None) };
            let is_small = payload.len() < LARGE;
            self.short_reads = if is_small { self.short_reads.saturating_sub(1) } else { 0 };
            handler.handle(&header, Source::of(payload));
            return Ok(Some(payload.len()));
        };
        let part = self.inbound.take(rest.len);
        if part.is_empty() {
            return Ok(None);
        }
        handler.handle(&rest.header, Source::of(part));
        self.rest = rest.behind(part.len());
        Ok(Some(part.len()))
    }

    /// The header of a large frame of which the buffer has a part of the payload, and the length of
    /// the payload.
    fn large_part(&self) -> Option<(Header, usize)> {
        if self.rest.is_some() {
            return None;
        }
        self.inbound.part().filter(|(_, len)| (LARGE..=MAX_PAYLOAD).contains(len))
    }

    /// Reads bytes of the frame that is being handled in parts to their place, and handles them.
    /// Returns their number, 0 if the socket is empty or the call was interrupted; `None` if they
    /// have no place or are few.
    fn fill(&mut self, handler: &mut impl Handler) -> Result<Option<usize>, Ended> {
        let Some(rest) = self.rest.filter(|rest| rest.len >= FEWEST) else { return Ok(None) };
        let Self { socket, records, inbound, .. } = self;
        let mut read = Ok(0);
        let placed = handler.fill(&rest.header, rest.len - TAIL, |target| {
            // The buffer is empty: all of its bytes were handled.
            let space = inbound.space(BEHIND);
            read = match records {
                None => socket.read_to(target, space),
                Some(records) => records.read_to(socket, target, space),
            };
            let count = *read.as_ref().unwrap_or(&0);
            inbound.filled(count.saturating_sub(target.len()));
            count.min(target.len())
        });
        let Some(placed) = placed else { return Ok(None) };
        self.rest = rest.behind(placed);
        // The copy faults where the place is not mapped any more, as on every other link.
        if matches!(read, Err(os::Error { errno: Errno::EFAULT, .. })) {
            return Ok(None);
        }
        self.note_read(read)?;
        Ok(Some(placed))
    }

    /// Whether frames wait for the kernel.
    fn has_unsent(&self) -> bool {
        !self.out.is_empty() || self.records.as_ref().is_some_and(Records::has_unsent)
    }

    /// Whether there is more to send, now or when the socket is writable.
    pub(crate) fn waits(&self) -> bool {
        self.backlog != Backlog::None || self.has_unsent()
    }

    /// Whether transmitting again can make progress.
    pub(crate) fn may_continue(&self) -> bool {
        !self.is_full && self.waits()
    }

    /// Marks the link as one that has more to send than the budget of this turn allows.
    pub(crate) fn put_off(&mut self) {
        self.backlog = Backlog::More;
    }

    /// Delivers the frames of a transmission that ended with `ended`. True if more is left to do;
    /// what the kernel has not taken goes on when the socket is writable.
    pub(crate) fn deliver(&mut self, ended: Transmit) -> Result<bool, Ended> {
        self.backlog = Backlog::after(ended);
        self.flush()?;
        // A peer that reads as fast as this side sends must not keep the caller here.
        if ended == Transmit::Blocked && !self.is_full && self.has_room() {
            self.backlog = Backlog::More;
        }
        Ok(self.backlog == Backlog::More && !self.is_full)
    }

    /// Whether there is work of which the kernel will not tell a thread that goes to sleep.
    pub(crate) fn has_work(&self) -> bool {
        self.has_frames() || !self.is_full && (self.backlog == Backlog::More || self.has_unsent())
    }

    /// Whether the peer's kernel has all frames.
    pub(crate) fn is_taken(&self) -> bool {
        !self.has_unsent() && self.socket.is_acknowledged()
    }

    /// Whether the peer's kernel has yet to take frames; called every second while it has. A peer
    /// that stands still is waited for as long as its host answers.
    pub(crate) fn waits_for_peer(&mut self) -> Result<bool, Ended> {
        self.socket.waits_for_peer(&mut self.patience).map_err(|error| self.end(Ended::Failed(error)))
    }

    /// Gives pushed frames to the kernel, as many as it takes.
    fn flush(&mut self) -> Result<(), Ended> {
        if let Some(ended) = self.ended {
            return Err(ended);
        }
        while self.has_unsent() && !self.is_full {
            let sent = match &mut self.records {
                None => self.socket.write(self.out.unsent()),
                Some(records) => records.write(&self.socket, self.out.unsent()),
            };
            match sent {
                Ok(count) => self.out.advance(count),
                Err(os::Error { errno: Errno::EAGAIN, .. }) => self.is_full = true,
                Err(os::Error { errno: Errno::EINTR, .. }) => {}
                // Frames that the peer has sent before its end are handled first: the next drain
                // reports the end.
                Err(os::Error { errno: Errno::EPIPE | Errno::ECONNRESET, .. }) => {
                    self.out = SendBuffer::new(SEND_BUFFER);
                    self.records.as_mut().map(Records::clear).unwrap_or_default();
                    break;
                }
                Err(error) => return Err(self.end(Ended::Failed(error))),
            }
        }
        Ok(())
    }

    /// Gives a frame to the kernel from where it lies, behind those that wait. Of a frame that the
    /// kernel has begun to take, the rest is copied into the buffer.
    fn push_large(&mut self, head: &[u8; HEAD], payload: &Gather<'_>) -> bool {
        let whole = HEAD + payload.len();
        if self.is_full || !self.out.fits(whole) {
            return false;
        }
        let waiting = self.out.unsent();
        let in_front = waiting[0].len() + waiting[1].len();
        let sent = match self.socket.write_from(waiting, head, payload) {
            Ok(sent) => sent,
            Err(os::Error { errno: Errno::EAGAIN, .. }) => {
                self.is_full = true;
                return false;
            }
            // The copy faults where the payload is not mapped any more, as on every other link. The
            // next flush meets a connection that the peer has ended once more.
            Err(os::Error { errno: Errno::EFAULT | Errno::EINTR | Errno::EPIPE | Errno::ECONNRESET, .. }) => 0,
            // The kernel tells this once.
            Err(error) => {
                self.end(Ended::Failed(error));
                return false;
            }
        };
        self.out.advance(sent.min(in_front));
        let taken = sent.saturating_sub(in_front);
        if taken == whole {
            return true;
        }
        let Some(space) = self.out.reserve(whole - taken) else { return false };
        let (rest, body) = space.split_at_mut(HEAD.saturating_sub(taken));
        rest.copy_from_slice(&head[HEAD - rest.len()..]);
        payload.copy_rest(taken.saturating_sub(HEAD), Target::of(body));
        self.out.push(whole - taken);
        true
    }

    /// Encrypts a frame from where it lies. Those that wait are encrypted, and sent, before.
    fn push_encrypted(&mut self, head: &[u8; HEAD], payload: &Gather<'_>) -> bool {
        let whole = HEAD + payload.len();
        let fits = |link: &Self| link.out.is_empty() && link.records.as_ref().is_some_and(|it| it.has_room(whole));
        if !fits(self) && (self.flush().is_err() || !fits(self)) {
            return false;
        }
        match self.records.as_mut().map(|records| records.push(head, payload)) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                self.end(Ended::Failed(error));
                false
            }
            None => false,
        }
    }

    /// Whether the largest frame fits into the buffer.
    fn has_room(&self) -> bool {
        self.out.fits(HEAD + MAX_PAYLOAD)
    }

    /// Whether frames wait here although the kernel will not tell of them.
    fn has_frames(&self) -> bool {
        let has_part = self.rest.is_some() && !self.inbound.is_empty();
        self.may_read || has_part || self.inbound.has_frame() || self.ended.is_some()
    }

    fn end(&mut self, ended: Ended) -> Ended {
        *self.ended.get_or_insert(ended)
    }

    /// Notices that a full socket is writable again. Whether it is readable, or its connection has
    /// ended.
    fn look_at_full_socket(&mut self) -> bool {
        let (is_readable, is_writable) = self.socket.look();
        self.is_full = !is_writable;
        is_readable
    }

    /// Reads once; false if the socket is empty.
    fn read(&mut self) -> Result<bool, Ended> {
        // The rest of a frame that has no place now is read at once.
        let is_short = self.short_reads > 0 && self.rest.is_none_or(|rest| rest.len < FEWEST);
        let space = self.inbound.space(if is_short { SHORT_READ } else { RECEIVE_BUFFER });
        let read = match &mut self.records {
            None => self.socket.read(space),
            Some(records) => records.read(&self.socket, space),
        };
        self.inbound.filled(*read.as_ref().unwrap_or(&0));
        self.note_read(read)
    }

    /// Notes how a read has ended; false if the socket is empty.
    fn note_read(&mut self, read: os::Result<usize>) -> Result<bool, Ended> {
        self.may_read = true;
        match read {
            Ok(0) => Err(Ended::Closed),
            Ok(_) => Ok(true),
            Err(os::Error { errno: Errno::EAGAIN, .. }) => {
                self.may_read = false;
                Ok(false)
            }
            Err(os::Error { errno: Errno::EINTR, .. }) => Ok(true),
            Err(os::Error { errno: Errno::ECONNRESET, .. }) => Err(Ended::Closed),
            Err(error) => Err(Ended::Failed(error)),
        }
    }
}

impl Drop for Stream {
    /// Ends the connection even if a child that was forked in a bad moment has a copy of the
    /// descriptor.
    fn drop(&mut self) {
        self.socket.shut_down();
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Outbound for Stream {
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool {
        let Ok(len) = u32::try_from(payload.len()) else { return false };
        if payload.len() > MAX_PAYLOAD || self.ended.is_some() {
            return false;
        }
        if payload.len() >= LARGE {
            let mut head = [0; HEAD];
            write_head(&mut head, len, header);
            return match self.records {
                None => self.push_large(&head, payload),
                Some(_) => self.push_encrypted(&head, payload),
            };
        }
        let Some(space) = self.out.reserve(HEAD + payload.len()) else { return false };
        let (head, body) = space.split_at_mut(HEAD);
        write_head(head, len, header);
        if !payload.copy_to(Target::of(body)) {
            return false;
        }
        self.out.push(HEAD + payload.len());
        true
    }
}

/// Writes the bytes before a payload.
fn write_head(head: &mut [u8], len: u32, header: &Header) {
    head[..4].copy_from_slice(&len.to_le_bytes());
    for (bytes, word) in head[4..].chunks_exact_mut(8).zip(header.0) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Reads the header before a payload.
fn read_head(head: &[u8]) -> Header {
    let mut header = Header::default();
    for (word, bytes) in header.0.iter_mut().zip(head[4..].chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    header
}

/// Whole frames in order, each in one piece. When the rest of the memory is too short for a frame,
/// the frame goes to the start, and the older frames end before it.
#[derive(Debug)]
struct SendBuffer {
    bytes: Box<[u8]>,
    read: usize,
    written: usize,
    /// The end of the older frames, if newer ones begin at the start again.
    end: Option<usize>,
}

impl SendBuffer {
    fn new(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity].into_boxed_slice(), read: 0, written: 0, end: None }
    }

    fn is_empty(&self) -> bool {
        self.end.is_none() && self.read == self.written
    }

    /// Where `len` contiguous bytes are free.
    fn place(&self, len: usize) -> Option<usize> {
        match self.end {
            None if self.bytes.len() - self.written >= len => Some(self.written),
            None if self.read >= len => Some(0),
            Some(_) if self.read - self.written >= len => Some(self.written),
            _ => None,
        }
    }

    fn fits(&self, len: usize) -> bool {
        self.place(len).is_some()
    }

    /// Free memory for the next frame; [`push`](Self::push) follows.
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        let at = self.place(len)?;
        Some(&mut self.bytes[at..at + len])
    }

    /// Appends the frame that was written to the reserved memory.
    fn push(&mut self, len: usize) {
        let Some(at) = self.place(len) else { return };
        if at != self.written {
            self.end = Some(self.written);
        }
        self.written = at + len;
    }

    fn unsent(&self) -> [&[u8]; 2] {
        match self.end {
            None => [&self.bytes[self.read..self.written], &[]],
            Some(end) => [&self.bytes[self.read..end], &self.bytes[..self.written]],
        }
    }

    /// Removes the first `count` bytes.
    fn advance(&mut self, count: usize) {
        self.read += count;
        if let Some(end) = self.end.filter(|end| self.read >= *end) {
            (self.read, self.end) = (self.read - end, None);
        }
        if self.is_empty() {
            (self.read, self.written) = (0, 0);
        }
    }
}

/// Bytes that have arrived.
#[derive(Debug)]
struct ReceiveBuffer {
    bytes: Box<[u8]>,
    read: usize,
    written: usize,
    /// The end of the space that was given last.
    end: usize,
}

impl ReceiveBuffer {
    fn new() -> Self {
        Self { bytes: vec![0; RECEIVE_BUFFER].into_boxed_slice(), read: 0, written: 0, end: 0 }
    }

    fn is_empty(&self) -> bool {
        self.read == self.written
    }

    /// The length of the payload of the first frame, if its length has arrived.
    fn len(&self) -> Option<usize> {
        let bytes = self.bytes[self.read..self.written].first_chunk()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    }

    /// Whether `next` would return a frame or an error.
    fn has_frame(&self) -> bool {
        self.len().is_some_and(|len| len > MAX_PAYLOAD || self.written - self.read >= HEAD + len)
    }

    /// Takes the first frame, if it has arrived whole.
    fn next(&mut self) -> Result<Option<(Header, &[u8])>, Ended> {
        let Some(len) = self.len() else { return Ok(None) };
        if len > MAX_PAYLOAD {
            return Err(Ended::Corrupt);
        }
        let whole = HEAD + len;
        if self.written - self.read < whole {
            return Ok(None);
        }
        let (head, payload) = self.bytes[self.read..self.read + whole].split_at(HEAD);
        self.read += whole;
        Ok(Some((read_head(head), payload)))
    }

    /// The header of the first frame, and the length of its payload, if a part of that has arrived,
    /// but not all.
    fn part(&self) -> Option<(Header, usize)> {
        let len = self.len()?;
        let (head, payload) = self.bytes[self.read..self.written].split_at_checked(HEAD)?;
        (1..len).contains(&payload.len()).then(|| (read_head(head), len))
    }

    /// Takes the first bytes, as many as have arrived, but at most `len`.
    fn take(&mut self, len: usize) -> &[u8] {
        let start = self.read;
        self.read += len.min(self.written - start);
        &self.bytes[start..self.read]
    }

    /// Space for more bytes, at most `most`: never empty when no whole frame is left. Moves a part
    /// of a frame to the start, at most once for each fill of the buffer.
    fn space(&mut self, most: usize) -> &mut [u8] {
        if self.is_empty() {
            (self.read, self.written) = (0, 0);
        } else if self.bytes.len() - self.read < HEAD + MAX_PAYLOAD {
            self.bytes.copy_within(self.read..self.written, 0);
            (self.read, self.written) = (0, self.written - self.read);
        }
        self.end = self.bytes.len().min(self.written + most);
        &mut self.bytes[self.written..self.end]
    }

    fn filled(&mut self, count: usize) {
        self.written += count;
    }

    /// Whether the last read left space: then the socket had no more.
    fn has_space(&self) -> bool {
        self.written < self.end
    }
}

#[cfg(test)]
mod tests;
