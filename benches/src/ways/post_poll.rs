//! A post and its poll: by the raw sequence and by the safe, owned interface, over a provider that
//! does nothing and over the software device within one process; receives of a queue pair's own
//! queue and of a shared one; and a poll that finds nothing.

use std::io;

use rdma::op;
use rdma::transport::Rc;
use rdma::{Buffer, ExposedRegion, Poller, QueuePair, RemoteAccess, RemoteSlice, SharedReceiveQueue};

use super::Way;
use crate::device::{self, End, Prepared};
use crate::null;
use crate::raw_sequence::{RawSequence, Remote};

/// Bytes in a message.
const LEN: usize = 64;

/// One way over one provider, ready to run.
#[derive(Debug)]
pub struct Case {
    sequence: Sequence,
    /// The objects of the sequence, dropped after it.
    end: End,
    _other: (End, ExposedRegion),
}

#[derive(Debug)]
enum Sequence {
    Raw(RawSequence),
    Owned(OwnedSequence),
    Receives(ReceiveSequence),
    EmptyPolls(Poller),
}

#[expect(missing_docs, reason = "indices of the names below")]
impl Case {
    pub const RAW_NULL: usize = 0;
    pub const OWNED_NULL: usize = 1;
    pub const RAW_SOFT0: usize = 2;
    pub const OWNED_SOFT0: usize = 3;
    pub const RECEIVE: usize = 4;
    pub const SHARED_RECEIVE: usize = 5;
    pub const NAMES: [&str; 7] = [
        "raw, null provider",
        "owned, null provider",
        "raw, soft0",
        "owned, soft0",
        "receive, null provider",
        "shared receive, null provider",
        "empty poll, soft0",
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
            // SAFETY: install requires a live context that no other thread uses: it was opened
            // above for this case alone.
            unsafe { null::install(opened.context.as_raw()) };
        }
        let sequence = if name.starts_with("raw") {
            let remote = remote.map(|remote| Remote { address: remote.address(), rkey: remote.rkey() });
            let (pd, qp, cq) = (end.pd.as_raw(), end.qp.as_raw(), end.cq.as_raw());
            // SAFETY: RawSequence::new requires live objects of one table, until the sequence is
            // dropped, that nothing else uses: `end` keeps them for as long as the sequence, which
            // is dropped first; nothing else posts to them or polls them.
            Sequence::Raw(unsafe { RawSequence::new(opened.context.table(), pd, qp, cq, remote) }?)
        } else if name.contains("receive") {
            let srq = SharedReceiveQueue::builder(&end.pd).max_wr(device::DEPTH).build()?;
            let srq = name.starts_with("shared").then_some(srq);
            Sequence::Receives(ReceiveSequence { poller: end.cq.poller(), buffer: Some(end.pd.allocate(LEN)?), srq })
        } else if name.starts_with("empty poll") {
            Sequence::EmptyPolls(end.cq.poller())
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
            Sequence::EmptyPolls(poller) => poll_in_vain(poller, iterations),
        }
    }
}

/// The same as [`RawSequence`], by the safe owned interface: a buffer goes into the request and
/// comes back with its completion.
#[derive(Debug)]
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
            None => cycle(poller, buffer, iterations, |buffer| Ok(qp.post_send(op::send(buffer))?)),
            Some(remote) => cycle(poller, buffer, iterations, |buffer| Ok(qp.post_send(op::write(buffer, remote))?)),
        }
    }
}

/// A receive that is posted and completes, through a queue pair's own queue or a shared one.
#[derive(Debug)]
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

#[inline(never)]
fn poll_in_vain(poller: &mut Poller, iterations: u64) -> io::Result<()> {
    for _ in 0..iterations {
        if poller.poll()?.is_some() {
            return Err(io::Error::other("a completion of nothing"));
        }
    }
    Ok(())
}

#[cold]
fn lost() -> io::Error {
    io::Error::other("the buffer did not come back")
}
