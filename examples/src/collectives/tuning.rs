//! What a job chooses for its collectives: parameters, and the place of tensors.

use std::time::Duration;

use serde::Serialize;

use super::transport::Transport;
use crate::connect::Method;
use crate::device::CrossRail;

/// Parameters of the collectives.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Largest message of the ring, in bytes.
    pub chunk: usize,
    /// Ticks between the steps of a block: more ticks hide more latency and need more scratch
    /// memory.
    pub lead: usize,
    /// Up to this size (in bytes) every rank sends everything to every other: one step.
    pub one_step: usize,
    /// Up to this size (in bytes) every rank sums one segment for all: two steps. Larger tensors
    /// take the ring.
    pub two_steps: usize,
    /// Prepare for schedules, which needs connections between all ranks.
    pub schedules: bool,
    /// Watch memory for arrivals where the device says that writes land in order.
    pub watch_memory: bool,
    /// Announce arrivals by separate messages on every device, as iWARP needs it.
    pub by_messages: bool,
    /// Set if there are more ranks than cores.
    pub shared_cores: bool,
    /// Longest time that the other ranks may make no progress.
    pub stall: Duration,
    /// How the ranks connect by the device of [`Communicator::new`](super::Communicator::new).
    pub method: Method,
    /// Queue pairs by which two ranks are connected on each rail.
    pub queue_pairs: usize,
    /// Which rails of two hosts are connected to each other.
    pub cross_rail: CrossRail,
    /// How the ranks reach each other's memory.
    pub transport: Transport,
}

impl Default for Tuning {
    /// The parameters of the programs of the collectives without options.
    fn default() -> Self {
        Self {
            chunk: 128 << 10,
            lead: 1,
            one_step: 16 << 10,
            two_steps: usize::MAX,
            schedules: true,
            watch_memory: true,
            by_messages: false,
            shared_cores: false,
            stall: Duration::from_secs(30),
            method: Method::Endpoints,
            queue_pairs: 1,
            cross_rail: CrossRail::WhereNeeded,
            transport: Transport::Auto,
        }
    }
}

/// The memory that tensors are allocated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorPlace {
    /// Host memory.
    Host,
    /// GPUs. The device accesses their memory if it can; else messages are staged in host memory,
    /// with a warning.
    Gpu,
    /// GPUs. Messages are staged in host memory.
    GpuStaged,
}
