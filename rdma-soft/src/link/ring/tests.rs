use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

const H: usize = 3;

/// A ring's memory in one process, where a test can write as a hostile process could.
struct Plain {
    head: AtomicU64,
    waits: AtomicU64,
    /// Limit of the bytes that can be allocated.
    memory: u64,
    words: Vec<AtomicU64>,
}

impl Plain {
    fn new(capacity: usize, memory: u64) -> Rc<Self> {
        Rc::new(Self {
            head: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            memory,
            words: (0..capacity / 8).map(|_| AtomicU64::new(0)).collect(),
        })
    }
}

impl Region for Rc<Plain> {
    type Word = AtomicU64;

    fn prefix(&self, at: u64) -> &AtomicU64 {
        assert_eq!(at % ALIGN, 0);
        &self.words[usize::try_from(at / 8).unwrap()]
    }

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn waits(&self) -> &AtomicU64 {
        &self.waits
    }

    fn capacity(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn allocated(&self) -> u64 {
        self.memory.min(1024)
    }

    fn allocate(&self, end: u64) -> bool {
        end <= self.memory
    }

    fn read(&self, at: u64, words: &mut [u64]) {
        let at = usize::try_from(at / 8).unwrap();
        for (word, shared) in words.iter_mut().zip(&self.words[at..]) {
            *word = shared.load(Ordering::Relaxed);
        }
    }

    fn write(&self, at: u64, words: &[u64]) {
        let at = usize::try_from(at / 8).unwrap();
        for (word, shared) in words.iter().zip(&self.words[at..]) {
            shared.store(*word, Ordering::Relaxed);
        }
    }
}

type Ring = (Rc<Plain>, Producer<Rc<Plain>, H>, Consumer<Rc<Plain>, H>);

fn ring(capacity: usize) -> Ring {
    ring_in(capacity, capacity as u64)
}

/// A ring of which at most `memory` bytes can be allocated.
fn ring_in(capacity: usize, memory: u64) -> Ring {
    let memory = Plain::new(capacity, memory);
    (Rc::clone(&memory), Producer::new(Rc::clone(&memory)), Consumer::new(memory))
}

/// The words of a payload. Half of the words look like prefixes, which must not matter a lap later.
fn word(value: u64, i: u64) -> u64 {
    if (value + i) % 2 == 0 { KIND_FRAME | i } else { value.wrapping_add(i) }
}

fn fill(memory: &Rc<Plain>, span: Span, value: u64) {
    for i in 0..u64::from(span.len) / 8 {
        memory.write(span.at + 8 * i, &[word(value, i)]);
    }
}

fn check_payload(memory: &Rc<Plain>, span: Span, value: u64) {
    for i in 0..u64::from(span.len) / 8 {
        let mut seen = [0];
        memory.read(span.at + 8 * i, &mut seen);
        assert_eq!(seen[0], word(value, i));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Push(u32),
    Publish,
    Take(u8),
    Release,
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u32..100_000).prop_map(Step::Push),
        2 => Just(Step::Publish),
        3 => (1_u8..6).prop_map(Step::Take),
        2 => Just(Step::Release),
        1 => Just(Step::Wait),
    ]
}

