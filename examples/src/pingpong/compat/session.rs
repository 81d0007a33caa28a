//! One side's queue pair, its memory, and the messages back and forth.

use std::time::Instant;

use rdma::op::{Opcode, Send};
use rdma::{
    Buffer, CompletionChannel, CompletionQueue, ConnectOptions, Endpoint, InitializedQueuePair, Poller, QueuePair, Rc,
    RemoteAccess, WcError, WcStatus,
};

use super::Options;
use super::contents::Contents;
use crate::Failure;
use crate::bootstrap::Watch;
use crate::collectives::wait::{Patience, Wait};
use crate::device::Chosen;

/// A queue pair with its receives posted, and not connected.
pub(super) struct Prepared {
    cq: CompletionQueue,
    channel: CompletionChannel,
    qp: InitializedQueuePair<Rc>,
    spare: Vec<Buffer>,
    options: Options,
}

/// A connected side.
pub(super) struct Session {
    options: Options,
    contents: Contents,
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    channel: CompletionChannel,
    poller: Poller,
    patience: Patience,
    /// Buffers that are neither posted nor hold what was received last.
    spare: Vec<Buffer>,
    /// What was received last, which is what a server sends next.
    last: Option<Buffer>,
    /// Messages whose send has been posted, is complete, and that have come.
    posted: u64,
    sent: u64,
    received: u64,
    /// Messages with wrong contents, and the first of them.
    wrong: u64,
    first_wrong: u64,
}

/// How it went.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    /// What is to say of wrong contents, if there were any.
    pub(super) wrong: Option<String>,
}

impl Session {
    pub(super) fn prepare(chosen: &Chosen, options: &Options) -> Result<Prepared, Failure> {
        let context = &chosen.context;
        let (depth, size) = (options.depth(), options.size);
        let pd = context.alloc_pd()?;
        let channel = context.create_completion_channel()?;
        let cq = context.cq_builder(depth + 1).channel(&channel).build()?;
        let qp = QueuePair::<Rc>::builder(&pd).cq(&cq).max_send_wr(1).max_recv_wr(depth).build()?;
        let mut qp = qp.init(&chosen.init_options(RemoteAccess::empty()))?;
        // One more holds what was received last, and one is being sent.
        let mut all = pd.allocate((depth as usize + 2) * size)?;
        for _ in 0..depth {
            qp.post_recv(all.split_to(size), 0)?;
        }
        let spare = vec![all.split_to(size), all];
        Ok(Prepared { cq, channel, qp, spare, options: options.clone() })
    }

