//! Operations: what the ranks do together, and how.

use crate::bootstrap::Signature;
use crate::element::{DataType, Element, Reduction};
use crate::schedule::step::Schedule;
use crate::schedule::{Algorithm, Collective, Job, Layout, build};

/// What the ranks are to do together, for [`prepare`](crate::Communicator::prepare); equal at all
/// ranks.
///
/// ```
/// use rdma_collectives::{Collective, Reduction, Request};
///
/// let largest = Request {
///     in_place: true,
///     reduction: Reduction::Max,
///     ..Request::new(Collective::AllReduce, 1000)
/// };
/// assert_eq!(largest.algorithm, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The collective.
    pub op: Collective,
    /// NCCL's count: the elements of the whole operation for all-reduce, broadcast, reduce and
    /// sendrecv, and of one rank's block for the others.
    pub count: usize,
    /// The lengths of blocks that differ, in elements, as [`Job::counts`]; then `count` is 0.
    pub counts: Vec<usize>,
    /// The root, of collectives that have one; of others it counts for nothing.
    pub root: usize,
    /// Whether input and output lie in the same memory, as [`Layout`] tells.
    pub in_place: bool,
    /// The reduction, of collectives that reduce; of others it counts for nothing.
    pub reduction: Reduction,
    /// The algorithm; `None`: the communicator [chooses](crate::guide::algorithms#what-is-chosen).
    pub algorithm: Option<Algorithm>,
    /// The executor; `None`: the communicator chooses. [`Executor::Steps`] does every operation.
    pub executor: Option<Executor>,
}

/// How an operation is done: by its schedule, or in a way that needs none
/// ([when](crate::guide::algorithms#executors)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executor {
    /// An all-reduce that writes results to their place, in shared memory or over verbs.
    Fused,
    /// Each rank reads what its output is made of, in the shared memory of its peers.
    Reads,
    /// The steps of a schedule, over any links.
    Steps,
}

/// An operation that has been [prepared](crate::Communicator::prepare), to be
/// [performed](crate::Communicator::perform) any number of times: MPI's persistent operation.
#[derive(Clone, Debug)]
pub struct Operation {
    pub(crate) request: Request,
    /// The number of the communicator that has prepared the operation.
    pub(crate) owner: u64,
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
    /// What the ranks compare.
    pub(crate) signature: Signature,
}

impl Request {
    /// The operation as text, which is equal at all ranks if they do the same.
    pub(crate) fn describe<T: Element>(&self, memory: &str) -> String {
        let Self { op, count, counts, root, reduction, .. } = self;
        let mut text = format!("{op} of {count} elements of type {}", T::NAME);
        if !counts.is_empty() {
            text = format!("{op} of {counts:?} elements of type {}", T::NAME);
        }
        if op.reduces() {
            text = format!("{text} by {reduction}");
        }
        if op.has_root() {
            text = format!("{text} with root {root}");
        }
        format!("{text} in {memory}")
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

    /// Where input and output lie, in elements. Out of place both begin at the first element of
    /// their tensor.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The algorithm: the one that was asked for, or the one chosen.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The executor: the one that was asked for, or the one chosen.
    #[must_use]
    pub fn executor(&self) -> Executor {
        self.executor
    }

    /// The parameters of the schedule, at this rank.
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
