//! Small messages in one direction, posted in batches: the calls of a C program, made through the
//! raw interface.
//!
//! Invariants:
//! 1. The requests of `sends` and `receives` are chains that end with a null pointer and point into
//!    `list`; none of these vectors changes after `new`, so that the pointers stay valid.
//! 2. `list` names parts of `buffer`, which is registered as long as the value lives. Nothing else
//!    reads or writes it.

use std::fmt;
use std::hint::spin_loop;
use std::io;
use std::time::{Duration, Instant};

use rdma::transport::Rc;
use rdma::{
    Buffer, ConnectOptions, Endpoint, InitOptions, InitializedQueuePair, Opened, ProtectionDomain, QueuePair,
    RawCompletionQueue, RawQueuePair,
};
use rdma_sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_status, ibv_wr_opcode};

use crate::callgrind;
use crate::pair::{Channel, Contender, Role};

/// Requests posted by one call.
const BATCH: usize = 16;
/// Most batches of sends in flight.
const WINDOW: usize = 4;
/// Number of posted batches of receives.
const RECEIVES: usize = 16;
/// Batches per iteration.
const ROUND: u64 = 64;
/// Messages per iteration.
pub const MESSAGES: u64 = ROUND * BATCH as u64;

/// One side of a stream of messages.
pub struct MessageRate {
    qp: RawQueuePair<Rc>,
    cq: RawCompletionQueue,
    sends: Vec<ibv_send_wr>,
    receives: Vec<ibv_recv_wr>,
    _list: Vec<ibv_sge>,
    _buffer: Buffer,
    completions: [ibv_wc; BATCH],
    /// Number of batches of sends in flight.
    in_flight: usize,
    /// Number of received messages whose receives have not been posted again.
    received: usize,
    /// Number of messages that were received in this block.
    counted: u64,
}

/// One side before it is connected.
struct Prepared {
    pd: ProtectionDomain,
    cq: RawCompletionQueue,
    qp: InitializedQueuePair<Rc>,
}

impl Prepared {
    fn new(opened: &Opened) -> io::Result<Self> {
        let pd = opened.context.alloc_pd()?;
        let cq = opened.context.create_raw_cq(1024, None)?;
        let depth = |batches: usize| u32::try_from(batches * BATCH).map_err(io::Error::other);
        let builder = QueuePair::builder(&pd).raw_cq(&cq).max_send_wr(depth(WINDOW)?).max_recv_wr(depth(RECEIVES)?);
        let qp = builder.build()?.init(&InitOptions::new().port(opened.port))?;
        Ok(Self { pd, cq, qp })
    }

    fn connect(self, remote: &Endpoint, size: usize) -> io::Result<MessageRate> {
        let Self { pd, cq, qp } = self;
        let qp = qp.connect(remote, &ConnectOptions::new())?.into_raw().map_err(io::Error::other)?;
        let buffer = pd.allocate(size * BATCH)?;
        let length = u32::try_from(size).map_err(io::Error::other)?;
        let entry =
            |place: &[u8]| ibv_sge { addr: place.as_ptr().expose_provenance() as u64, length, lkey: buffer.lkey() };
        let mut list: Vec<ibv_sge> = buffer.chunks_exact(size).map(entry).collect();
        let opcode = ibv_wr_opcode::IBV_WR_SEND;
        let mut sends: Vec<ibv_send_wr> = Vec::with_capacity(BATCH);
        let mut receives: Vec<ibv_recv_wr> = Vec::with_capacity(BATCH);
        for entry in &mut list {
            let sg_list = &raw mut *entry;
            sends.push(ibv_send_wr { sg_list, num_sge: 1, opcode, ..Default::default() });
            receives.push(ibv_recv_wr { sg_list, num_sge: 1, ..Default::default() });
        }
        let (first_send, first_receive) = (sends.as_mut_ptr(), receives.as_mut_ptr());
        for next in 1..BATCH {
            sends[next - 1].next = first_send.wrapping_add(next);
            receives[next - 1].next = first_receive.wrapping_add(next);
        }
        sends[BATCH - 1].send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let completions = [ibv_wc::default(); BATCH];
        let (in_flight, received, counted) = (0, 0, 0);
        let mut this = MessageRate {
            qp,
            cq,
            sends,
            receives,
            _list: list,
            _buffer: buffer,
            completions,
            in_flight,
            received,
            counted,
        };
        for _ in 0..RECEIVES {
            this.post_receives()?;
        }
        Ok(this)
    }
}

