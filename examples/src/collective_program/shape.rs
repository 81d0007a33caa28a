//! Counts, bandwidth factors and expected results of each collective, as nccl-tests has them.

use std::ops::Range;

use rdma_collectives::{Collective, Job};

use crate::table::bus_factor;

/// Whether the count is that of one rank's block, of which there are as many as ranks.
fn has_blocks(collective: Collective) -> bool {
    use Collective::*;
    matches!(collective, AllGather | ReduceScatter | AllToAll | AllToAllV | Gather | Scatter | HyperCube)
}

/// The count, in NCCL's meaning, of a collective on `bytes`; at least 1, but 0 for a barrier.
pub(super) fn count(collective: Collective, bytes: usize, element: usize, ranks: usize) -> usize {
    let elements = bytes / element;
    match collective {
        Collective::Barrier => 0,
        _ if has_blocks(collective) => (elements / ranks).max(1),
        _ => elements,
    }
}

/// The bytes of a collective: the larger one of input and output, at the rank that has most.
pub(super) fn size(collective: Collective, count: usize, element: usize, ranks: usize) -> usize {
    count * element * if has_blocks(collective) { ranks } else { 1 }
}

/// The bytes whose rate is the algorithm's bandwidth, and the bus bandwidth's share of it.
pub(super) fn bandwidth(collective: Collective, size: usize, ranks: usize) -> (f64, f64) {
    let (bytes, n) = (size as f64, ranks as f64);
    // A hypercube counts the bytes that a rank receives.
    let bytes = if collective == Collective::HyperCube { bytes * (n - 1.0) / n } else { bytes };
    (bytes, bus_factor(collective, ranks))
}

/// The elements that each rank sends to each other in an uneven all-to-all: none, one block or two.
/// The mean is a block.
pub(super) fn uneven_counts(count: usize, ranks: usize) -> Vec<usize> {
    let blocks = |from: usize, to: usize| [1, 0, 2, 1][(from + 2 * to) % 4];
    (0..ranks).flat_map(|from| (0..ranks).map(move |to| count * blocks(from, to))).collect()
}

/// Elements of the output, and the ranks' inputs that they should be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// The elements of the output.
    pub(super) elements: Range<usize>,
    /// The rank whose input they equal; `None` if they are the reduction of all inputs.
    pub(super) from: Option<usize>,
    /// The first element of that input.
    pub(super) start: usize,
}

/// The output that a collective should have at the job's rank.
pub(super) fn expected(collective: Collective, job: &Job) -> Vec<Expected> {
    let Job { rank, ranks, count, root, .. } = *job;
    let length = job.layout(collective).output.len();
    let all = |from, start| vec![Expected { elements: 0..length, from, start }];
    let blocks = |start: &dyn Fn(usize) -> usize| {
        let block =
            |from| Expected { elements: from * count..(from + 1) * count, from: Some(from), start: start(from) };
        (0..length / count.max(1)).map(block).collect()
    };
    match collective {
        Collective::AllReduce | Collective::Reduce => all(None, 0),
        Collective::ReduceScatter => all(None, rank * count),
        Collective::AllGather | Collective::HyperCube | Collective::Gather => blocks(&|_| 0),
        Collective::AllToAll => blocks(&|_| rank * count),
        Collective::AllToAllV => uneven(job),
        Collective::Broadcast => all(Some(root), 0),
        Collective::Scatter => all(Some(root), rank * count),
        Collective::SendRecv => all(Some((rank + ranks - 1) % ranks), 0),
        Collective::Barrier => Vec::new(),
    }
}

/// The output of an all-to-all whose blocks have the lengths of the job's matrix.
fn uneven(job: &Job) -> Vec<Expected> {
    let sent = |from: usize| &job.counts[from * job.ranks..(from + 1) * job.ranks];
    let mut end = 0;
    let block = |from| {
        let start = end;
        end += sent(from)[job.rank];
        Expected { elements: start..end, from: Some(from), start: sent(from)[..job.rank].iter().sum() }
    };
    (0..job.ranks).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sizes_are_those_of_nccl_tests() {
        for (collective, elements, bytes) in [
            (Collective::AllReduce, 256, 1024),
            (Collective::SendRecv, 256, 1024),
            (Collective::AllGather, 85, 1020),
            (Collective::AllToAll, 85, 1020),
        ] {
            assert_eq!(count(collective, 1024, 4, 3), elements);
            assert_eq!(size(collective, elements, 4, 3), bytes);
        }
        assert_eq!(count(Collective::Gather, 8, 4, 3), 1);
    }

    #[test]
    fn factors_are_those_of_nccl_tests() {
        for (collective, bytes, factor) in [
            (Collective::AllReduce, 400.0, 1.5),
            (Collective::AllGather, 400.0, 0.75),
            (Collective::ReduceScatter, 400.0, 0.75),
            (Collective::Scatter, 400.0, 0.75),
            (Collective::HyperCube, 300.0, 1.0),
            (Collective::Broadcast, 400.0, 1.0),
            (Collective::SendRecv, 400.0, 1.0),
        ] {
            assert_eq!(bandwidth(collective, 400, 4), (bytes, factor), "{collective:?}");
        }
    }

    #[test]
    fn expected_blocks_cover_the_output_once() {
        for &collective in Collective::ALL {
            for ranks in 1..=5 {
                for rank in 0..ranks {
                    let mut job = Job::new(rank, ranks, 7);
                    if collective == Collective::AllToAllV {
                        job.counts = uneven_counts(7, ranks);
                    }
                    let covered: Vec<usize> =
                        expected(collective, &job).into_iter().flat_map(|expected| expected.elements).collect();
                    let output = job.layout(collective).output.len();
                    assert_eq!(covered, (0..output).collect::<Vec<_>>(), "{collective:?} rank {rank} of {ranks}");
                }
            }
        }
    }

    #[test]
    fn uneven_blocks_come_from_where_they_lie() {
        let mut job = Job::new(1, 2, 0);
        job.counts = vec![3, 5, 7, 11];
        let expected = expected(Collective::AllToAllV, &job);
        let parts: Vec<_> = expected.into_iter().map(|part| (part.elements, part.from, part.start)).collect();
        assert_eq!(parts, [(0..5, Some(0), 3), (5..16, Some(1), 7)]);
    }
}
