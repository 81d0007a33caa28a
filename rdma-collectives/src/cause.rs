//! Why an operation cannot go on, as data that travels between ranks.

use std::time::Duration;

use rdma::{WcError, WcStatus};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text::PeerText;

/// Why an operation cannot go on, as data: a program matches on it, and no text.
///
/// It is equal at all ranks of a job that has begun: those that another rank has told of its
/// failure have the cause that this rank had. [`Error::kind`](crate::Error::kind) says whose
/// failure it is, and [`Error::rank`](crate::Error::rank) names the rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Cause {
    /// A work request has failed. Where it was flushed, another failure is the reason.
    #[serde(serialize_with = "write_request", deserialize_with = "read_request")]
    Request(WcError),
    /// A call of the verbs has failed. At the rank that made it, the error's source is the
    /// [`rdma::Error`] or [`rdma::OpenError`].
    Verbs {
        /// The number of the error, if it was a system call's or a provider's.
        errno: Option<i32>,
    },
    /// A system call has failed. At the rank that made it, the error's source is the
    /// [`std::io::Error`] or [`rdma_mem::SharedMemoryError`].
    System {
        /// The number of the error, if the system gave one.
        errno: Option<i32>,
    },
    /// Memory is lacking, or a limit of it is reached.
    OutOfMemory,
    /// The caller gave what makes no sense, alone or beside what other ranks gave.
    InvalidInput,
    /// Two ranks of a communicator do different operations.
    Mismatch {
        /// The number of the operation in the communicator, from 1.
        number: u64,
        /// The two ranks of the communicator.
        ranks: [usize; 2],
        /// What each of them does. The texts are equal if the ranks have done different operations
        /// before this one, which are not known any more.
        #[serde(deserialize_with = "read_operations")]
        operations: [String; 2],
    },
    /// The process of a rank has ended, or has left the job before the others.
    Ended,
    /// A rank is silent: its process is stopped, or its host is gone.
    Silent,
    /// The other ranks made no progress for this time, which is
    /// [`Tuning::stall`](crate::Tuning::stall).
    Stalled {
        /// The time.
        limit: Duration,
    },
    /// An operation, or the wait for a rank, was longer than its limit.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// A thread of a rank has ended the job by an [`Aborter`](crate::bootstrap::Aborter).
    Aborted,
    /// A rank or a program at its address has sent what is not due: it may be of another build.
    Protocol,
    /// Another reason, which the text tells.
    Other,
}

fn write_request<S: Serializer>(error: &WcError, to: S) -> Result<S::Ok, S::Error> {
    (error.status.as_raw(), error.vendor_err).serialize(to)
}

fn read_request<'de, D: Deserializer<'de>>(from: D) -> Result<WcError, D::Error> {
    let (status, vendor_err) = Deserialize::deserialize(from)?;
    Ok(WcError::new(WcStatus::from_raw(status), vendor_err))
}

fn read_operations<'de, D: Deserializer<'de>>(from: D) -> Result<[String; 2], D::Error> {
    <[PeerText; 2]>::deserialize(from).map(|texts| texts.map(|text| text.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_equal_at_the_rank_that_is_told() {
        for cause in [
            Cause::Request(WcError::new(WcStatus::RETRY_EXC_ERR, 7)),
            Cause::Request(WcError::new(WcStatus::from_raw(u32::MAX), 0)),
            Cause::Verbs { errno: Some(12) },
            Cause::System { errno: None },
            Cause::OutOfMemory,
            Cause::InvalidInput,
            Cause::Mismatch { number: u64::MAX, ranks: [0, 3], operations: ["a barrier".into(), "a sum".into()] },
            Cause::Ended,
            Cause::Silent,
            Cause::Stalled { limit: Duration::MAX },
            Cause::TimedOut { limit: Duration::from_nanos(1) },
            Cause::Aborted,
            Cause::Protocol,
            Cause::Other,
        ] {
            let wire = serde_json::to_string(&cause).unwrap();
            assert_eq!(serde_json::from_str::<Cause>(&wire).unwrap(), cause, "{wire}");
        }
    }

    #[test]
    fn texts_of_another_rank_are_made_fit_for_a_line() {
        let wire = serde_json::json!({ "Mismatch": { "number": 1, "ranks": [0, 1], "operations": ["a\n", "\u{1b}"] } });
        let Cause::Mismatch { operations, .. } = serde_json::from_value(wire).unwrap() else { unreachable!() };
        assert_eq!(operations, ["a\\n", "\\u{1b}"]);
    }
}
