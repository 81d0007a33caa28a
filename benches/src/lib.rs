//! The parts that the benchmarks share: pinning, quiet moments, comparisons of two processes,
//! statistics, tables.
//!
//! Benchmarks print measurements, and how these stand against the project's own bars; they fail
//! only when something does not work. `RESULTS.md` has the last full run.

pub mod affinity;
pub mod allocations;
pub mod callgrind;
pub mod contender;
pub mod device;
pub mod mode;
pub mod mpi;
pub mod null;
pub mod pair;
pub mod quiet;
pub mod raw_sequence;
pub mod shared;
pub mod stats;
pub mod table;
