//! The measurements of a run, by element type, reduction, root and size.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::case::Case;
use super::options::{Args, Step};
use super::report::Report;
use super::shape;
use crate::Failure;
use crate::cli::Size;
use crate::table::{CollectiveRow, CollectiveTime};
use rdma_collectives::bootstrap::Group;
use rdma_collectives::{
    Algorithm, Collective, Communicator, DataType, Element, ElementVisitor, Executor, Job, Layout, Pattern, Pending,
    Queue, Reduction, Request, Tensor, Traffic,
};

/// One rank's part of a run.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(super) args: &'a Args,
    pub(super) collective: Collective,
    /// Number of ranks; the processes of the group after them are aggregators.
    pub(super) ranks: usize,
    /// The algorithm and the executor that were asked for.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) executor: Option<Executor>,
    /// `None` only while a queue has it.
    pub(super) comm: Option<Communicator>,
    pub(super) group: &'a mut Group,
    pub(super) report: Report,
    pub(super) roots: Vec<usize>,
}

/// The tensors of an element type.
#[derive(Debug)]
pub(super) struct Tensors<T> {
    input: Arc<Tensor<T>>,
    output: Arc<Tensor<T>>,
}

/// The parameters of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) reduction: Reduction,
    pub(super) root: usize,
    pub(super) count: usize,
}

