//! A take from a pool of registered buffers and its return, beside a `BytesMut` from malloc: on one
//! core, and with another core that returns.
//!
//! Buffers go to the other core in a `Vec` of 64 through a channel, as a program would send them.
//! What that alone costs, without a pool, is measured in the same rounds: values of the same size
//! that own nothing. And the least that any pool pays, which keeps pointers: 64 of them go to the
//! other core and come back, through a ring of two slots each.
//!
//! `cargo bench -p rdma-benches --bench pool -- [rounds=N]`

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Instant;

use bytes::BytesMut;
use rdma::{Buffer, Pool};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{affinity, device, mode};

/// Bytes of a buffer.
const SIZE: usize = 4096;
/// Buffers that one side has at a time, and that go to the other core together.
const BATCH: usize = 64;
/// Batches on their way between the cores.
const ON_THEIR_WAY: usize = 4;

/// A value as large as a buffer's handle, without anything to return.
type Plain = [usize; 3];
const _: () = assert!(size_of::<Plain>() == size_of::<Buffer>());

/// Keeps malloc from giving the heap's end back to the kernel, and asking for it again, with each
/// batch of 256 KiB: its threshold is 128 KiB. That takes 1 us for each buffer, and no program
/// whose heap has something behind its buffers pays it.
///
/// Returns what lies behind memory for all batches.
fn hold_end_of_heap<T>(make: impl Fn() -> T) -> Option<T> {
    let mut all: Vec<T> = (0..BATCH * (ON_THEIR_WAY + 2)).map(|_| make()).collect();
    // Earlier ones may have filled gaps before it.
    all.pop()
}

/// One way of having memory for a message.
struct Way {
    name: &'static str,
    /// Nanoseconds of each round.
    rounds: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (rounds, batches) = if mode::is_smoke() { (1, 10) } else { (mode::number("rounds", 15)?, 20_000) };
    let (own, other) = affinity::two_cores()?;
    let opened = device::open()?;
    let pd = opened.context.alloc_pd()?;
    let pool = Pool::builder(&pd).class(SIZE, BATCH * ON_THEIR_WAY * 4).build()?;
    pool.reserve(SIZE, usize::MAX)?;
    let take = || pool.take(SIZE).expect("there are enough");
    let make = || BytesMut::with_capacity(SIZE);
    affinity::pin(own)?;
    let _end_of_heap = hold_end_of_heap(make);

    let names = [
        "pool, one by one",
        "BytesMut, one by one",
        "pool, 64 at a time",
        "BytesMut, 64 at a time",
        "pool, another core returns",
        "BytesMut, another core returns",
        "nothing to return, another core drops",
        "pointers that another core sends back",
    ];
    let mut ways = names.map(|name| Way { name, rounds: Vec::new() });
    // The first round warms up.
    for round in 0..=rounds {
        let times = [
            one_by_one(batches, take),
            one_by_one(batches, make),
            at_a_time(batches, take),
            at_a_time(batches, make),
            across(batches, other, take)?,
            across(batches, other, make)?,
            across(batches, other, Plain::default)?,
            there_and_back(batches, other)?,
        ];
        if round > 0 {
            ways.iter_mut().zip(times).for_each(|(way, time)| way.rounds.push(time));
        }
    }
    report(&ways);
    let stats = pool.stats()[0];
    assert_eq!((stats.in_use(), stats.waits), (0, 0), "each buffer came back");
    Ok(())
}

/// Nanoseconds of each of so many batches' pieces since a time.
fn each(start: Instant, batches: u32) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / f64::from(batches) / BATCH as f64
}

fn one_by_one<T>(batches: u32, make: impl Fn() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..batches {
        for _ in 0..BATCH {
            drop(black_box(make()));
        }
    }
    each(start, batches)
}

fn at_a_time<T>(batches: u32, make: impl Fn() -> T) -> f64 {
    let mut batch = Vec::with_capacity(BATCH);
    let start = Instant::now();
    for _ in 0..batches {
        batch.extend((0..BATCH).map(|_| make()));
        black_box(&mut batch).clear();
    }
    each(start, batches)
}

/// This core takes, and the other one returns, at the same time.
fn across<T: Send + 'static>(batches: u32, other: usize, make: impl Fn() -> T) -> Result<f64, Box<dyn Error>> {
    thread::scope(|scope| {
        let (full, arriving): (SyncSender<Vec<T>>, Receiver<_>) = mpsc::sync_channel(ON_THEIR_WAY);
        let (empty, coming_back) = mpsc::sync_channel(ON_THEIR_WAY);
        for _ in 0..ON_THEIR_WAY {
            empty.send(Vec::with_capacity(BATCH))?;
        }
        let returning = scope.spawn(move || {
            affinity::pin(other)?;
            for mut batch in spinning(&arriving) {
                batch.clear();
                // The taker has ended.
                let _ended = empty.send(batch);
            }
            Ok::<_, std::io::Error>(())
        });
        let start = Instant::now();
        for mut batch in spinning(&coming_back).take(usize::try_from(batches)?) {
            batch.extend((0..BATCH).map(|_| make()));
            full.send(batch)?;
        }
        let time = each(start, batches);
        drop(full);
        returning.join().expect("no panic")?;
        Ok(time)
    })
}

