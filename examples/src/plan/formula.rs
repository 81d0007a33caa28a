//! The formulas: each algorithm of a collective as a list of phases.

use rdma_collectives::{Algorithm, Collective};

use super::network::Network;
use super::pattern::Pattern;
use super::tree;

/// The collectives that have formulas, with the meaning of `N`, the size, which is nccl-tests'.
pub const OPERATIONS: [(Collective, &str); 9] = [
    (Collective::AllReduce, "Every rank has N bytes and gets the reduction of all"),
    (Collective::AllGather, "Every rank has N/n bytes and gets those of all ranks, N bytes"),
    (Collective::ReduceScatter, "Every rank has N bytes and gets N/n bytes of the reduction"),
    (Collective::AllToAll, "Every rank has N/n bytes for each rank"),
    (Collective::Broadcast, "Rank 0 has N bytes and all get them"),
    (Collective::Reduce, "Every rank has N bytes and rank 0 gets the reduction"),
    (Collective::Gather, "Every rank has N/n bytes and rank 0 gets all"),
    (Collective::Scatter, "Rank 0 has N/n bytes for each rank"),
    (Collective::SendRecv, "Every rank sends N bytes to its right neighbour"),
];

/// The algorithms that have formulas, with what the formulas count.
pub const ALGORITHMS: [(Algorithm, &str); 13] = [
    (Algorithm::Ring, "Messages to the right neighbour only"),
    (Algorithm::Tree, "Two binary trees, each for one half of the bytes, pipelined"),
    (Algorithm::Binomial, "A binomial tree, far ranks first"),
    (Algorithm::RecursiveDoubling, "Exchanges of everything with ranks at doubling distances"),
    (Algorithm::HalvingDoubling, "Reduce-scatter by halves, all-gather by doubling (Rabenseifner)"),
    (Algorithm::Direct, "Every rank sends directly to every other"),
    (Algorithm::TwoStep, "A reduce-scatter in one step and an all-gather in one step"),
    (Algorithm::Bruck, "Messages to ranks at doubling distances, near ranks first"),
    (Algorithm::Pat, "Parallel aggregated trees: as bruck, but far ranks first"),
    (Algorithm::Pairwise, "One partner after the other"),
    (Algorithm::Hierarchical, "Inside hosts in one step, between hosts by rings"),
    (Algorithm::HierarchicalHalving, "Inside hosts in one step, between hosts by halving and doubling"),
    (Algorithm::InNetwork, "Switches reduce and multicast, between two steps inside hosts"),
];

/// A phase: every rank sends messages of one length along a pattern, once or several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// The senders and receivers.
    pub pattern: Pattern,
    /// Ranks of a unit of the pattern. With 1, units are ranks. With the ranks of a host, units are
    /// hosts, and each rank sends to the rank at its own place in another host.
    pub unit: usize,
    /// How often the phase is executed, one after the other.
    pub repeat: usize,
    /// Bytes of a message, as a share of `N`.
    pub bytes: f64,
    /// Bytes that the busiest rank reduces, as a share of `N`.
    pub reduced: f64,
    /// Messages one after the other on the longest path, if the phase is pipelined; otherwise 1.
    pub hops: usize,
}

impl Phase {
    fn new(pattern: Pattern, bytes: f64) -> Self {
        Self { pattern, unit: 1, repeat: 1, bytes, reduced: 0.0, hops: 1 }
    }

    fn all_pairs(units: usize, bytes: f64) -> Self {
        debug_assert!(units > 1, "a pattern among units");
        Self::new(Pattern::AllPairs, bytes)
    }

    fn times(self, repeat: usize) -> Self {
        Self { repeat, ..self }
    }

    fn over(self, hops: usize) -> Self {
        Self { hops, ..self }
    }

    /// The receiver of a message reduces it.
    fn reducing(self) -> Self {
        self.reducing_from(1)
    }

    fn reducing_from(self, messages: usize) -> Self {
        Self { reduced: self.bytes * messages as f64, ..self }
    }
}

