//! Ping-pong and streams between two processes over one reliable connection.

pub mod bandwidth;
pub mod compat;
pub mod latency;
pub mod link;
pub mod report;

use std::fmt;

pub use link::Link;

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Op {
    /// Sends and receives.
    Send,
    /// RDMA writes.
    Write,
    /// RDMA reads, of which the other side knows nothing.
    Read,
}

impl Op {
    /// The name in perftest's titles.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::Write => "RDMA_Write",
            Self::Read => "RDMA_Read",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// What both sides have to do alike.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What carries the messages.
    pub op: Op,
    /// The path's MTU; the port's, if not given.
    pub mtu: Option<u32>,
    /// Sleep until there are completions.
    pub events: bool,
    /// Check every message's contents.
    pub check: bool,
    /// Messages under way at once, in bandwidth tests.
    pub depth: u32,
}

/// The contents of a message: different in every message, and at every place of it.
pub(crate) fn fill(bytes: &mut [u8], number: u64) {
    let mut value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        value = value.wrapping_add(0x2545_f491_4f6c_dd1d);
        chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
    }
    // The last byte is the number: who watches memory waits for it.
    if let Some(last) = bytes.last_mut() {
        *last = last_byte(number);
    }
}

/// The last byte of a message: never the same in two that follow each other, and never what fresh memory has.
pub(crate) fn last_byte(number: u64) -> u8 {
    u8::try_from(number % 255).unwrap_or(0) + 1
}

/// Whether a message has the contents that [`fill`] gave it.
pub(crate) fn is_intact(bytes: &[u8], number: u64) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, number);
    expected == bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_tell_messages_and_places_apart() {
        let mut bytes = vec![0; 100];
        for number in [0, 1, 254, 255, 1 << 40] {
            fill(&mut bytes, number);
            assert!(is_intact(&bytes, number));
            assert!(!is_intact(&bytes, number + 1));
            bytes.swap(3, 11);
            assert!(!is_intact(&bytes, number));
            assert_ne!(last_byte(number), last_byte(number + 1));
            assert_ne!(last_byte(number), 0);
        }
    }
}
