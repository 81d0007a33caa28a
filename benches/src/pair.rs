//! Comparisons between two processes: the leader measures, the follower answers.
//!
//! The leader spawns its own executable again as the follower. Both build the same list of
//! contenders, connected through a [`Channel`]. The leader then tells the follower which contender
//! runs next and for how many iterations. Every round runs every contender once, so that a change
//! of the machine's state affects all of them.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::quiet::Usage;
use crate::{affinity, quiet, stats};

/// The first argument of a follower process; the second is its core.
const FOLLOW: &str = "--follow";

/// The role of this process in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The leader measures, on the first core.
    Leader,
    /// The follower answers, on the second core, or on the same ([`Plan::on_one_core`]).
    Follower,
}

/// A channel of text lines between the two processes.
#[derive(Debug)]
pub struct Channel {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Channel {
    fn new(stream: UnixStream) -> io::Result<Self> {
        Ok(Self { writer: stream.try_clone()?, reader: BufReader::new(stream) })
    }

    /// Sends one line.
    ///
    /// # Errors
    ///
    /// The socket's error.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        self.writer.write_all(format!("{line}\n").as_bytes())
    }

    /// Receives one line.
    ///
    /// # Errors
    ///
    /// The socket's error; `UnexpectedEof` when the other process is gone.
    pub fn receive(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Sends bytes and receives the other side's, as both sides do to connect.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`] and [`Self::receive`]; `InvalidData` if the answer is no list
    /// of bytes.
    pub fn exchange(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.send(&serde_json::to_string(bytes)?)?;
        Ok(serde_json::from_str(&self.receive()?)?)
    }
}

/// A participant of a comparison; each process holds one side of it.
pub trait Contender {
    /// The name in the table.
    fn name(&self) -> String;

    /// Whether each call runs an external program that measures itself; such a contender runs once
    /// per round.
    fn is_a_program(&self) -> bool {
        false
    }

    /// Runs the leader's side of `iterations` iterations; returns their duration.
    ///
    /// # Errors
    ///
    /// The error that stops the comparison.
    fn lead(&mut self, iterations: u64) -> io::Result<Duration>;

    /// Runs the follower's side; does nothing if the follower takes no part.
    ///
    /// # Errors
    ///
    /// The error that stops the comparison.
    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        let _ = iterations;
        Ok(())
    }
}

/// A contender that sends a message back and forth.
pub trait PingPong {
    /// The name in the table.
    fn name(&self) -> String;

    /// Sends a message to the other side.
    ///
    /// # Errors
    ///
    /// The error that stops the comparison.
    fn send(&mut self) -> io::Result<()>;

    /// Waits for the other side's message.
    ///
    /// # Errors
    ///
    /// The error that stops the comparison.
    fn receive(&mut self) -> io::Result<()>;
}

impl<T: PingPong> Contender for T {
    fn name(&self) -> String {
        PingPong::name(self)
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..iterations {
            self.send()?;
            self.receive()?;
        }
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        for _ in 0..iterations {
            self.receive()?;
            self.send()?;
        }
        Ok(())
    }
}

/// The contenders of a comparison, in the same order in both processes.
pub type Contenders = Vec<Box<dyn Contender>>;

/// The durations and counts of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of rounds, each of which runs every contender once.
    pub rounds: usize,
    /// Blocks at the start of a contender's turn that do not count, until effects of the pause are
    /// over: a thread that slept meanwhile takes up to a scheduler's tick to wake up.
    pub warm_up: usize,
    /// Timed blocks of a contender within a round; the round's value is their median.
    pub blocks: usize,
    /// Intended duration of a block.
    pub block: Duration,
    /// Longest wait for a quiet machine before each round.
    pub patience: Duration,
    /// Whether both processes run on the same core.
    pub on_one_core: bool,
}

impl Plan {
    /// The plan for a real run, or with `smoke` the shortest plan that runs everything once.
    #[must_use]
    pub fn new(smoke: bool, rounds: usize, block: Duration) -> Self {
        if smoke {
            let patience = Duration::ZERO;
            Self { rounds: 1, warm_up: 0, blocks: 1, block: Duration::ZERO, patience, on_one_core: false }
        } else {
            let patience = Duration::from_secs(2);
            Self { rounds, warm_up: 0, blocks: 9, block, patience, on_one_core: false }
        }
    }
}

