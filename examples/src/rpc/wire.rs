//! The messages between client and server. Answers come in any order, so each names its call.

use std::time::Duration;

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// The client's number of the call.
    pub(super) id: u32,
    /// Time that the client still waits.
    pub(super) time: Duration,
    pub(super) method: u8,
    pub(super) body: &'a [u8],
}

impl<'a> Request<'a> {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let time = u32::try_from(self.time.as_millis()).unwrap_or(u32::MAX);
        [&self.id.to_le_bytes()[..], &time.to_le_bytes(), &[self.method], self.body].concat()
    }

    /// The request of a message; `None` if it is malformed.
    pub(super) fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (&id, rest) = bytes.split_first_chunk()?;
        let (&time, rest) = rest.split_first_chunk()?;
        let (&method, body) = rest.split_first()?;
        let time = Duration::from_millis(u32::from_le_bytes(time).into());
        Some(Self { id: u32::from_le_bytes(id), time, method, body })
    }
}

/// The end of a call at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The result.
    Done(Vec<u8>),
    /// The reason why there is no result.
    Failed(String),
    /// The client's time was over.
    Late,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) id: u32,
    pub(super) outcome: Outcome,
}

impl Answer {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (kind, body): (u8, &[u8]) = match &self.outcome {
            Outcome::Done(result) => (0, result),
            Outcome::Failed(reason) => (1, reason.as_bytes()),
            Outcome::Late => (2, &[]),
        };
        [&self.id.to_le_bytes()[..], &[kind], body].concat()
    }

    /// The answer of a message; `None` if it is malformed.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&id, rest) = bytes.split_first_chunk()?;
        let (&kind, body) = rest.split_first()?;
        let outcome = match kind {
            0 => Outcome::Done(body.to_vec()),
            1 => Outcome::Failed(String::from_utf8_lossy(body).into_owned()),
            2 => Outcome::Late,
            _ => return None,
        };
        Some(Self { id: u32::from_le_bytes(id), outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_correspond_to_their_bytes() {
        let request = Request { id: 7, time: Duration::from_millis(1500), method: 2, body: b"body" };
        assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        for outcome in [Outcome::Done(vec![1, 2]), Outcome::Failed("no".to_owned()), Outcome::Late] {
            let answer = Answer { id: 8, outcome };
            assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        }
        assert_eq!(Request::from_bytes(&[0; 8]), None);
        assert_eq!(Answer::from_bytes(&[0; 4]), None);
        assert_eq!(Answer::from_bytes(&[9; 5]), None);
    }
}
