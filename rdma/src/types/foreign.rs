//! What is wrong with a C object that a program hands over.

use std::fmt;

/// The reason why a C object cannot become an object of this crate: [`Ownership`](crate::Ownership)
/// says what a `from_raw` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForeignObject {
    /// The pointer is NULL.
    Null,
    /// The object was made on another open device.
    OtherContext,
    /// The object was made in another protection domain.
    OtherDomain,
    /// The queue pair has other completion queues than those given.
    OtherCompletionQueue,
    /// The queue pair has another shared receive queue than the one given, or one of the two is
    /// missing.
    OtherSharedReceives,
    /// The completion queue has another channel than the one given.
    OtherChannel,
    /// The queue pair is of another transport: its `ibv_qp_type`.
    OtherTransport(u32),
    /// The queue pair is not in the state RESET.
    NotReset,
    /// The queue has fewer entries than asked for: this number.
    TooFewEntries(u32),
    /// The owner's memory does not lie in the memory region.
    OtherMemory,
}

impl fmt::Display for ForeignObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::Null => "the pointer is NULL",
            Self::OtherContext => "the object belongs to another context",
            Self::OtherDomain => "the object belongs to another protection domain",
            Self::OtherCompletionQueue => "the queue pair has other completion queues than those given",
            Self::OtherSharedReceives => "the queue pair's shared receive queue is not the one given",
            Self::OtherChannel => "the completion queue has another channel than the one given",
            Self::OtherTransport(found) => {
                return write!(f, "the queue pair is of another transport: ibv_qp_type {found}");
            }
            Self::NotReset => "the queue pair is not in the state RESET",
            Self::TooFewEntries(found) => return write!(f, "the queue has {found} entries, fewer than asked for"),
            Self::OtherMemory => "the owner's memory does not lie in the memory region",
        })
    }
}
