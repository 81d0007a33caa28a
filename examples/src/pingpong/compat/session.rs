//! One side: its queue pair, its memory, and its messages.

use std::time::Instant;

use rdma::op::{Opcode, Send};
use rdma::{
    Buffer, Completion, ConnectOptions, Connected, Endpoint, InitializedQueuePair, ProtectionDomain, QpBuilder,
    QueuePair, RemoteAccess, WcError, WcStatus,
};

use super::Args;
use super::contents::Contents;
use crate::Failure;
use crate::bootstrap::Watch;
use crate::device::Chosen;
use crate::pingpong::link::name;
use crate::wait::Completions;

/// A queue pair with its receives posted: `Q` is the state before or after connecting.
pub(super) struct Session<Q> {
    completions: Completions,
    qp: Q,
    spare: Vec<Buffer>,
    options: Args,
}

/// The messages of one side.
struct Traffic<T: Connected> {
    options: Args,
    is_server: bool,
    contents: Contents,
    qp: QueuePair<T>,
    /// Buffers that are neither posted nor hold the last received message.
    spare: Vec<Buffer>,
    /// The last received message, which a server sends back.
    last: Option<Buffer>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    /// Messages whose send has been posted, whose send is complete, and that were received.
    posted: u64,
    sent: u64,
    received: u64,
    /// Number of messages with wrong contents, and the number of the first such message.
    wrong: u64,
    first_wrong: u64,
}

/// The result of a session.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    /// The complaint about wrong contents, if there were any.
    pub(super) wrong: Option<String>,
}

impl<T: Connected> Session<InitializedQueuePair<T>> {
    pub(super) fn prepare(
        chosen: &Chosen,
        options: &Args,
        builder: fn(&ProtectionDomain) -> QpBuilder<T>,
    ) -> Result<Self, Failure> {
        let context = &chosen.context;
        let (depth, size) = (options.depth(), options.size.0);
        let pd = context.alloc_pd()?;
        let completions = Completions::new(context, depth + 1, options.events, Watch::new(), options.sides.timeout)?;
        let qp = builder(&pd).cq(completions.queue()).max_send_wr(1).max_recv_wr(depth).build()?;
        let mut qp = qp.init(&chosen.init_options(RemoteAccess::empty()))?;
        // Two buffers besides the receives: the last received message, and the one being sent.
        let mut all = pd.allocate((depth as usize + 2) * size)?;
        for _ in 0..depth {
            qp.post_recv(all.split_to(size), 0)?;
        }
        let spare = vec![all.split_to(size), all];
        Ok(Self { completions, qp, spare, options: options.clone() })
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    pub(super) fn connect(self, remote: &Endpoint, how: &ConnectOptions) -> Result<Session<QueuePair<T>>, Failure> {
        let Self { completions, qp, spare, options } = self;
        Ok(Session { completions, qp: qp.connect(remote, how)?, spare, options })
    }
}

impl<T: Connected> Session<QueuePair<T>> {
    /// Sends and receives as often as the options say, the client first.
    pub(super) fn run(self, is_server: bool) -> Result<Outcome, Failure> {
        let Self { mut completions, qp, spare, options } = self;
        let contents = Contents::new(options.size.0);
        let counts = Counts::default();
        let traffic = &mut Traffic { options, is_server, contents, qp, spare, last: None, counts };
        let iterations = traffic.options.iters;
        let started = Instant::now();
        if !traffic.is_server {
            traffic.send()?;
        }
        while traffic.counts.received < iterations || traffic.counts.sent < iterations {
            if completions.wait(|completion| traffic.take(completion))?.is_none() {
                return Err(traffic.silence());
            }
            let (received, posted) = (traffic.counts.received, traffic.counts.posted);
            let is_answered = if traffic.is_server { received > posted } else { received >= posted };
            // As in the C program, a send follows when the one before it is complete and a message
            // has been received.
            if posted < iterations && is_answered && traffic.counts.sent == posted {
                traffic.send()?;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let wrong = (traffic.counts.wrong > 0).then(|| traffic.complaint());
        Ok(Outcome { seconds, wrong })
    }
}

impl<T: Connected> Traffic<T> {
    /// Sends the next message: a server sends back the received one, a client one with contents of
    /// its own.
    fn send(&mut self) -> Result<(), Failure> {
        let mut buffer = self.last.take().or_else(|| self.spare.pop()).ok_or_else(|| Failure::new("out of buffers"))?;
        if !self.is_server {
            if self.options.check {
                self.contents.fill(&mut buffer, self.counts.posted);
            } else if self.counts.posted == 0 {
                buffer.copy_from_slice(self.contents.plain());
            }
        }
        self.counts.posted += 1;
        Ok(self.qp.post_send(Send::new(buffer))?)
    }

    /// Handles a completion.
    fn take(&mut self, mut completion: Completion<'_>) -> Result<(), Failure> {
        let size = self.options.size.0;
        let opcode = completion.opcode();
        if let Err(error) = completion.status() {
            return Err(broken(opcode, error, size, self.counts.received, self.options.iters));
        }
        let length = completion.byte_len();
        let buffer = completion.take_buffer();
        if opcode != Opcode::Recv {
            self.counts.sent += 1;
            self.spare.extend(buffer);
            return Ok(());
        }
        if length != size {
            return Err(Failure::new(format!(
                "the other side's messages have {length} bytes and ours {size}; give both the same size (-s)"
            )));
        }
        let buffer = buffer.ok_or_else(|| Failure::new("a message without its buffer"))?;
        if self.options.check {
            let number = self.counts.received;
            let intact = match self.is_server {
                true => self.contents.is_message(&buffer, number),
                false => self.contents.is_answer(&buffer, number),
            };
            if !intact && self.counts.wrong == 0 {
                self.counts.first_wrong = number;
            }
            self.counts.wrong += u64::from(!intact);
        }
        self.counts.received += 1;
        self.spare.extend(self.last.replace(buffer));
        let next = self.spare.pop().ok_or_else(|| Failure::new("out of buffers"))?;
        Ok(self.qp.post_recv(next, 0)?)
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
        let Self { counts: Counts { wrong, first_wrong, .. }, options: Args { size, .. }, .. } = self;
        let (size, hint) = (size.0, if self.is_server { "; was the client started with -c?" } else { "" });
        format!("{wrong} messages of {size} bytes had wrong contents, number {first_wrong} the first{hint}")
    }
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
