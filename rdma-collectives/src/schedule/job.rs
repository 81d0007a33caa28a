//! The parameters of a collective, and the positions of its input and output.

use std::ops::Range;

use super::Collective;

/// The parameters of a collective at one rank, or at one aggregator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// This rank. The numbers from [`Self::ranks`] on are aggregators, which have neither input nor
    /// output.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of aggregators, which work for the ranks in [`Algorithm::InNetwork`] and are idle in
    /// all others.
    ///
    /// [`Algorithm::InNetwork`]: super::Algorithm::InNetwork
    pub aggregators: usize,
    /// Most aggregators just below an aggregator.
    pub radix: usize,
    /// NCCL's count: the elements of the whole operation for all-reduce, broadcast, reduce and
    /// sendrecv, and of one rank's block for the others.
    pub count: usize,
    /// The root, of collectives that have one.
    pub root: usize,
    /// Most elements of a message.
    pub chunk: usize,
    /// The host of each rank, or nothing if all ranks are on one host. Any numbers will do.
    pub hosts: Vec<usize>,
    /// The lengths of blocks that differ; nothing if all have [`Self::count`] elements. For
    /// all-gather, reduce-scatter, gather and scatter the length of each rank's block; for
    /// [`Collective::AllToAllV`] a matrix: rank `a` sends `counts[a * ranks + b]` elements to rank
    /// `b`.
    pub counts: Vec<usize>,
    /// Whether input and output lie in the same memory, as [`Layout`] tells.
    pub in_place: bool,
}

/// The elements of a rank's input and output.
///
/// Out of place only the lengths count. In place both are ranges of the same memory, with
/// nccl-tests' offsets: the input of an all-gather is the rank's block of the output, and the
/// output of a reduce-scatter is the rank's block of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The input.
    pub input: Range<usize>,
    /// The output.
    pub output: Range<usize>,
}

impl Layout {
    /// Elements of the memory of an operation in place.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.input.end.max(self.output.end)
    }
}

