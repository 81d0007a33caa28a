//! What a job chooses for its collectives: parameters, and the place of tensors.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::connect::Method;
use crate::transport::Transport;

/// Parameters of the collectives. All ranks give the same, except for `shared_cores`, `stall` and
/// `method`.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Largest message of the ring, in bytes, rounded up to whole pages of 4096 bytes; 128 KiB by
    /// default.
    pub chunk: usize,
    /// Ticks between the steps of a block: more ticks hide more latency and need more scratch
    /// memory.
    pub lead: usize,
    /// Up to this size (in bytes) every rank sends everything to every other: one step. 16 KiB by
    /// default.
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
    /// Set if there are more ranks than cores, or if waits should leave their core early.
    pub shared_cores: bool,
    /// Longest time that the other ranks may make no progress; 30 s by default. It ends the waits
    /// of services too, whose ranks may be idle: give them a longer one. The guide has a
    /// [table](crate::guide::programs#times) of all times.
    ///
    /// A stopped rank is given up, and named to all, after a third of the group's timeout
    /// ([`Terms::new`](crate::bootstrap::Terms::new)). With a shorter `stall`, the error names a
    /// rank that was waited for, which may itself have waited for the stopped one.
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

/// Which rails of two hosts are connected to each other; the numbers are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CrossRail {
    /// Rails of the same number only.
    Never,
    /// Each host begins at another rail.
    Always,
    /// Rails of the same number where both hosts have them.
    WhereNeeded,
}

impl CrossRail {
    /// The rail of each connection of a rank with `own` rails: ranks have from `least` to `most`
    /// of them, and `host` is the number of the rank's host.
    #[must_use]
    pub fn connections(self, own: usize, least: usize, most: usize, host: usize) -> Vec<usize> {
        let (count, first) = match self {
            Self::Never => (least, 0),
            Self::Always => (most, host),
            Self::WhereNeeded => (most, 0),
        };
        (0..count).map(|connection| (first + connection) % own.max(1)).collect()
    }
}

impl fmt::Display for CrossRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self as u8).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::CrossRail;

    #[test]
    fn rails_of_the_same_number_are_connected() {
        use CrossRail::{Always, Never, WhereNeeded};
        // A rank with two rails, and one with three.
        for (cross, two, three) in
            [(Never, &[0, 1][..], &[0, 1][..]), (WhereNeeded, &[0, 1, 0], &[0, 1, 2]), (Always, &[1, 0, 1], &[1, 2, 0])]
        {
            assert_eq!(cross.connections(2, 2, 3, 1), two);
            assert_eq!(cross.connections(3, 2, 3, 1), three);
        }
    }
}
