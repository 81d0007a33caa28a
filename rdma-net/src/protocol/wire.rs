//! The header of a message, version 2: 16 bytes in network byte order.
//!
//! ```text
//!  0 kind u8     DATA 0, UPDATE 1, PING 2, PONG 3, CLOSE 4, OFFER 5, DONE 6
//!  1 flags u8    FIRST 1, LAST 2, FIN 4, ECHO 8
//!  2 start u16   offset of the payload, 0 without payload
//!  4 limit u32   data messages that the receiver may have sent since the start, modulo 2^32
//!  8 rest u32    DATA: bytes of the message after this fragment; PING, PONG: cookie; CLOSE: code;
//!                OFFER, DONE: id of the offer; UPDATE: 0
//! 12 stream u32  DATA: number for the layer above; 0 in other kinds
//! ```
//!
//! The payload ends where the message ends. FIN stands in the last fragment of a message. A FIN
//! without payload, with FIRST and LAST, ends the data without another message.

use std::ops::Range;

use bitflags::bitflags;

use rdma::RemoteSlice;

use super::violation::Violation;

/// Length of the header in bytes.
pub(crate) const HEADER_LEN: usize = START as usize;
/// Start of the payloads that this side sends.
const START: u8 = 16;
/// Alignment of the start of a payload in bytes.
const PAYLOAD_ALIGN: usize = 8;
/// Length of the payload of an OFFER: a remote slice.
pub(crate) const OFFER_LEN: usize = RemoteSlice::LEN;
/// Length of the payload of a DONE: a status.
pub(crate) const DONE_LEN: usize = 4;

/// Size of the receive of a fragment with a payload of `payload` bytes.
pub(crate) const fn receive_size(payload: u32) -> u32 {
    payload.saturating_add(START as u32)
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A message of the application, or a fragment of one.
    Data,
    /// A grant of credits.
    Update,
    /// Asks for a PONG.
    Ping,
    /// Answers a PING.
    Pong,
    /// The last message of a side.
    Close,
    /// Names exposed memory that the receiver may read.
    Offer,
    /// The receiver of an OFFER has read the memory, or refuses to.
    Done,
}

impl Kind {
    const ALL: [Self; 7] = [Self::Data, Self::Update, Self::Ping, Self::Pong, Self::Close, Self::Offer, Self::Done];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Whether a message of this kind needs a credit.
    pub(crate) fn needs_credit(self) -> bool {
        matches!(self, Self::Data | Self::Offer | Self::Done)
    }

    fn allowed_flags(self) -> Flags {
        if self == Self::Data { Flags::all() } else { Flags::ECHO }
    }

    fn allows_payload(self, len: usize) -> bool {
        match self {
            Self::Data => true,
            Self::Offer => len == OFFER_LEN,
            Self::Done => len == DONE_LEN,
            Self::Update | Self::Ping | Self::Pong | Self::Close => len == 0,
        }
    }
}

bitflags! {
    /// The flags of a message.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub(crate) struct Flags: u8 {
        /// The first fragment of a message.
        const FIRST = 1;
        /// The last fragment of a message.
        const LAST = 2;
        /// No more data follows.
        const FIN = 4;
        /// Answers the receiver's last UPDATE.
        const ECHO = 8;
    }
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: Flags,
    /// Whether a payload follows the header. This side starts its payloads at [`HEADER_LEN`].
    pub(crate) has_payload: bool,
    pub(crate) limit: u32,
    pub(crate) rest: u32,
    pub(crate) stream: u32,
}

impl Header {
    /// The wire format.
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags.bits();
        if self.has_payload {
            bytes[3] = START;
        }
        bytes[4..8].copy_from_slice(&self.limit.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rest.to_be_bytes());
        bytes[12..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }

    /// Decodes a received message, and returns the range of its payload.
    ///
    /// Checks all that one message shows without the state of the connection.
    pub(crate) fn decode(message: &[u8]) -> Result<(Self, Range<usize>), Violation> {
        let header: &[u8; HEADER_LEN] = message.first_chunk().ok_or(Violation::TooShort)?;
        let kind = Kind::from_byte(header[0]).ok_or(Violation::UnknownKind)?;
        let flags = Flags::from_bits(header[1]).ok_or(Violation::WrongFlags)?;
        if !kind.allowed_flags().contains(flags) {
            return Err(Violation::WrongFlags);
        }
        let start = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let payload = payload(start, message.len())?;
        if !kind.allows_payload(payload.len()) {
            return Err(Violation::WrongPayload);
        }
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (limit, rest, stream) = (word(4), word(8), word(12));
        if kind == Kind::Update && rest != 0 || kind != Kind::Data && stream != 0 {
            return Err(Violation::Reserved);
        }
        Ok((Self { kind, flags, has_payload: start != 0, limit, rest, stream }, payload))
    }
}

/// The range of a payload that begins at `start` in a message of `len` bytes.
fn payload(start: usize, len: usize) -> Result<Range<usize>, Violation> {
    match start {
        0 if len == HEADER_LEN => Ok(len..len),
        0 => Err(Violation::WrongPayload),
        _ if start < HEADER_LEN || start > len || start % PAYLOAD_ALIGN != 0 => Err(Violation::WrongStart),
        _ => Ok(start..len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_format_is_fixed() {
        let header = Header {
            kind: Kind::Data,
            flags: Flags::FIRST | Flags::ECHO,
            has_payload: true,
            limit: 0x0102_0304,
            rest: 0x1112_1314,
            stream: 0x2122_2324,
        };
        let wire = [0, 9, 0, 16, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24];
        assert_eq!(header.to_bytes(), wire);
        let message = [&wire[..], b"abc"].concat();
        assert_eq!(Header::decode(&message), Ok((header, 16..19)));
    }

    #[test]
    fn every_kind_has_its_number() {
        for (number, kind) in (0..).zip(Kind::ALL) {
            assert_eq!(kind as u8, number);
            assert_eq!(Kind::from_byte(number), Some(kind));
        }
        assert_eq!(Kind::from_byte(7), None);
    }

    #[test]
    fn a_payload_may_begin_after_padding() {
        let header =
            Header { kind: Kind::Data, flags: Flags::empty(), has_payload: true, limit: 0, rest: 0, stream: 0 };
        let mut message = header.to_bytes().to_vec();
        message.resize(40, 7);
        message[3] = 32;
        assert_eq!(Header::decode(&message).unwrap().1, 32..40);
        message[3] = 40;
        assert_eq!(Header::decode(&message).unwrap().1, 40..40);
        for start in [8, 15, 17, 48] {
            message[3] = start;
            assert_eq!(Header::decode(&message), Err(Violation::WrongStart), "{start}");
        }
    }
}
