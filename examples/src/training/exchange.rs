//! The operations of one kind: a group of ranks, its communicator, and tensors that are used in
//! every step.

use std::sync::Arc;
use std::time::Instant;

use half::bf16;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::collective_program::Case;
use rdma_collectives::bootstrap::Group;
use rdma_collectives::step::{Place, Source, Span, Step};
use rdma_collectives::{Collective, Communicator, Error, Executor, Job, Pattern, Reduction, Request, Schedule, Tensor};

use super::model::BYTES;

/// Operations that a rank has done, and their sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) operations: u64,
    /// Bytes that the rank has sent.
    pub(super) sent: u64,
    /// Seconds from the begin to the end of operations.
    pub(super) seconds: f64,
    /// Seconds for which the rank could do nothing else.
    pub(super) exposed: f64,
    /// Elements with wrong values.
    pub(super) wrong: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.sent += other.sent;
        self.seconds += other.seconds;
        self.exposed += other.exposed;
        self.wrong += other.wrong;
    }

    /// One operation.
    fn one(seconds: f64, sent: usize, wrong: u64) -> Self {
        Self { operations: 1, sent: sent as u64 * BYTES, seconds, exposed: 0.0, wrong }
    }
}

/// A group of ranks and its communicator.
#[derive(Debug)]
pub(super) struct Team {
    pub(super) comm: Communicator,
    group: Group,
    /// Number of the next operation that is verified; equal at all ranks of the group.
    verified: usize,
}

impl Team {
    pub(super) fn new(comm: Communicator, group: Group) -> Self {
        Self { comm, group, verified: 0 }
    }

    pub(super) fn rank(&self) -> usize {
        self.group.rank()
    }

    pub(super) fn ranks(&self) -> usize {
        self.group.ranks()
    }

    fn allocate(&mut self, count: usize) -> Result<Arc<Tensor<bf16>>, Failure> {
        Ok(Arc::new(self.comm.allocate(count)?))
    }

    /// An all-reduce in place; collective.
    pub(super) fn all_reduce(&mut self, count: usize) -> Result<Exchange, Failure> {
        let tensor = self.allocate(count)?;
        let request = Request { in_place: true, ..Request::new(Collective::AllReduce, count) };
        self.exchange(request, &tensor, &tensor)
    }

    /// An all-to-all with the counts of [`Request::counts`]; collective.
    pub(super) fn all_to_all(&mut self, counts: Vec<usize>) -> Result<Exchange, Failure> {
        let request = Request { counts, ..Request::new(Collective::AllToAllV, 0) };
        let job = Job { counts: request.counts.clone(), ..Job::new(self.rank(), self.ranks(), 0) };
        let layouts = (0..job.ranks).map(|rank| job.at(rank).layout(Collective::AllToAllV));
        let most = layouts.map(|layout| layout.input.len().max(layout.output.len())).max().unwrap_or_default();
        let (input, output) = (self.allocate(most)?, self.allocate(most)?);
        self.exchange(request, &input, &output)
    }

    /// Prepares an operation by the steps of a schedule, whose messages are counted.
    fn exchange(
        &self,
        request: Request,
        input: &Arc<Tensor<bf16>>,
        output: &Arc<Tensor<bf16>>,
    ) -> Result<Exchange, Failure> {
        // The messages of an all-reduce without a schedule are not counted.
        let is_all_reduce = request.op == Collective::AllReduce;
        let request = Request { executor: is_all_reduce.then_some(Executor::Steps), ..request };
        let case = Case::new(&self.comm, request, input, output)?;
        Ok(Exchange { sent: case.sent(), ranks: self.ranks(), case })
    }

    /// Messages of `count` elements from and to neighbours; collective.
    pub(super) fn hop(&mut self, count: usize) -> Result<Hop, Failure> {
        let (input, output) = (self.allocate(count)?, self.allocate(count)?);
        Ok(Hop { input, output, count })
    }

    /// The number of the next operation, if it is to be verified.
    pub(super) fn number(&mut self, verify: bool) -> Option<usize> {
        self.verified += usize::from(verify);
        verify.then_some(self.verified)
    }
}

/// A collective that is done in every step.
#[derive(Debug)]
pub(super) struct Exchange {
    case: Case<bf16>,
    ranks: usize,
    /// Elements that this rank sends.
    sent: usize,
}

impl Exchange {
    /// Does the collective. With `number`, the input is that of a known pattern, and the output is
    /// verified.
    pub(super) fn run(&self, comm: &mut Communicator, number: Option<usize>) -> Result<Tally, Error> {
        let pattern = number.map(|number| Pattern::new(self.ranks, number, Reduction::Sum));
        if let Some(pattern) = &pattern {
            self.case.spoil()?;
            self.case.fill(pattern)?;
        }
        let started = Instant::now();
        self.case.run(comm)?;
        let seconds = started.elapsed().as_secs_f64();
        let wrong = pattern.map_or(Ok(0), |pattern| self.case.count_wrong(&pattern))?;
        Ok(Tally::one(seconds, self.sent, wrong))
    }

    /// Does the collective while the rank waits.
    pub(super) fn wait(&self, team: &mut Team, verify: bool) -> Result<Tally, Failure> {
        let number = team.number(verify);
        let tally = self.run(&mut team.comm, number)?;
        Ok(Tally { exposed: tally.seconds, ..tally })
    }
}

/// Messages between the stages of a pipeline.
#[derive(Debug)]
pub(super) struct Hop {
    input: Arc<Tensor<bf16>>,
    output: Arc<Tensor<bf16>>,
    count: usize,
}

impl Hop {
    /// Sends to another rank of the team. With `number`, the elements are those of a known pattern.
    pub(super) fn send(&self, team: &mut Team, to: usize, number: Option<usize>) -> Result<Tally, Failure> {
        if let Some(number) = number {
            let (rank, pattern) = (team.rank(), Pattern::new(team.ranks(), number, Reduction::Sum));
            self.input.fill(0..self.count, |start, elements| pattern.fill(rank, start, elements))?;
        }
        let span = Span { place: Place::Input, elements: 0..self.count };
        self.run(team, Step::Send { to, span }, self.count)
    }

    /// Receives from another rank of the team, which sends with the same `number`.
    pub(super) fn receive(&self, team: &mut Team, from: usize, number: Option<usize>) -> Result<Tally, Failure> {
        let sources = vec![Source::Message { from }];
        let into = Span { place: Place::Output, elements: 0..self.count };
        let mut tally = self.run(team, Step::Combine { sources, into }, 0)?;
        if let Some(number) = number {
            let pattern = Pattern::new(team.ranks(), number, Reduction::Sum);
            self.output.for_each(0..self.count, |start, elements| {
                tally.wrong += pattern.count_wrong_from(from, start, elements);
            })?;
        }
        Ok(tally)
    }

    fn run(&self, team: &mut Team, step: Step, sent: usize) -> Result<Tally, Failure> {
        let schedule = Schedule { steps: vec![step], ..Schedule::default() };
        let all = 0..self.count;
        let started = Instant::now();
        team.comm.run(&schedule, &self.input.part(all.clone()), &self.output.part(all), Reduction::Sum)?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(Tally { exposed: seconds, ..Tally::one(seconds, sent, 0) })
    }
}
