//! One side: its queue pairs, their memory, and their messages.

use std::time::Instant;

use rdma::op::{self, Opcode};
use rdma::transport::Connected;
use rdma::{
    Buffer, Completion, ConnectOptions, Endpoint, InitializedQueuePair, ProtectionDomain, QpBuilder, QueuePair,
    RemoteAccess, SharedReceiveQueue, SrqBuilder, WcError, WcStatus,
};

use super::Args;
use super::contents::Contents;
use crate::Failure;
use crate::device::Chosen;
use crate::pingpong::link::name;
use crate::wait::Completions;
use rdma_collectives::bootstrap::Watch;

/// The constructors of a transport's queues.
pub(super) struct Queues<T: Connected> {
    pub(super) qp: fn(&ProtectionDomain) -> QpBuilder<T>,
    pub(super) srq: fn(&ProtectionDomain) -> SrqBuilder<T>,
}

/// Queue pairs with their receives posted.
pub(super) struct Session<T: Connected> {
    completions: Completions,
    qps: Vec<InitializedQueuePair<T>>,
    /// The queue pairs' receives, if they share them.
    shared: Option<SharedReceiveQueue<T>>,
    spare: Vec<Buffer>,
    options: Args,
    is_server: bool,
}

/// The messages of one side.
struct Traffic<T: Connected> {
    options: Args,
    is_server: bool,
    contents: Contents,
    lanes: Vec<Lane<T>>,
    shared: Option<SharedReceiveQueue<T>>,
    /// Buffers that are neither posted nor hold a last received message.
    spare: Vec<Buffer>,
    /// The messages of all queue pairs.
    counts: Counts,
    /// Number of messages with wrong contents, and the number of the first such message.
    wrong: u64,
    first_wrong: u64,
}

/// A connected queue pair and its messages.
struct Lane<T: Connected> {
    qp: QueuePair<T>,
    counts: Counts,
    /// The last received message, which a server sends back.
    last: Option<Buffer>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    /// Messages whose send has been posted, whose send is complete, and that were received.
    posted: u64,
    sent: u64,
    received: u64,
}

/// The result of a session.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    /// The complaint about wrong contents, if there were any.
    pub(super) wrong: Option<String>,
}

impl<T: Connected> Session<T> {
    pub(super) fn prepare(
        chosen: &Chosen,
        options: &Args,
        queues: &Queues<T>,
        is_server: bool,
    ) -> Result<Self, Failure> {
        let context = &chosen.adapter.context;
        let (depth, size, count) = (options.depth(), options.size.0, options.queue_pairs());
        let pd = context.alloc_pd()?;
        // A shared receive queue needs entries for twice its receives, as a power of two.
        let receives = if options.srq { (2 * depth).next_power_of_two() } else { depth };
        let entries = receives + count;
        let completions = Completions::new(context, entries, options.events, Watch::new(), options.sides.timeout)?;
        let mut shared = options.srq.then(|| (queues.srq)(&pd).max_wr(depth).build()).transpose()?;
        let mut qps = Vec::new();
        for _ in 0..count {
            let builder = (queues.qp)(&pd).cq(completions.queue()).max_send_wr(1);
            let builder = match &shared {
                Some(shared) => builder.shared_receives(shared),
                None => builder.max_recv_wr(depth),
            };
            qps.push(builder.build()?.init(&chosen.adapter.init_options(RemoteAccess::empty()))?);
        }
        // Each queue pair has two buffers besides the receives: the last received message, and the
        // one being sent.
        let mut all = pd.allocate((depth as usize + 2 * count as usize) * size)?;
        for _ in 0..depth {
            let room = all.split_to(size);
            match &mut shared {
                Some(shared) => shared.post_recv(room, 0)?,
                None => qps[0].post_recv(room, 0)?,
            }
        }
        let spare = (0..2 * count).map(|_| all.split_to(size)).collect();
        Ok(Self { completions, qps, shared, spare, options: options.clone(), is_server })
    }

    /// The addresses of the queue pairs.
    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        self.qps.iter().map(|qp| qp.endpoint()).collect()
    }

    /// Connects each queue pair to the peer's queue pair of the same place.
    pub(super) fn connect(self, remotes: &[Endpoint], how: &ConnectOptions) -> Result<ConnectedSession<T>, Failure> {
        let Self { completions, qps, shared, spare, options, is_server } = self;
        let mut lanes = Vec::new();
        for (qp, remote) in qps.into_iter().zip(remotes) {
            lanes.push(Lane { qp: qp.connect(remote, how)?, counts: Counts::default(), last: None });
        }
        let contents = Contents::new(options.size.0, options.srq);
        let (counts, [wrong, first_wrong]) = (Counts::default(), [0; 2]);
        let traffic = Traffic { options, is_server, contents, lanes, shared, spare, counts, wrong, first_wrong };
        Ok(ConnectedSession { completions, traffic })
    }
}

/// Queue pairs that are connected.
pub(super) struct ConnectedSession<T: Connected> {
    completions: Completions,
    traffic: Traffic<T>,
}