    /// Sends and receives as often as asked for, the client first.
    pub(super) fn run(mut self, is_server: bool) -> Result<Outcome, Failure> {
        let iterations = self.options.iterations;
        let started = Instant::now();
        if !is_server {
            self.send(false)?;
        }
        while self.received < iterations || self.sent < iterations {
            self.handle_next(is_server)?;
            let answered = if is_server { self.received > self.posted } else { self.received >= self.posted };
            // As the C program: a send follows when the one before it is complete and a message has come.
            if self.posted < iterations && answered && self.sent == self.posted {
                self.send(is_server)?;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let wrong = (self.wrong > 0).then(|| self.complaint(is_server));
        Ok(Outcome { seconds, wrong })
    }

    /// Sends the next message: a server what it has received, a client one with contents of its own.
    fn send(&mut self, is_server: bool) -> Result<(), Failure> {
        let mut buffer = self.last.take().or_else(|| self.spare.pop()).ok_or_else(|| Failure::new("out of buffers"))?;
        if !is_server {
            if self.options.check {
                self.contents.fill(&mut buffer, self.posted);
            } else if self.posted == 0 {
                buffer.copy_from_slice(self.contents.plain());
            }
        }
        self.posted += 1;
        Ok(self.qp.post_send(Send::new(buffer))?)
    }

    /// Waits for the next completion and takes note of it.
    fn handle_next(&mut self, is_server: bool) -> Result<(), Failure> {
        let deadline = Instant::now() + self.options.timeout;
        let mut wait = Wait::default();
        let mut armed = false;
        while !self.take_completion(is_server)? {
            if self.options.events {
                if Instant::now() >= deadline {
                    return Err(self.silence());
                }
                // What comes before the queue is armed makes no event: look once more before sleeping.
                if armed {
                    self.channel.wait(Some(deadline.saturating_duration_since(Instant::now())))?;
                } else {
                    self.cq.request_notify(false)?;
                }
                armed = !armed;
                continue;
            }
            match self.patience.pause(&mut wait) {
                Ok(None) => {}
                Ok(Some(nap)) => std::thread::sleep(nap),
                Err(_) => return Err(self.silence()),
            }
        }
        Ok(())
    }

    fn take_completion(&mut self, is_server: bool) -> Result<bool, Failure> {
        let size = self.options.size;
        let Some(mut completion) = self.poller.poll()? else { return Ok(false) };
        let opcode = completion.opcode();
        if let Err(error) = completion.status() {
            return Err(broken(opcode, error, size, self.received, self.options.iterations));
        }
        let length = completion.byte_len();
        let buffer = completion.take_buffer();
        if opcode != Opcode::Recv {
            self.sent += 1;
            self.spare.extend(buffer);
            return Ok(true);
        }
        if length != size {
            return Err(Failure::new(format!(
                "the other side's messages have {length} bytes and ours {size}; give both the same size (-s)"
            )));
        }
        let buffer = buffer.ok_or_else(|| Failure::new("a message without its buffer"))?;
        if self.options.check {
            let number = self.received;
            let intact = match is_server {
                true => self.contents.is_message(&buffer, number),
                false => self.contents.is_answer(&buffer, number),
            };
            if !intact && self.wrong == 0 {
                self.first_wrong = number;
            }
            self.wrong += u64::from(!intact);
        }
        self.received += 1;
        self.spare.extend(self.last.replace(buffer));
        let next = self.spare.pop().ok_or_else(|| Failure::new("out of buffers"))?;
        self.qp.post_recv(next, 0)?;
        Ok(true)
    }

    /// What to say when nothing comes.
    fn silence(&self) -> Failure {
        let Options { iterations, timeout, .. } = &self.options;
        Failure::new(format!(
            "the other side has sent {} of {iterations} messages, and nothing for {} s; does it still run, and with the same count (-n)?",
            self.received,
            timeout.as_secs()
        ))
    }

    fn complaint(&self, is_server: bool) -> String {
        let Self { wrong, first_wrong, options: Options { size, .. }, .. } = self;
        let hint = if is_server { "; was the client started with -c?" } else { "" };
        format!("{wrong} messages of {size} bytes had wrong contents, number {first_wrong} the first{hint}")
    }
}

impl Prepared {
    pub(super) fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    pub(super) fn connect(self, remote: &Endpoint, how: &ConnectOptions) -> Result<Session, Failure> {
        let Self { cq, channel, qp, spare, options } = self;
        let qp = qp.connect(remote, how)?;
        let few = std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2);
        Ok(Session {
            contents: Contents::new(options.size),
            qp,
            poller: cq.poller(),
            cq,
            channel,
            patience: Patience::new(Watch::new(), few, options.timeout),
            spare,
            last: None,
            posted: 0,
            sent: 0,
            received: 0,
            wrong: 0,
            first_wrong: 0,
            options,
        })
    }
}

/// What a completion with an error means here.
fn broken(opcode: Opcode, error: WcError, size: usize, received: u64, iterations: u64) -> Failure {
    let what = match error.status {
        // The kernel's rxe says the second.
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
        _ => return Failure::new(format!("the connection broke: {opcode:?}: {error}")),
    };
    Failure::new(format!("{what} ({opcode:?}: {error})"))
}
