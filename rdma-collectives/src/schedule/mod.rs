//! Algorithms of collectives as data: [`build`] returns the steps of one rank.
//!
//! The modules hold one family of algorithms each, as pure functions of a [`Job`]. The tests run
//! the schedules of all ranks on symbols in place of elements.

// The interpreter in `tests` runs all ranks' schedules on symbols (whose input, reduced in which
// order), so a unit test finds a deadlock, a wrong element or a second order of reduction for every
// number of ranks. In-network reduction is a schedule with extra processes: an aggregator has
// neither input nor output, so the interpreter verifies it like any other.
//
// A new algorithm is a function here that returns a rank's steps, and an entry of `Algorithm` with
// the collectives that it supports; the grid of `tests.rs` then verifies it. `choose.rs` has the
// table that `auto` uses, `plan/formula.rs` the formula of its time.

mod bruck;
mod builder;
mod direct;
mod doubling;
mod hierarchical;
mod hierarchical_halving;
mod in_network;
#[cfg(any(test, feature = "interpreter"))]
pub mod interpreter;
mod job;
mod pairwise;
mod pat;
mod ring;
mod rooted;
pub mod step;
#[cfg(test)]
mod tests;
mod tree;
mod two_step;

use self::builder::Builder;
pub use self::job::{InvalidJob, Job, Layout};
use self::step::Schedule;
pub(crate) use crate::collective::Collective;
use crate::named::named;

named! {
    /// A way to do a collective.
    pub enum Algorithm {
        /// Every rank sends to its right neighbour only.
        Ring = "ring",
        /// Two binary trees with half of the elements each; most leaves of one are inner in the
        /// other.
        Tree = "tree",
        /// Exchanges between ranks at distances 1, 2, 4...
        RecursiveDoubling = "recursive-doubling",
        /// Reduce-scatter by halving the elements, then all-gather by doubling them.
        HalvingDoubling = "halving-doubling",
        /// Every element goes to its reader directly.
        Direct = "direct",
        /// Every rank reduces or receives a share directly, then passes it on directly.
        TwoStep = "two-step",
        /// Messages to ranks at distances 1, 2, 4...; each carries all blocks so far.
        Bruck = "bruck",
        /// Parallel aggregated trees: the distances of Bruck, the longest with the fewest elements.
        Pat = "pat",
        /// One peer at a time, at distances 1, 2, 3...
        Pairwise = "pairwise",
        /// A binomial tree.
        Binomial = "binomial",
        /// Inside each host, then between hosts, then inside each host.
        Hierarchical = "hierarchical",
        /// As hierarchical, but between hosts by halving and doubling.
        HierarchicalHalving = "hierarchical-halving",
        /// Aggregators reduce and multicast.
        InNetwork = "in-network",
    }
}

