//! The descriptors that the agent watches, encoded as tokens of its event loop.

use crate::engine::LinkId;

/// A descriptor that the event loop reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A listening socket has a peer to accept.
    Listener(u32),
    /// A peer has rung: its frames are in the link's ring.
    Bell,
    /// A connection to another host is readable, writable or at its end: a turn finds out.
    Stream,
    /// A link's socket has a packet, or the peer hung up.
    Socket {
        /// The link.
        link: LinkId,
        /// Distinguishes the link from earlier links of the same number.
        generation: u32,
    },
    /// A link's peer has died.
    Death {
        /// The link.
        link: LinkId,
        /// Distinguishes the link from earlier links of the same number.
        generation: u32,
    },
}

impl Source {
    /// Encodes the source: kind 4 bits, link or index 28 bits, generation 32 bits.
    pub(super) fn token(self) -> u64 {
        let (kind, index, generation) = match self {
            Self::Listener(index) => (0, index, 0),
            Self::Socket { link, generation } => (1, link.0, generation),
            Self::Death { link, generation } => (2, link.0, generation),
            Self::Bell => (3, 0, 0),
            Self::Stream => (4, 0, 0),
        };
        kind << 60 | u64::from(index & 0x0fff_ffff) << 32 | u64::from(generation)
    }

    #[expect(clippy::cast_possible_truncation, reason = "fields of 28 and 32 bits")]
    pub(super) fn of(token: u64) -> Self {
        let (index, generation) = ((token >> 32) as u32 & 0x0fff_ffff, token as u32);
        match token >> 60 {
            0 => Self::Listener(index),
            1 => Self::Socket { link: LinkId(index), generation },
            3 => Self::Bell,
            4 => Self::Stream,
            _ => Self::Death { link: LinkId(index), generation },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_come_back_as_they_went_in() {
        for source in [
            Source::Listener(7),
            Source::Bell,
            Source::Stream,
            Source::Socket { link: LinkId(0x0fff_ffff), generation: u32::MAX },
            Source::Death { link: LinkId(3), generation: 9 },
        ] {
            assert_eq!(Source::of(source.token()), source);
        }
    }
}
