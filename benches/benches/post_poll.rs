//! A safe, owned post and its poll beside the raw sequence: nanoseconds, instructions and
//! allocations per operation, over a provider that does nothing and over the software device within
//! one process; and a receive of a shared queue beside one of the queue pair's own.
//!
//! `cargo bench -p rdma-benches --bench post_poll -- [rounds=N]`

use std::error::Error;
use std::io;

use rdma::op::{Send, Write};
use rdma::{Buffer, ExposedRegion, Poller, QueuePair, Rc, RemoteAccess, RemoteSlice, SharedReceiveQueue};
use rdma_benches::allocations::Counting;
use rdma_benches::device::{self, End, Prepared};
use rdma_benches::raw_sequence::{RawSequence, Remote};
use rdma_benches::stats::{self, Spread};
use rdma_benches::ways::{self, Measured, Way};
use rdma_benches::{null, table};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes in a message.
const LEN: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(measured) = ways::measure(&Case::NAMES, 20_000)? {
        report(&measured);
    }
    Ok(())
}

/// One way over one provider, ready to run.
struct Case {
    sequence: Sequence,
    /// The objects of the sequence, dropped after it.
    end: End,
    _other: (End, ExposedRegion),
}

enum Sequence {
    Raw(RawSequence),
    Owned(OwnedSequence),
    Receives(ReceiveSequence),
}

impl Case {
    const RAW_NULL: usize = 0;
    const OWNED_NULL: usize = 1;
    const RAW_SOFT0: usize = 2;
    const OWNED_SOFT0: usize = 3;
    const RECEIVE: usize = 4;
    const SHARED_RECEIVE: usize = 5;
    const NAMES: [&str; 6] = [
        "raw, null provider",
        "owned, null provider",
        "raw, soft0",
        "owned, soft0",
        "receive, null provider",
        "shared receive, null provider",
    ];
}

impl Way for Case {
    fn named(name: &str) -> io::Result<Self> {
        let opened = device::open()?;
        let (one, other) = (Prepared::new(&opened)?, Prepared::new(&opened)?);
        let (to_one, to_other) = (one.qp.endpoint(), other.qp.endpoint());
        let (end, other) = (one.connect(&to_other)?, other.connect(&to_one)?);
        let region = other.pd.allocate_exposed(LEN, RemoteAccess::WRITE)?;
        let over_null = name.ends_with("null provider");
        let remote = if over_null { None } else { Some(region.remote(..)?) };
        if over_null {
            // SAFETY: install wants a live context that no other thread uses: it was opened above
            // for this case alone.
            unsafe { null::install(opened.context.as_raw()) };
        }
        let sequence = if name.starts_with("raw") {
            let remote = remote.map(|remote| Remote { address: remote.address(), rkey: remote.rkey() });
            let (pd, qp, cq) = (end.pd.as_raw(), end.qp.as_raw(), end.cq.as_raw());
            // SAFETY: RawSequence::new wants live objects of one table, until the sequence is
            // dropped, that nothing else uses: `end` keeps them for as long as the sequence, which
            // is dropped first; nothing else posts to them or polls them.
            Sequence::Raw(unsafe { RawSequence::new(opened.context.table(), pd, qp, cq, remote) }?)
        } else if name.contains("receive") {
            let srq = SharedReceiveQueue::builder(&end.pd).max_wr(device::DEPTH).build()?;
            let srq = name.starts_with("shared").then_some(srq);
            Sequence::Receives(ReceiveSequence { poller: end.cq.poller(), buffer: Some(end.pd.allocate(LEN)?), srq })
        } else {
            Sequence::Owned(OwnedSequence { poller: end.cq.poller(), buffer: Some(end.pd.allocate(LEN)?), remote })
        };
        Ok(Self { sequence, end, _other: (other, region) })
    }