impl MessageRate {
    /// Connects the two sides of a stream of messages of `size` bytes.
    ///
    /// # Errors
    ///
    /// The error of the device or of the channel.
    pub fn connect(_role: Role, channel: &mut Channel, opened: &Opened, size: usize) -> io::Result<Self> {
        let prepared = Prepared::new(opened)?;
        let remote = channel.exchange(&prepared.qp.endpoint().to_bytes())?;
        let this = prepared.connect(&Endpoint::from_bytes(&remote).map_err(io::Error::other)?, size)?;
        channel.exchange(b"connected")?;
        Ok(this)
    }

    /// Sends batches of messages from one side to another in this process and receives them there.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn within_a_process(opened: &Opened, size: usize, batches: u64) -> io::Result<()> {
        let (one, other) = (Prepared::new(opened)?, Prepared::new(opened)?);
        let (to_one, to_other) = (one.qp.endpoint(), other.qp.endpoint());
        let (mut one, mut other) = (one.connect(&to_other, size)?, other.connect(&to_one, size)?);
        callgrind::counted(|| {
            for _ in 0..batches {
                one.send()?;
                let mut left = BATCH;
                while left > 0 {
                    left -= other.receive()?;
                }
            }
            Ok(())
        })
    }

    fn post_receives(&mut self) -> io::Result<()> {
        // SAFETY: post_recv requires a chain (1) of requests whose memory stays valid and is used
        // by nothing else (2). A batch is posted only when one is complete, so the queue is not
        // full.
        unsafe { self.qp.post_recv(self.receives.as_mut_ptr()) }.map_err(|error| error.error.into())
    }

    /// Polls once; returns the number of completed requests.
    fn poll(&mut self) -> io::Result<usize> {
        let found = self.cq.poll(&mut self.completions)?;
        if found.iter().any(|wc| wc.status != ibv_wc_status::IBV_WC_SUCCESS) {
            return Err(io::Error::other("a message failed"));
        }
        Ok(found.len())
    }

    /// Posts a batch of messages once fewer than `WINDOW` batches are in flight.
    fn send(&mut self) -> io::Result<()> {
        while self.in_flight == WINDOW {
            self.reap()?;
        }
        // SAFETY: post_send requires a chain (1) of requests whose memory stays valid and unchanged
        // (2). Each batch signals its last request, and the number of batches in flight is limited
        // to what the queue has space for.
        unsafe { self.qp.post_send(self.sends.as_mut_ptr()) }.map_err(|error| error.error)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Handles the completions of batches.
    fn reap(&mut self) -> io::Result<()> {
        self.in_flight -= self.poll()?;
        Ok(())
    }

    /// Receives messages and posts their receives again; returns the number of messages.
    fn receive(&mut self) -> io::Result<usize> {
        let count = self.poll()?;
        self.received += count;
        while self.received >= BATCH {
            self.received -= BATCH;
            self.post_receives()?;
        }
        Ok(count)
    }
}

impl fmt::Debug for MessageRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageRate").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Contender for MessageRate {
    fn name(&self) -> String {
        "RC sends over soft0".into()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..iterations * ROUND {
            self.send()?;
        }
        while self.in_flight > 0 {
            self.reap()?;
        }
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        while self.counted < iterations * MESSAGES {
            match self.receive()? {
                0 => spin_loop(),
                count => self.counted += count as u64,
            }
        }
        // The next poll sends the last acknowledgement, and may find messages of the next block.
        self.counted = self.counted - iterations * MESSAGES + self.receive()? as u64;
        Ok(())
    }
}
