//! Networks as hierarchies of groups of consecutive ranks, and typical numbers for some of them.
//!
//! On a rail-optimized network a message for another rail changes rails inside its host, over ports
//! that are much faster than NICs; this is not counted. On a dragonfly, traffic that is not
//! between all pairs takes indirect routes, which cross two links of a level: the bound of
//! Valiant's routing for any pattern.

use std::ops::Range;

use clap::ValueEnum;
use serde::Serialize;

use crate::Failure;

/// The name of the level of ranks' ports inside hosts.
pub(super) const PORTS: &str = "ports in hosts";
/// The name of the level of the memory that ranks of a host share.
pub(super) const MEMORY: &str = "host memory";
/// The name of the level of a host's NICs.
pub(super) const NICS: &str = "NICs";

/// The shape of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One host
    Host,
    /// Leaf switches, each for all NICs of some hosts; pods add a third level
    FatTree,
    /// As fat-tree, but NIC i of all hosts of a set is at leaf switch i of the set
    Rail,
    /// Groups of routers; all routers of a group are linked, and so are all groups
    Dragonfly,
}

/// A system that is sold, whose numbers the hosts have.
///
/// NVIDIA publishes the number and the rate of the NICs for computing in the systems' user guides,
/// and the rate of NVLink as the sum of both directions: 600 GB/s for an A100, 900 GB/s for an
/// H100. A reduction reads twice and writes once, and so has a third of the rate of a GPU's memory:
/// 2.04 TB/s (A100 with 80 GB) and 3.35 TB/s (H100, SXM).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// 8 A100, 8 NICs of 200 Gb/s (InfiniBand HDR), NVLink with 300 GB/s each way
    DgxA100,
    /// 8 H100, 8 NICs of 400 Gb/s (InfiniBand NDR), NVLink with 450 GB/s each way
    DgxH100,
}

/// A link in one direction; the other direction is the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Bytes per second.
    pub rate: f64,
    /// Seconds from a send until the last byte of a short message is visible.
    pub latency: f64,
}

/// A level of switches outside the hosts. Its groups are the hosts below one switch (or set of
/// switches) of the level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// The links that connect a group to the other groups.
    pub name: &'static str,
    /// The word for a group, such as "rack".
    pub group_name: &'static str,
    /// Hosts of a group.
    pub hosts: usize,
    /// Bytes per second that all hosts of a group can send, divided by the rate of the group's
    /// links to other groups.
    pub oversubscription: f64,
    /// Seconds that a message takes longer if it leaves a group.
    pub latency: f64,
    /// Links of this level that a message crosses: 2 with indirect routing, otherwise 1.
    pub crossings: f64,
    /// As `crossings`, for traffic between all pairs, which loads all links evenly by itself.
    pub uniform_crossings: f64,
}

/// A network and the ranks on it. Ranks are numbered host by host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Network {
    /// The shape.
    pub kind: Kind,
    /// Number of ranks, each with one GPU (or core).
    pub ranks: usize,
    /// Ranks of a host; `ranks` is a multiple.
    pub per_host: usize,
    /// NICs of a host.
    pub rails: usize,
    /// A rank's port to the other ranks of its host.
    pub intra: Link,
    /// Bytes per second that all ranks of a host together can exchange, if they share memory.
    pub memory: Option<f64>,
    /// A NIC; the latency is that between two hosts at the same leaf switch.
    pub nic: Link,
    /// The levels of switches, from the hosts outwards.
    pub tiers: Vec<Tier>,
    /// Seconds of work per message at the sender.
    pub overhead: f64,
    /// Bytes per second that a rank reduces.
    pub reduce_rate: f64,
    /// Whether switches reduce and multicast.
    pub in_network: bool,
}

/// The links of which a [`Level`] consists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// The ports of ranks inside their host.
    Port,
    /// The memory of a host, which all its ranks share.
    Memory,
    /// The links of a group of ranks to all other groups.
    Uplink,
}

/// A class of links with the same rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Level {
    /// Name of the links.
    pub name: &'static str,
    /// The unit that the links belong to.
    pub scope: Scope,
    /// Ranks of a group.
    pub group: usize,
    /// Bytes per second of all links of a group, each way.
    pub rate: f64,
    /// Seconds from a send to the arrival of a message that crosses this level and no outer one.
    pub latency: f64,
    /// Links of this level that a message crosses.
    pub crossings: f64,
    /// As `crossings`, for traffic between all pairs.
    pub uniform_crossings: f64,
}

