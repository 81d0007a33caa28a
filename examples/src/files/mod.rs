//! Files and directories: a listing of what is below paths, files to read that may change, a
//! directory that a peer's paths do not leave, and checksums.

pub(crate) mod listing;
pub(crate) mod source;
pub(crate) mod tree;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh64::Xxh64;

/// Bytes that are read at a time.
const PART: usize = 256 << 10;

/// The checksum of a file's first `len` bytes, which goes on with further ones.
pub(crate) fn checksum_of(file: &File, len: u64) -> io::Result<Xxh64> {
    let (mut sum, mut offset) = (Xxh64::new(0), 0);
    let mut part = vec![0; PART];
    while offset < len {
        let left = usize::try_from(len - offset).unwrap_or(usize::MAX);
        let part = &mut part[..left.min(PART)];
        file.read_exact_at(part, offset)?;
        sum.update(part);
        offset += part.len() as u64;
    }
    Ok(sum)
}
