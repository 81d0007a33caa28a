//! A message of 64 bytes between two processes in lockstep, as callgrind counts it at one of them:
//! a signaled send, the poll that finds the send's completion and the answer, and the post of the
//! next receive. So a count is of one send and one receive.
//!
//! The counted side does not poll before the answer is there, because the number of such polls
//! would be chance: a word of shared memory says how many answers have been sent. The device's own
//! thread looks at the links once a millisecond, which under callgrind is every tenth message, and
//! what it handles is not counted: it runs only while the counted thread does not want its core.
//!
//! Invariants:
//! 1. `send` and `receive` are chains of one request that point into `list`, which nothing changes
//!    after `new`.
//! 2. `list` names the two halves of `buffer`, which is registered as long as the value lives.
//!    Nothing else reads or writes it.

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma::transport::Rc;
use rdma::{Buffer, ConnectOptions, Endpoint, InitOptions, QueuePair, RawCompletionQueue, RawQueuePair};
use rdma_sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_status, ibv_wr_opcode};

use super::beside_a_link::listen;
use super::counted_iterations;
use crate::callgrind::counted;
use crate::pair::{self, Channel, Contender, Contenders, Plan, Role};
use crate::shared::SharedPages;
use crate::{affinity, device};

/// Bytes in a message.
const LEN: usize = 64;
/// Iterations before those that are counted.
const WARM_UP: u64 = 100;
/// The names of the ways: within a host, and between two.
pub const NAMES: [&str; 2] = ["message between two processes, soft0", "message between two hosts, soft0"];

/// Exchanges messages: in the leader, which callgrind counts, and in its follower.
///
/// # Errors
///
/// The device's error, or that of the other process.
pub fn count(name: &str) -> io::Result<()> {
    let plan = Plan::new(true, 1, Duration::ZERO);
    let connect = |role: Role, channel: &mut Channel| {
        if name == NAMES[1] {
            listen(role, channel)?;
        }
        Ok::<Contenders, _>(vec![Box::new(Lockstep::connect(role, channel)?)])
    };
    pair::compare(&plan, connect).map(drop)
}

/// One side of the exchange.
struct Lockstep {
    qp: RawQueuePair<Rc>,
    cq: RawCompletionQueue,
    send: Box<ibv_send_wr>,
    receive: Box<ibv_recv_wr>,
    _list: Box<[ibv_sge; 2]>,
    _buffer: Buffer,
    /// A word with the number of answers that were sent.
    pages: SharedPages,
    turns: u64,
}

impl Lockstep {
    fn connect(role: Role, channel: &mut Channel) -> io::Result<Self> {
        let opened = device::open()?;
        let pd = opened.context.alloc_pd()?;
        let cq = opened.context.create_raw_cq(2 * device::DEPTH, None)?;
        let builder = QueuePair::builder(&pd).raw_cq(&cq).max_send_wr(device::DEPTH).max_recv_wr(device::DEPTH);
        let qp = builder.build()?.init(&InitOptions::new().port(opened.port))?;
        let remote = channel.exchange(&qp.endpoint().to_bytes())?;
        let remote = Endpoint::from_bytes(&remote).map_err(io::Error::other)?;
        let qp = qp.connect(&remote, &ConnectOptions::new())?.into_raw().map_err(io::Error::other)?;
        let buffer = pd.allocate(2 * LEN)?;
        let entry = |half: &[u8]| ibv_sge {
            addr: half.as_ptr().expose_provenance() as u64,
            length: u32::try_from(LEN).unwrap_or(0),
            lkey: buffer.lkey(),
        };
        let mut list = Box::new([entry(&buffer[..LEN]), entry(&buffer[LEN..])]);
        let first = list.as_mut_ptr();
        let (opcode, send_flags) = (ibv_wr_opcode::IBV_WR_SEND, ibv_send_flags::IBV_SEND_SIGNALED.0);
        let send = Box::new(ibv_send_wr { sg_list: first, num_sge: 1, opcode, send_flags, ..Default::default() });
        let receive = Box::new(ibv_recv_wr { sg_list: first.wrapping_add(1), num_sge: 1, ..Default::default() });
        let pages = SharedPages::connect(role, channel, 4096)?;
        let mut this = Self { qp, cq, send, receive, _list: list, _buffer: buffer, pages, turns: 0 };
        this.post_receive()?;
        channel.exchange(b"connected")?;
        Ok(this)
    }

    fn post_receive(&mut self) -> io::Result<()> {
        // SAFETY: post_recv requires a chain (1) of requests whose memory stays valid and is used
        // by nothing else (2). One receive is posted at a time, so the queue is not full.
        unsafe { self.qp.post_recv(&raw mut *self.receive) }.map_err(|error| error.error.into())
    }

    fn post_send(&mut self) -> io::Result<()> {
        // SAFETY: post_send requires a chain (1) of requests whose memory stays valid and unchanged
        // (2). The last send has completed before the next is posted.
        unsafe { self.qp.post_send(&raw mut *self.send) }.map_err(|error| error.error.into())
    }

    fn poll(&self) -> io::Result<usize> {
        let mut room = [ibv_wc::default(); 4];
        let found = self.cq.poll(&mut room)?;
        match found.iter().find(|wc| wc.status != ibv_wc_status::IBV_WC_SUCCESS) {
            Some(failed) => Err(io::Error::other(format!("a message ended with {:?}", failed.status))),
            None => Ok(found.len()),
        }
    }

    fn poll_for(&self, count: usize) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            left -= self.poll()?;
        }
        Ok(())
    }

    /// Sends a message and takes the answer.
    fn exchange(&mut self, is_counted: bool) -> io::Result<()> {
        self.turns += 1;
        count_if(is_counted, || self.post_send())?;
        while self.pages.word(0).load(Ordering::Acquire) != self.turns {
            spin_loop();
        }
        count_if(is_counted, || {
            self.poll_for(2)?;
            self.post_receive()
        })
    }

    fn answer(&mut self) -> io::Result<()> {
        // Of the answer before, if there was one, and of the receive.
        self.poll_for(if self.turns == 0 { 1 } else { 2 })?;
        self.turns += 1;
        self.post_receive()?;
        self.post_send()?;
        self.pages.word(0).store(self.turns, Ordering::Release);
        Ok(())
    }
}

/// Both sides go as far as the arguments say, which are the same.
impl Contender for Lockstep {
    fn name(&self) -> String {
        "messages in lockstep".into()
    }

    /// As a program does, it goes on for as long as its own arguments say.
    fn is_a_program(&self) -> bool {
        true
    }

    fn lead(&mut self, _iterations: u64) -> io::Result<Duration> {
        affinity::yield_to_this_thread()?;
        let start = Instant::now();
        for _ in 0..WARM_UP {
            self.exchange(false)?;
        }
        for _ in 0..counted_iterations() {
            self.exchange(true)?;
        }
        Ok(start.elapsed())
    }

    fn follow(&mut self, _iterations: u64) -> io::Result<()> {
        for _ in 0..WARM_UP + counted_iterations() {
            self.answer()?;
        }
        Ok(())
    }
}

fn count_if<R>(is_counted: bool, work: impl FnOnce() -> R) -> R {
    if is_counted { counted(work) } else { work() }
}
