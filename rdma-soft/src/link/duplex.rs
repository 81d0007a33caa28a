//! One side of a link to another process: two rings, two sleep flags, two pulse counters, and the
//! peer.
//!
//! Each side counts in shared memory how often it looks for frames (its *pulse*). A peer that polls
//! is not rung. If its pulse stands still, the sender rings all the same: at once for a frame of 16
//! KiB or more, after some 10 us for a smaller one. So a program that spins on memory and calls no
//! verbs sees a write soon.
//!
//! A large payload travels in frames of 16 KiB to an idle peer, so that the two copies overlap, and
//! of up to 64 KiB to one that is behind. A steady stream through the caches
//! ([`pace`](super::pace)) fills the whole ring and is published 1 MiB at a time. Its frames are
//! marked, and the reader fetches their lines ahead, which would slow down reads from memory.

use core::sync::atomic::Ordering;

use super::doorbell;
use super::memory::{Ends, Flag, Ring};
use super::pace::Pace;
use super::peer::Peer;
use super::ring::{Consumer, Corrupt, Producer, Region};
use crate::engine::{Gather, HEADER_WORDS, Header, Outbound, Source, Target};
use crate::os;

/// Bytes written but unpublished after which `try_push` publishes, so that producer and consumer
/// copy at the same time.
const PUBLISH_EVERY: u64 = 64 << 10;

/// The same for a steady stream through the caches: the consumer, however fast, stays so far behind
/// that it finds lines that have left the producer's own cache.
const PUBLISH_STREAM_EVERY: u64 = 1 << 20;

/// Below this many bytes, consumed frames need not be released before their completions are
/// reported.
const RELEASE_LATER: u64 = 4096;

/// Payload length from which a peer that does not look for frames is rung at once: copying such a
/// frame takes longer than many looks for it.
const LARGE: usize = 16 << 10;

/// Unconsumed bytes from which frames are as large as the link allows.
const BEHIND: u64 = 64 << 10;

/// One side of a link to another process.
#[derive(Debug)]
pub(crate) struct Duplex {
    /// The other process.
    pub(crate) peer: Peer,
    out: Producer<Ring, HEADER_WORDS>,
    inbound: Consumer<Ring, HEADER_WORDS>,
    asleep: Flag,
    peer_asleep: Flag,
    pulse: Flag,
    peer_pulse: Flag,
    /// The peer's pulse before the first unpublished large frame was written, if the peer had
    /// consumed all large frames before.
    before_large: Option<u64>,
    /// The end of the last large frame in the ring.
    large_end: u64,
    /// The peer's pulse at the last check (`seen`) and at the last ring (`rung`).
    seen: u64,
    rung: Option<u64>,
    /// The pulse as last read.
    pulse_read: u64,
    pace: Pace,
    /// The peer wrote an impossible value.
    corrupt: bool,
}

impl Duplex {
    /// An end of a link over fresh memory.
    pub(crate) fn new(ends: Ends, peer: Peer) -> Self {
        Self {
            peer,
            out: Producer::new(ends.out),
            inbound: Consumer::new(ends.inbound),
            asleep: ends.asleep,
            peer_asleep: ends.peer_asleep,
            pulse: ends.pulse,
            peer_pulse: ends.peer_pulse,
            before_large: None,
            large_end: 0,
            seen: 0,
            rung: None,
            pulse_read: 0,
            pace: Pace::default(),
            corrupt: false,
        }
    }

