//! Links, which carry frames from one engine to another.
//!
//! A link leads to another process or to this one. A link to a process is a [`duplex`] pair of
//! [`ring`]s in one sealed memory file, with a [`doorbell`] at each side. A [`handshake`] over the
//! abstract socket that names the peer's [`slot`] sets the link up. In the handshake each side
//! proves to the other that the kernel lets it trace the other: such a process could read and write
//! all of the other's memory anyway. Two processes share one link. The link of a process to itself
//! is the [`loopback`].
//!
//! A link to a process of another host is a [`stream`] of frames over TCP, after a handshake
//! ([`hello`]) in which each side proves that it holds the [`key`] of the job.
//!
//! A link to a process of this host costs four descriptors: the socket of the handshake, a bell
//! each way, and the peer's pidfd. It uses 524 KiB of shared memory at first: 268 KiB of rings with
//! their control words, and the peer's directory of 256 KiB. The two processes share these pages,
//! so each pays for half. The memory of a ring grows to 4 MiB when its reader does not keep up.
//!
//! # Another kind of link
//!
//! Another kind of link needs an implementation beside [`stream`], a vector in the node's state
//! that takes its part in each turn (`node/state/streams.rs`), and code that sets a link up, as
//! that of `node/callers.rs`. The engine knows links as `LinkId` and `Outbound` and peers as host
//! and slot (`PeerId`), so it does not change. It expects order and reliability. [`Link`] has the
//! media within a host alone: every empty poll asks each of them, and a third one would cost each
//! poll.
//!
//! # Files
//!
//! ```text
//!   mod.rs                  `Link`, a link within a host
//!   duplex.rs               a link to another process; when to ring, and how large frames are
//!   ring.rs, memory.rs      a ring of frames; the shared memory of two rings
//!   pace.rs                 whether payloads go through the caches
//!   loopback.rs             the link of a process to itself
//!   doorbell.rs, words.rs   the wake-up protocol; its atomic words, which loom replaces
//!   handshake.rs, trust.rs  the set-up of a link; which process may connect
//!   stream.rs, hello.rs     a link to a process of another host; its handshake
//!   tls.rs                  the encryption of a link to another host
//!   share.rs                the socket at which the processes of a user listen for other hosts
//!   hosts.rs, key.rs        the numbers of other hosts; the key of a job, and proofs of it
//!   address.rs              the address at which this process listens, as a user names it
//!   wire.rs, peer.rs        packets on the socket of a link; the process behind a link
//!   port.rs, packets.rs     for the connection manager: names of listeners; packets over TCP
//!   slot.rs, group.rs       abstract sockets that name processes and memberships of groups
//! ```

pub(crate) mod address;
pub(crate) mod doorbell;
pub(crate) mod duplex;
pub(crate) mod group;
pub(crate) mod handshake;
pub(crate) mod hello;
pub(crate) mod hosts;
pub(crate) mod key;
pub(crate) mod loopback;
pub(crate) mod memory;
pub(crate) mod pace;
pub(crate) mod packets;
pub(crate) mod peer;
pub(crate) mod port;
pub(crate) mod ring;
pub(crate) mod share;
pub(crate) mod slot;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod trust;
pub(crate) mod wire;
pub(crate) mod words;

use duplex::Duplex;
use loopback::Loopback;
use memory::Ends;
use peer::Peer;
use ring::Corrupt;

use crate::engine::{Gather, Header, LinkId, Outbound, Source, Transmit};

/// One side of a link within this host.
#[derive(Debug)]
pub(crate) struct Link {
    /// The engine's number of the link.
    pub(crate) id: LinkId,
    /// Distinguishes this link from earlier links of the same number.
    pub(crate) generation: u32,
    backlog: Backlog,
    medium: Medium,
}

/// The reason why a link still has frames to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backlog {
    /// Nothing is left to send.
    None,
    /// The link was full.
    Blocked,
    /// The copying budget of one turn was spent.
    More,
}

impl Backlog {
    /// What a transmission that ended with `ended` leaves.
    fn after(ended: Transmit) -> Self {
        match ended {
            Transmit::Idle => Self::None,
            Transmit::Blocked => Self::Blocked,
            Transmit::More => Self::More,
        }
    }
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a process has one loopback, and each poll looks at every link")]
enum Medium {
    Process(Duplex),
    Loopback(Loopback),
}

impl Link {
    /// An end of a link to another process, over fresh memory.
    pub(crate) fn to_process(id: LinkId, generation: u32, ends: Ends, peer: Peer) -> Self {
        Self { id, generation, backlog: Backlog::None, medium: Medium::Process(Duplex::new(ends, peer)) }
    }

    /// A link of this process to itself, with space for `capacity` bytes of payload.
    pub(crate) fn loopback(id: LinkId, generation: u32, capacity: usize) -> Self {
        Self { id, generation, backlog: Backlog::None, medium: Medium::Loopback(Loopback::new(capacity)) }
    }