proptest! {
    /// The ring is a queue: each pushed and published frame comes out once, whole and in order.
    #[test]
    fn a_ring_is_a_queue(log_capacity in 8_u32..14, spreads in any::<bool>(), steps in prop::collection::vec(step(), 1..400)) {
        let (memory, mut out, mut inbound) = ring(1 << log_capacity);
        out.spread(spreads);
        let max = out.max_payload();
        let mut written = VecDeque::new();
        let mut visible = VecDeque::new();
        let mut waiting = false;
        let mut next = 1_u64;
        for step in steps {
            match step {
                Step::Push(len) => {
                    let len = len % (max + 1);
                    let idle = written.is_empty() && visible.is_empty() && inbound.unreleased() == 0;
                    if let Some(span) = out.push(&[next, !next, u64::from(len)], len).unwrap() {
                        prop_assert_eq!(span.len, len);
                        prop_assert!(span.at + u64::from(len) <= 1 << log_capacity);
                        fill(&memory, span, next << 20);
                        written.push_back((next, len));
                        next += 1;
                        waiting = false;
                    } else {
                        prop_assert!(!idle, "an empty ring takes the largest frame");
                    }
                }
                Step::Publish => {
                    prop_assert_eq!(out.publish(), !written.is_empty());
                    visible.append(&mut written);
                }
                Step::Take(count) => for _ in 0..count {
                    let frame = inbound.next().unwrap();
                    let expected = visible.pop_front();
                    prop_assert_eq!(frame.map(|(header, span)| (header[0], span.len)), expected);
                    let Some((header, span)) = frame else { break };
                    prop_assert_eq!(header[1], !header[0]);
                    check_payload(&memory, span, header[0] << 20);
                },
                Step::Release => {
                    let some = inbound.unreleased() != 0;
                    let wakes = inbound.release();
                    let has_half = out.backlog() <= 1 << (log_capacity - 1);
                    prop_assert!(!wakes || (waiting && some));
                    prop_assert!(wakes || !(waiting && some && has_half), "a producer is not woken");
                }
                Step::Wait => {
                    waiting = true;
                    out.wait_for_room().unwrap();
                }
            }
        }
    }

    /// Without memory for the rest of the ring, the beginning of the ring carries all frames.
    #[test]
    fn a_ring_that_cannot_grow_goes_on(spreads in any::<bool>(), lens in prop::collection::vec((0_u32..=384, 0_u8..4), 1..200)) {
        let (_, mut out, mut inbound) = ring_in(1 << 14, 1024 + 64);
        out.spread(spreads);
        for (len, behind) in lens {
            let pushed = out.push(&[1; H], len).unwrap().or_else(|| {
                while inbound.next().unwrap().is_some() {}
                inbound.release();
                out.push(&[1; H], len).unwrap()
            });
            let span = pushed.expect("an empty ring takes every frame");
            prop_assert!(span.at + u64::from(len) <= 1024 + 64);
            out.publish();
            if behind == 0 {
                inbound.next().unwrap();
                inbound.release();
            }
        }
    }

    /// For any writes of the producer's side, the consumer stays within the ring, and either
    /// reports `Corrupt` or goes on.
    #[test]
    fn a_hostile_producer_gets_nowhere(
        capacity in (8_u32..12).prop_map(|log| 1_usize << log),
        garbage in prop::collection::vec(any::<u64>(), 1 << 9),
        releases in prop::collection::vec(any::<bool>(), 64),
    ) {
        let (memory, _, mut inbound) = ring(capacity);
        let kinds = [KIND_FRAME, KIND_PADDING, 0];
        for (i, value) in garbage.iter().enumerate().take(capacity / 8) {
            let value = match i % 8 {
                0 => kinds[usize::try_from(value % 3).unwrap()] | ((value >> 20) % (2 * capacity as u64)),
                _ => *value,
            };
            memory.write(8 * i as u64, &[value]);
        }
        for release in releases {
            match inbound.next() {
                Ok(Some((_, span))) => prop_assert!(span.at + u64::from(span.len) <= capacity as u64),
                Ok(None) => {}
                Err(Corrupt) => break,
            }
            prop_assert!(inbound.unreleased() <= capacity as u64);
            if release {
                inbound.release();
            }
        }
    }

    /// For any writes of the consumer's side, the producer never overwrites bytes that are
    /// unconsumed by the producer's own count.
    #[test]
    fn a_hostile_consumer_gets_nowhere(
        heads in prop::collection::vec(prop_oneof![any::<u64>(), (0_u64..40).prop_map(|n| n * 64)], 1..40),
        lens in prop::collection::vec(0_u32..=448, 40),
    ) {
        let (memory, mut out, _) = ring(1024);
        for (head, len) in heads.into_iter().zip(lens) {
            memory.head.store(head, Ordering::Relaxed);
            match out.push(&[0; H], len) {
                Ok(Some(span)) => prop_assert!(span.at + u64::from(span.len) <= 1024),
                Ok(None) => {}
                Err(Corrupt) => break,
            }
            out.publish();
            prop_assert!(out.tail - out.head <= 1024);
        }
    }
}

#[test]
fn frames_that_are_taken_in_soon_stay_at_the_beginning() {
    let (_, mut out, mut inbound) = ring(1 << 16);
    let mut place = 0;
    for count in 0..10_000 {
        place = out.push(&[1; H], 64).unwrap().unwrap().at.max(place);
        out.publish();
        if count % 8 == 7 {
            while inbound.next().unwrap().is_some() {}
            inbound.release();
        }
    }
    assert!(place <= 1 << 12, "the ring was used up to {place}");
    // A burst of frames uses more of the ring.
    while let Some(span) = out.push(&[1; H], 64).unwrap() {
        place = place.max(span.at);
    }
    assert!(place > 1 << 15, "the ring was used up to {place}");
}

#[test]
fn frames_of_a_stream_take_the_whole_ring_in_turn() {
    let (_, mut out, mut inbound) = ring(1 << 16);
    out.spread(true);
    for count in 0..2_000_u64 {
        let span = out.push(&[1; H], 64).unwrap().unwrap();
        assert_eq!(span.at, (count * 128 + 64) % (1 << 16));
        out.publish();
        assert!(inbound.next().unwrap().is_some());
        inbound.release();
    }
}

