//! Frames between engines: a fixed header of six words, and a payload.
//!
//! ```text
//! word 0   kind 8 | flags 8 | epoch 16 | number 24 | code 8      (low bits first)
//! word 1   receiver's queue pair number 32 | sender's 32
//! word 2   address                         or the atomic's result
//! word 3   key 32 | length of the whole message 32
//! word 4   offset of this payload 32 | immediate 32      or the compare operand, or what is added
//! word 5   the swap operand                or, with ACK: number 32 | epoch 16
//! ```
//!
//! A datagram's payload is its GRH of 40 bytes and its data. Word 2 is the sender's local
//! identifier, the key is the Q_Key, and the code is the service level.
//!
//! A header is hostile until it is checked: [`Frame::decode`] checks everything that can be checked
//! without knowing the queue pair.

use super::grh::GRH_LEN;
use super::limits::{MAX_MESSAGE, MTU};
use super::memory::Origin;
use super::types::SendFlags;

/// The number of words in a header.
pub(crate) const HEADER_WORDS: usize = 6;

/// A frame's header as it lies in a ring. The driver does not interpret a header: it copies the
/// header once to private memory and passes it to the engine, which handles any bits safely.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) [u64; HEADER_WORDS]);

impl Header {
    /// The header of a payload that is stored through the caches of the sender's core, in a stream.
    pub(crate) const fn with_cached_payload(mut self) -> Self {
        self.0[0] |= (CACHED as u64) << 8;
        self
    }

    /// The header of the payload behind the first `len` bytes of a frame that may be cut
    /// ([`Engine::may_cut`](super::Engine::may_cut)). The acknowledgement goes with those bytes.
    pub(crate) const fn behind(mut self, len: u32) -> Self {
        self.0[0] &= !((ACK as u64) << 8);
        // The payload of such a frame lies in its message, so the offset's half has no carry.
        self.0[4] = self.0[4].wrapping_add(len as u64);
        self
    }
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    // Requests.
    Send = 1,
    Write = 2,
    /// A write with immediate whose data the requester has already written directly.
    WriteDone = 3,
    Read = 4,
    CompareSwap = 5,
    FetchAdd = 6,
    // Answers.
    Ack = 16,
    Nak = 17,
    RnrNak = 18,
    /// The responder dropped the request; a real device would send nothing.
    Dropped = 19,
    ReadData = 20,
    AtomicData = 21,
    /// Asks for no more requests and data on this connection until `Resume`.
    Pause = 22,
    /// Ends a `Pause`.
    Resume = 23,
    // Frames outside of connections.
    /// Asks for the region with the key, in order to map it.
    Want = 32,
    /// A whole datagram. It is never answered.
    Datagram = 33,
    /// The region with the key, which was granted, is deregistered: its mapping is of no use any
    /// more.
    Revoked = 34,
    // Messages of unreliable connections, which are never answered.
    UcSend = 48,
    UcWrite = 49,
}

impl Kind {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Send,
            2 => Self::Write,
            3 => Self::WriteDone,
            4 => Self::Read,
            5 => Self::CompareSwap,
            6 => Self::FetchAdd,
            16 => Self::Ack,
            17 => Self::Nak,
            18 => Self::RnrNak,
            19 => Self::Dropped,
            20 => Self::ReadData,
            21 => Self::AtomicData,
            22 => Self::Pause,
            23 => Self::Resume,
            32 => Self::Want,
            33 => Self::Datagram,
            34 => Self::Revoked,
            48 => Self::UcSend,
            49 => Self::UcWrite,
            _ => return None,
        })
    }

    /// Whether a request of this kind may be sent in pieces.
    pub(super) const fn is_cut(self) -> bool {
        matches!(self, Self::Send | Self::Write)
    }

    /// Whether the message is lost if it cannot be delivered at once.
    pub(super) const fn is_unreliable(self) -> bool {
        matches!(self, Self::Datagram | Self::UcSend | Self::UcWrite)
    }

    /// Whether the frame belongs to the reliable connection of two queue pairs.
    pub(super) const fn is_of_connection(self) -> bool {
        (self as u8) < 32
    }

    /// Whether the frame asks the peer to pause or to go on.
    pub(super) const fn is_flow(self) -> bool {
        matches!(self, Self::Pause | Self::Resume)
    }

    /// Whether the frame carries a request.
    pub(super) const fn is_request(self) -> bool {
        (self as u8) < 16
    }
}