impl Session<'_> {
    /// Measures all sizes with elements of a type.
    pub(super) fn measure_type(&mut self, dtype: DataType) -> Result<(), Failure> {
        dtype.visit(MeasureAll(self))
    }

    fn measure_all<T: Element>(&mut self) -> Result<(), Failure> {
        let counts = self.counts::<T>()?;
        let tensors = self.allocate::<T>(counts.last().copied().unwrap_or_default())?;
        self.warm_up(&tensors, &counts)?;
        let reductions = if self.collective.reduces() { self.args.reductions() } else { vec![Reduction::Sum] };
        for reduction in reductions {
            for root in self.roots.clone() {
                for &count in &counts {
                    self.measure_row(&tensors, Row { reduction, root, count })?;
                }
            }
        }
        Ok(())
    }

    /// The counts to measure.
    fn counts<T: Element>(&self) -> Result<Vec<usize>, Failure> {
        let count = |bytes| shape::count(self.collective, bytes, size_of::<T>(), self.ranks);
        let mut counts: Vec<usize> = self.args.sizes(size_of::<T>())?.into_iter().map(count).collect();
        counts.dedup();
        Ok(counts)
    }

    /// Allocates tensors that have space for the count at every rank.
    pub(super) fn allocate<T: Element>(&mut self, count: usize) -> Result<Tensors<T>, Failure> {
        let layouts = (0..self.ranks).map(|rank| self.layout(rank, count));
        let most = layouts.map(|layout| layout.memory()).max().unwrap_or_default();
        let (input, output) = (self.tensor(most)?, self.tensor(most)?);
        Ok(Tensors { input, output })
    }

    /// Where a rank's input and output lie in place, if it is the root.
    fn layout(&self, rank: usize, count: usize) -> Layout {
        let mut job = Job::new(rank, self.ranks, count);
        (job.root, job.in_place, job.counts) = (rank, true, self.block_counts(count));
        job.layout(self.collective)
    }

    /// The lengths of blocks that differ.
    fn block_counts(&self, count: usize) -> Vec<usize> {
        match self.collective {
            Collective::AllToAllV => shape::uneven_counts(count, self.ranks),
            _ => Vec::new(),
        }
    }

    pub(super) fn case<T: Element>(
        &self,
        tensors: &Tensors<T>,
        row: Row,
        in_place: bool,
    ) -> Result<Arc<Case<T>>, Failure> {
        let Row { reduction, root, count } = row;
        let (algorithm, executor, counts) = (self.algorithm, self.executor, self.block_counts(count));
        let request =
            Request { counts, root, in_place, reduction, algorithm, executor, ..Request::new(self.collective, count) };
        let input = if in_place { &tensors.output } else { &tensors.input };
        let comm = self.comm.as_ref().ok_or_else(no_communicator)?;
        Ok(Arc::new(Case::new(comm, request, input, &tensors.output)?))
    }

    /// Runs some operations before any measurement: a device may set up its paths in the background
    /// when they are first used.
    pub(super) fn warm_up<T: Element>(&mut self, tensors: &Tensors<T>, counts: &[usize]) -> Result<(), Failure> {
        let (Some(&least), Some(&most)) = (counts.first(), counts.last()) else { return Ok(()) };
        let mut cases = Vec::new();
        for count in [least, most.min((1 << 20) / size_of::<T>())] {
            for in_place in [false, true] {
                let row = Row { reduction: Reduction::Sum, root: self.roots[0], count };
                cases.push(self.case(tensors, row, in_place)?);
            }
        }
        for _ in 0..4 {
            for case in &cases {
                case.run(self.comm()?)?;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn measure_row<T: Element>(&mut self, tensors: &Tensors<T>, row: Row) -> Result<(), Failure> {
        let Row { reduction, root, count } = row;
        let size = shape::size(self.collective, count, size_of::<T>(), self.ranks);
        let what = format!("{} of {}", self.collective.name(), Size(size));
        self.report.step(&what);
        let case = self.case(tensors, row, false)?;
        let out_of_place = Some(self.measure(&case, &what, size, reduction)?);
        let in_place = if self.args.out_of_place || self.collective == Collective::Barrier {
            None
        } else {
            let case = self.case(tensors, row, true)?;
            Some(self.measure(&case, &what, size, reduction)?)
        };
        self.report.row(CollectiveRow {
            size,
            count,
            dtype: T::TYPE.nccl_name(),
            redop: if self.collective.reduces() { reduction.name() } else { "none" },
            root: if self.collective.has_root() { i32::try_from(root).unwrap_or(-1) } else { -1 },
            algo: case.algorithm().name(),
            out_of_place,
            in_place,
        })
    }

    /// Times operations back to back as nccl-tests does, then checks one result.
    pub(super) fn measure<T: Element>(
        &mut self,
        case: &Arc<Case<T>>,
        what: &str,
        size: usize,
        reduction: Reduction,
    ) -> Result<CollectiveTime, Failure> {
        let pattern = Pattern::<T>::new(self.ranks, size, reduction);
        case.fill(&pattern)?;
        self.group.barrier(what)?;
        let warming = Instant::now();
        for _ in 0..self.args.warmup {
            case.run(self.comm()?)?;
        }
        // All ranks must run the same number of iterations: the slowest rank decides.
        let warming = warming.elapsed() / u32::try_from(self.args.warmup.max(1)).unwrap_or(u32::MAX);
        let slowest = self.group.all_gather(what, &warming)?.into_iter().max();
        let iterations = self.args.iterations(size, slowest.unwrap_or_default());
        let mine = self.time(case, iterations)?;
        let mut all = self.group.all_gather(what, &mine)?;
        all.truncate(self.ranks);
        let (times, traffic): (Vec<f64>, Vec<Traffic>) = all.into_iter().unzip();
        let seconds = self.args.average(&times);
        let mut nwrong = None;
        for _ in 0..self.args.check {
            nwrong = Some(self.check(case, what, &pattern)?);
            if nwrong != Some(0) {
                break;
            }
        }
        let bandwidth = shape::bandwidth(self.collective, size, self.ranks);
        let busiest = traffic.into_iter().max_by_key(|traffic| traffic.sent.max(traffic.received));
        let traffic = busiest.filter(|traffic| *traffic != Traffic::default());
        Ok(CollectiveTime { traffic, ..CollectiveTime::new(seconds, bandwidth, nwrong) })
    }

    /// The mean time of one operation in seconds, and the bytes of its messages.
    fn time<T: Element>(&mut self, case: &Arc<Case<T>>, iterations: usize) -> Result<(f64, Traffic), Failure> {
        let (args, comm) = (self.args, self.comm()?);
        comm.barrier()?;
        let before = comm.traffic();
        let seconds = if args.start { self.run_started(case, iterations)? } else { self.run(case, iterations)? };
        let operations = iterations * args.agg_iters;
        Ok((seconds / operations as f64, self.comm()?.traffic().of_each(before, operations)))
    }

    /// Runs operations one after the other; the time in seconds.
    fn run<T: Element>(&mut self, case: &Case<T>, iterations: usize) -> Result<f64, Failure> {
        let (args, comm) = (self.args, self.comm()?);
        let (started, mut between) = (Instant::now(), Duration::ZERO);
        for _ in 0..iterations {
            for step in args.steps() {
                match step {
                    Step::Operation => case.run(comm)?,
                    Step::Barrier => comm.barrier()?,
                    // An operation that was not started has ended.
                    Step::Wait => {}
                }
            }
            if args.waits_between() {
                let waiting = Instant::now();
                comm.barrier()?;
                between += waiting.elapsed();
            }
        }
        Ok(started.elapsed().saturating_sub(between).as_secs_f64())
    }

    /// Starts the operations of each iteration together; the time in seconds.
    fn run_started<T: Element>(&mut self, case: &Arc<Case<T>>, iterations: usize) -> Result<f64, Failure> {
        let comm = self.comm.take().ok_or_else(no_communicator)?;
        let queue = Queue::new(comm)?;
        let (started, mut between) = (Instant::now(), Duration::ZERO);
        let mut pending: Vec<Pending<()>> = Vec::new();
        for _ in 0..iterations {
            for step in self.args.steps() {
                match step {
                    Step::Operation => {
                        let case = Arc::clone(case);
                        pending.push(queue.start(move |comm| case.run(comm)));
                    }
                    Step::Barrier => pending.push(queue.start(Communicator::barrier)),
                    Step::Wait => pending.drain(..).try_for_each(Pending::wait)?,
                }
            }
            pending.drain(..).try_for_each(Pending::wait)?;
            if self.args.waits_between() {
                let waiting = Instant::now();
                queue.start(Communicator::barrier).wait()?;
                between += waiting.elapsed();
            }
        }
        let seconds = started.elapsed().saturating_sub(between).as_secs_f64();
        self.comm = Some(queue.finish()?);
        Ok(seconds)
    }

    fn comm(&mut self) -> Result<&mut Communicator, Failure> {
        self.comm.as_mut().ok_or_else(no_communicator)
    }

    fn tensor<T: Element>(&mut self, count: usize) -> Result<Arc<Tensor<T>>, Failure> {
        let comm = self.comm.as_mut().ok_or_else(no_communicator)?;
        Ok(Arc::new(comm.allocate(count)?))
    }

    /// Runs one more operation, with known input and with an output that cannot be right by chance;
    /// returns the number of wrong elements over all ranks.
    fn check<T: Element>(&mut self, case: &Arc<Case<T>>, what: &str, pattern: &Pattern<T>) -> Result<u64, Failure> {
        case.spoil()?;
        case.fill(pattern)?;
        self.group.barrier(what)?;
        case.run(self.comm()?)?;
        let wrong = case.count_wrong(pattern)?;
        Ok(self.group.all_gather(what, &wrong)?.iter().sum())
    }
}

/// Measures all sizes with elements of the type that is visited.
struct MeasureAll<'s, 'a>(&'s mut Session<'a>);

impl ElementVisitor for MeasureAll<'_, '_> {
    type Output = Result<(), Failure>;

    fn visit<T: Element>(self) -> Self::Output {
        self.0.measure_all::<T>()
    }
}

/// The failure of an operation after one that failed with the communicator.
fn no_communicator() -> Failure {
    Failure::new("the communicator has failed in an earlier operation")
}
