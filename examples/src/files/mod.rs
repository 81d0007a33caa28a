//! Files and directories: a listing of what is below paths, files to read that may change, a
//! directory that a peer's paths do not leave, holes, attributes and checksums.

pub(crate) mod attributes;
pub(crate) mod extents;
pub(crate) mod listing;
pub(crate) mod omitted;
pub(crate) mod source;
pub(crate) mod sum;
pub(crate) mod target;
pub(crate) mod tree;
