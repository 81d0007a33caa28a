//! Statistics of a communicator.

use crate::execute::Traffic;
use crate::operation::Executor;
use crate::schedule::{Algorithm, Collective};

/// What a communicator has done so far, at this rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The operations that have ended well, by what they did and how. One on slices counts once for
    /// each piece, a barrier as an all-reduce.
    pub operations: Vec<OperationStats>,
    /// Messages sent to, and received of, single ranks by [`exchange`], [`send`] and the like.
    ///
    /// [`exchange`]: crate::Communicator::exchange
    /// [`send`]: crate::Communicator::send
    pub messages: u64,
    /// Bytes of the messages of schedules, and of those between single ranks.
    pub traffic: Traffic,
    /// Bytes sent by each device, by the device's name and port (`mlx5_0:1`). Bytes that other
    /// ranks read in shared memory count nowhere.
    pub rails: Vec<(String, u64)>,
    /// How often a wait for another rank was so long that this rank slept.
    pub naps: u64,
}

/// The operations of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationStats {
    /// The collective.
    pub op: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The executor.
    pub executor: Executor,
    /// Number of operations.
    pub count: u64,
    /// The bytes of all together, of each the larger one of input and output, at the rank that has
    /// most.
    pub bytes: u64,
}

impl Stats {
    /// Counts an operation.
    pub(crate) fn count(&mut self, op: Collective, algorithm: Algorithm, executor: Executor, bytes: u64) {
        let is_it =
            |known: &&mut OperationStats| (known.op, known.algorithm, known.executor) == (op, algorithm, executor);
        match self.operations.iter_mut().find(is_it) {
            Some(known) => (known.count, known.bytes) = (known.count + 1, known.bytes.saturating_add(bytes)),
            None => self.operations.push(OperationStats { op, algorithm, executor, count: 1, bytes }),
        }
    }
}
