//! Predicts the time of collectives on networks that are described by a few numbers.
//!
//! A collective of `N` bytes is a list of [`Phase`]s. In a phase every rank sends messages of the
//! same length along one [`Pattern`]; the pattern says how many of them leave any group of
//! consecutive ranks. A [`Network`] is a hierarchy of such groups (host, leaf switch, pod ...),
//! each with the rate of its links to the rest. The time of a phase is
//!
//! ```text
//! messages * overhead + latency of the longest path      (alpha)
//! + the largest of: bytes over a level / its rate        (beta)
//! + reduced bytes / rate of reduction                    (gamma)
//! ```
//!
//! Phases follow each other; pipelined phases cut their messages into the best number of chunks.
//! The model assumes that all ranks start together, that a group's traffic is spread evenly over
//! its links (as adaptive routing, and NCCL's channels over several NICs, do), that rank numbers
//! follow hosts, and that nothing else uses the network.
//!
//! Nothing here counts single messages between ranks: loads are closed forms per group, or counts
//! of the `2 n` edges of a tree, so that 100,000 ranks take milliseconds.

mod cost;
mod fit;
mod formula;
mod network;
mod pattern;
mod report;
mod svg;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trace_tests;
mod training;
mod tree;
pub mod units;
mod verdict;

pub use cost::{Prediction, Traffic};
pub use fit::{Fit, FitError, Row, read_rows};
pub use formula::{ALGORITHMS, OPERATIONS, Phase};
pub use network::{Kind, Level, Link, Network, Scope, System, Tier};
pub use pattern::Pattern;
pub use report::{Report, ReportRow};
pub use svg::draw;
pub use training::{Members, Training};
pub use verdict::{Fastest, LinkVerdict, Verdict};