#[test]
fn a_large_frame_finds_room_behind_a_small_one_that_waits() {
    let (_, mut out, mut inbound) = ring(1 << 16);
    for round in 0..100 {
        for len in [4096, 0] {
            assert!(out.push(&[round; H], len).unwrap().is_some(), "{len} bytes in round {round}");
            out.publish();
            if len > 0 {
                // Everything before the small frame is consumed, the small frame is not.
                while inbound.next().unwrap().is_some() {}
                inbound.release();
            }
        }
    }
}

#[test]
fn a_prefix_of_no_kind_is_corrupt() {
    for prefix in [1, 64, KIND_FRAME >> 1, u64::MAX] {
        let (memory, _, mut inbound) = ring(256);
        memory.write(0, &[prefix]);
        assert_eq!(inbound.next(), Err(Corrupt));
    }
}

#[test]
fn more_frames_than_there_was_room_for_are_corrupt() {
    let (memory, mut out, mut inbound) = ring(256);
    out.push(&[1; H], 0).unwrap().unwrap();
    out.publish();
    assert!(inbound.next().unwrap().is_some());
    // The consumer has released nothing, and yet the frames go on around the ring.
    for at in [64, 128, 192] {
        memory.write(at, &[KIND_FRAME]);
        assert!(inbound.next().unwrap().is_some());
    }
    memory.write(0, &[KIND_FRAME]);
    assert_eq!(inbound.next(), Err(Corrupt));
}

#[test]
fn what_was_there_a_lap_ago_is_no_frame() {
    let (memory, mut out, mut inbound) = ring(256);
    for value in 0..64 {
        let span = out.push(&[KIND_FRAME; H], 64).unwrap().unwrap();
        fill(&memory, span, 2 * value);
        assert_eq!(inbound.next(), Ok(None), "not published yet");
        out.publish();
        let (_, span) = inbound.next().unwrap().unwrap();
        check_payload(&memory, span, 2 * value);
        assert_eq!(inbound.next(), Ok(None));
        assert!(inbound.is_empty());
        inbound.release();
    }
}

#[test]
fn a_length_beyond_what_is_there_is_corrupt() {
    let (memory, mut out, mut inbound) = ring(1024);
    out.push(&[1; H], 8).unwrap().unwrap();
    out.publish();
    memory.write(0, &[KIND_FRAME | 1000]);
    assert_eq!(inbound.next(), Err(Corrupt));
    let (memory, mut out, mut inbound) = ring(1024);
    out.push(&[1; H], 8).unwrap().unwrap();
    out.publish();
    memory.write(0, &[KIND_FRAME | 0xffff_ffff]);
    assert_eq!(inbound.next(), Err(Corrupt));
}

#[test]
fn a_head_beyond_the_tail_is_corrupt() {
    let (memory, mut out, _) = ring(256);
    out.push(&[1; H], 0).unwrap().unwrap();
    out.publish();
    memory.head.store(128, Ordering::Relaxed);
    assert_eq!(out.wait_for_room(), Err(Corrupt));
}

#[test]
fn a_producer_without_room_is_woken_when_half_of_the_ring_is_free() {
    let (_, mut out, mut inbound) = ring(4096);
    while out.push(&[1; H], 64).unwrap().is_some() {}
    out.publish();
    assert_eq!(out.wait_for_room(), Ok(false));
    while out.backlog() > 2048 {
        inbound.next().unwrap().unwrap();
        assert_eq!(inbound.release(), out.backlog() <= 2048);
    }
    assert!(out.push(&[1; H], 64).unwrap().is_some());
    out.publish();
    while inbound.next().unwrap().is_some() {}
    assert!(!inbound.release(), "it waits no longer");
}

#[test]
fn a_producer_of_a_long_frame_is_woken_by_any_progress_in_a_ring_that_is_half_free() {
    let (_, mut out, mut inbound) = ring(4096);
    let long = out.max_payload();
    for len in [1000, 1000] {
        out.push(&[1; H], len).unwrap().unwrap();
        out.publish();
    }
    inbound.next().unwrap().unwrap();
    inbound.release();
    assert!(out.backlog() < 2048);
    assert!(out.push(&[1; H], long).unwrap().is_none());
    assert_eq!(out.wait_for_room(), Ok(false));
    inbound.next().unwrap().unwrap();
    assert!(inbound.release());
    assert!(out.push(&[1; H], long).unwrap().is_some());
}
