//! The closed forms against the schedules that the programs run, as the interpreter counts them.

use rdma_collectives::interpreter::{RankTrace, Trace, build_all, verify};
use rdma_collectives::{Algorithm, Collective, Job};

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

/// The cost of the schedules of an algorithm; `None` if there are none.
fn trace(operation: Collective, algorithm: Algorithm, ranks: usize, per_host: usize) -> Option<Trace> {
    use Collective::*;
    let is_whole = matches!(operation, AllReduce | Broadcast | Reduce | SendRecv);
    let count = if is_whole { BLOCK * ranks } else { BLOCK };
    let job = Job { hosts: (0..ranks).map(|rank| rank / per_host).collect(), ..Job::new(0, ranks, count) };
    let schedules = build_all(operation, algorithm, &job).ok()?;
    Some(verify(operation, &job, &schedules, 1).unwrap())
}

#[test]
fn phases_cost_what_the_schedules_of_the_programs_cost() {
    let mut compared = 0;
    for (ranks, per_host) in
        [(2, 2), (3, 3), (4, 2), (5, 5), (7, 7), (8, 8), (8, 4), (12, 3), (12, 6), (16, 4), (17, 17)]
    {
        let kind = if ranks == per_host { Kind::Host } else { Kind::FatTree };
        let network = Network { per_host, ..Network::preset(kind, ranks) };
        for (&operation, &algorithm) in Collective::ALL
            .iter()
            .flat_map(|operation| Algorithm::ALL.iter().map(move |algorithm| (operation, algorithm)))
            .filter(|(operation, algorithm)| is_same(**operation, **algorithm, ranks))
        {
            let Ok(traffic) = Traffic::new(&network, operation, algorithm) else { continue };
            let Some(trace) = trace(operation, algorithm, ranks, per_host) else { continue };
            let at = format!("{operation} by {algorithm} of {ranks} ranks, {per_host} on a host");
            let most =
                |of: fn(&RankTrace) -> usize| trace.ranks.iter().map(of).max().unwrap() as f64 / (BLOCK * ranks) as f64;
            let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert!(close(sent(&traffic, ranks), most(|rank| rank.sent.max(rank.received))), "sent: {at}");
            assert!(close(traffic.reduced(), most(|rank| rank.reduced)), "reduced: {at}");
            let rounds: usize = traffic.loads().map(|(phase, _)| phase.repeat * phase.hops).sum();
            // The schedules exchange a host's own blocks in a step of its own.
            let is_gather = operation == Collective::AllGather
                && matches!(algorithm, Algorithm::Hierarchical | Algorithm::HierarchicalHalving);
            assert!(rounds == trace.rounds || is_gather, "{rounds} rounds, not {}: {at}", trace.rounds);
            compared += 1;
        }
    }
    assert!(compared > 150, "{compared}");
}
