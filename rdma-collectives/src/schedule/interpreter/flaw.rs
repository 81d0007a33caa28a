//! Flaws of schedules that the interpreter finds.

/// Why schedules are wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Parameters that no schedule belongs to.
    #[error(transparent)]
    Job(#[from] crate::InvalidJob),
    /// Too few or too many schedules.
    #[error("{given} schedules for {ranks} ranks")]
    Schedules {
        /// Number of schedules.
        given: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// A step is wrong.
    #[error("rank {rank}, step {step}: {mistake}")]
    Step {
        /// The rank.
        rank: usize,
        /// The index of the step.
        step: usize,
        /// The mistake of the step.
        mistake: Mistake,
    },
    /// Some ranks wait for each other.
    #[error("rank {rank} waits at step {step} for ever")]
    Deadlock {
        /// The first such rank.
        rank: usize,
        /// The index of its step.
        step: usize,
    },
    /// A message was never received.
    #[error("rank {from} sent a message that rank {to} never received")]
    LeftOver {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// The output is not that of the collective.
    #[error("rank {rank}: element {element} of the output is {found}")]
    Output {
        /// The rank.
        rank: usize,
        /// The first wrong element.
        element: usize,
        /// Why it is wrong.
        found: &'static str,
    },
    /// A rank left the barrier before every rank had begun.
    #[error("rank {rank} left the barrier after hearing of {heard} ranks")]
    Barrier {
        /// The rank.
        rank: usize,
        /// Number of ranks of whose beginning it knew.
        heard: usize,
    },
}

/// Why a step is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// A range of elements ends beyond its memory.
    #[error("elements beyond the {length} of the memory")]
    Bounds {
        /// Elements of the memory.
        length: usize,
    },
    /// The peer is no other rank.
    #[error("rank {0} is no peer")]
    Peer(usize),
    /// The result would be written to the input.
    #[error("the input is written to")]
    WritesInput,
    /// There are no operands.
    #[error("no operands")]
    NoOperands,
    /// An operand has another length than the result.
    #[error("an operand of {operand} elements for a result of {result}")]
    Length {
        /// Elements of the operand.
        operand: usize,
        /// Elements of the result.
        result: usize,
    },
    /// The result overlaps an operand in part.
    #[error("the result overlaps an operand in part")]
    PartialOverlap,
    /// An element is read before it is written.
    #[error("element {0} of an operand was never written")]
    Unwritten(usize),
    /// Different elements of the inputs are reduced with each other.
    #[error("element {first} is reduced with element {second}")]
    Mixed {
        /// The first operand's element.
        first: usize,
        /// The other operand's element.
        second: usize,
    },
    /// An input is reduced twice.
    #[error("the input of rank {0} is reduced twice")]
    Twice(usize),
}