/// Flag: the immediate is valid.
pub(super) const IMM: u8 = 1;
/// Flag: the receive completion is solicited.
pub(super) const SOLICITED: u8 = 2;
/// Flag: word 5 acknowledges requests of the other direction.
pub(super) const ACK: u8 = 4;
/// Flag: the first 40 payload bytes of a datagram hold a valid GRH.
pub(super) const GRH: u8 = 8;
/// Flag: the requester waits for the acknowledgement.
pub(super) const ACK_REQUEST: u8 = 16;
/// Flag: the payload was stored through the caches of the sender's core, in a stream.
const CACHED: u8 = 32;
const KNOWN_FLAGS: u8 = IMM | SOLICITED | ACK | GRH | ACK_REQUEST | CACHED;

/// Returns the flags of a request's frames.
pub(super) const fn request_flags(flags: SendFlags) -> u8 {
    let imm = if flags.contains(SendFlags::IMM) { IMM } else { 0 };
    imm | if flags.contains(SendFlags::SOLICITED) { SOLICITED } else { 0 }
}

/// The reason of a refusal: the code of a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Refusal {
    InvalidRequest = 1,
    Access = 2,
    Operation = 3,
}

impl Refusal {
    pub(super) const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::InvalidRequest,
            2 => Self::Access,
            3 => Self::Operation,
            _ => return None,
        })
    }
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) flags: u8,
    /// The requester's incarnation (upper byte) and attempt (lower byte).
    pub(super) epoch: u16,
    /// The message's number, 24 bits.
    pub(super) number: u32,
    pub(super) code: u8,
    pub(super) to: u32,
    pub(super) from: u32,
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) total: u32,
    pub(super) a: u64,
    pub(super) b: u64,
}

impl Frame {
    /// Creates a frame with the fields that all frames have; the others are 0.
    pub(super) const fn new(kind: Kind, to: u32, from: u32, number: u32, epoch: u16) -> Self {
        Self { kind, flags: 0, epoch, number, code: 0, to, from, addr: 0, key: 0, total: 0, a: 0, b: 0 }
    }

    /// Returns the offset of this payload in the message.
    #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
    pub(super) const fn offset(&self) -> u32 {
        self.a as u32
    }

    /// Returns the immediate.
    #[allow(clippy::cast_possible_truncation, reason = "the upper half")]
    pub(super) const fn imm(&self) -> u32 {
        (self.a >> 32) as u32
    }

    /// Sets the offset and the immediate.
    pub(super) const fn set_offset(&mut self, offset: u32, imm: u32) {
        self.a = offset as u64 | (imm as u64) << 32;
    }

    /// Returns where the sender has stored the payload.
    #[inline(always)]
    pub(super) const fn origin(&self) -> Origin {
        if self.flags & CACHED == 0 { Origin::Memory } else { Origin::PeerCache }
    }

    /// Returns the acknowledgement in word 5 as a frame of its own.
    #[allow(clippy::cast_possible_truncation, reason = "fields of the word")]
    pub(super) const fn carried_ack(&self) -> Option<Self> {
        if self.flags & ACK == 0 || !self.can_carry() {
            return None;
        }
        Some(Self::new(Kind::Ack, self.to, self.from, self.b as u32 & NUMBER_MASK, (self.b >> 32) as u16))
    }