    fn run(&mut self, iterations: u64) -> io::Result<()> {
        match &mut self.sequence {
            Sequence::Raw(sequence) => sequence.run(iterations),
            Sequence::Owned(sequence) => sequence.run(&mut self.end.qp, iterations),
            Sequence::Receives(sequence) => sequence.run(&mut self.end.qp, iterations),
        }
    }
}

/// The same as [`RawSequence`], by the safe owned interface: a buffer goes into the request and
/// comes back with its completion.
struct OwnedSequence {
    poller: Poller,
    buffer: Option<Buffer>,
    remote: Option<RemoteSlice>,
}

impl OwnedSequence {
    fn run(&mut self, qp: &mut QueuePair<Rc>, iterations: u64) -> io::Result<()> {
        let Self { poller, buffer, remote } = self;
        // The operation is chosen outside of the loop, as the compiler does for the raw sequence.
        match *remote {
            None => cycle(poller, buffer, iterations, |buffer| Ok(qp.post_send(Send::new(buffer))?)),
            Some(remote) => cycle(poller, buffer, iterations, |buffer| Ok(qp.post_send(Write::new(buffer, remote))?)),
        }
    }
}

/// A receive that is posted and completes, through a queue pair's own queue or a shared one.
struct ReceiveSequence {
    poller: Poller,
    buffer: Option<Buffer>,
    srq: Option<SharedReceiveQueue>,
}

impl ReceiveSequence {
    fn run(&mut self, qp: &mut QueuePair<Rc>, iterations: u64) -> io::Result<()> {
        let Self { poller, buffer, srq } = self;
        match srq {
            None => cycle(poller, buffer, iterations, |buffer| Ok(qp.post_recv(buffer, 0)?)),
            Some(srq) => cycle(poller, buffer, iterations, |buffer| Ok(srq.post_recv(buffer, 0)?)),
        }
    }
}

/// Posts the buffer and polls until it is back, `iterations` times.
#[inline(never)]
fn cycle(
    poller: &mut Poller,
    place: &mut Option<Buffer>,
    iterations: u64,
    mut post: impl FnMut(Buffer) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = place.take().ok_or_else(lost)?;
    for _ in 0..iterations {
        post(buffer)?;
        buffer = poll(poller)?;
    }
    *place = Some(buffer);
    Ok(())
}

// Part of the loop that is measured, as in the raw sequence.
#[inline(always)]
fn poll(poller: &mut Poller) -> io::Result<Buffer> {
    loop {
        if let Some(mut completion) = poller.poll()? {
            completion.status().map_err(io::Error::other)?;
            return completion.take_buffer().ok_or_else(lost);
        }
    }
}

#[cold]
fn lost() -> io::Error {
    io::Error::other("the buffer did not come back")
}

fn report(measured: &[Measured<Case>]) {
    let title = "Post and poll of one signaled 64-byte request or receive, per operation";
    println!("{}", ways::table(title, "sequence", measured));
    let (raw, owned) = (&measured[Case::RAW_NULL], &measured[Case::OWNED_NULL]);
    let more = owned.nanoseconds_over(raw);
    let reached = stats::median(&more) <= 15.0;
    let what = "owned over raw, null provider";
    table::bar(what, "at most 15 ns more", &format!("{} ns", table::spread(Spread::of(&more))), reached);
    if let Some(more) = owned.instructions_over(raw) {
        table::bar(what, "at most 60 instructions more", &table::number(more), more <= 60.0);
    }
    if let Some(more) = measured[Case::OWNED_SOFT0].instructions_over(&measured[Case::RAW_SOFT0]) {
        let what = "owned over raw, soft0";
        table::bar(what, "at most 50 instructions more", &table::number(more), more <= 50.0);
    }
    if let Some(more) = measured[Case::SHARED_RECEIVE].instructions_over(&measured[Case::RECEIVE]) {
        let what = "shared receive over own, null provider";
        table::bar(what, "at most 30 instructions more", &table::number(more), more <= 30.0);
    }
    let allocations: u64 = measured.iter().map(|one| one.allocations).sum();
    table::bar("data path", "no allocation", &allocations.to_string(), allocations == 0);
}
