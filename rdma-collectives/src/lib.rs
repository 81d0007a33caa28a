//! Collective operations of AI training and HPC, over shared memory inside a host and over RDMA
//! between hosts: all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, gather,
//! scatter, barrier, and messages.
//!
//! The ranks of a job meet in a [`Group`](bootstrap::Group). A [`Communicator`] connects them; its
//! operations work on [`Tensor`]s, which all ranks allocate together, and on any memory of the
//! program. Ranks that share memory read each other's tensors where they lie; to the others,
//! messages are written, by hardware or over [TCP](tcp). With feature `cuda`, tensors can be in the
//! memory of GPUs. Without a NIC, everything runs on the software device `soft0` (feature `soft`,
//! on by default).
//!
//! ```
//! use std::time::Duration;
//!
//! use rdma_collectives::bootstrap::{Group, Roles, Terms};
//! use rdma_collectives::{Communicator, Error, Reduction, placement};
//!
//! /// What each rank does, be it a thread or a process on any host.
//! fn work(group: &mut Group) -> Result<f32, Error> {
//!     let mut comm = Communicator::open(group)?;
//!     let tensor = comm.allocate::<f32>(1000)?;
//!     tensor.write(0, &[comm.rank() as f32 + 1.0; 1000])?;
//!     comm.all_reduce_in_place(&tensor, Reduction::Sum)?;
//!     let mut sums = [0.0; 1000];
//!     tensor.read(0, &mut sums)?;
//!     Ok(sums[999])
//! }
//!
//! // No rank waits longer for another one to come, or to connect.
//! let terms = Terms::new("sums", &(), Roles::Ranks, Duration::from_secs(30));
//! // Two ranks, which are threads of this process.
//! assert_eq!(placement::run_threads(2, &terms, work)?, [3.0; 2]);
//! # Ok::<(), Error>(())
//! ```
//!
//! Processes that mpirun, Slurm or torchrun has started run the same function by
//! `placement::run(Place::of_environment(None)?, &terms, work)`. If `work` fails at a rank,
//! [`placement::run`] tells the others, whose operations end with an error that has the rank and
//! its reason.
//!
//! The [`guide`] has whole programs, what each algorithm does and costs, and the names of NCCL and
//! MPI beside those of this crate.
//!
//! * One rank from its start to its end: [`placement::run`]; all ranks as threads:
//!   [`placement::run_threads`]. Where ranks meet: [`bootstrap`]; what mpirun, Slurm and torchrun
//!   tell them: [`launchers`].
//! * Devices, cores and parameters: [`Communicator::builder`].
//! * Operations by name: the methods of [`Communicator`]; prepared once and done often:
//!   [`Communicator::prepare`] and [`Communicator::perform`]; started, and awaited: [`Queue`].
//! * Memory whose type of elements is known at run time: [`Communicator::untyped`].
//! * Messages between ranks: [`Communicator::send`], [`Communicator::recv_any`] and
//!   [`Communicator::exchange`]; in the background, with tags: [`Mailbox`].
//! * Algorithms as data, for those who study them: [`build`] and [`Schedule`].

// The transport is chosen for each pair of ranks. If any ranks share memory, a tensor is a segment
// that is also registered with every device in use: peers on this host read it, and a device sends
// from it.
//
// `perform.rs` chooses how an operation is done, by the table of `choose.rs`; the guide's page on
// algorithms tells the user the same.
//
// Files, from the bottom to the top:
//
//   named.rs, collective.rs, text.rs, cause.rs, error.rs
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
//                                   which algorithm; which ranks share memory; what a job
//                                   chooses; where tensors are
//   tcp.rs, ways.rs                 where ranks listen for other hosts; by which device a pair of
//                                   ranks is connected, or over TCP
//   shm/, fabric.rs, streams.rs     links in shared memory, and over verbs: connections, pieces in
//                                   slots, which credits return
//   gpu/                            tensors on GPUs; their replacement without feature `cuda`
//   tensor.rs, memory.rs            tensors; what an operation takes
//   link.rs, pair.rs, execute.rs    links of each pair of ranks; runs a schedule over links
//   direct.rs, ring.rs, pipeline.rs all-reduce over verbs without schedules
//   communicator.rs, open.rs        the ranks of a job, connected to each other; in one call
//   operation.rs, signature.rs, perform.rs, stats.rs
//                                   prepared operations; what ranks compare of them; where the way
//                                   to do one is chosen; counts
//   collectives.rs                  the operations by name, on any memory
//   messages.rs, messages/          messages between two ranks, one or several at a time
//   untyped.rs, untyped/            memory and operations of a type that is known at run time
//   queue.rs, queue/                started operations, in order, on a thread
//   mailbox.rs, mailbox/            messages in the background, in any order
//   guide/                          pages for users, whose programs are doctests

#![forbid(unsafe_code)]

mod adapter;
pub mod address;
mod blocks;
pub mod bootstrap;
mod cause;
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
pub mod guide;
pub mod launchers;
mod link;
mod mailbox;
mod memory;
mod messages;
mod named;
mod network;
#[cfg(test)]
mod numbers;
mod open;
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
mod signature;
mod stats;
mod streams;
pub mod tcp;
mod tensor;
#[cfg(test)]
mod testing;
pub mod text;
mod transport;
mod tuning;
mod untyped;
pub mod wait;
mod ways;

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use adapter::Adapter;
pub use cause::Cause;
pub use choose::{AlgorithmTable, Point, TableEntry, algorithm_name, choose};
pub use collective::Collective;
pub use communicator::Communicator;
pub use element::{DataType, Element, ElementVisitor, Reduction};
pub use error::{Error, ErrorKind, JobError, OPEN_FILES};
pub use execute::Traffic;
pub use fabric::Rail;
#[cfg(feature = "cuda")]
pub use gpu::gpu_at;
pub use mailbox::Mailbox;
pub use memory::{Source, Target};
pub use messages::Transfer;
pub use named::Named;
pub use open::CommunicatorBuilder;
pub use operation::{Executor, Operation, Request};
pub use pattern::Pattern;
pub use place::{RankGpu, TensorPlace};
pub use queue::{OperationError, OwnedSource, OwnedTarget, Pending, Queue, Started, StartedWith};
#[cfg(any(test, feature = "interpreter"))]
pub use schedule::interpreter;
pub use schedule::step::{self, Schedule};
pub use schedule::{Algorithm, InvalidJob, Job, Layout, Unsupported, build};
pub use stats::{OperationStats, Stats};
pub use tensor::{Part, Tensor};
pub use transport::{Transport, Transports};
pub use tuning::{CrossRail, Tuning};
pub use untyped::{Untyped, UntypedSource, UntypedTarget, UntypedTensor};
