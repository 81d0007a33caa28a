//! Whether a network is fast enough for a step of training.
//!
//! Each class of links has to carry a least number of bytes in a step: what [`Training::moved`]
//! says for the groups that these links connect. No algorithm moves less between groups; inside
//! hosts, one that sums there before it sends to other hosts moves as much. The algorithms that
//! there are may need more, and need time for messages and reductions as well: their predicted time
//! is the second part of the verdict.

use std::io::{self, Write};

use serde::Serialize;

use rdma_collectives::{Algorithm, Collective};

use super::network::{Level, MEMORY, NICS, Network, PORTS, Scope};
use super::report::Report;
use super::training::{Members, Training};
use super::units::{UNLIMITED, round_up, show_bits, show_rate, show_rate_beside, show_ratio, show_time};
use crate::Failure;

/// What a step of training needs of a network, beside what the network has.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Seconds of a step.
    pub step: f64,
    /// The links of an all-reduce, those with the least reserve first.
    pub links: Vec<LinkVerdict>,
    /// The fastest of the predicted algorithms.
    pub fastest: Option<Fastest>,
    /// The fastest one if links that are too slow were just fast enough; `None` if none is.
    pub remedied: Option<Fastest>,
    /// NICs of a host.
    rails: usize,
}

/// An algorithm and its predicted time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fastest {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its time.
    pub seconds: f64,
}

/// What a step needs of a class of links.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkVerdict {
    /// Name of the links.
    pub name: &'static str,
    /// The word for the unit that has them.
    pub owner: &'static str,
    /// Bytes that a unit's links have to carry in a step, each way.
    pub bytes: f64,
    /// Bytes per second that a step needs.
    pub needed: f64,
    /// Bytes per second that the links have.
    pub rate: f64,
    /// Bytes per second, at most two digits, that would be enough; of a NIC for NICs.
    pub enough: f64,
}

impl Verdict {
    /// Compares what a model needs with the network and the predictions of a report.
    ///
    /// # Errors
    /// If the network is not valid.
    pub fn new(training: &Training, report: &Report) -> Result<Self, Failure> {
        let network = &report.network;
        let mut links = Vec::new();
        if report.operation == Collective::AllReduce {
            let limits = network.levels().into_iter().filter(|level| level.rate < UNLIMITED);
            links.extend(limits.map(|level| LinkVerdict::new(training, network, report.reduces_in_network(), &level)));
        }
        links.sort_by(|a, b| a.reserve().total_cmp(&b.reserve()));
        let mut faster = network.clone();
        links.iter().filter(|link| link.reserve() < 1.0).for_each(|link| link.remedy(&mut faster));
        let remedied = if faster == *network {
            None
        } else {
            let only = if let [row] = &report.results[..] { Some(row.algorithm) } else { None };
            Fastest::of(&Report::new(&faster, report.operation, only, &[training.size()])?)
        };
        Ok(Self { step: training.step, links, fastest: Fastest::of(report), remedied, rails: network.rails })
    }

    /// Prints the verdict, and a line for each class of links and the fastest algorithm.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let step = show_time(self.step);
        let is_slow = self.links.iter().any(|link| link.reserve() < 1.0);
        let is_late = self.fastest.is_some_and(|fastest| fastest.seconds > self.step);
        writeln!(out, "#")?;
        match (is_slow, is_late) {
            (false, false) => writeln!(out, "# Verdict: fast enough for a step of {step}:")?,
            (false, true) if !self.links.is_empty() => {
                writeln!(out, "# Verdict: the links are fast enough for a step of {step}, the algorithms are not:")?;
            }
            _ => writeln!(out, "# Verdict: too slow for a step of {step}:")?,
        }
        self.links.iter().try_for_each(|link| writeln!(out, "# {}", link.describe(self.rails)))?;
        let Some(fastest) = self.fastest else { return Ok(()) };
        writeln!(out, "# {}", fastest.describe(self.step))?;
        let Some(remedied) = self.remedied else { return Ok(()) };
        writeln!(out, "# with such links, {}", remedied.describe(self.step))
    }
}

impl Fastest {
    fn of(report: &Report) -> Option<Self> {
        report.last_best().map(|row| Self { algorithm: row.algorithm, seconds: row.prediction.seconds })
    }

    fn describe(&self, step: f64) -> String {
        let Self { algorithm, seconds } = *self;
        let (time, times) = (show_time(seconds), show_ratio(seconds / step));
        match seconds > step {
            true => format!("{algorithm} takes {time}, {times} times the step"),
            false => format!("{algorithm} takes {time} of the {}", show_time(step)),
        }
    }
}

