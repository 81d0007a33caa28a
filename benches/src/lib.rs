//! Shared parts of the benchmarks: pinning, waiting for a quiet machine, comparisons of two
//! processes, statistics, tables.
//!
//! Benchmarks print their measurements and compare them with the project's own bars. A missed bar
//! is no failure; a benchmark fails only if an operation does. `RESULTS.md` has the figures.

pub mod affinity;
pub mod allocations;
pub mod callgrind;
pub mod collectives;
pub mod composing;
pub mod contender;
pub mod counts;
pub mod device;
pub mod drivers;
pub mod hosts;
pub mod limit;
pub mod mode;
pub mod null;
pub mod pair;
pub mod point;
pub mod programs;
pub mod quiet;
pub mod raw_sequence;
pub mod services;
pub mod shared;
pub mod stats;
pub mod table;
pub mod ways;
