//! The messages between client and server. Each request has one answer; answers come in the order
//! of the requests.

use rdma::RemoteSlice;

use super::block::MAX_KEY;

/// Bytes of a request before its key: kind, length of the key, expected sequence number.
const HEADER_LEN: usize = 11;
/// Stands for any sequence number.
const ANY: u64 = u64::MAX;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Asks where the table is.
    Open,
    /// Asks for the value of a key.
    Get(&'a [u8]),
    /// Sets a key to a value. With a sequence number, only if the key has that one; 0 for no key.
    Put(&'a [u8], &'a [u8], Option<u64>),
    /// Removes a key; with a sequence number, only if the key has that one.
    Delete(&'a [u8], Option<u64>),
}

impl<'a> Request<'a> {
    /// The request as bytes.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let (kind, key, value, expected): (u8, &[u8], &[u8], _) = match self {
            Self::Open => (0, &[], &[], None),
            Self::Get(key) => (1, key, &[], None),
            Self::Put(key, value, expected) => (2, key, value, expected),
            Self::Delete(key, expected) => (3, key, &[], expected),
        };
        let mut bytes = Vec::with_capacity(HEADER_LEN + key.len() + value.len());
        bytes.push(kind);
        // A key that is too long for its length is refused: the server takes shorter ones only.
        bytes.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(&expected.unwrap_or(ANY).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        bytes
    }

    /// The request of a message; `None` if it is malformed.
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let [kind, a, b, expected @ ..] = *header;
        let key_len = usize::from(u16::from_le_bytes([a, b]));
        let (key, value) = rest.split_at_checked(key_len).filter(|_| key_len <= MAX_KEY)?;
        let expected = Some(u64::from_le_bytes(expected)).filter(|&expected| expected != ANY);
        match kind {
            0 if rest.is_empty() => Some(Self::Open),
            1 if value.is_empty() => Some(Self::Get(key)),
            2 => Some(Self::Put(key, value, expected)),
            3 if value.is_empty() => Some(Self::Delete(key, expected)),
            _ => None,
        }
    }
}

/// An answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The memory of the table, and the number of its buckets.
    Table(RemoteSlice, u64),
    /// The value of a key, with its sequence number.
    Value(u64, &'a [u8]),
    /// The change was made, with this sequence number.
    Done(u64),
    /// The key does not exist.
    NoKey,
    /// The key has another sequence number: this one, or 0 if it does not exist.
    Conflict(u64),
    /// No room is left for the key.
    Full,
    /// The key or the value is too long.
    TooLong,
}

impl<'a> Answer<'a> {
    /// The answer as bytes.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let slice;
        let (kind, number, payload): (u8, u64, &[u8]) = match self {
            Self::Table(memory, buckets) => {
                slice = memory.to_bytes();
                (0, buckets, &slice)
            }
            Self::Value(sequence, value) => (1, sequence, value),
            Self::Done(sequence) => (2, sequence, &[]),
            Self::NoKey => (3, 0, &[]),
            Self::Conflict(sequence) => (4, sequence, &[]),
            Self::Full => (5, 0, &[]),
            Self::TooLong => (6, 0, &[]),
        };
        [&[kind], &number.to_le_bytes()[..], payload].concat()
    }

    /// The answer of a message; `None` if it is malformed.
    #[must_use]
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (&[kind, number @ ..], payload) = bytes.split_first_chunk::<9>()?;
        let number = u64::from_le_bytes(number);
        match kind {
            0 => Some(Self::Table(RemoteSlice::from_bytes(payload.try_into().ok()?), number)),
            1 => Some(Self::Value(number, payload)),
            2 => Some(Self::Done(number)),
            3 => Some(Self::NoKey),
            4 => Some(Self::Conflict(number)),
            5 => Some(Self::Full),
            6 => Some(Self::TooLong),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_correspond_to_their_bytes() {
        let requests = [
            Request::Open,
            Request::Get(b"k"),
            Request::Put(b"key", b"value", None),
            Request::Put(b"", b"", Some(0)),
            Request::Delete(b"key", Some(7)),
        ];
        for request in requests {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        }
        let answers = [
            Answer::Table(RemoteSlice::new(1, 2, 3), 4),
            Answer::Value(5, b"value"),
            Answer::Done(6),
            Answer::NoKey,
            Answer::Conflict(7),
            Answer::Full,
            Answer::TooLong,
        ];
        for answer in answers {
            assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        }
    }

    #[test]
    fn malformed_requests_are_none() {
        let get = Request::Get(b"key").to_bytes();
        for len in 0..get.len() {
            assert_eq!(Request::from_bytes(&get[..len]), None, "{len} bytes");
        }
        assert_eq!(Request::from_bytes(&[&get[..], b"more"].concat()), None);
        assert_eq!(Request::from_bytes(&[9; 64]), None);
        assert_eq!(Request::from_bytes(&Request::Get(&[0; MAX_KEY + 1]).to_bytes()), None);
        assert_eq!(Answer::from_bytes(&[0; 9]), None);
    }
}