/// The phases of an operation by an algorithm.
///
/// # Errors
/// If the operation has no formula, or the algorithm does not serve it on this network; the message
/// says why.
pub(super) fn phases(operation: Collective, algorithm: Algorithm, network: &Network) -> Result<Vec<Phase>, String> {
    check_operation(operation)?;
    check_algorithm(algorithm, network)?;
    let phases = match operation {
        Collective::AllReduce => all_reduce(algorithm, network),
        // The reverse of an all-gather, whose receivers reduce.
        Collective::AllGather | Collective::ReduceScatter => all_gather(algorithm, network, operation.reduces()),
        Collective::AllToAll => all_to_all(algorithm, network),
        Collective::Broadcast | Collective::Reduce => broadcast(algorithm, network, operation.reduces()),
        Collective::Gather | Collective::Scatter => scatter(algorithm, network),
        Collective::SendRecv => (algorithm == Algorithm::Direct).then(|| vec![Phase::new(Pattern::Shift(1), 1.0)]),
        Collective::AllToAllV | Collective::HyperCube | Collective::Barrier => None,
    };
    phases.ok_or_else(|| "the algorithm does not exist for this operation".to_owned())
}

/// Checks that an operation has formulas.
///
/// # Errors
/// The message lists the operations that have.
pub(super) fn check_operation(operation: Collective) -> Result<(), String> {
    let known = OPERATIONS.map(|(known, _)| known);
    if known.contains(&operation) {
        return Ok(());
    }
    Err(format!("there is no formula for {operation}: use one of {}", known.map(Collective::name).join(", ")))
}

fn check_algorithm(algorithm: Algorithm, network: &Network) -> Result<(), String> {
    let hosts = network.hosts();
    match algorithm {
        Algorithm::Hierarchical | Algorithm::HierarchicalHalving if hosts < 2 || network.per_host < 2 => {
            Err("a hierarchy needs several hosts with several ranks each".to_owned())
        }
        Algorithm::HierarchicalHalving if !hosts.is_power_of_two() => {
            Err(format!("the formula of halving between hosts is for a power of two of them, not {hosts}"))
        }
        Algorithm::InNetwork if !network.in_network => Err("the network does not reduce; give --in-network".to_owned()),
        Algorithm::InNetwork if hosts < 2 => Err("one host has no switch that reduces".to_owned()),
        _ => Ok(()),
    }
}

/// Phases of an all-reduce; each rank sends at least `2 N (n-1)/n` bytes, unless switches reduce.
fn all_reduce(algorithm: Algorithm, network: &Network) -> Option<Vec<Phase>> {
    let n = network.ranks;
    Some(match algorithm {
        // n-1 messages of N/n, each reduced; then n-1 more.
        Algorithm::Ring => vec![
            Phase::new(Pattern::Shift(1), share(n)).times(n - 1).reducing(),
            Phase::new(Pattern::Shift(1), share(n)).times(n - 1),
        ],
        // Each rank sends N/2 up and down each tree; an inner rank reduces two halves of N/2.
        Algorithm::Tree => {
            let tree = Phase::new(Pattern::DoubleTreeBoth, 0.5).over(2 * tree::depth(n));
            vec![Phase { reduced: 1.0, ..tree }]
        }
        // log n exchanges of N.
        Algorithm::RecursiveDoubling => folded(n, distances(n).map(|d| exchange(n, d, 1.0).reducing())),
        // Exchanges of N/2, N/4 ... with ranks at distances 1, 2 ..., and the same back.
        Algorithm::HalvingDoubling => {
            let halves = || distances(n).map(|d| exchange(n, d, 0.5 / d as f64));
            folded(n, halves().map(Phase::reducing).chain(halves()))
        }
        // n-1 messages of N, all reduced.
        Algorithm::Direct => vec![Phase::all_pairs(n, 1.0).reducing_from(n - 1)],
        // Twice n-1 messages of N/n.
        Algorithm::TwoStep => {
            vec![Phase::all_pairs(n, share(n)).reducing_from(n - 1), Phase::all_pairs(n, share(n))]
        }
        Algorithm::Hierarchical | Algorithm::HierarchicalHalving => {
            let mut phases = hierarchical_gather(algorithm, network, true)?;
            phases.reverse();
            phases.extend(hierarchical_gather(algorithm, network, false)?);
            phases
        }
        // N out of and into each host.
        Algorithm::InNetwork => {
            let pairs = block_pairs(network);
            let tree = Phase::new(Pattern::Aggregate, 1.0);
            let reduced = pairs.map(|phase| phase.reducing_from(network.per_host - 1));
            reduced.into_iter().chain([tree]).chain(pairs).collect()
        }
        // To rank 0 and back.
        Algorithm::Binomial => {
            let mut phases = broadcast(algorithm, network, true)?;
            phases.reverse();
            phases.extend(broadcast(algorithm, network, false)?);
            phases
        }
        Algorithm::Bruck | Algorithm::Pat | Algorithm::Pairwise => return None,
    })
}

