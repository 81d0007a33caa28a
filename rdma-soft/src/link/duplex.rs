//! One end of a link, as the node drives it: two rings, two flags, and what ties it to its peer.

use super::doorbell;
use super::memory::{Ends, Flag, Ring};
use super::peer::Peer;
use super::ring::{Consumer, Corrupt, Producer, Region};
use crate::engine::{Gather, HEADER_WORDS, Header, LinkId, Outbound, Source, Target};

/// While more than this is written and unpublished, the consumer is let in, so that both sides copy
/// at once.
const PUBLISH_EVERY: u64 = 64 << 10;

/// Less than this need not be given back before the frames' completions are reported.
const RELEASE_LATER: u64 = 4096;

/// Why a link still has something to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backlog {
    /// It has not.
    None,
    /// The ring is full.
    Blocked,
    /// The copying budget of one turn was spent.
    More,
}

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Link {
    /// How the engine calls it.
    pub(crate) id: LinkId,
    /// Tells it from earlier links of the same number.
    pub(crate) generation: u32,
    /// What is left to send.
    pub(crate) backlog: Backlog,
    /// The other process; none for the loopback.
    pub(crate) peer: Option<Peer>,
    out: Producer<Ring, HEADER_WORDS>,
    inbound: Consumer<Ring, HEADER_WORDS>,
    asleep: Flag,
    peer_asleep: Flag,
    /// The peer wrote what cannot be.
    corrupt: bool,
}

impl Link {
    /// An end of a link over fresh memory.
    pub(crate) fn new(id: LinkId, generation: u32, ends: Ends, peer: Option<Peer>) -> Self {
        Self {
            id,
            generation,
            backlog: Backlog::None,
            peer,
            out: Producer::new(ends.out),
            inbound: Consumer::new(ends.inbound),
            asleep: ends.asleep,
            peer_asleep: ends.peer_asleep,
            corrupt: false,
        }
    }

    /// Whether nothing has come in.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.inbound.is_empty()
    }

    /// Whether there is nothing to take in, to give back or to send.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.inbound.is_empty() && self.inbound.unreleased() == 0 && self.backlog == Backlog::None
    }

    /// Whether it makes sense to transmit again.
    #[inline]
    pub(crate) fn may_continue(&self) -> bool {
        match self.backlog {
            Backlog::None => false,
            Backlog::More => true,
            Backlog::Blocked => self.out.room_was_made(),
        }
    }

    /// Hands inbound frames to `handle` until there is none or `budget` bytes were handled. True
    /// when frames are left. Call [`release`](Self::release) before this side sleeps.
    pub(crate) fn drain(
        &mut self,
        budget: &mut usize,
        mut handle: impl FnMut(LinkId, &Header, Source<'_>),
    ) -> Result<bool, Corrupt> {
        let capacity = self.inbound.region().capacity();
        let more = loop {
            if *budget == 0 {
                break !self.inbound.is_empty();
            }
            let Some((header, span)) = self.inbound.next()? else { break false };
            let ptr = self.inbound.region().payload(span);
            // SAFETY: `payload` gave `span.len` bytes of the ring, which `self` keeps mapped during
            // the call; only atomic accesses and the peer process touch them.
            let payload = unsafe { Source::from_raw(ptr, span.len as usize) };
            handle(self.id, &Header(header), payload);
            *budget = budget.saturating_sub(64 + span.len as usize);
            if self.inbound.unreleased() > capacity / 4 {
                self.release();
            }
        };
        if self.inbound.unreleased() > RELEASE_LATER.min(capacity / 8) {
            self.release();
        }
        Ok(more)
    }

    /// Whether the peer has taken all that was sent.
    pub(crate) fn is_taken(&self) -> bool {
        self.out.is_taken()
    }

    /// Makes what was sent visible, and wakes the peer if it sleeps.
    pub(crate) fn flush(&mut self) {
        if self.out.publish() {
            self.ring_if_asleep();
        }
    }

    /// After a transmission that found no room: whether to try again at once. Otherwise the peer
    /// will wake us.
    pub(crate) fn wait_for_room(&mut self) -> Result<bool, Corrupt> {
        if self.corrupt { Err(Corrupt) } else { self.out.wait_for_room() }
    }

    /// Says to the peer that we go to sleep. True if there is work after all.
    pub(crate) fn arm(&self) -> bool {
        doorbell::arm(self.asleep.word());
        !self.inbound.is_empty_ordered()
            || match self.backlog {
                Backlog::None => false,
                Backlog::More => true,
                Backlog::Blocked => self.out.room_was_made(),
            }
    }

    /// Says to the peer that we are awake.
    pub(crate) fn disarm(&self) {
        doorbell::disarm(self.asleep.word());
    }

    /// Whether the peer has to be rung; it is not asleep any more then.
    #[cfg(test)]
    pub(crate) fn must_ring(&self) -> bool {
        doorbell::must_ring(self.peer_asleep.word())
    }

    /// Writes what no producer would.
    #[cfg(test)]
    pub(crate) fn vandalise(&self) {
        let place = self.out.region().prefix(self.out.place());
        place.store(u64::MAX, core::sync::atomic::Ordering::SeqCst);
        if let Some(peer) = &self.peer {
            peer.ring();
        }
    }

    /// Gives the memory of the frames that were handled back to the peer.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.inbound.unreleased() != 0 && self.inbound.release() {
            self.ring_if_asleep();
        }
    }

    fn ring_if_asleep(&self) {
        if let Some(peer) = &self.peer {
            if doorbell::must_ring(self.peer_asleep.word()) {
                peer.ring();
            }
        }
    }
}

impl Outbound for Link {
    fn max_payload(&self) -> usize {
        // A quarter of the ring, so that the two sides overlap; pieces of 64 KiB are as fast as
        // larger ones.
        (self.out.max_payload() as usize / 2).min(64 << 10)
    }

    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool {
        let Ok(len) = u32::try_from(payload.len()) else { return false };
        if self.corrupt || len > self.out.max_payload() {
            return false;
        }
        match self.out.push(&header.0, len) {
            Ok(Some(span)) => {
                let ptr = self.out.region().payload(span);
                // SAFETY: `payload` gave `span.len` bytes of the ring, which `self` keeps mapped;
                // they are ours until they are published, and only atomic accesses touch them.
                let target = unsafe { Target::from_raw(ptr, span.len as usize) };
                let copied = payload.copy_to(target);
                debug_assert!(copied, "a gather list longer than its own length");
                if self.out.unpublished() >= PUBLISH_EVERY {
                    self.flush();
                }
                true
            }
            Ok(None) => false,
            Err(Corrupt) => {
                self.corrupt = true;
                false
            }
        }
    }
}
