//! The steps of which every algorithm consists.
//!
//! A schedule is the list of steps of one rank. Messages between two ranks arrive in the order of
//! their sends, so a step names the peer alone; both sides compute the length of a message from the
//! same parameters.
//!
//! 1. A send may end only when its receiver has taken the message: a schedule must not rely on
//!    buffering.
//! 2. A combination that overwrites elements waits until every earlier send of these elements was
//!    taken. A schedule in which two ranks wait for each other in this way is wrong.
//! 3. With input and output in the same memory, rule 2 holds for the memory, not for its name.
//!    [`Layout`](super::Layout) tells where both lie in it.
//! 4. A message may have no elements: it is sent and awaited like any other. Barriers consist of
//!    such messages; all other schedules leave empty messages out at both sides.

use std::ops::Range;

/// The memory that a step reads or writes at its own rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The rank's input. A step never writes to it by this name; in place, writing to the output
    /// changes it.
    Input,
    /// The rank's output.
    Output,
    /// Memory of the schedule's own, of [`Schedule::scratch`] elements.
    Scratch,
}

/// A range of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The memory.
    pub place: Place,
    /// The elements.
    pub elements: Range<usize>,
}

/// An operand of a combination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Elements of this rank, as many as the result has.
    Local(Span),
    /// The next message from a rank, of as many elements as the result.
    Message {
        /// The sending rank.
        from: usize,
    },
}

/// One step of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Offers elements to a rank, as its next message from this one. Does not wait.
    Send {
        /// The receiving rank.
        to: usize,
        /// The elements.
        span: Span,
    },
    /// Stores the reduction of the sources, from the first to the last. One source is a copy. The
    /// result may be one of the local sources, but must not overlap one in part.
    Combine {
        /// The operands, at least one.
        sources: Vec<Source>,
        /// The result.
        into: Span,
    },
}

/// The steps of one rank in one collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Elements of scratch memory that the rank needs.
    pub scratch: usize,
    /// The steps, in the order of execution.
    pub steps: Vec<Step>,
    /// Equal at all ranks whose schedules belong together, which [`run`] compares; 0 if the ranks
    /// need not run schedules together. [`build`](crate::build()) sets it, with the collective and
    /// the algorithm in the lowest 16 bits, which are 0 in an identity of the program's own.
    ///
    /// [`run`]: crate::Communicator::run
    pub identity: u64,
}

impl Schedule {
    /// Elements that the rank sends.
    #[must_use]
    pub fn sent(&self) -> usize {
        let sent = |step: &Step| match step {
            Step::Send { span, .. } => span.elements.len(),
            Step::Combine { .. } => 0,
        };
        self.steps.iter().map(sent).sum()
    }
}
