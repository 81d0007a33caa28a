//! The points at which collectives are compared.

/// A collective operation on `f32`; reductions are sums, and the root is rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the operations")]
pub enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Broadcast,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::AllToAll, Self::Broadcast];

    /// The name of the project's program, and of the operation in `collectives.c`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "alltoall",
            Self::Broadcast => "broadcast",
        }
    }

    /// The operation of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// The places that are compared. MPI has no broadcast out of place.
    #[must_use]
    pub fn places(self) -> &'static [Place] {
        match self {
            Self::AllReduce => &[Place::Out, Place::In],
            Self::Broadcast => &[Place::In],
            _ => &[Place::Out],
        }
    }
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
    /// The operation.
    pub operation: Operation,
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
        Point { operation: Operation::AllReduce, place: Place::Out, ranks: 2, size, iterations: 2, warmup: 1 }
    }

    #[test]
    fn operations_are_found_by_name() {
        for operation in Operation::ALL {
            assert_eq!(Operation::of_name(operation.name()), Some(operation));
        }
        assert_eq!(Operation::of_name("barrier"), None);
    }
}