impl<T: Connected> ConnectedSession<T> {
    /// Sends and receives as often as the options say, the client first.
    pub(super) fn run(self) -> Result<Outcome, Failure> {
        let Self { mut completions, mut traffic } = self;
        let iterations = traffic.options.iters;
        let started = Instant::now();
        if !traffic.is_server {
            for at in 0..traffic.lanes.len() {
                traffic.send_if_due(at)?;
            }
        }
        while traffic.counts.received < iterations || traffic.counts.sent < iterations {
            let Some(at) = completions.wait(|completion| traffic.take(completion))? else {
                return Err(traffic.silence());
            };
            traffic.send_if_due(at)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let wrong = (traffic.wrong > 0).then(|| traffic.complaint());
        Ok(Outcome { seconds, wrong })
    }
}

impl<T: Connected> Traffic<T> {
    /// Sends the next message of a queue pair, unless all are sent or one is under way: as in the C
    /// program, a send follows when the one before it is complete and a message has been received.
    fn send_if_due(&mut self, at: usize) -> Result<(), Failure> {
        let Counts { posted, sent, received } = self.lanes[at].counts;
        let is_answered = if self.is_server { received > posted } else { received >= posted };
        if self.counts.posted < self.options.iters && is_answered && sent == posted { self.send(at) } else { Ok(()) }
    }

    /// Sends the next message: a server sends back the received one, a client one with contents of
    /// its own.
    fn send(&mut self, at: usize) -> Result<(), Failure> {
        let lane = &mut self.lanes[at];
        let mut buffer = lane.last.take().or_else(|| self.spare.pop()).ok_or_else(out_of_buffers)?;
        if !self.is_server {
            if self.options.check {
                self.contents.fill(&mut buffer, lane.counts.posted);
            } else if lane.counts.posted == 0 {
                buffer.copy_from_slice(self.contents.plain());
            }
        }
        lane.counts.posted += 1;
        self.counts.posted += 1;
        Ok(lane.qp.post_send(op::send(buffer))?)
    }

    /// Handles a completion; returns the place of its queue pair.
    fn take(&mut self, mut completion: Completion<'_>) -> Result<usize, Failure> {
        let size = self.options.size.0;
        let (opcode, qpn) = (completion.opcode(), completion.qpn());
        if let Err(error) = completion.status() {
            return Err(broken(opcode, error, size, self.counts.received, self.options.iters));
        }
        let length = completion.byte_len();
        let buffer = completion.take_buffer();
        let at = self.lanes.iter().position(|lane| lane.qp.qpn() == qpn);
        let at = at.ok_or_else(|| Failure::new(format!("a completion of queue pair {qpn:#08x}, which is not ours")))?;
        let lane = &mut self.lanes[at];
        if opcode != Opcode::Recv {
            lane.counts.sent += 1;
            self.counts.sent += 1;
            self.spare.extend(buffer);
            return Ok(at);
        }
        if length != size {
            return Err(Failure::new(format!(
                "the other side's messages have {length} bytes and ours {size}; give both the same size (-s)"
            )));
        }
        let buffer = buffer.ok_or_else(|| Failure::new("a message without its buffer"))?;
        if self.options.check {
            let number = lane.counts.received;
            let intact = match self.is_server {
                true => self.contents.is_message(&buffer, number),
                false => self.contents.is_answer(&buffer, number),
            };
            if !intact && self.wrong == 0 {
                self.first_wrong = number;
            }
            self.wrong += u64::from(!intact);
        }
        lane.counts.received += 1;
        self.counts.received += 1;
        self.spare.extend(lane.last.replace(buffer));
        let next = self.spare.pop().ok_or_else(out_of_buffers)?;
        match &mut self.shared {
            Some(shared) => shared.post_recv(next, 0)?,
            None => lane.qp.post_recv(next, 0)?,
        }
        Ok(at)
    }

    /// The failure if no message comes in time.
    fn silence(&self) -> Failure {
        let (iterations, timeout) = (self.options.iters, self.options.sides.timeout);
        Failure::new(format!(
            "the other side has sent {} of {iterations} messages, and nothing for {} s; does it still run, and with the same count (-n)?",
            self.counts.received,
            timeout.as_secs()
        ))
    }

    fn complaint(&self) -> String {
        let Self { wrong, first_wrong, options: Args { size, .. }, .. } = self;
        let (size, hint) = (size.0, if self.is_server { "; was the client started with -c?" } else { "" });
        format!("{wrong} messages of {size} bytes had wrong contents, number {first_wrong} the first{hint}")
    }
}

fn out_of_buffers() -> Failure {
    Failure::new("out of buffers")
}

/// The failure that explains a completion with an error.
fn broken(opcode: Opcode, error: WcError, size: usize, received: u64, iterations: u64) -> Failure {
    let what = match error.status {
        // The kernel's rxe reports the second status.
        WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR if opcode == Opcode::Recv => {
            format!("the other side's messages are longer than ours of {size} bytes; give both the same size (-s)")
        }
        WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR => {
            format!("the other side does not take messages of {size} bytes; give both the same size (-s)")
        }
        WcStatus::RETRY_EXC_ERR => format!(
            "the other side does not answer any more, after {received} of {iterations} messages; does it still run, and with the \
             same MTU (-m)?"
        ),
        _ => return Failure::new(format!("the connection broke: {}: {error}", name(opcode))),
    };
    Failure::new(format!("{what} ({}: {error})", name(opcode)))
}