    /// Whether word 5 is free for an acknowledgement.
    pub(super) const fn can_carry(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::Write | Kind::WriteDone | Kind::Read)
    }

    /// Puts an acknowledgement into word 5.
    pub(super) const fn carry_ack(&mut self, number: u32, epoch: u16) {
        self.flags |= ACK;
        self.b = number as u64 | (epoch as u64) << 32;
    }

    /// Whether `next` carries the payload behind the first `len` bytes of this frame's message.
    pub(super) fn is_continued_by(&self, next: &Self, len: usize) -> bool {
        let of = |frame: &Self| (frame.kind, frame.epoch, frame.number, frame.key, frame.addr, frame.total);
        let is_cut = self.kind.is_cut() || self.kind == Kind::ReadData;
        is_cut && of(self) == of(next) && next.offset() as usize == self.offset() as usize + len
    }

    /// Takes over the acknowledgement that a later frame carries.
    pub(super) const fn take_ack_of(&mut self, later: &Self) {
        if let Some(ack) = later.carried_ack() {
            self.carry_ack(ack.number, ack.epoch);
        }
    }

    /// Whether both frames drop requests of the same attempt.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        let of = |frame: &Self| (frame.kind, frame.to, frame.from, frame.epoch);
        self.kind == Kind::Dropped && of(self) == of(other)
    }

    /// Whether the frame is the first one of a request.
    pub(super) const fn begins_request(&self) -> bool {
        self.kind.is_request() && (!self.kind.is_cut() || self.offset() == 0)
    }

    /// Encodes the frame as a header.
    #[inline]
    pub(super) const fn encode(&self) -> Header {
        Header([
            self.kind as u64
                | (self.flags as u64) << 8
                | (self.epoch as u64) << 16
                | (self.number as u64) << 32
                | (self.code as u64) << 56,
            self.to as u64 | (self.from as u64) << 32,
            self.addr,
            self.key as u64 | (self.total as u64) << 32,
            self.a,
            self.b,
        ])
    }

    /// Decodes a header; `None` if no engine of this version sends such a frame.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "fields of words")]
    pub(super) fn decode(header: &Header, payload: usize) -> Option<Self> {
        let [w0, w1, addr, w3, a, b] = header.0;
        let frame = Self {
            kind: Kind::from_bits(w0 as u8)?,
            flags: (w0 >> 8) as u8,
            epoch: (w0 >> 16) as u16,
            number: (w0 >> 32) as u32 & NUMBER_MASK,
            code: (w0 >> 56) as u8,
            to: w1 as u32,
            from: (w1 >> 32) as u32,
            addr,
            key: w3 as u32,
            total: (w3 >> 32) as u32,
            a,
            b,
        };
        if frame.flags & !KNOWN_FLAGS != 0 || frame.total > MAX_MESSAGE {
            return None;
        }
        match frame.kind {
            Kind::Send | Kind::Write | Kind::ReadData | Kind::UcSend | Kind::UcWrite => {
                // Each payload lies in its message, and is not empty unless the message is empty.
                let end = u64::from(frame.offset()) + payload as u64;
                if end > u64::from(frame.total) || (payload == 0 && frame.total != 0) {
                    return None;
                }
            }
            Kind::Datagram => {
                let fits = (GRH_LEN..=GRH_LEN + MTU as usize).contains(&payload);
                if !fits || payload != frame.total as usize || frame.offset() != 0 {
                    return None;
                }
            }
            Kind::WriteDone if frame.flags & IMM == 0 => return None,
            _ if payload != 0 => return None,
            _ => {}
        }
        Some(frame)
    }
}

/// Message numbers have 24 bits and wrap around, like PSNs.
pub(super) const NUMBER_MASK: u32 = 0x00ff_ffff;

/// Returns the number after `number`.
pub(super) const fn after(number: u32) -> u32 {
    number.wrapping_add(1) & NUMBER_MASK
}

