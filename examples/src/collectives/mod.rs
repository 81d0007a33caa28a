//! Collectives over shared memory inside a host, and over RDMA writes between hosts.
//!
//! A [`Communicator`] connects the ranks of a job; its collectives work on [`Tensor`]s. Ranks that
//! share memory read each other's tensors where they lie; to the others, messages are written.
//! Messages of tensors on GPUs go from GPU memory to GPU memory where the devices can access it,
//! and are staged in host memory elsewhere.

// The transport is chosen for each pair of ranks. If any ranks share memory, a tensor is a segment
// that is also registered with every device in use: peers on this host read it, and a device sends
// from it.
//
// `all_reduce` has paths of its own besides schedules (`direct`, `ring`, `shm/all_reduce`), which
// write results to their place without a copy. Without a table it takes one step for small tensors,
// two direct steps up to 16 ranks, and the ring beyond: on one host every rank reaches every other,
// and the ring's dependent steps cost more.
//
// Files:
//
//   communicator.rs                 the ranks of a job, and the collectives that they do together
//   queue.rs                        started operations, in order, on a thread that owns the
//                                   communicator
//   schedules/, step.rs             algorithms as data
//   execute.rs                      runs a schedule over links
//   link.rs, pair.rs, transport.rs  links; those of each pair of ranks; which transport a pair
//                                   has
//   fabric.rs, streams.rs           links over verbs: connections; pieces in slots, which credits
//                                   return
//   shm/                            links and collectives in shared memory
//   gpu/, gpu_off.rs                tensors on GPUs; their replacement without feature `cuda`
//   direct.rs, ring.rs, schedule.rs
//                                   all-reduce without schedules; the order of a ring
//   choose.rs, tuning.rs            chooses the algorithm; what a job chooses
//   tensor.rs, blocks.rs, element.rs, pattern.rs
//                                   memory, scratch blocks, elements, verifiable input
//   wait.rs                         spins, yields, sleeps

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