/// Parameters that are no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJob {
    /// There is no such rank.
    #[error("rank {rank} is not below the number of ranks, {ranks}")]
    Rank {
        /// The rank.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// There is no such root.
    #[error("root {root} is not below the number of ranks, {ranks}")]
    Root {
        /// The root.
        root: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// A tree that cannot grow.
    #[error("a tree whose aggregators have no others below them: the radix must be at least 1")]
    Radix,
    /// Messages without elements.
    #[error("messages of at most 0 elements carry nothing: the chunk must be at least 1")]
    Chunk,
    /// Hosts of some ranks only.
    #[error("hosts of {given} ranks for a job of {ranks}")]
    Hosts {
        /// Number of hosts given.
        given: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// More elements than memory can hold.
    #[error("the elements of {ranks} ranks are more than memory can hold")]
    Elements {
        /// Number of ranks and aggregators.
        ranks: usize,
    },
    /// Too few or too many counts.
    #[error("{given} counts for {ranks} ranks: {op} takes {}", allowed(*op))]
    Counts {
        /// The collective.
        op: Collective,
        /// Number of counts given.
        given: usize,
        /// Number of ranks.
        ranks: usize,
    },
}

/// The counts that a collective takes.
fn allowed(op: Collective) -> &'static str {
    match op {
        Collective::AllToAllV => "one for each pair of ranks",
        _ if op.has_blocks() => "none, or one for each rank",
        _ => "none",
    }
}

impl Job {
    /// A job out of place on one host, with root 0 and messages of any length.
    #[must_use]
    pub fn new(rank: usize, ranks: usize, count: usize) -> Self {
        let (hosts, counts) = (Vec::new(), Vec::new());
        let (aggregators, radix) = (0, usize::MAX);
        Self { rank, ranks, aggregators, radix, count, root: 0, chunk: usize::MAX, hosts, counts, in_place: false }
    }

    /// Number of ranks and aggregators.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.ranks.saturating_add(self.aggregators)
    }

    /// Whether this process is an aggregator.
    #[must_use]
    pub fn is_aggregator(&self) -> bool {
        self.rank >= self.ranks
    }

    /// The same job at another rank.
    #[must_use]
    pub fn at(&self, rank: usize) -> Self {
        Self { rank, ..self.clone() }
    }

    /// Checks the parameters that a collective uses.
    pub(crate) fn check(&self, op: Collective) -> Result<(), InvalidJob> {
        let ranks = self.ranks;
        if self.rank >= self.processes() || ranks == 0 {
            return Err(InvalidJob::Rank { rank: self.rank, ranks });
        }
        // Every position in the memory of a schedule is below this product, or this sum.
        let all = match op {
            _ if self.is_uneven() => self.counts.iter().try_fold(0, |all: usize, &count| all.checked_add(count)),
            _ => self.count.checked_mul(self.processes()),
        };
        if all.is_none_or(|all| isize::try_from(all).is_err()) {
            return Err(InvalidJob::Elements { ranks: self.processes() });
        }
        if op.has_root() && self.root >= ranks {
            return Err(InvalidJob::Root { root: self.root, ranks });
        }
        if self.radix == 0 {
            return Err(InvalidJob::Radix);
        }
        if self.chunk == 0 {
            return Err(InvalidJob::Chunk);
        }
        if !self.hosts.is_empty() && self.hosts.len() != ranks {
            return Err(InvalidJob::Hosts { given: self.hosts.len(), ranks });
        }
        let given = self.counts.len();
        let is_allowed = match op {
            Collective::AllToAllV => Some(given) == ranks.checked_mul(ranks),
            _ if op.has_blocks() => given == 0 || given == ranks,
            _ => given == 0,
        };
        if !is_allowed {
            return Err(InvalidJob::Counts { op, given, ranks });
        }
        Ok(())
    }

    /// Where the input and the output of a collective lie at this rank. A position beyond the
    /// address space becomes its end.
    #[must_use]
    pub fn layout(&self, op: Collective) -> Layout {
        if self.is_aggregator() {
            return Layout { input: 0..0, output: 0..0 };
        }
        let whole = 0..self.count;
        let blocks = 0..self.block(self.ranks).start;
        let own = self.block(self.rank);
        let at_root = |range: Range<usize>| if self.rank == self.root { range } else { 0..0 };
        let (input, output) = match op {
            Collective::AllReduce | Collective::SendRecv => (whole.clone(), whole),
            Collective::AllGather | Collective::HyperCube => (own, blocks),
            Collective::ReduceScatter => (blocks, own),
            Collective::AllToAll => (blocks.clone(), blocks),
            Collective::AllToAllV => (0..self.sent(op, self.ranks - 1).end, 0..self.received(op, self.ranks - 1).end),
            Collective::Broadcast => (at_root(whole.clone()), whole),
            Collective::Reduce => (whole.clone(), at_root(whole)),
            Collective::Gather if self.rank == self.root => (own, blocks),
            Collective::Gather => (own, 0..0),
            Collective::Scatter => (at_root(blocks), own),
            Collective::Barrier => (0..0, 0..0),
        };
        Layout { input, output }
    }

    /// Whether the blocks have lengths of their own.
    pub(crate) fn is_uneven(&self) -> bool {
        !self.counts.is_empty()
    }

    /// The elements of a rank's block among those of all ranks. That of the rank after the last one
    /// begins where all end.
    pub(crate) fn block(&self, rank: usize) -> Range<usize> {
        let (start, length) = match self.counts.get(..rank.min(self.counts.len())) {
            Some(before) if self.is_uneven() => {
                let start = before.iter().fold(0, |start: usize, &count| start.saturating_add(count));
                (start, self.counts.get(rank).copied().unwrap_or(0))
            }
            _ => (rank.saturating_mul(self.count), self.count),
        };
        start..start.saturating_add(length)
    }

    /// Elements of the longest block.
    pub(crate) fn longest_block(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(self.count)
    }

    /// The elements of this rank's input that go to a rank in an all-to-all.
    pub(super) fn sent(&self, op: Collective, to: usize) -> Range<usize> {
        self.sent_by(op, self.rank, to)
    }

    /// The elements of a rank's input that go to another rank in an all-to-all.
    pub(crate) fn sent_by(&self, op: Collective, from: usize, to: usize) -> Range<usize> {
        match op {
            Collective::AllToAllV => self.uneven(to, |to| from * self.ranks + to),
            _ => self.block(to),
        }
    }

    /// The elements of the output that come from a rank in an all-to-all.
    pub(crate) fn received(&self, op: Collective, from: usize) -> Range<usize> {
        match op {
            Collective::AllToAllV => self.uneven(from, |from| from * self.ranks + self.rank),
            _ => self.block(from),
        }
    }

    /// The block of a peer among blocks whose lengths lie in [`Self::counts`].
    fn uneven(&self, peer: usize, index: impl Fn(usize) -> usize) -> Range<usize> {
        let start = (0..peer).fold(0, |start: usize, peer| start.saturating_add(self.counts[index(peer)]));
        start..start.saturating_add(self.counts[index(peer)])
    }
}
