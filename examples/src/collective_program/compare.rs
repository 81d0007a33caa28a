//! Compares the algorithms of a collective, for the program `tune`.

use super::measure::Row;
use super::options::Args;
use super::report::Report;
use super::{Connected, Session, connect, hosts, shape};
use crate::Failure;
use crate::cli::Size;
use rdma_collectives::bootstrap::Group;
use rdma_collectives::{Algorithm, Collective, Executor, Reduction, Transport, algorithm_name};

/// The times of the candidates for a collective of one size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// The size in nccl-tests' meaning.
    pub(crate) bytes: usize,
    /// The best time of each candidate, in microseconds.
    pub(crate) times: Vec<f64>,
}

impl<'a> Session<'a> {
    /// Connects the ranks of a group for comparisons; collective.
    pub(crate) fn for_comparisons(args: &'a Args, group: &'a mut Group) -> Result<Self, Failure> {
        let Connected { comm, .. } = connect(args, group, (group.ranks(), true), args.json.is_printed())?;
        let (ranks, report) = (group.ranks(), Report::new("tune", args, false, 0)?);
        let (collective, comm, algorithm, executor) = (Collective::Barrier, Some(comm), None, None);
        Ok(Self { args, collective, ranks, algorithm, executor, comm, group, report, roots: vec![0] })
    }

    /// Number of hosts, and the way in which ranks reach each other's memory.
    pub(crate) fn surroundings(&self) -> (usize, Transport) {
        let transport = self.comm.as_ref().map_or(Transport::Verbs, |comm| comm.transports().main());
        (hosts(self.group), transport)
    }

    /// Measures each candidate on each size, all in turn, several rounds long; collective. Calls
    /// `step` before each measurement.
    ///
    /// # Errors
    /// If a result is wrong, or a rank fails.
    pub(crate) fn compare(
        &mut self,
        op: Collective,
        candidates: &[Option<Algorithm>],
        sizes: &[Size],
        rounds: usize,
        mut step: impl FnMut(&str),
    ) -> Result<Vec<Comparison>, Failure> {
        (self.collective, self.algorithm, self.executor) = (op, None, None);
        let (ranks, element) = (self.ranks, size_of::<f32>());
        let mut counts: Vec<usize> = sizes.iter().map(|size| shape::count(op, size.0, element, ranks)).collect();
        counts.dedup();
        let tensors = self.allocate::<f32>(counts.last().copied().unwrap_or_default())?;
        self.warm_up(&tensors, &counts)?;
        let times = vec![f64::INFINITY; candidates.len()];
        let comparison =
            |&count: &usize| Comparison { bytes: shape::size(op, count, element, ranks), times: times.clone() };
        let mut comparisons: Vec<Comparison> = counts.iter().map(comparison).collect();
        for _ in 0..rounds {
            for (Comparison { bytes, times }, &count) in comparisons.iter_mut().zip(&counts) {
                for (time, &candidate) in times.iter_mut().zip(candidates) {
                    let name = algorithm_name(candidate);
                    let what = format!("{op} of {} by {name} with {ranks} ranks", Size(*bytes));
                    step(&what);
                    // A named algorithm is its schedule, not an all-reduce without one.
                    let is_schedule = op == Collective::AllReduce && candidate.is_some();
                    (self.algorithm, self.executor) = (candidate, is_schedule.then_some(Executor::Steps));
                    let case = self.case(&tensors, Row { reduction: Reduction::Sum, root: 0, count }, false)?;
                    let measured = self.measure(&case, &what, *bytes, Reduction::Sum)?;
                    if let Some(wrong @ 1..) = measured.nwrong {
                        return Err(Failure::new(format!("{what}: {wrong} elements have wrong values")));
                    }
                    *time = time.min(measured.time);
                }
            }
        }
        Ok(comparisons)
    }
}
