//! Runs the programs as a user does. Every test starts processes, and changes nothing of its own.

mod common;

mod cm;
mod cm_programs;
mod collectives;
mod compat;
mod faults;
mod file_copy;
#[cfg(feature = "cuda")]
mod gpu_bw;
#[cfg(feature = "cuda")]
mod gpu_doctor;
#[cfg(feature = "cuda")]
mod gpu_memory;
mod help;
mod in_network;
mod interruptions;
mod kv;
mod launchers;
mod launchers_tcp;
mod metrics;
mod pairs;
mod pingpong;
mod plan;
mod programs;
mod rpc;
mod sandbox;
mod tcp;
mod terminal;
mod training;
mod tune;