    /// Whether no inbound frame is waiting.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.inbound.is_empty()
    }

    /// Advances the pulse, which shows the peer that this side looks for frames.
    #[inline]
    fn beat(&self) {
        let pulse = self.pulse.word();
        pulse.store(pulse.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether there is nothing to receive. Advances the pulse. If no frame is waiting, releases
    /// the handled ones.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        self.beat();
        let is_quiet = self.is_quiet();
        if is_quiet {
            self.release();
        }
        is_quiet
    }

    /// Whether the peer has consumed frames since the ring was found full.
    pub(crate) fn room_was_made(&self) -> bool {
        self.out.room_was_made()
    }

    /// Passes inbound frames to `handle` until there is none or `budget` bytes were handled. True
    /// when frames are left. Advances the pulse. If no frame is waiting, releases the handled ones.
    #[inline]
    pub(crate) fn drain(
        &mut self,
        budget: &mut usize,
        handle: impl FnMut(&Header, Source<'_>),
    ) -> Result<bool, Corrupt> {
        if self.is_idle() {
            return Ok(false);
        }
        self.drain_ring(budget, handle)
    }

    fn drain_ring(&mut self, budget: &mut usize, mut handle: impl FnMut(&Header, Source<'_>)) -> Result<bool, Corrupt> {
        let capacity = self.inbound.region().capacity();
        let more = loop {
            if *budget == 0 {
                break !self.inbound.is_empty();
            }
            let Some((header, span)) = self.inbound.next()? else { break false };
            let ptr = self.inbound.region().payload(span);
            // SAFETY: from_raw requires `span.len` bytes that stay valid and are accessed
            // atomically: `payload` gave that many bytes of the ring, which `self` keeps mapped
            // during the call, and only atomic accesses and the peer process touch them.
            let payload = unsafe { Source::from_raw(ptr, span.len as usize) };
            handle(&Header(header), payload);
            self.beat();
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

    /// Whether the peer has consumed all published frames.
    pub(crate) fn is_taken(&self) -> bool {
        self.out.is_taken()
    }

    /// Publishes the pushed frames, and rings the peer if it sleeps or has stopped looking for
    /// frames.
    pub(crate) fn flush(&mut self) {
        let before = self.before_large.take();
        if self.out.publish() && !self.ring_if_asleep() && before.is_some_and(|before| before == self.peer_pulse()) {
            self.ring();
        }
    }

    /// Rings the peer if published frames are unconsumed and the peer has not looked for frames
    /// since the last call: the peer's application no longer polls, and the peer's agent has not
    /// noticed yet.
    pub(crate) fn nudge(&mut self) {
        if !self.out.is_taken() && self.has_stopped() {
            self.ring();
        }
    }

    /// Called after a transmission found the ring full. True if the caller should try again at
    /// once; otherwise the peer will wake this side.
    pub(crate) fn wait_for_room(&mut self) -> Result<bool, Corrupt> {
        if self.corrupt { Err(Corrupt) } else { self.out.wait_for_room() }
    }

    /// Tells the peer that this side goes to sleep. True if a frame is waiting after all.
    pub(crate) fn arm(&self) -> bool {
        doorbell::arm(self.asleep.word());
        !self.inbound.is_empty_ordered()
    }

    /// Tells the peer that this side is awake.
    pub(crate) fn disarm(&self) {
        doorbell::disarm(self.asleep.word());
    }

    /// Whether the peer has to be rung. Clears the peer's sleep flag.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn must_ring(&self) -> bool {
        doorbell::must_ring(self.peer_asleep.word())
    }

    /// Corrupts the ring with a prefix that no producer writes.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn vandalise(&self) {
        let place = self.out.region().prefix(self.out.place());
        place.store(u64::MAX, Ordering::SeqCst);
        self.peer.ring();
    }

    /// Gives the memory of handled frames back to the peer.
    #[inline]
    fn release(&mut self) {
        if self.inbound.unreleased() == 0 || !self.inbound.release() || self.ring_if_asleep() {
            return;
        }
        if self.has_stopped() {
            self.ring();
        }
    }

    /// Notes that `len` bytes of a large payload are sent, and now and then looks how near the
    /// peer's core is: the peer has just written its pulse, unless it has stopped.
    fn pace(&mut self, len: usize) {
        if self.pace.counts(len) {
            let (last, before) = (self.pulse_read, os::now());
            let pulse = self.peer_pulse();
            let now = os::now();
            self.pace.sample(now, (pulse != last).then_some(now.0 - before.0));
            // The lines of a stream through the caches come back when they have left the cache of
            // the peer's core.
            self.out.spread(self.pace.is_cached());
        }
    }

    /// Whether the peer has not looked for frames since the last call.
    fn has_stopped(&mut self) -> bool {
        let pulse = self.peer_pulse();
        core::mem::replace(&mut self.seen, pulse) == pulse
    }

    fn ring_if_asleep(&mut self) -> bool {
        let must = doorbell::must_ring(self.peer_asleep.word());
        if must {
            self.rung = None;
            self.ring();
        }
        must
    }

    fn peer_pulse(&mut self) -> u64 {
        self.pulse_read = self.peer_pulse.word().load(Ordering::Relaxed);
        self.pulse_read
    }

    /// Rings the peer, unless the peer has not looked for frames since the last ring.
    #[cold]
    fn ring(&mut self) {
        let pulse = Some(self.peer_pulse());
        if core::mem::replace(&mut self.rung, pulse) != pulse {
            self.peer.ring();
        }
    }
}

impl Outbound for Duplex {
    fn max_payload(&self) -> usize {
        // A quarter of the ring, so that both sides can copy at the same time. Pieces of 64 KiB are
        // as fast as larger ones.
        (self.out.max_payload() as usize / 2).min(64 << 10)
    }

    #[inline]
    fn piece(&mut self, rest: u32) -> u32 {
        let mut limit = self.max_payload();
        // While the peer is idle, it copies the first pieces out before the last ones are copied
        // in. A peer that is behind has enough to do, and larger pieces cost less.
        if rest as usize > LARGE && self.out.backlog() < BEHIND {
            limit = limit.min(LARGE);
        }
        rest.min(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool {
        let Ok(len) = u32::try_from(payload.len()) else { return false };
        if self.corrupt || len > self.out.max_payload() {
            return false;
        }
        let is_large = payload.len() >= LARGE;
        if is_large {
            self.pace(payload.len());
            // A peer that has a large frame may be copying it: `nudge` rings it if it has stopped.
            if self.before_large.is_none() && self.out.is_consumed(self.large_end) {
                self.before_large = Some(self.peer_pulse());
            }
        }
        let is_cached = is_large && self.pace.is_cached();
        let marked = is_cached.then(|| header.with_cached_payload());
        match self.out.push(&marked.as_ref().unwrap_or(header).0, len) {
            Ok(Some(span)) => {
                let ptr = self.out.region().payload(span);
                // SAFETY: from_raw requires `span.len` bytes that stay valid and are accessed
                // atomically: `payload` gave that many bytes of the ring, which `self` keeps
                // mapped. The bytes belong to this side until they are published, and only atomic
                // accesses touch them.
                let target = unsafe { Target::from_raw(ptr, span.len as usize) };
                let copied = if is_cached { payload.copy_to(target) } else { payload.copy_for_peer(target) };
                debug_assert!(copied, "a gather list longer than its own length");
                if is_large {
                    self.large_end = self.out.end();
                }
                let is_due = match is_large {
                    true if self.pace.is_steady() => {
                        self.out.unpublished() >= PUBLISH_STREAM_EVERY.min(self.out.region().capacity() / 4)
                    }
                    true => true,
                    false => self.out.unpublished() >= PUBLISH_EVERY,
                };
                if is_due {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::memory::{Memory, Side};
    use super::*;
    use crate::engine::Time;
    use crate::os::socket::Socket;

    /// Two sides of a link, and the socket on which the second one is rung.
    fn link() -> (Duplex, Duplex, Socket) {
        let (memory, _) = Memory::create(1 << 20).unwrap();
        let (theirs, bell) = Peer::on_a_socket();
        let (ours, _) = Peer::on_a_socket();
        (Duplex::new(memory.ends(Side::Opener), theirs), Duplex::new(memory.ends(Side::Acceptor), ours), bell)
    }

    fn rings(bell: &Socket) -> usize {
        std::iter::from_fn(|| bell.receive().ok()).count()
    }

    fn push(link: &mut Duplex, len: usize) {
        let payload = vec![7; len];
        assert!(link.try_push(&Header::default(), &Gather::of(&[Source::of(&payload)])));
    }

    #[test]
    fn a_large_frame_rings_a_peer_that_does_not_look() {
        let (mut ours, mut theirs, bell) = link();
        push(&mut ours, LARGE);
        ours.flush();
        push(&mut ours, LARGE);
        ours.flush();
        assert_eq!(rings(&bell), 1, "it has not even looked since");
        take(&mut theirs);
        push(&mut ours, LARGE);
        ours.flush();
        assert_eq!(rings(&bell), 1, "it has stopped again");
        take(&mut theirs);
        push(&mut ours, LARGE - 1);
        ours.flush();
        assert_eq!(rings(&bell), 0);
    }

    #[test]
    fn a_peer_that_copies_frames_is_not_rung_for_the_next_ones() {
        let (mut ours, mut theirs, bell) = link();
        push(&mut ours, LARGE);
        assert_eq!(rings(&bell), 1, "it does not look");
        theirs.beat();
        for _ in 0..3 {
            push(&mut ours, LARGE);
        }
        assert_eq!(rings(&bell), 0, "it copies the first frame");
        ours.nudge();
        ours.nudge();
        assert_eq!(rings(&bell), 1, "it has stopped");
        take(&mut theirs);
        push(&mut ours, LARGE);
        assert_eq!(rings(&bell), 1);
    }

    #[test]
    fn a_large_frame_rings_a_peer_that_has_left_small_ones() {
        let (mut ours, _theirs, bell) = link();
        push(&mut ours, LARGE - 1);
        ours.flush();
        assert_eq!(rings(&bell), 0);
        push(&mut ours, LARGE);
        assert_eq!(rings(&bell), 1);
    }

    #[test]
    fn an_idle_peer_gets_small_pieces_and_one_that_is_behind_large_ones() {
        let (mut ours, mut theirs, _bell) = link();
        let large = u32::try_from(LARGE).unwrap();
        assert_eq!([1, large, large + 1, u32::MAX].map(|rest| ours.piece(rest)), [1, large, large, large]);
        let mut pieces = 0;
        while ours.piece(u32::MAX) == large {
            push(&mut ours, LARGE);
            pieces += 1;
        }
        assert_eq!(pieces, 4);
        assert_eq!(ours.piece(u32::MAX) as usize, ours.max_payload());
        take(&mut theirs);
        assert_eq!(ours.piece(u32::MAX), large);
    }

    /// Makes a link believe that it has sent a steady stream to a core, so far from it that a line
    /// takes `line` nanoseconds.
    fn stream(link: &mut Duplex, line: u64) {
        for _ in 0..100 {
            // No later sample finds that time has passed.
            link.pace.sample(Time(u64::MAX), Some(line));
        }
    }

    #[test]
    fn a_steady_stream_to_a_near_core_is_published_in_large_parts() {
        let (mut ours, theirs, _bell) = link();
        push(&mut ours, LARGE);
        assert!(!theirs.is_quiet(), "one message is on its way at once");
        let (mut ours, theirs, _bell) = link();
        stream(&mut ours, 1000);
        push(&mut ours, LARGE);
        assert!(!theirs.is_quiet(), "a far core reads from memory");
        let (mut ours, mut theirs, _bell) = link();
        stream(&mut ours, 40);
        push(&mut ours, LARGE);
        assert!(theirs.is_quiet(), "the lines are still in the writer's cache");
        ours.flush();
        assert!(!theirs.is_quiet(), "the stream has ended");
        take(&mut theirs);
        let part = theirs.inbound.region().capacity() / 4;
        for _ in 1..part / LARGE as u64 {
            push(&mut ours, LARGE);
        }
        assert!(theirs.is_quiet());
        push(&mut ours, LARGE);
        assert!(!theirs.is_quiet(), "a large part is complete");
    }

    #[test]
    fn a_header_says_which_payloads_are_stored_through_the_caches() {
        let (mut ours, mut theirs, _bell) = link();
        for (line, len, is_marked) in
            [(None, LARGE, false), (Some(1000), LARGE, false), (Some(40), LARGE, true), (Some(40), LARGE - 1, false)]
        {
            if let Some(line) = line {
                stream(&mut ours, line);
            }
            push(&mut ours, len);
            ours.flush();
            let expected = if is_marked { Header::default().with_cached_payload() } else { Header::default() };
            let mut seen = None;
            assert_eq!(theirs.drain(&mut 1_000_000, |header, _| seen = Some(*header)), Ok(false));
            assert_eq!(seen, Some(expected), "{len} bytes, a line in {line:?} ns");
        }
    }

    /// Consumes everything.
    fn take(link: &mut Duplex) {
        while link.drain(&mut 1_000_000, |_, _| {}).unwrap() {}
        link.release();
    }

    #[test]
    fn a_large_frame_of_unaligned_pieces_arrives_whole() {
        let (mut ours, mut theirs, _bell) = link();
        let bytes: Vec<u8> = (0..60_001_u32).map(|i| i.to_le_bytes()[i as usize % 2] | 1).collect();
        let pieces = [&bytes[..3], &bytes[3..20_003], &bytes[20_003..]].map(Source::of);
        for _ in 0..100 {
            assert!(ours.try_push(&Header::default(), &Gather::of(&pieces)));
            ours.flush();
            let mut arrived = vec![0; bytes.len()];
            assert_eq!(theirs.drain(&mut 1, |_, payload| payload.copy_to_slice(&mut arrived)), Ok(false));
            assert!(arrived == bytes);
        }
    }

    #[test]
    fn a_small_frame_that_is_not_taken_in_rings_after_a_while() {
        let (mut ours, mut theirs, bell) = link();
        theirs.beat();
        push(&mut ours, 8);
        ours.flush();
        ours.nudge();
        theirs.beat();
        ours.nudge();
        assert_eq!(rings(&bell), 0, "it looks");
        ours.nudge();
        ours.nudge();
        assert_eq!(rings(&bell), 1);
        assert_eq!(theirs.drain(&mut 1000, |_, _| {}), Ok(false));
        theirs.release();
        ours.nudge();
        ours.nudge();
        assert_eq!(rings(&bell), 0, "everything is taken in");
    }
}
