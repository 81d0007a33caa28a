//! The handshake: a HELLO of each side in the private data of the connection manager, or a REFUSE.
//!
//! ```text
//! HELLO   0 magic u32 | 4 version_min u8 | 5 version_max u8 | 6 length u8 (32) | 7 reserved u8
//!         8 features u32 (1: reads offers, 2: takes notifications) | 12 window u16 | 14 reserve u8 | 15 initial u8 | 16 receive_size u32
//!        20 max_message u64 | 28 keep_alive u32 (ms, 0 for none)
//! REFUSE  0 magic u32 | 4 version_min u8 | 5 version_max u8 | 6 code u16 | 8 text
//! ```

use std::time::Duration;

use super::HEADER_LEN;

/// Length of a HELLO in bytes.
const HELLO_LEN: usize = LENGTH as usize;
/// Control receives of each side: one each for UPDATE, PING, PONG and CLOSE.
pub(crate) const RESERVE: u32 = CONTROL_RECEIVES as u32;

const MAGIC: u32 = 0x5244_4E31; // "RDN1"
const VERSION: u8 = 2;
const LENGTH: u8 = 32;
const CONTROL_RECEIVES: u8 = 4;
/// Longest text of a REFUSE in bytes.
const MAX_TEXT: usize = 100;
/// Longest HELLO of a later version, in bytes.
const MAX_LENGTH: u8 = 56;
const MAX_WINDOW: u16 = 4096;
/// Feature: this side reads offers.
const FEATURE_OFFERS: u32 = 1;
/// Feature: this side takes notifications.
const FEATURE_NOTIFICATIONS: u32 = 2;
const RECEIVE_SIZES: std::ops::RangeInclusive<u32> = 256..=1 << 20;

/// The offer of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Data receives.
    pub(crate) window: u16,
    /// Data receives that the peer may use at the start, before it is told of more; 0 for the whole
    /// window.
    pub(crate) initial: u8,
    /// Size of each receive in bytes, with the header.
    pub(crate) receive_size: u32,
    /// Longest message that this side accepts, in bytes.
    pub(crate) max_message: u64,
    /// Idle time after which the peer is checked; zero for never.
    pub(crate) keep_alive: Duration,
    /// Whether this side can read the memory that an OFFER names.
    pub(crate) reads_offers: bool,
    /// Whether this side takes writes with immediate data.
    pub(crate) takes_notifications: bool,
}

/// The values that both sides use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Data receives of each side.
    pub(crate) window: u32,
    /// Data receives of this side that the peer may use at the start.
    pub(crate) initial: u32,
    /// Data receives of the peer that this side may use at the start.
    pub(crate) peer_initial: u32,
    /// Size of a receive in bytes, with the header.
    pub(crate) receive_size: usize,
    /// Longest message in bytes.
    pub(crate) max_message: u64,
    /// Idle time after which the peer is checked.
    pub(crate) keep_alive: Option<Duration>,
    /// Whether both sides read offers.
    pub(crate) offers: bool,
    /// Whether this side takes notifications.
    pub(crate) takes_notifications: bool,
    /// Whether the peer takes notifications.
    pub(crate) peer_takes_notifications: bool,
}

impl Agreed {
    /// The largest payload of one message in bytes: no more than a whole message, however large the
    /// receives are.
    pub(crate) fn max_payload(&self) -> usize {
        let of_receive = self.receive_size - HEADER_LEN;
        usize::try_from(self.max_message).map_or(of_receive, |longest| of_receive.min(longest))
    }
}

/// The reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefuseCode {
    /// The peer does not speak this protocol, or no common version of it.
    Version,
    /// A value of the HELLO is out of range.
    Limits,
    /// The listener has as many connections as it accepts.
    Busy,
    /// The application refused.
    Application,
    /// The listener's device cannot serve another connection; the text says why.
    Unavailable,
    /// A code that this version does not know.
    Other(u16),
}