/// One direction of [`there_and_back`]: two batches of pointers, and how many were written and
/// read.
#[derive(Default)]
struct Ring {
    batches: [Batch; 2],
    written: OwnLine,
    read: OwnLine,
}

/// Eight lines of pointers.
#[repr(align(128))]
struct Batch([AtomicUsize; BATCH]);

impl Default for Batch {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicUsize::default()))
    }
}

/// On a line of its own, as is usual.
#[derive(Default)]
#[repr(align(128))]
struct OwnLine(AtomicU32);

impl Ring {
    fn write(&self, at: u32, pointers: &[usize; BATCH]) {
        while at.wrapping_sub(self.read.0.load(Ordering::Acquire)) == 2 {
            std::hint::spin_loop();
        }
        let places = self.batches[at as usize % 2].0.iter();
        places.zip(pointers).for_each(|(place, &pointer)| place.store(pointer, Ordering::Relaxed));
        self.written.0.store(at.wrapping_add(1), Ordering::Release);
    }

    fn read(&self, at: u32, pointers: &mut [usize; BATCH]) {
        while self.written.0.load(Ordering::Acquire) == at {
            std::hint::spin_loop();
        }
        let places = self.batches[at as usize % 2].0.iter();
        places.zip(pointers).for_each(|(place, pointer)| *pointer = place.load(Ordering::Relaxed));
        self.read.0.store(at.wrapping_add(1), Ordering::Release);
    }
}

/// Nanoseconds of a pointer that goes to the other core and comes back, with as many others on
/// their way: what must move between the cores whatever keeps the pointers.
fn there_and_back(batches: u32, other: usize) -> Result<f64, Box<dyn Error>> {
    let (there, back) = (&Ring::default(), &Ring::default());
    thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let pinned = affinity::pin(other);
            let mut pointers = [0; BATCH];
            for at in 0..batches {
                there.read(at, &mut pointers);
                back.write(at, &pointers);
            }
            pinned
        });
        let mut pointers = std::array::from_fn(|at: usize| at);
        let start = Instant::now();
        let first = batches.min(2);
        for at in 0..first {
            there.write(at, &pointers);
        }
        for at in 0..batches {
            back.read(at, black_box(&mut pointers));
            if at + first < batches {
                there.write(at + first, &pointers);
            }
        }
        let time = each(start, batches);
        echo.join().expect("no panic")?;
        Ok(time)
    })
}

/// What arrives, without sleeping in between: a wake-up would cost more than what is measured.
fn spinning<T>(receiver: &Receiver<T>) -> impl Iterator<Item = T> + '_ {
    std::iter::from_fn(|| {
        loop {
            match receiver.try_recv() {
                Ok(value) => return Some(value),
                Err(mpsc::TryRecvError::Disconnected) => return None,
                Err(mpsc::TryRecvError::Empty) => std::hint::spin_loop(),
            }
        }
    })
}

fn report(ways: &[Way]) {
    let title = format!("Taking and returning a buffer of {}", table::bytes(SIZE));
    let mut table = Table::new(title, &["way", "ns, median (min-max)"]);
    for way in ways {
        table.row([way.name.to_owned(), table::spread(Spread::of(&way.rounds))]);
    }
    println!("{table}");
    let [pool, malloc, pool_many, malloc_many, pool_across, malloc_across, plain, limit] = ways else { return };
    for (ours, theirs) in [
        (pool, malloc),
        (pool_many, malloc_many),
        (pool_across, malloc_across),
        (pool_across, pool_many),
        (pool_across, plain),
        (pool_across, limit),
    ] {
        let ratio = paired_ratio(&ours.rounds, &theirs.rounds);
        println!("{} over {}: {}", ours.name, theirs.name, table::spread(ratio));
    }
    let of_one = Spread::of(&pool.rounds).map_or(f64::NAN, |spread| spread.median);
    table::bar("a pool's take and return", "at most 25 ns", &table::number(of_one), of_one <= 25.0);
    // The channel is the program's, and would be there without a pool.
    let without: Vec<f64> = pool_across.rounds.iter().zip(&plain.rounds).map(|(all, channel)| all - channel).collect();
    println!(
        "pool, another core returns, less what the channel costs alone: {} ns",
        table::spread(Spread::of(&without))
    );
    let ratio = paired_ratio(&without, &pool_many.rounds);
    let reached = ratio.is_some_and(|ratio| ratio.median <= 1.5);
    let what = "the same with another core returning, less the channel";
    table::bar(what, "at most 1.5 times one core's", &table::spread(ratio), reached);
}
