//! The closed forms against counts of single messages on small networks, and properties of the
//! predictions.

use proptest::prelude::*;

use rdma_collectives::{Algorithm, Collective};

use super::*;

const KINDS: [Kind; 4] = [Kind::Host, Kind::FatTree, Kind::Rail, Kind::Dragonfly];

/// Networks with up to 64 ranks whose switches serve few hosts, so that all levels exist.
fn small_networks() -> Vec<Network> {
    let mut networks = Vec::new();
    for kind in KINDS {
        for (ranks, per_host) in [(2, 1), (3, 1), (12, 2), (13, 1), (24, 4), (30, 3), (36, 4), (56, 8), (64, 4)] {
            for (first, second) in [(2, 2), (3, 2), (4, 0)] {
                let mut network = Network::preset(kind, ranks);
                let second = if kind == Kind::Dragonfly { second.max(1) } else { second };
                network.set_tiers(first, second, &[2.0, 1.5]);
                network.per_host = if kind == Kind::Host { ranks } else { per_host };
                network.memory = (kind == Kind::Host).then_some(1e11);
                network.in_network = true;
                if network.validate().is_ok() {
                    networks.push(network);
                }
            }
        }
    }
    networks
}

/// Every operation with every algorithm that serves it on a network.
fn all_traffic(network: &Network) -> Vec<(Collective, Algorithm, Traffic)> {
    let pairs = Collective::ALL.iter().flat_map(|&op| Algorithm::ALL.iter().map(move |&algo| (op, algo)));
    pairs.filter_map(|(op, algo)| Some((op, algo, Traffic::new(network, op, algo).ok()?))).collect()
}