/// Phases of an all-gather, or of its reverse, a reduce-scatter; each rank receives `N (n-1)/n`
/// bytes.
fn all_gather(algorithm: Algorithm, network: &Network, reduces: bool) -> Option<Vec<Phase>> {
    let n = network.ranks;
    let block = share(n);
    let with = |phase: Phase| if reduces { phase.reducing() } else { phase };
    Some(match algorithm {
        Algorithm::Ring => vec![with(Phase::new(Pattern::Shift(1), block).times(n - 1))],
        // 1, 2, 4 ... blocks to ranks at these distances.
        Algorithm::RecursiveDoubling if n.is_power_of_two() && !reduces => {
            distances(n).map(|d| exchange(n, d, d as f64 * block)).collect()
        }
        // n/2, n/4 ... blocks, which lie side by side, to ranks at these distances.
        Algorithm::HalvingDoubling if n.is_power_of_two() && reduces => {
            distances(n).rev().map(|d| exchange(n, d, d as f64 * block).reducing()).collect()
        }
        // A block for the rank at offset o makes its last hop at the highest set bit of o.
        Algorithm::Bruck => {
            let blocks = |d: usize| d.min(n - d) as f64;
            offsets(n).map(|d| with(Phase::new(Pattern::Shift(d), blocks(d) * block))).collect()
        }
        // A block for the rank at offset o makes its last hop at the lowest set bit of o; there
        // are as many such offsets as odd multiples of d below n.
        Algorithm::Pat => {
            let blocks = |d: usize| ((n - 1 + d) / (2 * d)) as f64;
            let far_first = offsets(n).rev();
            far_first.map(|d| with(Phase::new(Pattern::Shift(d), blocks(d) * block))).collect()
        }
        Algorithm::Direct if reduces => vec![Phase::all_pairs(n, block).reducing_from(n - 1)],
        Algorithm::Direct => vec![Phase::all_pairs(n, block)],
        Algorithm::Hierarchical | Algorithm::HierarchicalHalving => hierarchical_gather(algorithm, network, reduces)?,
        _ => return None,
    })
}

/// All-gather between hosts, among the ranks at one place of their hosts, and then inside
/// hosts: `N/n (hosts - 1)` bytes of each rank between hosts.
fn hierarchical_gather(algorithm: Algorithm, network: &Network, reduces: bool) -> Option<Vec<Phase>> {
    let (hosts, unit) = (network.hosts(), network.per_host);
    let block = share(network.ranks);
    let with = |phase: Phase| if reduces { phase.reducing() } else { phase };
    let mut phases: Vec<Phase> = match algorithm {
        Algorithm::Hierarchical => vec![with(Phase::new(Pattern::Shift(1), block).times(hosts - 1))],
        // Far hosts first: what is exchanged with the nearest is one half of all blocks.
        _ => {
            let blocks = |d: usize| (hosts / (2 * d)) as f64;
            distances(hosts).rev().map(|d| with(exchange(hosts, d, blocks(d) * block))).collect()
        }
    };
    phases.iter_mut().for_each(|phase| phase.unit = unit);
    let pairs = block_pairs(network)?;
    phases.push(if reduces { pairs.reducing_from(unit - 1) } else { pairs });
    Some(phases)
}

/// Phases of an all-to-all; each rank sends `N (n-1)/n` bytes.
fn all_to_all(algorithm: Algorithm, network: &Network) -> Option<Vec<Phase>> {
    let n = network.ranks;
    Some(match algorithm {
        Algorithm::Direct => vec![Phase::all_pairs(n, share(n))],
        Algorithm::Pairwise => (1..n).map(|d| Phase::new(Pattern::Shift(d), share(n))).collect(),
        // The block for offset o is sent once for each set bit of o.
        Algorithm::Bruck => {
            let blocks = |d: usize| (n / (2 * d) * d + (n % (2 * d)).saturating_sub(d)) as f64;
            offsets(n).map(|d| Phase::new(Pattern::Shift(d), blocks(d) * share(n))).collect()
        }
        // Inside hosts, blocks for all ranks at the receiver's place; then a message per host.
        Algorithm::Hierarchical => {
            let between = Phase::all_pairs(network.hosts(), share(network.hosts()));
            vec![block_pairs(network)?, Phase { unit: network.per_host, ..between }]
        }
        _ => return None,
    })
}

