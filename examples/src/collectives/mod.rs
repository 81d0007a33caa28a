//! Collectives over shared memory inside a host, and over RDMA writes between hosts.
//!
//! A [`Communicator`] connects the ranks of a job; its collectives work on [`Tensor`]s. Ranks that
//! share memory read each other's tensors where they lie; to the others, messages are written.
//! Messages of tensors on GPUs go from GPU memory to GPU memory where the devices can access it,
//! and are staged in host memory elsewhere.

mod blocks;
mod choose;
mod communicator;
mod direct;
mod element;
mod execute;
mod fabric;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "gpu_off.rs"]
mod gpu;
mod link;
mod pair;
mod pattern;
mod queue;
mod ring;
mod schedule;
mod schedules;
mod shm;
mod step;
mod streams;
mod tensor;
mod transport;
mod tuning;
pub(crate) mod wait;

pub use choose::{AlgorithmTable, Point, TableEntry, algorithm_name, choose};
pub use communicator::{Communicator, RankGpu};
pub use element::{Element, Reduction};
pub use execute::Traffic;
pub use fabric::Rail;
pub(crate) use gpu::near_gpu;
pub use pattern::Pattern;
pub use queue::{Pending, Queue};
#[cfg(test)]
pub(crate) use schedules::tests::{RankTrace, Trace, build_all, verify};
pub use schedules::{Algorithm, Collective, InvalidJob, Job, Layout, Unsupported, build};
pub use step::{Place, Schedule, Source, Span, Step};
pub use tensor::{Part, Tensor};
pub use transport::{Transport, Transports};
pub use tuning::{TensorPlace, Tuning};
