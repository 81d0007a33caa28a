//! The cost of schedules, beside the formulas of the literature.

use std::ops::Range;

use crate::schedule::interpreter::{Trace, build_all, verify};
use crate::step::Step;
use crate::{Algorithm, Collective, Job, Schedule};

/// A count that shares and blocks of up to 16 ranks divide into whole cache lines.
const COUNT: usize = 16 * 5040;

fn trace(op: Collective, algorithm: Algorithm, ranks: usize) -> Trace {
    let job = Job::new(0, ranks, COUNT);
    verify(op, &job, &build_all(op, algorithm, &job).unwrap(), 1).unwrap()
}

/// The number of doublings from one rank to at least `n`.
fn log(n: usize) -> usize {
    n.next_power_of_two().ilog2() as usize
}

fn all_send(trace: &Trace, elements: usize) -> bool {
    trace.ranks.iter().all(|rank| rank.sent == elements && rank.received == elements)
}

#[test]
fn ring() {
    for n in [2, 3, 4, 5, 7, 8] {
        let all_reduce = trace(Collective::AllReduce, Algorithm::Ring, n);
        assert!(all_send(&all_reduce, 2 * (n - 1) * COUNT / n), "{n}");
        assert_eq!((all_reduce.rounds, all_reduce.most_messages()), (2 * (n - 1), 2 * (n - 1)));
        assert!(all_reduce.ranks.iter().all(|rank| rank.reduced == (n - 1) * COUNT / n));
        for op in [Collective::AllGather, Collective::ReduceScatter] {
            let trace = trace(op, Algorithm::Ring, n);
            assert!(all_send(&trace, (n - 1) * COUNT), "{op} {n}");
            assert_eq!(trace.rounds, n - 1, "{op}");
        }
    }
}

#[test]
fn direct_takes_one_round_and_two_steps_take_two() {
    for n in [2, 3, 5, 8] {
        let direct = trace(Collective::AllReduce, Algorithm::Direct, n);
        assert!(all_send(&direct, (n - 1) * COUNT) && direct.rounds == 1, "{n}");
        let two_step = trace(Collective::AllReduce, Algorithm::TwoStep, n);
        assert!(all_send(&two_step, 2 * (n - 1) * COUNT / n) && two_step.rounds == 2, "{n}");
    }
}

#[test]
fn doubling_takes_a_round_for_each_bit() {
    for n in [2, 4, 8, 16] {
        let doubling = trace(Collective::AllReduce, Algorithm::RecursiveDoubling, n);
        assert!(all_send(&doubling, log(n) * COUNT) && doubling.rounds == log(n), "{n}");
        let halving = trace(Collective::AllReduce, Algorithm::HalvingDoubling, n);
        assert!(all_send(&halving, 2 * (n - 1) * COUNT / n) && halving.rounds == 2 * log(n), "{n}");
        let scatter = trace(Collective::ReduceScatter, Algorithm::HalvingDoubling, n);
        assert!(all_send(&scatter, (n - 1) * COUNT) && scatter.rounds == log(n), "{n}");
    }
}

/// Each rank's link carries its elements once each way, no matter how many ranks there are.
#[test]
fn in_network_sends_each_element_once_each_way() {
    for n in 2..=17 {
        let job = Job { aggregators: 5, radix: 4, chunk: COUNT / 8, ..Job::new(0, n, COUNT) };
        let schedules = build_all(Collective::AllReduce, Algorithm::InNetwork, &job).unwrap();
        let trace = verify(Collective::AllReduce, &job, &schedules, 1).unwrap();
        let ranks = &trace.ranks[..n];
        assert!(ranks.iter().all(|rank| (rank.sent, rank.received, rank.reduced) == (COUNT, COUNT, 0)), "{n}");
        let reduced: usize = trace.ranks[n..].iter().map(|aggregator| aggregator.reduced).sum();
        assert_eq!(reduced, (n - 1) * COUNT, "{n}");
    }
}

#[test]
fn folded_ranks_cost_two_more_rounds_at_most() {
    for n in 2..=17_usize {
        let bits = n.ilog2() as usize;
        assert!(trace(Collective::AllReduce, Algorithm::RecursiveDoubling, n).rounds <= bits + 2, "{n}");
        assert!(trace(Collective::AllReduce, Algorithm::HalvingDoubling, n).rounds <= 2 * bits + 2, "{n}");
    }
}

