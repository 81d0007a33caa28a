//! The messages between sender and receiver. Files are worked on in the order in which they were
//! offered, so no message of a file's contents names one.
//!
//! The first message of a sender is the [greeting], and the first answer the receiver's
//! [`VERSION`]: both keep their form in all versions. A file's data goes in messages of its own:
//! the byte [`DATA`], with which no order begins, and the data.

use serde::{Deserialize, Serialize};

use crate::files::attributes::{Attributes, Unset};

/// The version of the messages. Version 1 had neither a greeting nor a version.
pub(super) const VERSION: u32 = 2;
/// Bytes of a message of data before the data.
pub(super) const DATA_HEADER: usize = 1;
/// The first byte of a message of data.
pub(super) const DATA: u8 = 0xff;

/// The greeting before the version: no order of any version begins so.
const GREETING: &[u8] = b"\xfefile_copy ";

/// The first message of a sender.
pub(super) fn greeting() -> Vec<u8> {
    [GREETING, &VERSION.to_le_bytes()].concat()
}

/// The version that a sender's first message names. Later versions may say more.
pub(super) fn version(message: &[u8]) -> Option<u32> {
    message.strip_prefix(GREETING)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// A message of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order<'a> {
    /// A directory, with its permissions.
    Directory(u32, #[serde(with = "serde_bytes")] &'a [u8]),
    /// Offers a file: its attributes, length and path.
    File(Attributes, u64, #[serde(with = "serde_bytes")] &'a [u8]),
    /// The data of the oldest offered file begins at this offset.
    Start(u64),
    /// The end of the file, with its checksum.
    End(u64),
    /// The contents of a directory are complete: it gets these attributes.
    Attributes(Attributes, #[serde(with = "serde_bytes")] &'a [u8]),
    /// The sender compares what the receiver has of the oldest offered file, which takes a while.
    Comparing,
    /// The end of the copy.
    Last,
    /// The file goes on with a hole of this many bytes.
    Hole(u64),
    /// A symbolic link: its attributes, path and target.
    Link(Attributes, #[serde(with = "serde_bytes")] &'a [u8], #[serde(with = "serde_bytes")] &'a [u8]),
    /// A path of another name, and the path of the file or link whose name it is, which has been
    /// sent.
    HardLink(#[serde(with = "serde_bytes")] &'a [u8], #[serde(with = "serde_bytes")] &'a [u8]),
}

/// A message of the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The receiver has this many bytes of the file, with this checksum.
    Have(u64, u64),
    /// The file is complete.
    Done,
    /// The copy has failed, for this reason.
    Failed(String),
    /// The receiver's version, after the greeting.
    Version(u32),
    /// The copy is complete, but for these attributes.
    Complete(Unset),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{decode, encode};

    #[test]
    fn the_form_of_greeting_and_version_does_not_change() {
        assert_eq!(greeting(), b"\xfefile_copy \x02\0\0\0");
        assert_eq!(version(&greeting()), Some(VERSION));
        assert_eq!(version(b"\xfefile_copy \x07\0\0\0and more"), Some(7));
        assert_eq!(version(b"\xfefile_copy \x07\0\0"), None);
        assert_eq!(encode(&Answer::Version(5)).unwrap(), [3, 5]);
        assert_eq!(encode(&Answer::Failed("why".to_owned())).unwrap(), b"\x02\x03why");
        assert_eq!(decode::<Order<'_>>(&greeting()), None);
    }
}
