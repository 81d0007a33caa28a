//! The messages between sender and receiver. Files are worked on in the order in which they were
//! offered, so no message names one.

/// Bytes of a message of data before the data.
pub(super) const DATA_HEADER: usize = 1;
/// Kind of a message of data.
pub(super) const DATA: u8 = 4;

/// A message of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order<'a> {
    /// A directory.
    Directory(&'a [u8]),
    /// Offers a file: its permissions, length and path.
    File(u32, u64, &'a [u8]),
    /// The data of the oldest offered file begins at this offset.
    Start(u64),
    /// The next bytes of the file.
    Data(&'a [u8]),
    /// The end of the file, with its checksum.
    End(u64),
}

impl<'a> Order<'a> {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Directory(path) => [&[1], path].concat(),
            Self::File(mode, len, path) => [&[2][..], &mode.to_le_bytes(), &len.to_le_bytes(), path].concat(),
            Self::Start(offset) => [&[3][..], &offset.to_le_bytes()].concat(),
            Self::Data(bytes) => [&[DATA], bytes].concat(),
            Self::End(checksum) => [&[5][..], &checksum.to_le_bytes()].concat(),
        }
    }

    /// The order of a message; `None` if it is malformed.
    pub(super) fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            1 => Some(Self::Directory(rest)),
            2 => {
                let (&mode, rest) = rest.split_first_chunk()?;
                let (&len, path) = rest.split_first_chunk()?;
                Some(Self::File(u32::from_le_bytes(mode), u64::from_le_bytes(len), path))
            }
            3 => Some(Self::Start(number(rest)?)),
            DATA => Some(Self::Data(rest)),
            5 => Some(Self::End(number(rest)?)),
            _ => None,
        }
    }
}

/// A message of the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The receiver has this many bytes of the file, with this checksum.
    Have(u64, u64),
    /// The file is complete.
    Done,
    /// The copy has failed, for this reason.
    Failed(String),
}

impl Answer {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Have(len, checksum) => [&[1][..], &len.to_le_bytes(), &checksum.to_le_bytes()].concat(),
            Self::Done => vec![2],
            Self::Failed(reason) => [&[3], reason.as_bytes()].concat(),
        }
    }

    /// The answer of a message; `None` if it is malformed.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            1 => {
                let (&len, rest) = rest.split_first_chunk()?;
                Some(Self::Have(u64::from_le_bytes(len), number(rest)?))
            }
            2 if rest.is_empty() => Some(Self::Done),
            3 => Some(Self::Failed(String::from_utf8_lossy(rest).into_owned())),
            _ => None,
        }
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_correspond_to_their_bytes() {
        let orders =
            [Order::Directory(b"a/b"), Order::File(0o644, 7, b"f"), Order::Start(1), Order::Data(b"x"), Order::End(2)];
        for order in orders {
            assert_eq!(Order::from_bytes(&order.to_bytes()), Some(order));
        }
        for answer in [Answer::Have(1, 2), Answer::Done, Answer::Failed("no room".to_owned())] {
            assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        }
        for malformed in [&b""[..], b"\x02short", b"\x03short", b"\x05", b"\x09"] {
            assert_eq!(Order::from_bytes(malformed), None);
        }
        for malformed in [&b""[..], b"\x01short", b"\x02more", b"\x09"] {
            assert_eq!(Answer::from_bytes(malformed), None);
        }
    }
}