#[test]
fn bruck_and_pat_take_logarithmic_rounds_and_send_each_block_once() {
    for algorithm in [Algorithm::Bruck, Algorithm::Pat] {
        for op in [Collective::AllGather, Collective::ReduceScatter] {
            for n in 2..=17 {
                let trace = trace(op, algorithm, n);
                assert!(all_send(&trace, (n - 1) * COUNT), "{op} by {algorithm}, {n}");
                assert_eq!(trace.rounds, log(n), "{op} by {algorithm}, {n}");
                assert!(trace.most_messages() <= 2 * log(n) + 2, "{op} by {algorithm}, {n}");
            }
        }
    }
}

#[test]
fn binomial_trees_have_logarithmic_depth() {
    use Collective::{Broadcast, Gather, Reduce, Scatter};
    for op in [Broadcast, Reduce, Gather, Scatter] {
        for n in 2..=17 {
            let rounds = trace(op, Algorithm::Binomial, n).rounds;
            assert!(rounds <= log(n) && rounds >= log(n) - 1, "{op} {n}: {rounds}");
        }
    }
}

/// A rank that is inner in one tree passes half of the elements on to two children.
#[test]
fn both_trees_together_load_no_rank_with_more_than_the_elements() {
    for n in 3..=17 {
        let broadcast = trace(Collective::Broadcast, Algorithm::Tree, n);
        assert_eq!(broadcast.most_sent(), COUNT, "{n}");
        let all_reduce = trace(Collective::AllReduce, Algorithm::Tree, n);
        assert!(all_reduce.most_sent() <= 2 * COUNT, "{n}");
        assert!(all_reduce.rounds <= 2 * (log(n) + 1), "{n}: {}", all_reduce.rounds);
    }
}

#[test]
fn chunks_divide_messages_but_not_elements() {
    let whole = Job::new(0, 4, COUNT);
    let cut = Job { chunk: COUNT / 40, ..whole.clone() };
    let traces = [whole, cut].map(|job| {
        let schedules = build_all(Collective::AllReduce, Algorithm::Ring, &job).unwrap();
        verify(Collective::AllReduce, &job, &schedules, 1).unwrap()
    });
    assert_eq!(traces[1].most_sent(), traces[0].most_sent());
    assert_eq!(traces[1].most_messages(), 10 * traces[0].most_messages());
}

/// The elements that leave a group of consecutive ranks.
fn sent_out(schedules: &[Schedule], group: &Range<usize>) -> usize {
    let out = |step: &Step| match step {
        Step::Send { to, span } if !group.contains(to) => span.elements.len(),
        _ => 0,
    };
    schedules[group.clone()].iter().flat_map(|schedule| &schedule.steps).map(out).sum()
}

/// Between hosts each element crosses a host's link as often as in a ring of hosts, no matter how
/// many ranks the hosts have.
#[test]
fn hierarchical_sends_little_between_hosts() {
    let (hosts, per_host) = (3, 4);
    let n = hosts * per_host;
    let job = Job { hosts: (0..n).map(|rank| rank / per_host).collect(), ..Job::new(0, n, COUNT) };
    let schedules = build_all(Collective::AllReduce, Algorithm::Hierarchical, &job).unwrap();
    for host in 0..hosts {
        let total = sent_out(&schedules, &(host * per_host..(host + 1) * per_host));
        assert_eq!(total, 2 * (hosts - 1) * COUNT / hosts);
    }
}

/// Each element leaves any group of neighbouring hosts once, in few rounds.
#[test]
fn halving_sends_little_between_groups_of_hosts() {
    let (hosts, per_host) = (8, 2);
    let n = hosts * per_host;
    let job = Job { hosts: (0..n).map(|rank| rank / per_host).collect(), ..Job::new(0, n, COUNT) };
    let cases = [
        (Collective::AllReduce, Algorithm::HalvingDoubling, 2 * COUNT, 2 * log(n)),
        (Collective::AllReduce, Algorithm::HierarchicalHalving, 2 * COUNT, 2 * (log(hosts) + 1)),
        (Collective::AllGather, Algorithm::HierarchicalHalving, n * COUNT, log(hosts) + 2),
        (Collective::ReduceScatter, Algorithm::HierarchicalHalving, n * COUNT, log(hosts) + 1),
    ];
    for (op, algorithm, elements, rounds) in cases {
        let schedules = build_all(op, algorithm, &job).unwrap();
        assert_eq!(verify(op, &job, &schedules, 1).unwrap().rounds, rounds, "{op} by {algorithm}");
        for group in [1, 2, 4] {
            for first in (0..hosts).step_by(group) {
                let total = sent_out(&schedules, &(first * per_host..(first + group) * per_host));
                assert_eq!(total, elements - elements * group / hosts, "{op} by {algorithm}, {group} hosts");
            }
        }
    }
}
