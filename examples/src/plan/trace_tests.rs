//! The closed forms against the schedules that the programs run, as the interpreter counts them.

use std::ops::Range;

use rdma_collectives::interpreter::{RankTrace, Trace, build_all, verify};
use rdma_collectives::step::Step;
use rdma_collectives::{Algorithm, Collective, Job, Schedule};

use super::tests::sent;
use super::*;

/// Elements of a rank's block.
const BLOCK: usize = 720;

/// Whether the schedules send as the phases say, with any number of ranks or with a power of two.
///
/// The others differ: with other numbers of ranks, schedules fold neighbours and cut trees short; a
/// rank of a tree works on both halves in turn; a binomial all-reduce sends on one way what it
/// received on the other; a hierarchical broadcast sends all of `N` to one rank of each host.
fn is_same(operation: Collective, algorithm: Algorithm, ranks: usize) -> bool {
    use {Algorithm as A, Collective as C};
    match (operation, algorithm) {
        (C::AllReduce, A::Binomial) => false,
        (C::Broadcast | C::Reduce, A::Tree | A::Hierarchical) => false,
        // Two ranks need no second step.
        (C::Broadcast, A::TwoStep) => ranks > 2,
        (_, A::Tree | A::Binomial | A::RecursiveDoubling | A::HalvingDoubling) => ranks.is_power_of_two(),
        _ => true,
    }
}

/// A collective by an algorithm on hosts of some ranks.
struct Run {
    schedules: Vec<Schedule>,
    trace: Trace,
}

impl Run {
    /// `None` if there are no schedules.
    fn new(operation: Collective, algorithm: Algorithm, ranks: usize, per_host: usize) -> Option<Self> {
        use Collective::*;
        let is_whole = matches!(operation, AllReduce | Broadcast | Reduce | SendRecv);
        let count = if is_whole { BLOCK * ranks } else { BLOCK };
        let job = Job { hosts: (0..ranks).map(|rank| rank / per_host).collect(), ..Job::new(0, ranks, count) };
        let schedules = build_all(operation, algorithm, &job).ok()?;
        let trace = verify(operation, &job, &schedules, 1).unwrap();
        Some(Self { schedules, trace })
    }

    /// The elements that leave a group of consecutive ranks.
    fn sent_out(&self, group: &Range<usize>) -> usize {
        let out = |step: &Step| match step {
            Step::Send { to, span } if !group.contains(to) => span.elements.len(),
            _ => 0,
        };
        self.schedules[group.clone()].iter().flat_map(|schedule| &schedule.steps).map(out).sum()
    }
}

/// All collectives with all algorithms.
fn pairs() -> impl Iterator<Item = (Collective, Algorithm)> {
    Collective::ALL.iter().flat_map(|&operation| Algorithm::ALL.iter().map(move |&algorithm| (operation, algorithm)))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn phases_cost_what_the_schedules_of_the_programs_cost() {
    let mut compared = Vec::new();
    for (ranks, per_host) in
        [(2, 2), (3, 3), (4, 2), (5, 5), (7, 7), (8, 8), (8, 4), (12, 3), (12, 6), (16, 4), (17, 17)]
    {
        let kind = if ranks == per_host { Kind::Host } else { Kind::FatTree };
        let network = Network { per_host, ..Network::preset(kind, ranks) };
        for (operation, algorithm) in pairs().filter(|&(operation, algorithm)| is_same(operation, algorithm, ranks)) {
            let Ok(traffic) = Traffic::new(&network, operation, algorithm) else { continue };
            let Some(Run { trace, .. }) = Run::new(operation, algorithm, ranks, per_host) else { continue };
            let at = format!("{operation} by {algorithm} of {ranks} ranks, {per_host} on a host");
            let most =
                |of: fn(&RankTrace) -> usize| trace.ranks.iter().map(of).max().unwrap() as f64 / (BLOCK * ranks) as f64;
            assert!(close(sent(&traffic, ranks), most(|rank| rank.sent.max(rank.received))), "sent: {at}");
            assert!(close(traffic.reduced(), most(|rank| rank.reduced)), "reduced: {at}");
            let rounds: usize = traffic.loads().map(|(phase, _)| phase.repeat * phase.hops).sum();
            // The schedules exchange a host's own blocks in a step of its own.
            let is_gather = operation == Collective::AllGather
                && matches!(algorithm, Algorithm::Hierarchical | Algorithm::HierarchicalHalving);
            assert!(rounds == trace.rounds || is_gather, "{rounds} rounds, not {}: {at}", trace.rounds);
            compared.push((operation, algorithm));
        }
    }
    assert!(compared.len() > 150, "{}", compared.len());
    for operation in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        assert!(compared.contains(&(operation, Algorithm::HierarchicalHalving)), "{operation}");
    }
}

/// What crosses the links of each level depends on which messages go far. Without a root, all ranks
/// send alike.
#[test]
fn links_carry_what_the_schedules_of_the_programs_send() {
    let mut compared = 0;
    for (ranks, per_host) in [(8, 2), (16, 2), (16, 4), (32, 2)] {
        let mut network = Network { per_host, ..Network::preset(Kind::FatTree, ranks) };
        network.set_tiers(2, 2, &[]);
        let levels = network.levels();
        let is_even = |&(operation, algorithm): &(Collective, Algorithm)| {
            !operation.has_root() && is_same(operation, algorithm, ranks)
        };
        for (operation, algorithm) in pairs().filter(is_even) {
            let Ok(traffic) = Traffic::new(&network, operation, algorithm) else { continue };
            let Some(run) = Run::new(operation, algorithm, ranks, per_host) else { continue };
            let uplinks = levels.iter().enumerate().filter(|(_, level)| level.scope == Scope::Uplink);
            for (index, Level { name, group, .. }) in uplinks {
                let groups = (0..ranks).step_by(*group).map(|first| first..(first + group).min(ranks));
                let most = groups.map(|group| run.sent_out(&group)).max().unwrap() as f64 / (BLOCK * ranks) as f64;
                let load: f64 = traffic.loads().map(|(phase, loads)| phase.repeat as f64 * loads[index]).sum();
                let at = format!("{operation} by {algorithm} of {ranks} ranks, {per_host} on a host, {name}");
                assert!(close(load, most), "{load} is not {most}: {at}");
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "{compared}");
}
