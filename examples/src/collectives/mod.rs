//! Collectives over RDMA writes, and over shared memory inside a host.
//!
//! A [`Communicator`] connects the ranks of a job; its collectives work on [`Tensor`]s. Over RDMA
//! the other ranks write to a tensor's memory directly; in shared memory they read it.

mod blocks;
mod choose;
mod communicator;
mod direct;
mod element;
mod execute;
mod fabric;
mod link;
mod pattern;
mod ring;
mod schedule;
mod schedules;
mod shm;
mod step;
mod streams;
mod tensor;
pub(crate) mod wait;

pub use choose::{AlgorithmTable, Point, TableEntry, algorithm_name, choose};
pub use communicator::{Communicator, Transport, Tuning};
pub use element::{Element, Reduction};
pub use pattern::Pattern;
pub use schedules::{
    Algorithm, Collective, Flaw, InvalidJob, Job, Layout, Mistake, RankTrace, Trace, Unsupported, build, build_all,
    verify,
};
pub use step::{Place, Schedule, Source, Span, Step};
pub use tensor::{Part, Tensor};