impl LinkVerdict {
    fn new(training: &Training, network: &Network, in_network: bool, level: &Level) -> Self {
        let inside = Members::ranks(network.per_host);
        let groups = Members { count: network.ranks.div_ceil(level.group), name: "group", in_network };
        let tier = network.tiers.iter().find(|tier| tier.name == level.name);
        let (owner, bytes) = match level.scope {
            Scope::Port => ("GPU", training.moved(inside)),
            Scope::Memory => ("host", training.moved(inside) * network.per_host as f64),
            Scope::Uplink => (tier.map_or("host", |tier| tier.group_name), training.moved(groups)),
        };
        let needed = bytes * level.crossings / training.step;
        let enough =
            if level.name == NICS { round_up(8.0 * needed / network.rails as f64) / 8.0 } else { round_up(needed) };
        Self { name: level.name, owner, bytes, needed, rate: level.rate, enough }
    }

    /// How many times the links have what the step needs.
    fn reserve(&self) -> f64 {
        self.rate / self.needed
    }

    fn describe(&self, rails: usize) -> String {
        let Self { name, owner, needed, rate, .. } = *self;
        let (need, has) = (show_rate(needed), show_rate_beside(rate, needed));
        let reserve = self.reserve();
        let compared = if reserve < 1.0 {
            let enough = match (name, rails) {
                (NICS, 1) => format!("a NIC of {}", show_bits(self.enough)),
                (NICS, _) => format!("{rails} NICs of {}", show_bits(self.enough)),
                _ => show_rate(self.enough),
            };
            format!("{} times too slow; {enough} would do", show_ratio(1.0 / reserve))
        } else {
            format!("{} times what it needs", show_ratio(reserve))
        };
        format!("{name}: needs {need} a {owner}, has {has}: {compared}")
    }