/// The measurements of one contender.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The contender's name.
    pub name: String,
    /// Nanoseconds per iteration, one value per round: index `i` is the same round for every
    /// contender.
    pub rounds: Vec<f64>,
    /// Nanoseconds of processor time that both processes took per iteration, one value per round.
    pub processor: Vec<f64>,
    /// Number of rounds in which the scheduler took a core away from one of the sides.
    pub disturbed: usize,
}

/// Whether this process is the follower of a comparison.
#[must_use]
pub fn is_follower() -> bool {
    std::env::args().nth(1).as_deref() == Some(FOLLOW)
}

/// Runs `build`'s contenders between two pinned processes. In the leader this returns the outcomes;
/// in the follower it does not return.
///
/// # Errors
///
/// The error of the set-up or of a contender. A follower prints its error, and the leader then ends
/// too.
pub fn compare(plan: &Plan, build: impl Fn(Role, &mut Channel) -> io::Result<Contenders>) -> io::Result<Vec<Outcome>> {
    compare_with(plan, |_| (), build)
}

/// Like [`compare`], with a follower that `prepare` gives variables of its own.
///
/// # Errors
///
/// As for [`compare`].
pub fn compare_with(
    plan: &Plan,
    prepare: impl Fn(&mut Command),
    build: impl Fn(Role, &mut Channel) -> io::Result<Contenders>,
) -> io::Result<Vec<Outcome>> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(FOLLOW) {
        let core = arguments.next().and_then(|core| core.parse().ok()).unwrap_or(0);
        if let Err(error) = follow(core, build) {
            eprintln!("follower: {error}");
            std::process::exit(1);
        }
        std::process::exit(0);
    }
    lead(plan, prepare, build)
}

fn follow(core: usize, build: impl Fn(Role, &mut Channel) -> io::Result<Contenders>) -> io::Result<()> {
    affinity::pin(core)?;
    // A spinning follower must not outlive its leader.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let mut channel = Channel::new(UnixStream::from(socket))?;
    let mut contenders = build(Role::Follower, &mut channel)?;
    loop {
        let Ok(line) = channel.receive() else { return Ok(()) };
        let (index, iterations, blocks): (usize, u64, usize) = serde_json::from_str(&line)?;
        let contender = contenders.get_mut(index).ok_or_else(|| io::Error::other(format!("no contender {index}")))?;
        let before = Usage::now()?;
        for _ in 0..blocks {
            contender.follow(iterations)?;
        }
        let Usage { preemptions, processor } = Usage::since(&before)?;
        channel.send(&serde_json::to_string(&(preemptions, processor.as_secs_f64()))?)?;
    }
}

fn lead(
    plan: &Plan,
    prepare: impl Fn(&mut Command),
    build: impl Fn(Role, &mut Channel) -> io::Result<Contenders>,
) -> io::Result<Vec<Outcome>> {
    let (here, mut there) = affinity::two_cores()?;
    if plan.on_one_core {
        there = here;
    }
    let all = affinity::cores()?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([FOLLOW, &there.to_string()]).args(std::env::args().skip(1));
    prepare(&mut command);
    let mut child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
    // So that this process holds no end of the channel but its own.
    drop(command);
    // Without this watcher, a leader that spins for an answer would spin forever if the follower
    // died.
    let finished = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&finished);
    let watcher = std::thread::spawn(move || {
        let status = child.wait();
        if !watched.load(Ordering::Acquire) {
            eprintln!("the follower ended early: {status:?}");
            std::process::exit(1);
        }
    });
    affinity::pin(here)?;
    let mut channel = Channel::new(ours)?;
    let mut contenders = build(Role::Leader, &mut channel)?;
    let outcomes = play(plan, &mut channel, &mut contenders);
    finished.store(true, Ordering::Release);
    // A follower that spins for this side's next step dies with this process; nobody waits for it.
    let outcomes = outcomes?;
    drop(contenders);
    drop(channel);
    if watcher.join().is_err() {
        return Err(io::Error::other("the thread that watched the follower panicked"));
    }
    affinity::set(&all)?;
    Ok(outcomes)
}

