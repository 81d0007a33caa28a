//! Every algorithm for every collective, for many jobs.

mod cost;
mod replay;

use proptest::prelude::*;

use super::interpreter::{build_all, verify};
use super::{Algorithm, Collective, Job, Unsupported};

/// Most ranks of a job.
const MOST_RANKS: usize = 33;

/// All cases for few ranks, and the last one for many.
fn some<T>(ranks: usize, cases: &[T]) -> &[T] {
    if ranks > 17 { &cases[cases.len() - 1..] } else { cases }
}

/// Counts for a number of ranks: none, fewer than ranks, odd ones, more than a cache line each.
fn counts(ranks: usize) -> Vec<usize> {
    if ranks > 17 {
        return vec![ranks + 1];
    }
    let mut counts = vec![1, ranks + 1, 1007];
    if ranks < 10 {
        counts.extend([0, 2, 3, 7, 64, ranks - 1, ranks]);
    }
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Chunks that cut a count into one message, some, or some ten.
fn chunks(ranks: usize, count: usize) -> Vec<usize> {
    match count {
        0..8 => vec![1 + count / 2],
        8..1000 => vec![usize::MAX, count.div_ceil(3)],
        _ if ranks > 9 => vec![count.div_ceil(3)],
        _ => vec![usize::MAX, count / 11 + 2],
    }
}

fn roots(op: Collective, ranks: usize) -> Vec<usize> {
    let mut roots = if op.has_root() { vec![0, ranks / 2, ranks - 1] } else { vec![0] };
    roots.dedup();
    roots
}

/// Groupings: one host, one rank per host, pairs, alternating, uneven.
fn groupings(ranks: usize) -> Vec<Vec<usize>> {
    vec![
        Vec::new(),
        (0..ranks).collect(),
        (0..ranks).map(|rank| rank / 2).collect(),
        (0..ranks).map(|rank| rank % 3).collect(),
        (0..ranks).map(|rank| rank.min(2)).collect(),
        (0..ranks).map(|rank| 100 - rank / 4).collect(),
    ]
}

fn check(op: Collective, algorithm: Algorithm, job: &Job) {
    let schedules = build_all(op, algorithm, job).unwrap();
    let seed = (job.count * 31 + job.ranks * 7 + job.root) as u64;
    if let Err(flaw) = verify(op, job, &schedules, seed) {
        panic!("{op} by {algorithm} for {job:?}: {flaw}");
    }
}

/// Lengths that differ, for the blocks that an operation takes; some are 0.
fn uneven(op: Collective, ranks: usize, count: usize) -> Vec<usize> {
    let blocks = match op {
        Collective::AllToAllV => ranks * ranks,
        _ if op.has_blocks() => ranks,
        _ => 0,
    };
    (0..blocks).map(|block| block * 5 % 7 * count / 3).collect()
}

fn check_all(algorithm: Algorithm) {
    for &op in algorithm.collectives() {
        for ranks in 1..=MOST_RANKS {
            for count in counts(ranks) {
                for chunk in chunks(ranks, count) {
                    for root in roots(op, ranks) {
                        for in_place in [false, true] {
                            let counts = if op.has_blocks() { Vec::new() } else { uneven(op, ranks, count) };
                            let mut job = Job { count, chunk, root, in_place, counts, ..Job::new(0, ranks, count) };
                            check(op, algorithm, &job);
                            job.counts = uneven(op, ranks, count);
                            if op.has_blocks() && algorithm.supports(op, &job).is_ok() {
                                check(op, algorithm, &job);
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn ring() {
    check_all(Algorithm::Ring);
}

#[test]
fn tree() {
    check_all(Algorithm::Tree);
}

#[test]
fn recursive_doubling() {
    check_all(Algorithm::RecursiveDoubling);
}

#[test]
fn halving_doubling() {
    check_all(Algorithm::HalvingDoubling);
}

#[test]
fn direct() {
    check_all(Algorithm::Direct);
}

#[test]
fn two_step() {
    check_all(Algorithm::TwoStep);
}

#[test]
fn bruck() {
    check_all(Algorithm::Bruck);
}

#[test]
fn pat() {
    check_all(Algorithm::Pat);
}

#[test]
fn pairwise() {
    check_all(Algorithm::Pairwise);
}

#[test]
fn binomial() {
    check_all(Algorithm::Binomial);
}

fn check_hierarchy(algorithm: Algorithm) {
    for &op in algorithm.collectives() {
        for ranks in 1..=MOST_RANKS {
            for hosts in groupings(ranks) {
                for &count in some(ranks, &[0, 1, 7, 64, 211]) {
                    for root in roots(op, ranks) {
                        for (in_place, chunk) in [(false, count / 3 + 1), (true, usize::MAX)] {
                            let job = Job { root, chunk, in_place, hosts: hosts.clone(), ..Job::new(0, ranks, count) };
                            check(op, algorithm, &job);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn hierarchical() {
    check_hierarchy(Algorithm::Hierarchical);
}

#[test]
fn hierarchical_halving() {
    check_hierarchy(Algorithm::HierarchicalHalving);
}

#[test]
fn in_network() {
    for &op in Algorithm::InNetwork.collectives() {
        for ranks in 1..=MOST_RANKS {
            for &(aggregators, radix) in some(ranks, &[(1, 1), (2, 1), (3, 2), (4, 8), (5, 4), (7, 2), (20, 3)]) {
                for &count in some(ranks, &[0, 1, 7, 211]) {
                    for root in roots(op, ranks) {
                        for (in_place, chunk) in [(false, count / 11 + 1), (true, count / 3 + 1), (true, usize::MAX)] {
                            let job = Job { root, chunk, in_place, aggregators, radix, ..Job::new(0, ranks, count) };
                            check(op, Algorithm::InNetwork, &job);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_collective_has_an_algorithm() {
    for &op in Collective::ALL {
        let found = Algorithm::ALL.iter().any(|algorithm| algorithm.collectives().contains(&op));
        assert!(found, "{op}");
    }
}

#[test]
fn names_are_those_of_files() {
    for op in Collective::ALL {
        assert_eq!(Collective::named(op.name()), Some(*op));
        assert_eq!(serde_json::to_value(op).unwrap(), op.name());
    }
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::named(algorithm.name()), Some(*algorithm));
        assert_eq!(serde_json::to_value(algorithm).unwrap(), algorithm.name());
    }
}

#[test]
fn an_unsupported_algorithm_names_the_others() {
    let refused = Algorithm::Pat.supports(Collective::Barrier, &Job::new(0, 4, 0)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "pat is no algorithm for barrier: use one of recursive-doubling, direct, bruck, hierarchical, in-network"
    );
    let wrong = Algorithm::Ring.supports(Collective::AllGather, &Job { chunk: 0, ..Job::new(0, 4, 1) });
    assert!(matches!(wrong, Err(Unsupported::Job(_))));
    let alone = Algorithm::InNetwork.supports(Collective::AllReduce, &Job::new(0, 4, 1));
    assert_eq!(alone, Err(Unsupported::Aggregators));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_job(
        (ranks, hosts) in (1..40_usize).prop_flat_map(|ranks| (Just(ranks), prop::collection::vec(0..5_usize, ranks))),
        (count, chunk) in (0..3000_usize, 100..4000_usize),
        (aggregators, radix) in (1..10_usize, 1..5_usize),
        root: prop::sample::Index,
        pair: prop::sample::Index,
        in_place: bool,
    ) {
        let pairs: Vec<_> = Algorithm::ALL
            .iter()
            .flat_map(|&algorithm| algorithm.collectives().iter().map(move |&op| (op, algorithm)))
            .collect();
        let (op, algorithm) = pairs[pair.index(pairs.len())];
        let counts = if op.has_blocks() && algorithm != Algorithm::Direct { Vec::new() } else { uneven(op, ranks, count) };
        let root = root.index(ranks);
        let job = Job { aggregators, radix, chunk, root, hosts, counts, in_place, ..Job::new(0, ranks, count) };
        check(op, algorithm, &job);
    }
}