impl Kind {
    /// The usual numbers of hosts per leaf switch (or router), and of these per pod (or group).
    ///
    /// Half of a switch's 64 ports go down. A rail's switch has one port per host, any other leaf
    /// switch one per NIC.
    #[must_use]
    pub fn tiers(self) -> (usize, usize) {
        match self {
            Self::Host => (0, 0),
            Self::FatTree => (4, 32),
            Self::Rail => (32, 16),
            Self::Dragonfly => (4, 16),
        }
    }
}

impl Kind {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Network {
    /// A network of a kind with typical numbers: hosts of 8 GPUs and 8 NICs of 400 Gb/s, switches
    /// of 64 ports, no oversubscription.
    #[must_use]
    pub fn preset(kind: Kind, ranks: usize) -> Self {
        let mut network = Self {
            kind,
            ranks,
            per_host: if kind == Kind::Host { ranks } else { 8.min(ranks) },
            rails: 8,
            intra: Link { rate: 450e9, latency: 2e-6 },
            memory: None,
            nic: Link { rate: 50e9, latency: 4e-6 },
            tiers: Vec::new(),
            overhead: 0.5e-6,
            reduce_rate: 1.2e12,
            in_network: false,
        };
        let (first, second) = kind.tiers();
        network.set_tiers(first, second, &[]);
        network
    }

    /// Gives the hosts the numbers of a system. A network that is one host keeps its ranks.
    pub fn set_system(&mut self, system: System) {
        let (nic, intra, reduce) = match system {
            System::DgxA100 => (25e9, 300e9, 0.68e12),
            System::DgxH100 => (50e9, 450e9, 1.1e12),
        };
        (self.nic.rate, self.intra.rate, self.reduce_rate) = (nic, intra, reduce);
        self.rails = 8;
        if self.kind != Kind::Host {
            self.per_host = 8.min(self.ranks);
        }
    }

    /// Replaces the levels of switches: `first` hosts per leaf switch (or router), and `second` of
    /// these per pod (or group); 0 for no pods. Missing oversubscriptions are 1.
    pub fn set_tiers(&mut self, first: usize, second: usize, oversubscription: &[f64]) {
        let ratio = |tier: usize| oversubscription.get(tier).copied().unwrap_or(1.0);
        let tier = |name, group_name, hosts, oversubscription| Tier {
            name,
            group_name,
            hosts,
            oversubscription,
            latency: 1e-6,
            crossings: 1.0,
            uniform_crossings: 1.0,
        };
        self.tiers = match self.kind {
            Kind::Host => Vec::new(),
            Kind::FatTree => vec![tier("leaf uplinks", "leaf", first, ratio(0))],
            Kind::Rail => vec![tier("rail uplinks", "rail set", first, ratio(0))],
            // A balanced router has twice as many local ports as host ports. Indirect routing takes
            // two local links, and two global ones, unless all pairs communicate.
            Kind::Dragonfly => vec![
                Tier { crossings: 2.0, uniform_crossings: 2.0, ..tier("local links", "router", first, ratio(0) / 2.0) },
                Tier { crossings: 2.0, ..tier("global links", "group", first * second, ratio(1)) },
            ],
        };
        if second > 0 && matches!(self.kind, Kind::FatTree | Kind::Rail) {
            self.tiers.push(tier("pod uplinks", "pod", first * second, ratio(0) * ratio(1)));
        }
    }

    /// Number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.ranks / self.per_host
    }

    /// Checks that the numbers fit each other.
    ///
    /// # Errors
    /// If they do not; the message says which option to change.
    pub fn validate(&self) -> Result<(), Failure> {
        let refuse = |text: String| Err(Failure::usage(text));
        if self.ranks < 2 || self.per_host == 0 || self.rails == 0 {
            return refuse("a collective needs 2 ranks, and hosts with ranks and NICs; raise --ranks".to_owned());
        }
        if self.ranks % self.per_host != 0 {
            let (ranks, per_host) = (self.ranks, self.per_host);
            return refuse(format!("--ranks {ranks} is no multiple of --per-host {per_host}; change one of them"));
        }
        if self.kind == Kind::Host && self.hosts() > 1 {
            return refuse("--network host has one host; give another network, or no --per-host".to_owned());
        }
        if self.tiers.iter().any(|tier| tier.hosts == 0) {
            return refuse("a switch has at least one host; give --leaf-hosts and --pod-leaves from 1".to_owned());
        }
        self.validate_dragonfly()
    }

