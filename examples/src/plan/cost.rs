//! The time of a collective, and the part that each level of the network has in it.

use std::ops::Range;

use serde::Serialize;

use rdma_collectives::{Algorithm, Collective};

use super::formula::{self, Phase};
use super::network::{Level, Network, Scope};
use super::pattern::Pattern;
use super::tree;

/// The shortest chunk of a pipelined phase, in bytes.
const SHORTEST_CHUNK: f64 = 4096.0;

/// The messages of an algorithm on each level of a network, counted once for all sizes.
#[derive(Clone, Debug)]
pub struct Traffic {
    levels: Vec<Level>,
    phases: Vec<PhaseTraffic>,
    overhead: f64,
    reduce_rate: f64,
}

/// The traffic of one phase.
#[derive(Clone, Debug)]
struct PhaseTraffic {
    phase: Phase,
    /// Messages that the busiest rank sends.
    messages: f64,
    /// Seconds on the path of a message, or of a chunk through all hops.
    latency: f64,
    /// Share of `N` that crosses the busiest group's links, for each level.
    loads: Vec<f64>,
}

/// A predicted time and its parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The predicted time.
    pub seconds: f64,
    /// The part that does not depend on the size: messages and latency.
    pub alpha: f64,
    /// The part of reductions.
    pub gamma: f64,
    /// The levels, from the inside outwards.
    pub levels: Vec<LevelLoad>,
}

/// A level's part of a prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelLoad {
    /// The level.
    #[serde(flatten)]
    pub level: Level,
    /// Bytes, each way, on the links of the busiest group.
    pub bytes: f64,
    /// Seconds for which these links are busy.
    pub busy: f64,
    /// Seconds of the predicted time for which this level is the slowest one.
    pub beta: f64,
}

impl Traffic {
    /// Counts the messages and bytes of an algorithm.
    ///
    /// # Errors
    /// If the operation has no formula, or the algorithm does not serve it on this network; the
    /// message says why.
    pub fn new(network: &Network, operation: Collective, algorithm: Algorithm) -> Result<Self, String> {
        let levels = network.levels();
        let phases = formula::phases(operation, algorithm, network)?;
        let phases = phases.into_iter().map(|phase| PhaseTraffic::new(network, &levels, phase)).collect();
        Ok(Self { levels, phases, overhead: network.overhead, reduce_rate: network.reduce_rate })
    }

    /// The phases, with the share of `N` on the busiest group's links of each level.
    pub fn loads(&self) -> impl Iterator<Item = (&Phase, &[f64])> {
        self.phases.iter().map(|traffic| (&traffic.phase, &traffic.loads[..]))
    }

    /// The number of messages on the longest path, if no phase is pipelined.
    #[must_use]
    pub fn messages(&self) -> f64 {
        self.phases.iter().map(|traffic| (traffic.phase.repeat * traffic.phase.hops) as f64 * traffic.messages).sum()
    }

    /// The share of `N` that the busiest rank reduces.
    #[must_use]
    pub fn reduced(&self) -> f64 {
        self.phases.iter().map(|traffic| traffic.phase.repeat as f64 * traffic.phase.reduced).sum()
    }

    /// Predicts the time of `size` bytes.
    #[must_use]
    pub fn predict(&self, size: f64) -> Prediction {
        let idle = |&level: &Level| LevelLoad { level, bytes: 0.0, busy: 0.0, beta: 0.0 };
        let levels = self.levels.iter().map(idle).collect();
        let mut sum = Prediction { seconds: 0.0, alpha: 0.0, gamma: 0.0, levels };
        for traffic in &self.phases {
            self.add(&mut sum, traffic, size);
        }
        sum.seconds = sum.alpha + sum.gamma + sum.levels.iter().map(|load| load.beta).sum::<f64>();
        sum
    }

    /// Adds the time of a phase.
    fn add(&self, sum: &mut Prediction, traffic: &PhaseTraffic, size: f64) {
        let repeat = traffic.phase.repeat as f64;
        let mut slowest = (0, 0.0);
        for (index, (load, share)) in sum.levels.iter_mut().zip(&traffic.loads).enumerate() {
            let bytes = repeat * share * size;
            let busy = bytes * traffic.crossings(&load.level) / load.level.rate;
            load.bytes += bytes;
            load.busy += busy;
            if busy > slowest.1 {
                slowest = (index, busy);
            }
        }
        let reduce = repeat * traffic.phase.reduced * size / self.reduce_rate;
        let overhead = traffic.messages * self.overhead;
        let (chunks, fill) = pipeline(traffic.phase.hops, slowest.1 + reduce, overhead, size);
        let first = traffic.phase.hops as f64 * overhead + traffic.latency;
        sum.alpha += repeat * first + (chunks - 1.0) * overhead;
        sum.gamma += reduce * fill;
        if let Some(load) = sum.levels.get_mut(slowest.0) {
            load.beta += slowest.1 * fill;
        }
    }
}

