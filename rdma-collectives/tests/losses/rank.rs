//! One rank: random operations, the same at all ranks, whose results are checked.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdma::DeviceSelector;
use rdma_collectives::bootstrap::{Directory, Group, Roles, Terms};
use rdma_collectives::{Adapter, Communicator, Error, Reduction, Tensor, Transfer, Transport, Tuning};
use rdma_test_support::first;

use crate::numbers::Numbers;

/// The report of a rank that has begun its operations.
pub(crate) const RUNNING: &str = "running";
/// The beginning of the report of a rank that has done all operations.
pub(crate) const DONE: &str = "done";
/// The beginning of the report of a rank that has failed.
pub(crate) const FAILED: &str = "failed";
/// The reason of an abort.
pub(crate) const REASON: &str = "the disk is full";

/// Most elements of a tensor.
const MOST: usize = 1 << 16;

/// What a rank does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) transport: Transport,
    /// The time limit of the ranks for each other.
    pub(crate) timeout: Duration,
    /// Time after which the rank aborts the job: from the meeting on if it does so early, else from
    /// the first operation on.
    pub(crate) abort: Option<Duration>,
    pub(crate) aborts_early: bool,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, rank, world, transport, timeout, abort, aborts_early } = self;
        let abort = abort.map_or_else(|| "never".to_owned(), |after| after.as_micros().to_string());
        write!(f, "{seed} {rank} {world} {transport} {} {abort} {aborts_early}", timeout.as_secs())
    }
}

impl FromStr for Plan {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let [seed, rank, world, transport, timeout, abort, aborts_early] =
            text.split(' ').collect::<Vec<_>>().try_into().expect("seven words");
        Ok(Self {
            seed: seed.parse()?,
            rank: rank.parse()?,
            world: world.parse()?,
            transport: Transport::named(transport).expect("a transport"),
            timeout: Duration::from_secs(timeout.parse()?),
            abort: abort.parse().ok().map(Duration::from_micros),
            aborts_early: aborts_early == "true",
        })
    }
}

/// Does the work of a rank, and reports how it has ended.
pub(crate) fn main(plan: &Plan) {
    let report = match job(plan) {
        Ok(operations) => format!("{DONE} {operations} operations"),
        Err(error) => format!("{FAILED} kind: {:?}, rank: {:?}, {error}", error.kind(), error.rank()),
    };
    first().tell(&report);
}

fn job(plan: &Plan) -> Result<u64, Error> {
    let terms = Terms::new("losses", &(), Roles::Ranks, plan.timeout);
    let mut exchange = Directory::new(std::env::temp_dir(), &plan.seed.to_string())?;
    let mut group = Group::meet_by(&mut exchange, plan.rank, plan.world, &terms)?;
    if plan.aborts_early {
        abort_later(plan, &group);
    }
    let result = operations(plan, &mut group);
    group.conclude(result)
}

/// Aborts the job in a thread, if that is the plan.
fn abort_later(plan: &Plan, group: &Group) {
    if let Some(after) = plan.abort {
        let aborter = group.aborter();
        std::thread::spawn(move || {
            std::thread::sleep(after);
            aborter.abort(REASON);
        });
    }
}

/// Does random operations until rank 0 is told to end; returns how many.
fn operations(plan: &Plan, group: &mut Group) -> Result<u64, Error> {
    let opened = rdma::open(&DeviceSelector::Named { name: "soft0".to_owned(), port: None })?;
    let adapter = Adapter::new(&opened.context, opened.port)?;
    // A rank that is stopped is noticed as such before its neighbours are taken for it.
    let stall = plan.timeout / 2;
    let tuning = Tuning { transport: plan.transport, shared_cores: true, stall, ..Tuning::default() };
    let mut comm = Communicator::new(&adapter, group, tuning)?;
    let mut worker = Worker { plan, tensors: tensors(&mut comm)?, numbers: Numbers::of(plan.seed), done: 0, comm };
    let ends = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ends);
    first().tell(RUNNING);
    if !plan.aborts_early {
        abort_later(plan, group);
    }
    std::thread::spawn(move || {
        first().try_hear();
        told.store(true, Ordering::Relaxed);
    });
    while !worker.all_end(ends.load(Ordering::Relaxed))? {
        for _ in 0..8 {
            worker.operation()?;
            worker.done += 1;
        }
    }
    Ok(worker.done)
}

fn tensors(comm: &mut Communicator) -> Result<[Tensor<i64>; 2], Error> {
    Ok([comm.allocate(MOST)?, comm.allocate(MOST)?])
}

struct Worker<'a> {
    plan: &'a Plan,
    comm: Communicator,
    tensors: [Tensor<i64>; 2],
    /// Equal at all ranks.
    numbers: Numbers,
    done: u64,
}