impl RefuseCode {
    fn number(self) -> u16 {
        match self {
            Self::Version => 1,
            Self::Limits => 2,
            Self::Busy => 3,
            Self::Application => 4,
            Self::Unavailable => 5,
            Self::Other(number) => number,
        }
    }

    fn from_number(number: u16) -> Self {
        match number {
            1 => Self::Version,
            2 => Self::Limits,
            3 => Self::Busy,
            4 => Self::Application,
            5 => Self::Unavailable,
            other => Self::Other(other),
        }
    }
}

/// The answer to a HELLO that a side does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refuse {
    pub(crate) code: RefuseCode,
    /// An explanation. It comes from the peer: [`from_bytes`](Self::from_bytes) escapes it.
    pub(crate) text: String,
}

impl Refuse {
    pub(crate) fn new(code: RefuseCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut end = self.text.len().min(MAX_TEXT);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = MAGIC.to_be_bytes().to_vec();
        bytes.extend([VERSION, VERSION]);
        bytes.extend(self.code.number().to_be_bytes());
        bytes.extend(&self.text.as_bytes()[..end]);
        bytes
    }

    /// Decodes the private data of a rejection; none if it holds no REFUSE.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, text) = bytes.split_first_chunk::<8>()?;
        if !has_magic(head) {
            return None;
        }
        let text = &text[..text.len().min(MAX_TEXT)];
        let text = String::from_utf8_lossy(text).trim_end_matches('\0').escape_debug().to_string();
        Some(Self { code: RefuseCode::from_number(u16::from_be_bytes([head[6], head[7]])), text })
    }
}

impl Hello {
    pub(crate) fn to_bytes(self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[4..7].copy_from_slice(&[VERSION, VERSION, LENGTH]);
        let mut features = if self.reads_offers { FEATURE_OFFERS } else { 0 };
        if self.takes_notifications {
            features |= FEATURE_NOTIFICATIONS;
        }
        bytes[8..12].copy_from_slice(&features.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.window.to_be_bytes());
        bytes[14] = CONTROL_RECEIVES;
        bytes[15] = self.initial;
        bytes[16..20].copy_from_slice(&self.receive_size.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.max_message.to_be_bytes());
        let milliseconds = u32::try_from(self.keep_alive.as_millis()).unwrap_or(u32::MAX);
        bytes[28..].copy_from_slice(&milliseconds.to_be_bytes());
        bytes
    }

    /// Decodes private data, which may be padded with zeros.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Refuse> {
        let refuse = |code, text: &str| Err(Refuse::new(code, text));
        let Some(bytes) = bytes.first_chunk::<HELLO_LEN>().filter(|bytes| has_magic(&bytes[..])) else {
            return refuse(RefuseCode::Version, "the private data is no HELLO");
        };
        if !(bytes[4]..=bytes[5]).contains(&VERSION) {
            return refuse(RefuseCode::Version, "this end speaks version 2 only");
        }
        if !(LENGTH..=MAX_LENGTH).contains(&bytes[6]) {
            return refuse(RefuseCode::Limits, "the length of the HELLO is wrong");
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let hello = Self {
            window: u16::from_be_bytes([bytes[12], bytes[13]]),
            initial: bytes[15],
            receive_size: word(16),
            max_message: u64::from(word(20)) << 32 | u64::from(word(24)),
            keep_alive: Duration::from_millis(word(28).into()),
            // Features of later versions are not used.
            reads_offers: word(8) & FEATURE_OFFERS != 0,
            takes_notifications: word(8) & FEATURE_NOTIFICATIONS != 0,
        };
        if bytes[14] < CONTROL_RECEIVES || hello.check().is_err() {
            return refuse(RefuseCode::Limits, "a value of the HELLO is out of range");
        }
        Ok(hello)
    }