/// Phases of a broadcast, or of its reverse, a reduction to rank 0.
fn broadcast(algorithm: Algorithm, network: &Network, reduces: bool) -> Option<Vec<Phase>> {
    let n = network.ranks;
    let with = |phase: Phase| if reduces { phase.reducing() } else { phase };
    let star = |size: usize, bytes: f64| Phase::new(Pattern::Star(size), bytes);
    let far_first = |units: usize| offsets(units).rev();
    Some(match algorithm {
        // A chain: the ring without the edge to rank 0.
        Algorithm::Ring => vec![with(Phase::new(Pattern::Shift(1), 1.0)).over(n - 1)],
        // Rank 0 passes half of N to the root of the second tree, a hop that is not counted.
        Algorithm::Tree => {
            let tree = Phase::new(Pattern::DoubleTree, 0.5).over(tree::depth(n));
            vec![Phase { reduced: if reduces { 1.0 } else { 0.0 }, ..tree }]
        }
        Algorithm::Binomial => far_first(n).map(|d| with(Phase::new(Pattern::Binomial(d), 1.0))).collect(),
        Algorithm::Direct if reduces => vec![star(n, 1.0).reducing_from(n - 1)],
        Algorithm::Direct => vec![star(n, 1.0)],
        // A scatter from rank 0 and an all-gather.
        Algorithm::TwoStep => {
            let pairs = Phase::all_pairs(n, share(n));
            vec![star(n, share(n)), if reduces { pairs.reducing_from(n - 1) } else { pairs }]
        }
        // The root's host scatters N, all places of hosts broadcast their share, hosts gather.
        Algorithm::Hierarchical => {
            let (hosts, unit) = (network.hosts(), network.per_host);
            let between = far_first(hosts).map(|d| with(Phase::new(Pattern::Binomial(d), share(unit))));
            let pairs = block_pairs(network)?;
            let pairs = if reduces { pairs.reducing_from(unit - 1) } else { pairs };
            let scatter = star(unit, share(unit));
            [scatter].into_iter().chain(between.map(|phase| Phase { unit, ..phase })).chain([pairs]).collect()
        }
        // N out of the root's host, and N into every other.
        Algorithm::InNetwork => {
            let unit = network.per_host;
            let pairs = block_pairs(network);
            let pairs = if reduces { pairs.map(|phase| phase.reducing_from(unit - 1)) } else { pairs };
            let scatter = pairs.map(|_| star(unit, share(unit)));
            let tree = Phase::new(Pattern::Aggregate, 1.0);
            scatter.into_iter().chain([tree]).chain(pairs).collect()
        }
        _ => return None,
    })
}

/// Phases of a scatter, or of its reverse, a gather.
fn scatter(algorithm: Algorithm, network: &Network) -> Option<Vec<Phase>> {
    let n = network.ranks;
    Some(match algorithm {
        Algorithm::Direct => vec![Phase::new(Pattern::Star(n), share(n))],
        // Rank 0 sends what half of the remaining ranks get, the ranks from d on, to rank d.
        Algorithm::Binomial => {
            let blocks = |d: usize| d.min(n - d) as f64;
            let far_first = offsets(n).rev();
            far_first.map(|d| Phase::new(Pattern::Binomial(d), blocks(d) * share(n))).collect()
        }
        _ => return None,
    })
}

/// One n-th.
fn share(n: usize) -> f64 {
    1.0 / n as f64
}

/// The powers of two below the largest one that is at most `n`: distances of exchanges.
fn distances(n: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..n.ilog2()).map(|bit| 1 << bit)
}

/// The powers of two below `n`: distances of shifts and trees.
fn offsets(n: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..n.next_power_of_two().ilog2()).map(|bit| 1 << bit)
}

fn exchange(units: usize, distance: usize, bytes: f64) -> Phase {
    Phase::new(Pattern::Exchange { distance, count: 1 << units.ilog2() }, bytes)
}

/// Surrounds exchanges among a power of two of ranks by a message of `N` from each other rank
/// before, and to it after.
fn folded(n: usize, phases: impl Iterator<Item = Phase>) -> Vec<Phase> {
    let fold = (!n.is_power_of_two()).then(|| Phase::new(Pattern::Fold(1 << n.ilog2()), 1.0));
    fold.map(Phase::reducing).into_iter().chain(phases).chain(fold).collect()
}

/// Ranks of a host send each other their shares of `N`; `None` for hosts with one rank.
fn block_pairs(network: &Network) -> Option<Phase> {
    let unit = network.per_host;
    (unit > 1).then(|| Phase::new(Pattern::BlockPairs(unit), share(unit)))
}
