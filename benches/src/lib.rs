//! What the benchmarks share: pinning, quiet moments, two-process comparisons, statistics, tables.
//!
//! The benchmarks are benchmarks: they print what they measured, and how it stands against the bars that the project set
//! itself, and fail only when something does not work. `RESULTS.md` has the last full run.

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
