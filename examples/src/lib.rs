//! Shared code of this package's programs: spawning local ranks, meeting over TCP, a small
//! collectives library over RDMA writes, and tables in the formats of perftest and nccl-tests.
//!
//! All code here is safe and uses the public API of [`rdma`]: if an RDMA program needed `unsafe`,
//! this package would not compile.

// Files. Larger folders have a map of their own in `mod.rs`.
//
//   bin/                            the programs, one file each; `all_reduce` and the other
//                                   collectives are one program
//   collective_program/, tune/, training/
//                                   options, measurement and report of the collectives; their
//                                   tuning; a training step
//   pingpong/, rping/, cm_time/, gpu_bw/, devinfo.rs, gpu_doctor.rs
//                                   parts of the programs of these names
//   plan/                           the model behind `plan`: networks, costs, the fit, the
//                                   drawing
//   collectives/                    collectives
//   kv/, rpc/, file_copy/           services on `rdma_net`
//   service.rs, message.rs, load.rs
//                                   their frame (a node, its driver and the tasks on one thread
//                                   of tokio); messages by `serde` and `postcard`; closed and
//                                   open loops, Zipf
//   exposed_table/, files/          a hash table that peers read; files, and a directory that a
//                                   peer's paths do not leave
//   connect/                        connects queue pairs, by an exchange of endpoints or by the
//                                   connection manager
//   device.rs, device/, address.rs  chooses a device: from a list (`list`), the nearest to a GPU
//                                   (`near`), several (`rails`); settings of the path (`path`)
//   bootstrap/, placement.rs, launcher.rs, environment.rs
//                                   how the ranks of a job start and meet
//   table.rs, output.rs, progress.rs, statistics.rs
//                                   what programs print and write
//   cli.rs, refused.rs, failure.rs, wait.rs, waiting.rs
//                                   arguments, options of other programs, exits, waits, and what is
//                                   said of them

#![forbid(unsafe_code)]

pub mod address;
pub mod cli;
pub mod cm_time;
pub mod collective_program;
pub mod connect;
pub mod device;
pub mod devinfo;
mod environment;
pub mod exposed_table;
pub mod failure;
pub mod file_copy;
mod files;
#[cfg(feature = "cuda")]
pub mod gpu_bw;
#[cfg(feature = "cuda")]
pub mod gpu_doctor;
pub mod kv;
mod launcher;
pub mod load;
pub mod message;
pub mod metrics;
pub mod output;
pub mod pingpong;
pub mod placement;
pub mod plan;
mod program;
pub mod progress;
mod refused;
pub mod rpc;
pub mod rping;
pub mod service;
mod statistics;
pub mod table;
pub mod training;
pub mod tune;
mod wait;
pub mod waiting;

pub use failure::Failure;
pub use program::run;
