//! The points at which collectives are compared.

use rdma_collectives::Collective;

/// The collectives that are compared, on `f32`; reductions are sums, and the root is rank 0. Their
/// names are those of the project's programs, and of the operations in `collectives.c`.
pub const COMPARED: [Collective; 9] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::SendRecv,
];

/// The compared collective of a name.
#[must_use]
pub fn compared(name: &str) -> Option<Collective> {
    Collective::named(name).filter(|collective| COMPARED.contains(collective))
}

/// Whether the output lies in the memory of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the places")]
pub enum Place {
    Out,
    In,
}

impl Place {
    /// Both places.
    pub const ALL: [Self; 2] = [Self::Out, Self::In];

    /// The places at which a collective is compared. MPI has no broadcast out of place.
    #[must_use]
    pub fn of(collective: Collective) -> &'static [Self] {
        match collective {
            Collective::AllReduce => &[Self::Out, Self::In],
            Collective::Broadcast => &[Self::In],
            _ => &[Self::Out],
        }
    }

    /// The name in arguments.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

/// One point of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The collective, one of [`COMPARED`].
    pub operation: Collective,
    /// In place, or out of place.
    pub place: Place,
    /// Number of processes.
    pub ranks: usize,
    /// Bytes of the larger one of input and output.
    pub size: usize,
    /// Operations in the timed loop.
    pub iterations: usize,
    /// Operations before the timed loop.
    pub warmup: usize,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn point(size: usize) -> Point {
        Point { operation: Collective::AllReduce, place: Place::Out, ranks: 2, size, iterations: 2, warmup: 1 }
    }

    #[test]
    fn compared_collectives_are_found_by_name() {
        for collective in COMPARED {
            assert_eq!(compared(collective.name()), Some(collective));
        }
        assert_eq!(compared("barrier"), None);
    }
}
