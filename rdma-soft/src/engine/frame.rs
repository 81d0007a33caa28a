//! What two engines say to each other: fixed headers of six words, and a payload.

/// Words of a header.
pub const HEADER_WORDS: usize = 6;

/// A frame's header as it lies in a ring: opaque to the driver, which copies it to private memory once and hands it over.
/// Whatever its bits, the engine copes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header(pub [u64; HEADER_WORDS]);
