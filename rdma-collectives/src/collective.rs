//! The collective operations.

use crate::named::named;

named! {
    /// A collective operation. Counts and positions in place are those of nccl-tests.
    pub enum Collective {
        /// Every rank gets the reduction of all inputs.
        AllReduce = "all_reduce",
        /// Every rank gets the blocks of all ranks.
        AllGather = "all_gather",
        /// Every rank gets its block of the reduction of all inputs.
        ReduceScatter = "reduce_scatter",
        /// Every rank sends a block to every rank.
        AllToAll = "all_to_all" | "alltoall",
        /// Every rank sends a block to every rank; the lengths are those of a matrix.
        AllToAllV = "all_to_all_v" | "alltoallv",
        /// Every rank gets the input of the root.
        Broadcast = "broadcast",
        /// The root gets the reduction of all inputs.
        Reduce = "reduce",
        /// The root gets the blocks of all ranks.
        Gather = "gather",
        /// Every rank gets its block of the root's input.
        Scatter = "scatter",
        /// Every rank sends to its right neighbour and receives from its left neighbour.
        SendRecv = "sendrecv",
        /// All-gather by an exchange over each dimension of a hypercube.
        HyperCube = "hypercube",
        /// No rank ends before every rank has begun.
        Barrier = "barrier",
    }
}

impl Collective {
    /// Whether the collective has a root.
    #[must_use]
    pub fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Whether each rank has a block of the input or output, whose lengths may differ.
    pub(crate) fn has_blocks(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter)
    }

    /// Whether the collective reduces.
    #[must_use]
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
}