fn play(plan: &Plan, channel: &mut Channel, contenders: &mut [Box<dyn Contender>]) -> io::Result<Vec<Outcome>> {
    let mut turns = Vec::with_capacity(contenders.len());
    for (index, contender) in contenders.iter_mut().enumerate() {
        let is_a_program = contender.is_a_program();
        turns.push(if is_a_program { 1 } else { calibrate(plan.block, channel, index, contender.as_mut())? });
    }
    let mut outcomes: Vec<Outcome> = contenders
        .iter()
        .map(|contender| Outcome { name: contender.name(), rounds: Vec::new(), processor: Vec::new(), disturbed: 0 })
        .collect();
    for _ in 0..plan.rounds {
        quiet::wait(plan.patience);
        for (index, contender) in contenders.iter_mut().enumerate() {
            let (warm_up, blocks) = if contender.is_a_program() { (0, 1) } else { (plan.warm_up, plan.blocks) };
            let turn = Turn { index, iterations: turns[index], warm_up, blocks };
            let round = turn.run(channel, contender.as_mut())?;
            outcomes[index].rounds.push(round.value);
            outcomes[index].processor.push(round.processor);
            outcomes[index].disturbed += usize::from(round.is_disturbed);
        }
    }
    Ok(outcomes)
}

/// Finds the number of iterations that fill a block.
fn calibrate(block: Duration, channel: &mut Channel, index: usize, contender: &mut dyn Contender) -> io::Result<u64> {
    let mut iterations = 1;
    loop {
        let start = Instant::now();
        let round = Turn { index, iterations, warm_up: 0, blocks: 1 }.run(channel, contender)?;
        if start.elapsed() >= block / 2 || iterations >= 1 << 24 {
            return Ok(whole(block.as_secs_f64() * 1e9 / round.value.max(0.1)).clamp(1, iterations));
        }
        iterations *= 2;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the cast saturates, and the fraction is meant to go")]
#[expect(clippy::cast_sign_loss, reason = "the cast saturates: negative becomes zero")]
fn whole(value: f64) -> u64 {
    value as u64
}

/// One contender's blocks within a round.
struct Turn {
    index: usize,
    iterations: u64,
    warm_up: usize,
    blocks: usize,
}

/// The measurements of one contender in one round.
struct Round {
    /// The median block's nanoseconds per iteration.
    value: f64,
    /// Nanoseconds of processor time of both processes per iteration.
    processor: f64,
    /// Whether the scheduler took a core away.
    is_disturbed: bool,
}

impl Turn {
    fn run(&self, channel: &mut Channel, contender: &mut dyn Contender) -> io::Result<Round> {
        let count = self.warm_up + self.blocks;
        channel.send(&serde_json::to_string(&(self.index, self.iterations, count))?)?;
        let before = Usage::now()?;
        for _ in 0..self.warm_up {
            contender.lead(self.iterations)?;
        }
        let warmed_up = Usage::now()?;
        let mut blocks = Vec::with_capacity(self.blocks);
        for _ in 0..self.blocks {
            blocks.push(per_iteration(contender.lead(self.iterations)?, self.iterations));
        }
        let here = Usage::since(&warmed_up)?.preemptions;
        let processor = Usage::since(&before)?.processor;
        let (there, answering): (u64, f64) = serde_json::from_str(&channel.receive()?)?;
        let iterations = self.iterations.saturating_mul(count as u64);
        let processor = per_iteration(processor + Duration::from_secs_f64(answering), iterations);
        Ok(Round { value: stats::median(&blocks), processor, is_disturbed: here + there > 0 })
    }
}

/// Converts a duration to nanoseconds per iteration.
#[must_use]
pub fn per_iteration(took: Duration, iterations: u64) -> f64 {
    let iterations = u32::try_from(iterations).unwrap_or(u32::MAX);
    took.as_secs_f64() * 1e9 / f64::from(iterations.max(1))
}