impl Algorithm {
    /// The collectives that the algorithm does.
    #[must_use]
    pub fn collectives(self) -> &'static [Collective] {
        use Collective::*;
        match self {
            Self::Ring => &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce],
            Self::Tree => &[AllReduce, Broadcast, Reduce],
            Self::RecursiveDoubling => &[AllReduce, AllGather, HyperCube, Barrier],
            Self::HalvingDoubling => &[AllReduce, ReduceScatter],
            Self::Direct => &[
                AllReduce,
                AllGather,
                ReduceScatter,
                AllToAll,
                AllToAllV,
                Broadcast,
                Reduce,
                Gather,
                Scatter,
                SendRecv,
                Barrier,
            ],
            Self::TwoStep => &[AllReduce, Broadcast, Reduce],
            Self::Bruck => &[AllGather, ReduceScatter, Barrier],
            Self::Pat => &[AllGather, ReduceScatter],
            Self::Pairwise => &[AllToAll, AllToAllV],
            Self::Binomial => &[AllReduce, Broadcast, Reduce, Gather, Scatter],
            Self::Hierarchical => &[AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Barrier],
            Self::HierarchicalHalving => &[AllReduce, AllGather, ReduceScatter],
            Self::InNetwork => &[AllReduce, Broadcast, Reduce, Barrier],
        }
    }

    /// Says whether the algorithm does a collective for a job, and why not.
    ///
    /// # Errors
    /// [`Unsupported`] names the algorithms that do the collective, or the parameter that is wrong.
    pub fn supports(self, op: Collective, job: &Job) -> Result<(), Unsupported> {
        job.check(op)?;
        match self {
            _ if !self.collectives().contains(&op) => Err(Unsupported::Algorithm { op, algorithm: self }),
            Self::InNetwork if job.aggregators == 0 => Err(Unsupported::Aggregators),
            Self::Ring | Self::Direct | Self::Pairwise => Ok(()),
            _ if job.is_uneven() => Err(Unsupported::Uneven { algorithm: self }),
            _ => Ok(()),
        }
    }
}

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The algorithm does other collectives.
    #[error("{algorithm} is no algorithm for {op}: use one of {}", alternatives(*op))]
    Algorithm {
        /// The collective.
        op: Collective,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// The algorithm needs blocks of equal lengths.
    #[error("{algorithm} needs blocks of equal lengths: use direct, or ring for all_gather and reduce_scatter")]
    Uneven {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// Nobody reduces.
    #[error("in-network reduction needs at least one aggregator")]
    Aggregators,
    /// The job is wrong for every algorithm.
    #[error(transparent)]
    Job(#[from] InvalidJob),
}

/// The names of the algorithms that do a collective.
fn alternatives(op: Collective) -> String {
    let algorithms = Algorithm::ALL.iter().filter(|algorithm| algorithm.collectives().contains(&op));
    algorithms.map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ")
}

/// The steps of the job's rank.
///
/// # Errors
/// As [`Algorithm::supports`].
pub fn build(op: Collective, algorithm: Algorithm, job: &Job) -> Result<Schedule, Unsupported> {
    algorithm.supports(op, job)?;
    let mut builder = Builder::new(op, job);
    if job.is_aggregator() && algorithm != Algorithm::InNetwork {
        // It is idle.
    } else if job.ranks == 1 {
        builder.copy_input_to_output();
    } else {
        emit(&mut builder, op, algorithm);
    }
    Ok(Schedule { identity: identity(op, algorithm, job), ..builder.finish() })
}

/// The identity of the schedules of a job, from what is equal at all of its ranks: the collective
/// and the algorithm in two bytes, and a hash of the parameters.
fn identity(op: Collective, algorithm: Algorithm, job: &Job) -> u64 {
    let Job { ranks, aggregators, radix, count, root, counts, .. } = job;
    let root = if op.has_root() { *root } else { 0 };
    let radix = if *aggregators > 0 { *radix } else { 0 };
    let words = [*ranks, *aggregators, radix, *count, root].into_iter().chain(counts.iter().copied());
    let hash = words.fold(0, |hash: u64, word| (hash.rotate_left(7) ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // 0 is the identity of no job.
    hash << 16 | (algorithm as u64) << 8 | (op as u64 + 1)
}

/// The collective and the algorithm of an identity.
pub(crate) fn of_identity(identity: u64) -> Option<(Collective, Algorithm)> {
    let [op, algorithm, ..] = identity.to_le_bytes().map(usize::from);
    Some((*Collective::ALL.get(op.checked_sub(1)?)?, *Algorithm::ALL.get(algorithm)?))
}

/// Adds the steps of an algorithm for at least two ranks.
fn emit(b: &mut Builder<'_>, op: Collective, algorithm: Algorithm) {
    use {Algorithm as A, Collective as C};
    match (algorithm, op) {
        (A::InNetwork, _) => in_network::emit(b, op),
        (A::Direct, _) => direct::emit(b, op),
        (A::TwoStep, _) => two_step::emit(b, op),
        (A::Pairwise, _) => pairwise::exchange(b),
        (A::Bruck, _) => bruck::emit(b, op),
        (A::Pat, _) => pat::emit(b, op),
        (A::RecursiveDoubling | A::HalvingDoubling, _) => doubling::emit(b, op, algorithm),
        (A::HierarchicalHalving, _) => hierarchical_halving::emit(b, op),
        (A::Ring, C::AllReduce | C::AllGather | C::ReduceScatter) => ring::emit(b, op),
        (A::Binomial, C::Gather | C::Scatter) => rooted::emit(b, op),
        (A::Hierarchical, C::AllReduce | C::AllGather | C::ReduceScatter | C::Barrier) => hierarchical::emit(b, op),
        (A::Ring | A::Tree | A::Binomial | A::Hierarchical, _) => tree::emit(b, op, algorithm),
    }
}