    /// Gives a network links that are fast enough.
    fn remedy(&self, network: &mut Network) {
        match self.name {
            PORTS => network.intra.rate = self.enough,
            MEMORY => network.memory = Some(self.enough),
            NICS => {
                // The rates of switches follow those of NICs; theirs are verdicts of their own.
                let faster = self.enough / network.nic.rate;
                network.nic.rate = self.enough;
                network.tiers.iter_mut().for_each(|tier| tier.oversubscription *= faster);
            }
            name => {
                let of_host = network.rails as f64 * network.nic.rate;
                let tiers = network.tiers.iter_mut().filter(|tier| tier.name == name);
                tiers.for_each(|tier| tier.oversubscription = tier.hosts as f64 * of_host / self.enough);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::network::{Kind, System};

    const MODEL: Training = Training { parameters: 70e9, bytes: 2.0, step: 0.2 };

    fn said(network: &Network, training: &Training) -> (Verdict, String) {
        said_of(Collective::AllReduce, network, training)
    }

    fn said_of(operation: Collective, network: &Network, training: &Training) -> (Verdict, String) {
        let report = Report::new(network, operation, None, &[training.size()]).unwrap();
        let verdict = Verdict::new(training, &report).unwrap();
        let mut out = Vec::new();
        verdict.print(&mut out).unwrap();
        (verdict, String::from_utf8(out).unwrap())
    }

    fn hosts(system: System) -> Network {
        let mut network = Network::preset(Kind::FatTree, 512);
        network.set_system(system);
        network
    }

    #[test]
    fn slow_nics_are_said_with_what_would_do() {
        let (verdict, text) = said(&hosts(System::DgxH100), &MODEL);
        let line = "# NICs: needs 1.38 TB/s a host, has 0.4: 3.4 times too slow; 8 NICs of 1.4 Tb/s would do\n";
        assert!(text.contains(line), "{text}");
        let line = "# ports in hosts: needs 1.23 TB/s a GPU, has 0.45: 2.7 times too slow; 1.3 TB/s would do\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("# Verdict: too slow for a step of 200 ms:\n# NICs"), "{text}");
        assert!(text.contains("\n# ring takes 828 ms, 4.1 times the step\n# with such links, "), "{text}");
        assert!((verdict.links[0].needed - 2.0 * 140e9 * 63.0 / 64.0 / 0.2).abs() < 1.0);

        let (_, text) = said(&hosts(System::DgxA100), &MODEL);
        assert!(text.contains("has 0.2: 6.9 times too slow; 8 NICs of 1.4 Tb/s would do"), "{text}");
    }

    /// The links that the verdict asks for are enough by the verdict's own measure.
    #[test]
    fn what_would_do_does() {
        let mut network = hosts(System::DgxH100);
        (network.nic.rate, network.intra.rate) = (1.4e12 / 8.0, 1.3e12);
        let (verdict, text) = said(&network, &MODEL);
        assert!(verdict.links.iter().all(|link| link.reserve() >= 1.0), "{text}");
        assert_eq!(verdict.remedied, None);
        assert!(text.contains("the links are fast enough for a step of 200 ms, the algorithms are not"), "{text}");
    }

    #[test]
    fn a_fit_says_its_reserve() {
        let (_, text) = said(&hosts(System::DgxH100), &Training { step: 1.1, ..MODEL });
        let line = "# NICs: needs 251 GB/s a host, has 400: 1.6 times what it needs\n";
        assert!(text.contains("# Verdict: fast enough for a step of 1.1 s:\n"), "{text}");
        assert!(text.contains(line) && text.trim_end().ends_with("of the 1.1 s"), "{text}");
    }

    /// What links need is known of all-reduce only.
    #[test]
    fn other_operations_have_times_and_no_links() {
        let (verdict, text) = said_of(Collective::AllToAll, &hosts(System::DgxH100), &MODEL);
        assert!(verdict.links.is_empty() && verdict.remedied.is_none(), "{text}");
        assert!(text.starts_with("#\n# Verdict: too slow for a step of 200 ms:\n# "), "{text}");
        assert!(text.trim_end().ends_with("times the step"), "{text}");
    }

    #[test]
    fn one_host_needs_no_nics() {
        let mut network = Network::preset(Kind::Host, 8);
        network.set_system(System::DgxH100);
        let (verdict, text) = said(&network, &MODEL);
        let names: Vec<_> = verdict.links.iter().map(|link| link.name).collect();
        assert_eq!(names, ["ports in hosts"], "{text}");
    }

    #[test]
    fn switches_that_reduce_count_only_if_their_algorithm_may_be_used() {
        let network = Network { in_network: true, ..hosts(System::DgxH100) };
        let (verdict, _) = said(&network, &MODEL);
        assert!((verdict.links[1].needed - 0.7e12).abs() < 1.0 && verdict.links[1].name == NICS, "{verdict:?}");
        let ring = Report::new(&network, Collective::AllReduce, Some(Algorithm::Ring), &[MODEL.size()]).unwrap();
        let verdict = Verdict::new(&MODEL, &ring).unwrap();
        assert!((verdict.links[0].needed - 1.378e12).abs() < 0.001e12, "{verdict:?}");
    }

    /// No algorithm moves less over the links between hosts than the verdict says.
    #[test]
    fn the_least_traffic_is_no_more_than_that_of_any_algorithm() {
        let mut compared = 0;
        for kind in [Kind::FatTree, Kind::Rail, Kind::Dragonfly] {
            for (ranks, per_host) in [(4, 1), (12, 2), (24, 4), (56, 8), (64, 4), (512, 8)] {
                let mut network = Network::preset(kind, ranks);
                network.per_host = per_host;
                network.set_tiers(2, 2, &[2.0]);
                for in_network in [false, true] {
                    network.in_network = in_network;
                    let report = Report::new(&network, Collective::AllReduce, None, &[MODEL.size()]).unwrap();
                    let verdict = Verdict::new(&MODEL, &report).unwrap();
                    for (row, link) in report.results.iter().flat_map(|row| verdict.links.iter().map(move |l| (row, l)))
                    {
                        let load = row.prediction.levels.iter().find(|load| load.level.name == link.name).unwrap();
                        let is_outside = load.level.scope == Scope::Uplink;
                        let least = link.bytes * (1.0 - 1e-9);
                        assert!(!is_outside || load.bytes >= least, "{kind:?} {link:?} {:?}", row.algorithm);
                        compared += usize::from(is_outside);
                    }
                }
            }
        }
        assert!(compared > 300, "{compared}");
    }

    #[test]
    fn lines_have_at_most_100_columns() {
        for kind in [Kind::Host, Kind::FatTree, Kind::Rail, Kind::Dragonfly] {
            for rate in [1e6, 1.23e9, 50e9, 9e12] {
                let mut network = Network::preset(kind, 4096);
                (network.nic.rate, network.intra.rate, network.memory) = (rate, rate, Some(rate));
                let (_, text) = said(&network, &MODEL);
                assert!(text.lines().all(|line| line.len() <= 100), "{text}");
            }
        }
    }
}