    /// The other process; none for the loopback.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        match &self.medium {
            Medium::Process(duplex) => Some(&duplex.peer),
            Medium::Loopback(_) => None,
        }
    }

    /// Whether there is nothing to receive or to send. Shows the peer that this side looks for
    /// frames. If no frame is waiting, releases the handled ones.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        let is_idle = match &mut self.medium {
            Medium::Process(duplex) => duplex.is_idle(),
            Medium::Loopback(loopback) => loopback.is_empty(),
        };
        is_idle && self.backlog == Backlog::None
    }

    /// Passes inbound frames to `handle` until there is none or `budget` bytes were handled. True
    /// when frames are left.
    #[inline]
    pub(crate) fn drain(
        &mut self,
        budget: &mut usize,
        mut handle: impl FnMut(LinkId, &Header, Source<'_>),
    ) -> Result<bool, Corrupt> {
        let id = self.id;
        match &mut self.medium {
            Medium::Process(duplex) => duplex.drain(budget, |header, payload| handle(id, header, payload)),
            Medium::Loopback(loopback) => Ok(loopback.drain(budget, |header, payload| handle(id, header, payload))),
        }
    }

    /// Whether transmitting again can make progress.
    #[inline]
    pub(crate) fn may_continue(&self) -> bool {
        match self.backlog {
            Backlog::None => false,
            Backlog::More => true,
            Backlog::Blocked => match &self.medium {
                Medium::Process(duplex) => duplex.room_was_made(),
                Medium::Loopback(_) => true,
            },
        }
    }

    /// Marks the link as one that has more to send than the budget of this turn allows.
    pub(crate) fn put_off(&mut self) {
        self.backlog = Backlog::More;
    }

    /// Delivers the frames of a transmission that ended with `ended`: publishes them to the peer,
    /// or passes the loopback's to `handle`, at most `budget` bytes. True if the caller should
    /// transmit again at once.
    pub(crate) fn deliver(
        &mut self,
        ended: Transmit,
        budget: &mut usize,
        mut handle: impl FnMut(LinkId, &Header, Source<'_>),
    ) -> Result<bool, Corrupt> {
        self.backlog = Backlog::after(ended);
        let is_blocked = ended == Transmit::Blocked;
        match &mut self.medium {
            Medium::Process(duplex) => {
                duplex.flush();
                Ok(is_blocked && duplex.wait_for_room()?)
            }
            Medium::Loopback(loopback) => {
                let has_frames = !loopback.is_empty();
                loopback.drain(budget, |header, payload| handle(self.id, header, payload));
                Ok(is_blocked && has_frames)
            }
        }
    }

    /// Whether a delivery ended because the budget was spent.
    pub(crate) fn has_more(&self) -> bool {
        let has_frames = match &self.medium {
            Medium::Process(_) => false,
            Medium::Loopback(loopback) => !loopback.is_empty(),
        };
        has_frames || self.backlog == Backlog::More
    }

    /// Whether the other side has consumed all delivered frames.
    pub(crate) fn is_taken(&self) -> bool {
        match &self.medium {
            Medium::Process(duplex) => duplex.is_taken(),
            Medium::Loopback(loopback) => loopback.is_empty(),
        }
    }

    /// Rings a peer that has stopped looking for frames although it has some.
    pub(crate) fn nudge(&mut self) {
        if let Medium::Process(duplex) = &mut self.medium {
            duplex.nudge();
        }
    }

    /// Tells the peer that this side goes to sleep. True if there is work after all.
    pub(crate) fn arm(&self) -> bool {
        let has_frames = match &self.medium {
            Medium::Process(duplex) => duplex.arm(),
            Medium::Loopback(loopback) => !loopback.is_empty(),
        };
        has_frames || self.may_continue()
    }

    /// Tells the peer that this side is awake.
    pub(crate) fn disarm(&self) {
        if let Medium::Process(duplex) = &self.medium {
            duplex.disarm();
        }
    }

    /// Whether no inbound frame is waiting.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_quiet(&self) -> bool {
        match &self.medium {
            Medium::Process(duplex) => duplex.is_quiet(),
            Medium::Loopback(loopback) => loopback.is_empty(),
        }
    }

    /// Corrupts the peer's ring.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn vandalise(&self) {
        if let Medium::Process(duplex) = &self.medium {
            duplex.vandalise();
        }
    }
}

impl Outbound for Link {
    fn max_payload(&self) -> usize {
        match &self.medium {
            Medium::Process(duplex) => duplex.max_payload(),
            Medium::Loopback(loopback) => loopback.max_payload(),
        }
    }

    #[inline]
    fn piece(&mut self, rest: u32) -> u32 {
        match &mut self.medium {
            Medium::Process(duplex) => duplex.piece(rest),
            Medium::Loopback(loopback) => loopback.piece(rest),
        }
    }

    #[inline]
    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool {
        match &mut self.medium {
            Medium::Process(duplex) => duplex.try_push(header, payload),
            Medium::Loopback(loopback) => loopback.try_push(header, payload),
        }
    }
}