    /// Checks the ranges of the values.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !(1..=MAX_WINDOW).contains(&self.window) {
            return Err("the window must be 1 to 4096 receives");
        }
        if !RECEIVE_SIZES.contains(&self.receive_size) {
            return Err("the size of a receive must be 256 bytes to 1 MiB");
        }
        Ok(())
    }

    /// The smaller value of each limit.
    pub(crate) fn agree(&self, peer: &Self) -> Agreed {
        let alive = [self.keep_alive, peer.keep_alive].into_iter().filter(|time| !time.is_zero()).min();
        let window = u32::from(self.window.min(peer.window));
        let initial = |count: u8| if count == 0 { window } else { window.min(count.into()) };
        Agreed {
            window,
            initial: initial(self.initial),
            peer_initial: initial(peer.initial),
            receive_size: self.receive_size.min(peer.receive_size) as usize,
            max_message: self.max_message.min(peer.max_message),
            keep_alive: alive,
            offers: self.reads_offers && peer.reads_offers,
            takes_notifications: self.takes_notifications,
            peer_takes_notifications: peer.takes_notifications,
        }
    }
}

fn has_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            window: 64,
            initial: 0,
            receive_size: 4112,
            max_message: 1 << 20,
            keep_alive: Duration::from_secs(15),
            reads_offers: true,
            takes_notifications: true,
        }
    }

    #[test]
    fn a_hello_survives_padding() {
        let mut wire = hello().to_bytes().to_vec();
        wire.resize(56, 0);
        assert_eq!(Hello::from_bytes(&wire), Ok(hello()));
    }

    #[test]
    fn both_ends_take_the_smaller_values() {
        let peer = Hello {
            window: 8,
            initial: 2,
            receive_size: 8192,
            max_message: 5,
            keep_alive: Duration::ZERO,
            reads_offers: false,
            takes_notifications: false,
        };
        let agreed = hello().agree(&peer);
        let of_peer = peer.agree(&hello());
        assert_eq!((agreed.initial, agreed.peer_initial), (8, 2));
        assert_eq!((of_peer.initial, of_peer.peer_initial), (2, 8));
        assert_eq!(agreed.max_payload(), of_peer.max_payload());
        assert_eq!((agreed.window, agreed.receive_size, agreed.max_message), (8, 4112, 5));
        assert_eq!(agreed.keep_alive, Some(Duration::from_secs(15)));
        assert!(!agreed.offers && hello().agree(&hello()).offers);
        assert_eq!((agreed.takes_notifications, agreed.peer_takes_notifications), (true, false));
        assert_eq!((of_peer.takes_notifications, of_peer.peer_takes_notifications), (false, true));
    }

    #[test]
    fn a_wrong_byte_of_a_hello_is_refused() {
        for (at, value, code) in [
            (0, 0, RefuseCode::Version),
            (4, 3, RefuseCode::Version),
            (5, 1, RefuseCode::Version),
            (6, 31, RefuseCode::Limits),
            (6, 57, RefuseCode::Limits),
            (12, 0x20, RefuseCode::Limits),
            (13, 0, RefuseCode::Limits),
            (14, 3, RefuseCode::Limits),
            (16, 1, RefuseCode::Limits),
            (18, 0, RefuseCode::Limits),
        ] {
            let mut wire = hello().to_bytes();
            wire[at] = value;
            assert_eq!(Hello::from_bytes(&wire).unwrap_err().code, code, "byte {at} = {value}");
        }
        assert_eq!(Hello::from_bytes(&hello().to_bytes()[..31]).unwrap_err().code, RefuseCode::Version);
    }

    #[test]
    fn a_refusal_is_cut_and_escaped() {
        let long = "\u{1b}[31m".to_string() + &"ä".repeat(100);
        let wire = Refuse::new(RefuseCode::Busy, long).to_bytes();
        assert!(wire.len() <= 108);
        let read = Refuse::from_bytes(&wire).unwrap();
        assert_eq!(read.code, RefuseCode::Busy);
        assert!(read.text.starts_with("\\u{1b}[31mää"), "{}", read.text);
        assert_eq!(Refuse::from_bytes(b"Connection refused"), None);
    }
}