/// Returns the number before `number`.
pub(super) const fn before(number: u32) -> u32 {
    number.wrapping_sub(1) & NUMBER_MASK
}

/// Returns how far `to` is ahead of `from`.
pub(super) const fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & NUMBER_MASK
}

/// Whether `number` comes before `limit`. The two must be less than half the range apart.
pub(super) const fn precedes(number: u32, limit: u32) -> bool {
    let ahead = distance(number, limit);
    ahead != 0 && ahead < (1 << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_its_header() {
        let mut frame = Frame::new(Kind::Write, 0x12_3456, 0xab_cdef, 0xff_fffe, 0x1234);
        (frame.addr, frame.key, frame.total, frame.code) = (u64::MAX - 3, 0xdead_beef, 1 << 30, 200);
        frame.set_offset(77, 0x8000_0001);
        frame.carry_ack(0x77_7777, 0xffff);
        frame.flags |= IMM | SOLICITED;
        let back = Frame::decode(&frame.encode(), 1000).unwrap();
        assert_eq!(back, frame);
        assert_eq!((back.offset(), back.imm()), (77, 0x8000_0001));
        let ack = Frame::new(Kind::Ack, 0x12_3456, 0xab_cdef, 0x77_7777, 0xffff);
        assert_eq!(back.carried_ack(), Some(ack));
    }

    #[test]
    fn a_header_says_where_the_payload_lies() {
        let mut frame = Frame::new(Kind::Send, 1, 2, 3, 4);
        frame.total = 8;
        let header = frame.encode();
        let origin = |header| Frame::decode(&header, 8).unwrap().origin();
        assert_eq!(origin(header), Origin::Memory);
        assert_eq!(origin(header.with_cached_payload()), Origin::PeerCache);
    }

    #[test]
    fn impossible_frames_are_refused() {
        assert_eq!(Frame::decode(&Header([0; 6]), 0), None);
        assert_eq!(Frame::decode(&Header([u64::MAX; 6]), 0), None);
        let mut frame = Frame::new(Kind::Send, 1, 2, 3, 4);
        frame.total = 8;
        assert!(Frame::decode(&frame.encode(), 8).is_some());
        assert_eq!(Frame::decode(&frame.encode(), 9), None, "longer than the message");
        assert_eq!(Frame::decode(&frame.encode(), 0), None, "an empty piece of a message that is not empty");
        frame.set_offset(u32::MAX, 0);
        assert_eq!(Frame::decode(&frame.encode(), 1), None, "offset beyond the end");
        frame.total = MAX_MESSAGE + 1;
        frame.set_offset(0, 0);
        assert_eq!(Frame::decode(&frame.encode(), 1), None, "too long");
        let ack = Frame::new(Kind::Ack, 1, 2, 3, 4);
        assert_eq!(Frame::decode(&ack.encode(), 1), None, "an answer with a payload");
        let mut datagram = Frame::new(Kind::Datagram, 1, 2, 3, 0);
        datagram.total = 39;
        assert_eq!(Frame::decode(&datagram.encode(), 39), None, "a datagram without a header");
        datagram.total = 40;
        assert_eq!(Frame::decode(&datagram.encode(), 40), Some(datagram));
        assert_eq!(Frame::decode(&datagram.encode(), 41), None, "more than it says");
        datagram.total = 4137;
        assert_eq!(Frame::decode(&datagram.encode(), 4137), None, "longer than the MTU");
        (datagram.total, datagram.a) = (40, 1);
        assert_eq!(Frame::decode(&datagram.encode(), 40), None, "a piece of a datagram");
    }

    #[test]
    fn numbers_wrap() {
        assert_eq!(after(NUMBER_MASK), 0);
        assert_eq!(before(0), NUMBER_MASK);
        assert!(precedes(NUMBER_MASK, 0));
        assert!(!precedes(0, NUMBER_MASK));
        assert!(!precedes(5, 5));
    }
}
