//! Models of the ring and the doorbell: in all interleavings of small runs, no frame is torn, lost
//! or out of order, and no wake-up is lost. Loom reports a lost wake-up as a deadlock and a torn
//! frame as a causality violation.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{arm, disarm, must_ring};
use crate::link::ring::{ALIGN, Consumer, Producer, Region};
use crate::link::words::Word;

/// Space for three small frames and the zero prefix after them.
const CAPACITY: u64 = 512;

struct Shared {
    head: AtomicU64,
    waits: AtomicU64,
    consumer_asleep: AtomicU64,
    producer_asleep: AtomicU64,
    /// The words that may hold a frame's prefix.
    prefixes: Vec<AtomicU64>,
    /// The other words. They are not atomic, so that loom detects each access that the protocol
    /// does not order.
    frames: Vec<UnsafeCell<u64>>,
    to_consumer: Bell,
    to_producer: Bell,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            head: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            consumer_asleep: AtomicU64::new(0),
            producer_asleep: AtomicU64::new(0),
            prefixes: (0..CAPACITY / ALIGN).map(|_| AtomicU64::new(0)).collect(),
            frames: (0..CAPACITY / 8).map(|_| UnsafeCell::new(0)).collect(),
            to_consumer: Bell::new(),
            to_producer: Bell::new(),
        })
    }
}

/// A model of an eventfd.
struct Bell {
    rung: Mutex<bool>,
    wake: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { rung: Mutex::new(false), wake: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.wake.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.wake.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl Region for Arc<Shared> {
    type Word = AtomicU64;

    fn prefix(&self, at: u64) -> &AtomicU64 {
        &self.prefixes[(at / ALIGN) as usize]
    }

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn waits(&self) -> &AtomicU64 {
        &self.waits
    }

    fn capacity(&self) -> u64 {
        CAPACITY
    }

    fn read(&self, at: u64, words: &mut [u64]) {
        for (at, word) in (at..).step_by(8).zip(words) {
            if at % ALIGN == 0 {
                *word = self.prefix(at).load(Ordering::Relaxed);
                continue;
            }
            self.frames[at as usize / 8].with(|cell| {
                // SAFETY: the dereference requires no concurrent write, which loom checks.
                *word = unsafe { *cell };
            });
        }
    }

    fn write(&self, at: u64, words: &[u64]) {
        for (at, word) in (at..).step_by(8).zip(words) {
            if at % ALIGN == 0 {
                self.prefix(at).store(*word, Ordering::Relaxed);
                continue;
            }
            self.frames[at as usize / 8].with_mut(|cell| {
                // SAFETY: the dereference requires no concurrent access, which loom checks.
                unsafe { *cell = *word };
            });
        }
    }
}

/// Sends frames 1 to `count`, publishing after each `batch` frames and sleeping while the ring is
/// full.
fn produce(shared: &Arc<Shared>, count: u64, batch: u64, payload: u32) {
    let mut out = Producer::<_, 2>::new(Arc::clone(shared));
    let mut sent = 0;
    while sent < count {
        while sent < count {
            let Some(span) = out.push(&[sent + 1, !(sent + 1)], payload).unwrap() else { break };
            if payload != 0 {
                shared.write(span.at + 8, &[(sent + 1) * 10]);
            }
            sent += 1;
            if sent % batch == 0 {
                break;
            }
        }
        if out.publish() && must_ring(&shared.consumer_asleep) {
            shared.to_consumer.ring();
        } else if sent < count && !out.wait_for_room().unwrap() {
            arm(&shared.producer_asleep);
            if !out.room_was_made() {
                shared.to_producer.wait();
            }
            disarm(&shared.producer_asleep);
        }
    }
}

/// Receives frames 1 to `count`, sleeping while the ring is empty.
fn consume(shared: &Arc<Shared>, count: u64, payload: u32) {
    let mut inbound = Consumer::<_, 2>::new(Arc::clone(shared));
    let mut received = 0;
    while received < count {
        while let Some((header, span)) = inbound.next().unwrap() {
            received += 1;
            assert_eq!(header, [received, !received]);
            assert_eq!(span.len, payload);
            if payload != 0 {
                let mut word = [0];
                shared.read(span.at + 8, &mut word);
                assert_eq!(word[0], received * 10);
            }
        }
        if inbound.release() && must_ring(&shared.producer_asleep) {
            shared.to_producer.ring();
        }
        if received < count {
            arm(&shared.consumer_asleep);
            if inbound.is_empty_ordered() {
                shared.to_consumer.wait();
            }
            disarm(&shared.consumer_asleep);
        }
    }
}

fn check(count: u64, batch: u64, payload: u32, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let shared = Shared::new();
        let producer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || produce(&shared, count, batch, payload)
        });
        consume(&shared, count, payload);
        producer.join().unwrap();
    });
}

#[test]
fn loom_frames_arrive_whole_and_in_order_and_wake_the_sleeper() {
    check(2, 1, 16, 3);
}

#[test]
fn loom_batches_wake_once() {
    check(3, 2, 16, 3);
}

/// With frames of 192 bytes the ring has space for two and the zero prefix after them, so the
/// producer has to be woken.
#[test]
fn loom_a_producer_without_room_is_woken() {
    check(4, 1, 128, 3);
}

/// Two threads publish work for one sleeper: only one of them takes the flag and rings.
#[test]
fn loom_one_ring_per_sleep() {
    loom::model(|| {
        let asleep = Arc::new(AtomicU64::new(0));
        let rings = Arc::new(AtomicU64::new(0));
        arm(&*asleep);
        let ringers: Vec<_> = (0..2)
            .map(|_| {
                let (asleep, rings) = (Arc::clone(&asleep), Arc::clone(&rings));
                thread::spawn(move || {
                    if must_ring(&*asleep) {
                        rings.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for ringer in ringers {
            ringer.join().unwrap();
        }
        assert_eq!(Word::load(&*rings), 1);
    });
}
