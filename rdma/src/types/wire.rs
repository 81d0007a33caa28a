//! What the wire formats of addresses share: a first byte with kind and version, a fixed length,
//! and an error that says what is wrong.

use std::fmt;

/// The kind of an [`Endpoint`](crate::Endpoint).
pub(crate) const CONNECTION: u8 = 0;
/// The kind of a [`RemoteSlice`](crate::RemoteSlice).
pub(crate) const MEMORY: u8 = 0x40;
/// The kind of a [`DatagramEndpoint`](crate::DatagramEndpoint).
pub(crate) const DATAGRAMS: u8 = 0x80;
/// The bits of the first byte that say the kind; the others say the version.
const KIND: u8 = 0xc0;

/// The reason why bytes are not what they were taken for: an [`Endpoint`](crate::Endpoint), a
/// [`DatagramEndpoint`](crate::DatagramEndpoint) or a [`RemoteSlice`](crate::RemoteSlice).
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes have another length than the format.
    Length {
        /// The length of the format.
        expected: usize,
        /// The number of bytes.
        len: usize,
    },
    /// The bytes have another version of the format, or are something else.
    Version {
        /// The first byte.
        theirs: u8,
        /// The expected first byte.
        ours: u8,
    },
    /// The named field has an impossible value.
    Field(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |first| match first & KIND {
            CONNECTION => "an endpoint of a connection",
            DATAGRAMS => "an endpoint for datagrams",
            MEMORY => "a slice of remote memory",
            _ => "of a kind that is not known here",
        };
        match *self {
            Self::Length { expected, len } => write!(f, "the peer's bytes are {len}, where the format has {expected}"),
            Self::Version { theirs, ours } if (theirs ^ ours) & KIND != 0 => {
                write!(f, "the peer's bytes are {}, not {}", name(theirs), name(ours))
            }
            Self::Version { theirs, ours } => write!(
                f,
                "the peer's format has version {}, ours is {}: use the same version on both sides",
                theirs & !KIND,
                ours & !KIND
            ),
            Self::Field(field) => write!(f, "the peer's bytes have an impossible {field}"),
        }
    }
}

debug_is_display!(WireError);

impl std::error::Error for WireError {}

/// The bytes of a format of `N` bytes, whose first byte is `ours`.
pub(crate) fn whole<const N: usize>(bytes: &[u8], ours: u8) -> Result<&[u8; N], WireError> {
    let Some(&theirs) = bytes.first() else { return Err(WireError::Length { expected: N, len: 0 }) };
    let is_whole = bytes.len() == N;
    match bytes.try_into() {
        _ if (theirs ^ ours) & KIND != 0 || is_whole && theirs != ours => Err(WireError::Version { theirs, ours }),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(WireError::Length { expected: N, len: bytes.len() }),
    }
}
