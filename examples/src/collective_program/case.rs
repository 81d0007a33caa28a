//! One collective on tensors of one size, ready to run and to check.

use std::sync::Arc;

use rdma_collectives::{
    Algorithm, Collective, Communicator, Element, Error, Job, Layout, Pattern, Reduction, Schedule, Tensor, build,
};

use super::shape::{Expected, expected};

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the communicator's own all-reduce, which chooses by size.
    Tuned,
    /// By the schedule of an algorithm.
    Algorithm(Algorithm),
}

/// A collective of one rank.
#[derive(Debug)]
pub(crate) struct Case<T> {
    collective: Collective,
    job: Job,
    reduction: Reduction,
    /// The steps; `None` for the communicator's own all-reduce.
    schedule: Option<Schedule>,
    /// Whether ranks that share memory need no schedule.
    is_direct: bool,
    input: Arc<Tensor<T>>,
    output: Arc<Tensor<T>>,
    layout: Layout,
}

impl<T: Element> Case<T> {
    /// Prepares a collective on two tensors, or in place on one.
    pub(crate) fn new(
        collective: Collective,
        way: Way,
        job: Job,
        reduction: Reduction,
        input: &Arc<Tensor<T>>,
        output: &Arc<Tensor<T>>,
    ) -> Result<Self, Error> {
        let schedule = match way {
            Way::Tuned => None,
            Way::Algorithm(algorithm) => {
                let schedule = build(collective, algorithm, &job);
                Some(schedule.map_err(|unsupported| Error::invalid(unsupported.to_string()))?)
            }
        };
        let mut layout = job.layout(collective);
        if !job.in_place {
            layout = Layout { input: 0..layout.input.len(), output: 0..layout.output.len() };
        }
        let is_direct = way == Way::Algorithm(Algorithm::Direct);
        let (input, output) = (Arc::clone(input), Arc::clone(output));
        Ok(Self { collective, job, reduction, schedule, is_direct, input, output, layout })
    }

    /// Does the collective once, together with the other ranks.
    pub(crate) fn run(&self, comm: &mut Communicator) -> Result<(), Error> {
        let Self { input, output, reduction, .. } = self;
        let Some(schedule) = &self.schedule else {
            return comm.all_reduce(input, output, self.job.count, *reduction);
        };
        let Layout { input: from, output: to } = self.layout.clone();
        if !(self.is_direct && comm.read_directly(self.collective, &self.job, input, output, *reduction)?) {
            comm.run(schedule, &input.part(from), &output.part(to.clone()), *reduction)?;
        }
        if self.collective.reduces() { comm.finish(&output.part(to), *reduction) } else { Ok(()) }
    }

    /// Elements that this rank sends; 0 if the communicator's own all-reduce is used.
    pub(crate) fn sent(&self) -> usize {
        self.schedule.as_ref().map_or(0, Schedule::sent)
    }

    /// Fills the input with this rank's contribution.
    pub(crate) fn fill(&self, pattern: &Pattern<T>) -> Result<(), Error> {
        let rank = self.job.rank;
        self.input.fill(self.layout.input.clone(), |start, elements| pattern.fill(rank, start, elements))
    }

    /// Fills the output with what cannot be right by chance.
    pub(crate) fn spoil(&self) -> Result<(), Error> {
        self.output.fill(self.layout.output.clone(), |_, elements| elements.fill(T::from_small(0xfefe)))
    }

    /// Counts the wrong elements of the output.
    pub(crate) fn count_wrong(&self, pattern: &Pattern<T>) -> Result<u64, Error> {
        let mut wrong = 0;
        for Expected { elements, from, start } in expected(self.collective, &self.job) {
            let first = self.layout.output.start;
            self.output.for_each(first + elements.start..first + elements.end, |at, elements| {
                wrong += match from {
                    None => pattern.count_wrong(start + at, elements),
                    Some(rank) => pattern.count_wrong_from(rank, start + at, elements),
                };
            })?;
        }
        Ok(wrong)
    }
}
