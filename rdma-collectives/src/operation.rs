//! Operations: what the ranks do together, and how.

use crate::element::{DataType, Element, Reduction};
use crate::schedule::step::Schedule;
use crate::schedule::{Algorithm, Collective, Job, Layout, build};

/// What the ranks are to do together; equal at all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The collective.
    pub op: Collective,
    /// NCCL's count: the elements of the whole operation for all-reduce, broadcast, reduce and
    /// sendrecv, and of one rank's block for the others.
    pub count: usize,
    /// The lengths of blocks that differ, as [`Job::counts`].
    pub counts: Vec<usize>,
    /// The root, of collectives that have one.
    pub root: usize,
    /// Whether input and output lie in the same memory, as [`Layout`] tells.
    pub in_place: bool,
    /// The reduction, of collectives that reduce.
    pub reduction: Reduction,
    /// The algorithm; `None`: the communicator chooses.
    pub algorithm: Option<Algorithm>,
    /// The executor; `None`: the communicator chooses.
    pub executor: Option<Executor>,
}

/// How an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executor {
    /// An all-reduce that needs no schedule.
    Fused,
    /// Each rank reads what its output is made of.
    Reads,
    /// The steps of a schedule.
    Steps,
}

/// An operation that has been prepared, to be done any number of times.
#[derive(Clone, Debug)]
pub struct Operation {
    pub(crate) request: Request,
    pub(crate) job: Job,
    pub(crate) layout: Layout,
    pub(crate) algorithm: Algorithm,
    /// The steps; `None` for another executor.
    pub(crate) schedule: Option<Schedule>,
    pub(crate) executor: Executor,
    /// The type of the elements.
    pub(crate) element: DataType,
    /// The bytes by which the algorithm was chosen.
    pub(crate) bytes: u64,
}

impl Request {
    /// The operation as text, which is equal at all ranks if they do the same.
    pub(crate) fn describe<T: Element>(&self) -> String {
        let Self { op, count, counts, root, reduction, .. } = self;
        let mut text = format!("{op} of {count} elements of type {}", T::NAME);
        if !counts.is_empty() {
            text = format!("{op} of {counts:?} elements of type {}", T::NAME);
        }
        if op.reduces() {
            text = format!("{text} by {reduction}");
        }
        if op.has_root() { format!("{text} with root {root}") } else { text }
    }

    /// An operation out of place on `count` elements, with root 0, whose algorithm is chosen.
    #[must_use]
    pub fn new(op: Collective, count: usize) -> Self {
        let (counts, reduction) = (Vec::new(), Reduction::Sum);
        Self { op, count, counts, root: 0, in_place: false, reduction, algorithm: None, executor: None }
    }
}

impl Operation {
    /// Whether this is the operation of a request for elements of a type.
    pub(crate) fn is_of<T: Element>(&self, request: &Request) -> bool {
        self.element == T::TYPE && self.request == *request
    }

    /// Where input and output lie. Out of place both begin at the first element of their tensor.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How it is done.
    #[must_use]
    pub fn executor(&self) -> Executor {
        self.executor
    }

    /// The parameters of the schedule.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Elements that this rank sends, or that others read of it; 0 if the all-reduce is fused.
    #[must_use]
    pub fn sent(&self) -> usize {
        match (self.executor, &self.schedule) {
            (Executor::Fused, _) => 0,
            (_, Some(schedule)) => schedule.sent(),
            (_, None) => build(self.request.op, self.algorithm, &self.job).map_or(0, |schedule| schedule.sent()),
        }
    }
}

impl Request {
    /// Elements of the larger one of input and output, at the rank that has most.
    pub(crate) fn size(&self, ranks: usize) -> usize {
        let uneven = self.counts.iter().fold(0, |all: usize, &count| all.saturating_add(count));
        match self.op {
            Collective::AllToAllV => uneven / ranks.max(1),
            _ if !self.counts.is_empty() => uneven,
            Collective::AllToAll | Collective::HyperCube => self.count.saturating_mul(ranks),
            op if op.has_blocks() => self.count.saturating_mul(ranks),
            _ => self.count,
        }
    }
}