/// The messages of a pattern among units, each by itself.
fn messages(pattern: Pattern, units: usize) -> Vec<(usize, usize)> {
    let pairs = || (0..units).flat_map(|from| (0..units).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let is_message = |&(from, to): &(usize, usize)| match pattern {
        Pattern::Shift(by) => (from + by) % units == to,
        Pattern::Exchange { distance, count } => from < count && to < count && from ^ distance == to,
        Pattern::Fold(count) => from >= count && from - count == to,
        Pattern::Binomial(distance) => from % (2 * distance) == 0 && from + distance == to,
        Pattern::AllPairs => true,
        Pattern::BlockPairs(block) => from / block == to / block,
        Pattern::Star(span) => from == 0 && to < span,
        Pattern::DoubleTree | Pattern::DoubleTreeBoth | Pattern::Aggregate => false,
    };
    let up: Vec<_> = tree::edges(units, 0..units).collect();
    match pattern {
        Pattern::DoubleTree => up,
        Pattern::DoubleTreeBoth => up.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect(),
        _ => pairs().filter(is_message).collect(),
    }
}

/// The messages between ranks: each place of a unit has its own.
fn rank_messages(phase: &Phase, ranks: usize) -> Vec<(usize, usize)> {
    let of_units = messages(phase.pattern, ranks / phase.unit);
    let unit = phase.unit;
    of_units.into_iter().flat_map(|(a, b)| (0..unit).map(move |lane| (a * unit + lane, b * unit + lane))).collect()
}

/// The number of messages on the busiest links of a level.
fn count(messages: &[(usize, usize)], level: &Level, per_host: usize, ranks: usize) -> usize {
    let mut out = vec![0; ranks];
    let mut into = vec![0; ranks];
    for &(from, to) in messages {
        let same_host = from / per_host == to / per_host;
        match level.scope {
            Scope::Port if same_host => (out[from] += 1, into[to] += 1),
            Scope::Memory if same_host => (out[from / per_host] += 1, ()),
            Scope::Uplink if from / level.group != to / level.group => {
                (out[from / level.group] += 1, into[to / level.group] += 1)
            }
            _ => ((), ()),
        };
    }
    out.into_iter().chain(into).max().unwrap_or(0)
}

#[test]
fn closed_forms_are_counts_of_messages() {
    let mut compared = 0;
    for network in small_networks() {
        let levels = network.levels();
        for (operation, algorithm, traffic) in all_traffic(&network) {
            for (phase, loads) in traffic.loads().filter(|(phase, _)| phase.pattern != Pattern::Aggregate) {
                let messages = rank_messages(phase, network.ranks);
                for (level, load) in levels.iter().zip(loads) {
                    let counted = count(&messages, level, network.per_host, network.ranks) as f64 * phase.bytes;
                    let at = || format!("{operation:?} {algorithm:?} {phase:?} {level:?} of {network:?}");
                    assert!((load - counted).abs() < 1e-12, "{load} is not {counted}: {}", at());
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn switches_that_reduce_take_every_byte_once() {
    for network in small_networks().into_iter().filter(|network| network.hosts() > 1) {
        let traffic = Traffic::new(&network, Collective::AllReduce, Algorithm::InNetwork).unwrap();
        let prediction = traffic.predict(1e9);
        let uplinks = prediction.levels.iter().filter(|load| load.level.scope == Scope::Uplink);
        uplinks.for_each(|load| assert!((load.bytes - 1e9).abs() < 1.0, "{load:?}"));
    }
}

/// The bytes that the busiest rank sends.
pub(super) fn sent(traffic: &Traffic, ranks: usize) -> f64 {
    let of = |phase: &Phase| {
        let messages = rank_messages(phase, ranks);
        let by_rank = |rank| messages.iter().filter(|(from, _)| *from == rank).count();
        let most = (0..ranks).map(by_rank).max().unwrap_or(0);
        phase.repeat as f64 * phase.bytes * most as f64
    };
    traffic.loads().map(|(phase, _)| of(phase)).sum()
}

#[test]
fn ranks_send_what_each_algorithm_needs() {
    use {Algorithm as A, Collective as C};
    for ranks in [2_usize, 3, 4, 5, 7, 8, 12, 16, 24, 31, 32] {
        let n = ranks as f64;
        let (others, log) = ((n - 1.0) / n, n.log2());
        let is_power = ranks.is_power_of_two();
        let cases = [
            (C::AllReduce, A::Ring, 2.0 * others),
            (C::AllReduce, A::TwoStep, 2.0 * others),
            (C::AllReduce, A::Direct, n - 1.0),
            (C::AllReduce, A::HalvingDoubling, if is_power { 2.0 * others } else { f64::NAN }),
            (C::AllReduce, A::RecursiveDoubling, if is_power { log } else { f64::NAN }),
            (C::AllGather, A::Ring, others),
            (C::AllGather, A::Direct, others),
            (C::AllGather, A::Bruck, others),
            (C::AllGather, A::Pat, others),
            (C::AllGather, A::RecursiveDoubling, if is_power { others } else { f64::NAN }),
            (C::ReduceScatter, A::Pat, others),
            (C::AllToAll, A::Direct, others),
            (C::AllToAll, A::Pairwise, others),
            (C::AllToAll, A::Bruck, if is_power { log / 2.0 } else { f64::NAN }),
            (C::Scatter, A::Direct, others),
            (C::Scatter, A::Binomial, others),
            (C::Broadcast, A::Direct, n - 1.0),
            (C::SendRecv, A::Direct, 1.0),
        ];
        let network = Network::preset(Kind::Host, ranks);
        for (operation, algorithm, share) in cases.into_iter().filter(|(_, _, share)| !share.is_nan()) {
            let traffic = Traffic::new(&network, operation, algorithm).unwrap();
            let sent = sent(&traffic, ranks);
            assert!((sent - share).abs() < 1e-9, "{operation:?} {algorithm:?} of {ranks}: {sent}, not {share}");
        }
    }
}

#[test]
fn blocks_of_a_bruck_alltoall_are_offsets_with_a_bit() {
    for ranks in 2..40 {
        let network = Network::preset(Kind::Host, ranks);
        let traffic = Traffic::new(&network, Collective::AllToAll, Algorithm::Bruck).unwrap();
        for (phase, _) in traffic.loads() {
            let Pattern::Shift(bit) = phase.pattern else { panic!("{phase:?}") };
            let blocks = (0..ranks).filter(|offset| offset & bit != 0).count() as f64;
            assert!((phase.bytes * ranks as f64 - blocks).abs() < 1e-9, "{ranks} {bit}");
        }
    }
}

/// A hand-computed case: 4 hosts of 2 ranks, 2 hosts per leaf, 2:1 oversubscribed.
#[test]
fn an_oversubscribed_uplink_limits_direct_sends() {
    let mut network = Network::preset(Kind::FatTree, 8);
    (network.per_host, network.rails) = (2, 1);
    network.nic.rate = 10e9;
    network.set_tiers(2, 0, &[2.0]);
    let traffic = Traffic::new(&network, Collective::AllToAll, Algorithm::Direct).unwrap();
    let prediction = traffic.predict(8e9);
    // Each of the 4 ranks of a leaf sends 1 GB to each of the 4 others: 16 GB on 10 GB/s.
    assert_eq!(prediction.limit(), "leaf uplinks");
    let load = &prediction.levels[2];
    assert!((load.bytes - 16e9).abs() < 1.0 && (load.beta - 1.6).abs() < 1e-9, "{load:?}");
    // Each of the 2 ranks of a host sends 1 GB to each of 6 others: 12 GB on 10 GB/s.
    assert!((prediction.levels[1].busy - 1.2).abs() < 1e-9, "{prediction:?}");
}

#[test]
fn a_rail_keeps_more_traffic_below_its_leaf_switches() {
    let bytes = |kind| {
        let network = Network::preset(kind, 1024);
        let traffic = Traffic::new(&network, Collective::AllReduce, Algorithm::HierarchicalHalving).unwrap();
        let prediction = traffic.predict(1e9);
        prediction.levels[2].bytes / prediction.levels[2].level.group as f64
    };
    assert!(bytes(Kind::Rail) < 0.5 * bytes(Kind::FatTree));
}

#[test]
fn a_hundred_thousand_ranks_are_predicted() {
    let cases = [
        (Kind::FatTree, Collective::AllReduce),
        (Kind::Rail, Collective::AllGather),
        (Kind::Dragonfly, Collective::ReduceScatter),
    ];
    for (kind, operation) in cases {
        let network = Network { in_network: true, ..Network::preset(kind, 100_000) };
        let report = Report::new(&network, operation, None, &[8.0, 1e6, 1e9]).unwrap();
        assert_eq!(report.results.iter().filter(|row| row.auto).count(), 3);
        assert!(report.results.iter().all(|row| row.time.is_finite() && row.time > 0.0));
    }
}

#[test]
fn an_algorithm_that_does_not_serve_is_refused_with_the_reason() {
    let network = Network::preset(Kind::FatTree, 64);
    let refused = |operation, algorithm, part: &str| {
        let error = Report::new(&network, operation, Some(algorithm), &[1.0]).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(Collective::AllReduce, Algorithm::InNetwork, "--in-network");
    refused(Collective::AllReduce, Algorithm::Pairwise, "--algo pairwise: the algorithm does not exist");
    refused(
        Collective::Barrier,
        Algorithm::Direct,
        "--operation: there is no formula for barrier: use one of all_reduce, all_gather, reduce_scatter, all_to_all, \
         broadcast, reduce, gather, scatter, sendrecv",
    );
    let host = Network::preset(Kind::Host, 8);
    let error = Report::new(&host, Collective::AllReduce, Some(Algorithm::Hierarchical), &[1.0]).unwrap_err();
    assert!(error.to_string().contains("several hosts"), "{error}");
}

/// Options and tables offer what has a formula, and nothing else.
#[test]
fn what_has_a_formula_is_listed() {
    let networks = small_networks();
    let found: Vec<_> = networks.iter().flat_map(all_traffic).map(|(op, algorithm, _)| (op, algorithm)).collect();
    for op in Collective::ALL {
        assert_eq!(OPERATIONS.iter().any(|(known, _)| known == op), found.iter().any(|(found, _)| found == op), "{op}");
    }
    for algo in Algorithm::ALL {
        let is_found = found.iter().any(|(_, found)| found == algo);
        assert_eq!(ALGORITHMS.iter().any(|(known, _)| known == algo), is_found, "{algo}");
    }
}

fn networks() -> impl Strategy<Value = Network> {
    let shape = (0..4_usize, 2..40_usize, 1..9_usize, 1..5_usize, 1..5_usize, 1..5_usize);
    let shape = (shape, 1.0..8.0_f64, 1.0..8.0_f64);
    let network = |((kind, hosts, per_host, rails, first, second), inner, outer)| {
        let mut network = Network::preset(KINDS[kind], hosts * per_host);
        network.set_tiers(first, second, &[inner, outer]);
        network.per_host = if KINDS[kind] == Kind::Host { hosts * per_host } else { per_host };
        network.rails = rails;
        network
    };
    shape.prop_map(network).prop_filter("a dragonfly has links between all groups", |n| n.validate().is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn more_bytes_take_longer(network in networks(), size in 1.0..1e9_f64, factor in 1.01..10.0_f64) {
        for (operation, algorithm, traffic) in all_traffic(&network) {
            let (less, more) = (traffic.predict(size), traffic.predict(size * factor));
            prop_assert!(more.seconds >= less.seconds * (1.0 - 1e-9), "{operation:?} {algorithm:?}");
            let parts = less.alpha + less.gamma + less.levels.iter().map(|load| load.beta).sum::<f64>();
            prop_assert!((parts - less.seconds).abs() <= 1e-9 * less.seconds);
        }
    }

    #[test]
    fn slower_links_take_no_less_time(network in networks(), size in 1.0..1e9_f64) {
        let mut slower = network.clone();
        slower.nic.rate /= 2.0;
        slower.intra.rate /= 3.0;
        slower.tiers.iter_mut().for_each(|tier| tier.oversubscription *= 1.5);
        for ((operation, algorithm, fast), (_, _, slow)) in all_traffic(&network).iter().zip(all_traffic(&slower)) {
            let (fast, slow) = (fast.predict(size).seconds, slow.predict(size).seconds);
            prop_assert!(slow >= fast * (1.0 - 1e-9), "{operation:?} {algorithm:?}: {slow} {fast}");
        }
    }

    #[test]
    fn no_time_is_below_that_of_the_busiest_links(network in networks(), size in 1.0..1e9_f64) {
        for (operation, algorithm, traffic) in all_traffic(&network) {
            let prediction = traffic.predict(size);
            for load in &prediction.levels {
                prop_assert!(load.busy <= prediction.seconds * (1.0 + 1e-9), "{operation:?} {algorithm:?} {load:?}");
            }
        }
    }

    /// Large sizes take the time of the bytes, small ones that of the messages.
    #[test]
    fn sizes_without_end_are_limited_by_links(network in networks()) {
        let ring = Traffic::new(&network, Collective::AllReduce, Algorithm::Ring).unwrap();
        let (large, small) = (ring.predict(1e15), ring.predict(1e-3));
        prop_assert!(large.alpha < 1e-3 * large.seconds);
        prop_assert!(small.alpha > 0.999 * small.seconds);
        prop_assert_eq!(small.limit(), "latency");
    }
}
