//! Collective operations of a job: over shared memory inside a host, and over RDMA writes between
//! hosts.
//!
//! The ranks of a job meet in a [`Group`](bootstrap::Group). A [`Communicator`] connects them; its
//! collectives work on [`Tensor`]s. Ranks that share memory read each other's tensors where they
//! lie; to the others, messages are written. Messages of tensors on GPUs go from GPU memory to GPU
//! memory where the devices can access it, and are staged in host memory elsewhere.

// The transport is chosen for each pair of ranks. If any ranks share memory, a tensor is a segment
// that is also registered with every device in use: peers on this host read it, and a device sends
// from it.
//
// Without a table an all-reduce takes one step for small tensors, two direct steps up to 16 ranks,
// and the ring beyond: on one host every rank reaches every other, and the ring's dependent steps
// cost more.
//
// Files, from the bottom to the top:
//
//   named.rs, collective.rs, text.rs, error.rs
//                                   names of values; operations; text of other ranks; errors
//   bootstrap/                      the ranks of a job meet, and learn of each other's end
//   launchers.rs, placement.rs      what mpirun, Slurm and torchrun say; places and cores
//   wait.rs, process.rs             spins, yields, sleeps; tells a forked child
//   adapter.rs, address.rs, connect/
//                                   a device with its port; connects queue pairs of ranks
//   element.rs, blocks.rs, pattern.rs
//                                   elements and their reductions, scratch blocks, verifiable input
//   schedule/                       algorithms as data
//   choose.rs, transport.rs, tuning.rs, place.rs
//                                   which algorithm; which transport a pair of ranks has; what a
//                                   job chooses; where tensors are
//   shm/, fabric.rs, streams.rs     links in shared memory, and over verbs: connections, pieces in
//                                   slots, which credits return
//   gpu/                            tensors on GPUs; their replacement without feature `cuda`
//   tensor.rs, memory.rs            tensors; what an operation takes
//   link.rs, pair.rs, execute.rs    links of each pair of ranks; runs a schedule over links
//   direct.rs, ring.rs, pipeline.rs all-reduce over verbs without schedules
//   communicator.rs                 the ranks of a job, connected to each other
//   operation.rs, perform.rs, stats.rs
//                                   prepared operations; where the way to do one is chosen; counts
//   collectives.rs, messages.rs     the operations by name, and messages, on any memory
//   queue.rs                        started operations, in order, on a thread

#![forbid(unsafe_code)]

mod adapter;
pub mod address;
mod blocks;
pub mod bootstrap;
mod choose;
mod collective;
mod collectives;
mod communicator;
pub mod connect;
mod direct;
mod element;
mod error;
mod execute;
mod fabric;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "gpu/off.rs"]
mod gpu;
pub mod launchers;
mod link;
mod memory;
mod messages;
mod named;
#[cfg(test)]
mod numbers;
mod operation;
mod pair;
mod pattern;
mod perform;
mod pipeline;
mod place;
pub mod placement;
mod process;
mod queue;
mod ring;
mod schedule;
mod shm;
mod stats;
mod streams;
mod tensor;
#[cfg(test)]
mod testing;
pub mod text;
mod transport;
mod tuning;
pub mod wait;

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use adapter::{Adapter, PathSettings};
pub use choose::{AlgorithmTable, Point, TableEntry, algorithm_name, choose};
pub use collective::Collective;
pub use communicator::Communicator;
pub use element::{DataType, Element, ElementVisitor, Reduction};
pub use error::{Cause, Error, ErrorKind, OPEN_FILES};
pub use execute::Traffic;
pub use fabric::Rail;
#[cfg(feature = "cuda")]
pub use gpu::gpu_at;
pub use memory::{Source, Target};
pub use messages::Transfer;
pub use named::Named;
pub use operation::{Executor, Operation, Request};
pub use pattern::Pattern;
pub use place::{RankGpu, TensorPlace};
pub use queue::{Pending, Queue};
#[cfg(any(test, feature = "interpreter"))]
pub use schedule::interpreter;
pub use schedule::step::{self, Schedule};
pub use schedule::{Algorithm, InvalidJob, Job, Layout, Unsupported, build};
pub use stats::{OperationStats, Stats};
pub use tensor::{Part, Tensor};
pub use transport::{Transport, Transports};
pub use tuning::{CrossRail, Tuning};