    /// In a balanced dragonfly a router has as many global links as host ports, and a group has a
    /// link to each other group.
    fn validate_dragonfly(&self) -> Result<(), Failure> {
        let [_, group] = &self.tiers[..] else { return Ok(()) };
        let (groups, most) = (self.hosts().div_ceil(group.hosts), group.hosts * self.rails + 1);
        if self.kind == Kind::Dragonfly && groups > most {
            return Err(Failure::usage(format!(
                "{groups} groups of a dragonfly, but a group has links to {} others; raise --leaf-hosts or \
                 --pod-leaves",
                most - 1
            )));
        }
        Ok(())
    }

    /// The classes of links, from the inside outwards. Levels with a single group are left out:
    /// nothing crosses them.
    #[must_use]
    pub fn levels(&self) -> Vec<Level> {
        let inside = Level {
            name: PORTS,
            scope: Scope::Port,
            group: self.per_host,
            rate: self.intra.rate,
            latency: self.intra.latency,
            crossings: 1.0,
            uniform_crossings: 1.0,
        };
        let mut levels = Vec::new();
        if self.per_host > 1 {
            levels.push(inside);
            levels.extend(self.memory.map(|rate| Level { name: MEMORY, scope: Scope::Memory, rate, ..inside }));
        }
        let of_host = self.rails as f64 * self.nic.rate;
        let mut latency = self.nic.latency;
        let nics = Level { name: NICS, scope: Scope::Uplink, rate: of_host, latency, ..inside };
        levels.extend((self.hosts() > 1).then_some(nics));
        for tier in &self.tiers {
            latency += tier.latency;
            let Tier { name, crossings, uniform_crossings, .. } = *tier;
            let rate = tier.hosts as f64 * of_host / tier.oversubscription;
            let group = tier.hosts * self.per_host;
            let level = Level { name, scope: Scope::Uplink, group, rate, latency, crossings, uniform_crossings };
            levels.extend((group < self.ranks).then_some(level));
        }
        levels
    }
}

impl Level {
    /// The groups of this level, in units of `unit` ranks; the last one may be smaller.
    pub(super) fn groups(
        &self,
        units: usize,
        unit: usize,
    ) -> impl ExactSizeIterator<Item = Range<usize>> + DoubleEndedIterator + use<> {
        let length = self.group / unit;
        (0..units.div_ceil(length)).map(move |index| index * length..((index + 1) * length).min(units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_not_oversubscribed() {
        for kind in [Kind::FatTree, Kind::Rail, Kind::Dragonfly, Kind::Host] {
            for ranks in [2, 8, 64, 1024, 100_000] {
                let network = Network::preset(kind, ranks);
                network.validate().unwrap();
                let uplinks = network.levels().into_iter().filter(|level| level.scope == Scope::Uplink);
                for level in uplinks {
                    let needed = level.group as f64 / 8.0 * 400e9;
                    assert!(level.rate >= needed, "{kind:?} {level:?}");
                }
            }
        }
    }

    #[test]
    fn systems_have_their_published_numbers() {
        for (system, nics, port) in [(System::DgxA100, 8.0 * 200e9, 600e9), (System::DgxH100, 8.0 * 400e9, 900e9)] {
            let mut network = Network::preset(Kind::Rail, 1024);
            network.set_system(system);
            network.validate().unwrap();
            assert_eq!((network.per_host, network.rails), (8, 8));
            let levels = network.levels();
            assert!((levels[0].rate - port / 2.0).abs() < 1.0, "{levels:?}");
            assert!((levels[1].rate - nics / 8.0).abs() < 1.0, "{levels:?}");
        }
        let mut host = Network::preset(Kind::Host, 16);
        host.set_system(System::DgxA100);
        host.validate().unwrap();
    }

    #[test]
    fn networks_that_cannot_be_are_refused() {
        let valid = Network::preset(Kind::FatTree, 64);
        let refused = |network: Network, part: &str| {
            let error = network.validate().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(Network { ranks: 1, ..valid.clone() }, "--ranks");
        refused(Network { ranks: 65, ..valid.clone() }, "no multiple of --per-host 8");
        refused(Network { kind: Kind::Host, ..valid.clone() }, "one host");
        let mut tiers = valid;
        tiers.set_tiers(0, 1, &[]);
        refused(tiers, "--leaf-hosts");
        let mut dragonfly = Network::preset(Kind::Dragonfly, 100_000);
        dragonfly.set_tiers(1, 1, &[]);
        refused(dragonfly, "12500 groups");
    }
}