impl Worker<'_> {
    /// Whether rank 0 ends.
    fn all_end(&mut self, ends: bool) -> Result<bool, Error> {
        let mut flag = [u8::from(ends)];
        self.comm.broadcast(&mut flag[..], 0)?;
        Ok(flag[0] == 1)
    }

    /// Does the next operation, and checks the result.
    fn operation(&mut self) -> Result<(), Error> {
        let (world, rank, done) = (self.plan.world, self.plan.rank, self.done);
        let kind = self.numbers.below(40);
        let magnitude = self.numbers.below(15);
        let count = 1 + self.numbers.below(1 << magnitude);
        let root = self.numbers.below(world);
        let reduction = [Reduction::Sum, Reduction::Min, Reduction::Max][self.numbers.below(3)];
        let in_tensors = self.numbers.below(2) == 0;
        let given = |of: usize, index: usize| value(done, of, index);
        let inputs = |of: usize, count: usize| (0..count).map(|index| given(of, index)).collect::<Vec<_>>();
        let reduced = |range: std::ops::Range<usize>| {
            range.map(|index| reduce(reduction, (0..world).map(|of| given(of, index)))).collect::<Vec<_>>()
        };
        let is_root = rank == root;
        let all = || (0..world).flat_map(|of| inputs(of, count)).collect::<Vec<_>>();
        let block = rank * count..(rank + 1) * count;
        match kind {
            0..8 => {
                let (input, mut output) = (inputs(rank, count), vec![0; count]);
                if in_tensors {
                    let [from, to] = &self.tensors;
                    from.write(0, &input)?;
                    self.comm.all_reduce(from.source(count), to.target(count), reduction)?;
                    to.read(0, &mut output)?;
                } else {
                    self.comm.all_reduce(&input[..], &mut output[..], reduction)?;
                }
                self.check("all-reduce", &output, &reduced(0..count));
            }
            8..12 => {
                let mut output = vec![0; world * count];
                self.comm.all_gather(&inputs(rank, count)[..], &mut output[..])?;
                self.check("all-gather", &output, &all());
            }
            12..16 => {
                let mut output = vec![0; count];
                self.comm.reduce_scatter(&inputs(rank, world * count)[..], &mut output[..], reduction)?;
                self.check("reduce-scatter", &output, &reduced(block));
            }
            16..20 => {
                let mut output = vec![0; world * count];
                self.comm.all_to_all(&inputs(rank, world * count)[..], &mut output[..])?;
                let expected: Vec<_> =
                    (0..world).flat_map(|of| inputs(of, world * count)[block.clone()].to_vec()).collect();
                self.check("all-to-all", &output, &expected);
            }
            20..24 => {
                let tensor = &self.tensors[0];
                tensor.write(0, &inputs(rank, count))?;
                self.comm.broadcast(tensor.target(count), root)?;
                let mut output = vec![0; count];
                tensor.read(0, &mut output)?;
                self.check("broadcast", &output, &inputs(root, count));
            }
            24..27 => {
                let mut output = vec![0; if is_root { count } else { 0 }];
                self.comm.reduce(&inputs(rank, count)[..], &mut output[..], root, reduction)?;
                self.check("reduce", &output, &reduced(0..if is_root { count } else { 0 }));
            }
            27..30 => {
                let mut output = vec![0; if is_root { world * count } else { 0 }];
                self.comm.gather(&inputs(rank, count)[..], &mut output[..], root)?;
                self.check("gather", &output, &if is_root { all() } else { Vec::new() });
            }
            30..33 => {
                let input = if is_root { inputs(root, world * count) } else { Vec::new() };
                let mut output = vec![0; count];
                self.comm.scatter(&input[..], &mut output[..], root)?;
                self.check("scatter", &output, &inputs(root, world * count)[block]);
            }
            33..37 => {
                let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
                let (input, mut output) = (inputs(rank, count), vec![0; count]);
                let transfers = &mut [Transfer::send(&input[..], right), Transfer::recv(&mut output[..], left)];
                self.comm.exchange(transfers)?;
                self.check("exchange", &output, &inputs(left, count));
            }
            37 => self.comm.barrier()?,
            38 => self.tensors = tensors(&mut self.comm)?,
            _ => {
                let mut part = self.comm.split(usize::from(rank > root), rank)?;
                let mut flags = [1_i64; 3];
                part.all_reduce_in_place(&mut flags[..], Reduction::Sum)?;
                let ranks = if rank > root { world - root - 1 } else { root + 1 };
                self.check("part", &flags, &[i64::try_from(ranks).expect("few ranks"); 3]);
            }
        }
        Ok(())
    }

    fn check(&self, what: &str, output: &[i64], expected: &[i64]) {
        let wrong = output.iter().zip(expected).position(|(output, expected)| output != expected);
        assert!(
            output.len() == expected.len() && wrong.is_none(),
            "element {wrong:?} of {} after {} operations: {what} at {:?}",
            output.len(),
            self.done,
            self.plan
        );
    }
}

/// An element of a rank's input.
fn value(operation: u64, rank: usize, index: usize) -> i64 {
    let mixed = (operation << 40 ^ (rank as u64) << 32 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    i64::from_ne_bytes((mixed >> 16).to_ne_bytes())
}

fn reduce(reduction: Reduction, values: impl Iterator<Item = i64>) -> i64 {
    match reduction {
        Reduction::Min => values.min().expect("a rank"),
        Reduction::Max => values.max().expect("a rank"),
        _ => values.sum(),
    }
}
