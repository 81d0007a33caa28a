//! The checksum of a file, which is the same with zeros and with holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh64::Xxh64;

use super::extents::{Extent, extent};

/// Bytes that are read at a time.
const PART: u64 = 256 << 10;
/// Bytes of a block. Blocks of zeros are left out of the checksum, so that a long hole costs
/// nothing.
const BLOCK: usize = 64 << 10;

/// Zeros in front of and behind the other bytes of a block.
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// The checksum of bytes from a file's start on: of the number and the bytes of each block that
/// has others than zeros, and of the length. It does not depend on how the bytes are divided.
#[derive(Clone)]
pub(crate) struct Sum {
    hash: Xxh64,
    len: u64,
    /// Whether the last block, which is not complete, has other bytes than zeros.
    is_hashed: bool,
}

impl Sum {
    pub(crate) fn new() -> Self {
        Self { hash: Xxh64::new(0), len: 0, is_hashed: false }
    }

    /// The checksum of a file's first `len` bytes.
    pub(crate) fn of(file: &File, len: u64) -> io::Result<Self> {
        let (mut sum, mut reading) = (Self::new(), Reading::default());
        while sum.len < len {
            sum.read(file, len, &mut reading)?;
        }
        Ok(sum)
    }

    /// Goes on with the next bytes of a file, which are part of its first `len`. Returns the number
    /// of bytes that it has read; a hole is not read.
    pub(crate) fn read(&mut self, file: &File, len: u64, reading: &mut Reading) -> io::Result<u64> {
        if self.len >= reading.data_end {
            match extent(file, self.len..len)? {
                Extent::Hole(hole) => {
                    self.skip(hole.end - hole.start);
                    return Ok(0);
                }
                Extent::Data(data) => reading.data_end = data.end,
            }
        }
        let count = PART.min(reading.data_end - self.len);
        reading.part.resize(usize::try_from(count).unwrap_or(0), 0);
        file.read_exact_at(&mut reading.part, self.len)?;
        self.update(&reading.part);
        Ok(count)
    }

    /// Goes on with bytes.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let before = self.in_block();
            let (part, rest) = bytes.split_at(bytes.len().min(BLOCK - before));
            if !self.is_hashed && part.iter().any(|&byte| byte != 0) {
                self.hash.update(&(self.len / BLOCK as u64).to_le_bytes());
                self.hash.update(&ZEROS[..before]);
                self.is_hashed = true;
            }
            if self.is_hashed {
                self.hash.update(part);
            }
            self.advance(part.len());
            bytes = rest;
        }
    }

    /// Goes on with zeros.
    pub(crate) fn skip(&mut self, count: u64) {
        let rest = usize::try_from(count).unwrap_or(BLOCK).min(BLOCK - self.in_block());
        if self.is_hashed {
            self.hash.update(&ZEROS[..rest]);
        }
        self.advance(rest);
        // In these blocks there is nothing else.
        self.len += count - rest as u64;
    }

    /// Goes on by bytes of one block.
    fn advance(&mut self, count: usize) {
        self.len += count as u64;
        self.is_hashed &= self.in_block() != 0;
    }

    /// Bytes of the last block, if it is not complete.
    fn in_block(&self) -> usize {
        usize::try_from(self.len % BLOCK as u64).unwrap_or(0)
    }

    /// Bytes up to here.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn digest(&self) -> u64 {
        let mut hash = self.hash.clone();
        hash.update(&self.len.to_le_bytes());
        hash.digest()
    }
}

/// The reading of a file.
#[derive(Default)]
pub(crate) struct Reading {
    part: Vec<u8>,
    /// Where the present extent of data ends: to look for it again before each part would take a
    /// time that grows with the square of a fragmented file's length.
    data_end: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(parts: &[(bool, Vec<u8>)]) -> u64 {
        let mut sum = Sum::new();
        for (is_hole, bytes) in parts {
            if *is_hole { sum.skip(bytes.len() as u64) } else { sum.update(bytes) }
        }
        sum.digest()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn zeros_are_as_holes_however_they_are_divided(
            parts in prop::collection::vec((any::<bool>(), 0..3 * BLOCK, any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let parts: Vec<_> =
                parts.iter().map(|&(is_hole, len, byte)| (is_hole, vec![if is_hole { 0 } else { byte }; len])).collect();
            let whole: Vec<u8> = parts.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            let (front, back) = whole.split_at(cut.index(whole.len() + 1));
            let expected = of(&parts);
            prop_assert_eq!(of(&[(false, front.to_vec()), (false, back.to_vec())]), expected);
            if let Some(at) = whole.len().checked_sub(1) {
                let mut other = whole.clone();
                other[at] ^= 1;
                prop_assert_ne!(of(&[(false, other)]), expected);
            }
            let longer = [&whole[..], &[0]].concat();
            prop_assert_ne!(of(&[(false, longer)]), expected);
        }
    }

    #[test]
    fn a_block_that_moves_changes_the_checksum() {
        let block = |at: u64| {
            let mut sum = Sum::new();
            sum.skip(at * BLOCK as u64);
            sum.update(b"x");
            sum.skip(10 * BLOCK as u64 - sum.len());
            sum.digest()
        };
        assert_ne!(block(1), block(2));
    }

    #[test]
    fn a_file_of_holes_is_not_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"x", 1 << 39).unwrap();
        let mut expected = Sum::new();
        expected.skip(1 << 39);
        expected.update(b"x");
        expected.skip((1 << 39) - 1);
        assert_eq!(Sum::of(&file, 1 << 40).unwrap().digest(), expected.digest());
    }
}