impl PhaseTraffic {
    fn new(network: &Network, levels: &[Level], phase: Phase) -> Self {
        let units = network.ranks / phase.unit;
        let loads: Vec<f64> = levels.iter().map(|level| busiest(&phase, units, level) as f64 * phase.bytes).collect();
        let latency = latency(network, levels, &phase, &loads);
        Self { messages: phase.pattern.messages(units) as f64, latency, phase, loads }
    }

    /// The number of links of a level that a message crosses.
    fn crossings(&self, level: &Level) -> f64 {
        if self.phase.pattern == Pattern::AllPairs { level.uniform_crossings } else { level.crossings }
    }
}

impl Prediction {
    /// The links, or other cause, with the largest part in the time.
    #[must_use]
    pub fn limit(&self) -> &'static str {
        let others = [("latency", self.alpha), ("reduction", self.gamma)];
        let levels = self.levels.iter().map(|load| (load.level.name, load.beta));
        let (name, _) = levels.chain(others).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
        name
    }
}

/// The number of chunks that is best for a message that takes `transfer` seconds on each of `hops`
/// links, one after the other, with `overhead` seconds per chunk; and the factor by which filling
/// the pipeline lengthens the transfer.
///
/// With `k` chunks the time is `(k - 1) overhead + transfer (1 + (hops - 1) / k)`, least for `k^2 =
/// (hops - 1) transfer / overhead`. The number is not rounded, so that more bytes never take less
/// time.
fn pipeline(hops: usize, transfer: f64, overhead: f64, size: f64) -> (f64, f64) {
    let later = hops.saturating_sub(1) as f64;
    let most = (size / SHORTEST_CHUNK).max(1.0);
    let best = if overhead > 0.0 { (later * transfer / overhead).sqrt() } else { most };
    let chunks = if later > 0.0 { best.clamp(1.0, most) } else { 1.0 };
    (chunks, 1.0 + later / chunks)
}

/// The number of messages on the busiest group's links of a level.
fn busiest(phase: &Phase, units: usize, level: &Level) -> usize {
    let pattern = phase.pattern;
    if phase.unit > 1 && level.scope != Scope::Uplink {
        // Units are hosts: every message leaves its host.
        return 0;
    }
    let count = |group: Range<usize>| match level.scope {
        Scope::Port => pattern.port(units, group),
        Scope::Memory => pattern.inside(units, group),
        Scope::Uplink => pattern.crossing(units, group) * phase.unit,
    };
    let mut groups = level.groups(units, phase.unit);
    if pattern.is_uniform() {
        // The last group may be smaller.
        let ends = [groups.next(), groups.next_back()];
        return ends.into_iter().flatten().map(count).max().unwrap_or(0);
    }
    groups.map(count).max().unwrap_or(0)
}

/// The latency of a phase's longest path, through all hops of a pipelined phase.
fn latency(network: &Network, levels: &[Level], phase: &Phase, loads: &[f64]) -> f64 {
    match phase.pattern {
        // A message travels through every edge of the ring in turn: the mean counts.
        Pattern::Shift(_) => phase.hops as f64 * mean_latency(network, levels, phase),
        Pattern::DoubleTree => tree::path(network.ranks, |a, b| between(levels, a, b)),
        Pattern::DoubleTreeBoth => 2.0 * tree::path(network.ranks, |a, b| between(levels, a, b)),
        // The outermost level in use has the longest path.
        _ => levels.iter().zip(loads).rev().find(|(_, load)| **load > 0.0).map_or(0.0, |(level, _)| level.latency),
    }
}

/// The mean latency of a shift's messages.
fn mean_latency(network: &Network, levels: &[Level], phase: &Phase) -> f64 {
    let units = network.ranks / phase.unit;
    let mut mean = 0.0;
    // The share of messages that cross the next outer level.
    let mut outer = 0.0;
    for level in levels.iter().rev() {
        let share = match level.scope {
            Scope::Uplink => share_crossing(phase, units, level),
            Scope::Port | Scope::Memory => 1.0,
        };
        mean += (share - outer) * level.latency;
        outer = share;
    }
    mean
}

/// The share of a uniform pattern's messages that leave their group.
fn share_crossing(phase: &Phase, units: usize, level: &Level) -> f64 {
    let mut groups = level.groups(units, phase.unit);
    let crossing = |group: Option<Range<usize>>| group.map_or(0, |group| phase.pattern.crossing(units, group));
    let last = crossing(groups.next_back());
    let others = groups.len();
    (others * crossing(groups.next()) + last) as f64 / units as f64
}

/// The latency between two ranks.
fn between(levels: &[Level], a: usize, b: usize) -> f64 {
    let apart = |level: &&Level| level.scope != Scope::Uplink || a / level.group != b / level.group;
    levels.iter().rev().find(apart).map_or(0.0, |level| level.latency)
}
