//! Positions in lists of buffers.

use std::io::{IoSlice, IoSliceMut};

use nix::errno::Errno;

/// Bytes to send, and how many were sent.
#[derive(Debug)]
pub(crate) struct Source<'a, 'b> {
    rest: &'a [IoSlice<'b>],
    /// Bytes of the first buffer that were sent.
    offset: usize,
    left: usize,
}

impl<'a, 'b> Source<'a, 'b> {
    pub(crate) fn new(buffers: &'a [IoSlice<'b>]) -> Self {
        let left = buffers.iter().fold(0_usize, |sum, buffer| sum.saturating_add(buffer.len()));
        Self { rest: buffers, offset: 0, left }
    }

    /// How many bytes are left to send.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Passes the next `len` bytes on, piece by piece.
    pub(crate) fn take(&mut self, len: usize, mut put: impl FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut wanted = len.min(self.left);
        while let Some((first, rest)) = self.rest.split_first().filter(|_| wanted > 0) {
            let bytes = &first[self.offset..];
            let now = bytes.len().min(wanted);
            put(&bytes[..now])?;
            wanted -= now;
            self.left -= now;
            self.offset += now;
            if self.offset == first.len() {
                (self.rest, self.offset) = (rest, 0);
            }
        }
        Ok(())
    }
}

/// Space for received bytes, and how much of it is full.
#[derive(Debug)]
pub(crate) struct Sink<'a, 'b> {
    buffers: &'a mut [IoSliceMut<'b>],
    /// Buffers that are full.
    index: usize,
    /// Bytes in the buffer after them.
    offset: usize,
    left: usize,
}

impl<'a, 'b> Sink<'a, 'b> {
    pub(crate) fn new(buffers: &'a mut [IoSliceMut<'b>]) -> Self {
        let left = buffers.iter().fold(0_usize, |sum, buffer| sum.saturating_add(buffer.len()));
        Self { buffers, index: 0, offset: 0, left }
    }

    /// How many bytes still fit.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Fills the next `len` bytes, piece by piece.
    pub(crate) fn fill(
        &mut self,
        len: usize,
        mut get: impl FnMut(&mut [u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut wanted = len.min(self.left);
        while let Some(buffer) = self.buffers.get_mut(self.index).filter(|_| wanted > 0) {
            let bytes = &mut buffer[self.offset..];
            let now = bytes.len().min(wanted);
            get(&mut bytes[..now])?;
            wanted -= now;
            self.left -= now;
            self.offset += now;
            if self.offset == buffer.len() {
                (self.index, self.offset) = (self.index + 1, 0);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split_off<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
        let (first, rest) = bytes.split_at(len);
        *bytes = rest;
        first
    }

    proptest! {
        #[test]
        fn bytes_pass_in_order(lens in proptest::collection::vec(0..9_usize, 0..6), steps in proptest::collection::vec(0..9_usize, 0..20)) {
            let total = lens.iter().sum::<usize>();
            let bytes: Vec<u8> = (0..=255).cycle().take(total).collect();
            let mut rest = bytes.as_slice();
            let parts: Vec<&[u8]> = lens.iter().map(|len| split_off(&mut rest, *len)).collect();
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let mut rooms: Vec<Vec<u8>> = lens.iter().rev().map(|len| vec![0; *len]).collect();
            let mut room: Vec<IoSliceMut<'_>> = rooms.iter_mut().map(|room| IoSliceMut::new(room)).collect();
            let (mut source, mut sink) = (Source::new(&slices), Sink::new(&mut room));
            for step in steps.into_iter().chain([usize::MAX]) {
                let mut passed = Vec::new();
                source.take(step, |piece| { passed.extend_from_slice(piece); Ok(()) }).unwrap();
                let mut passed = passed.as_slice();
                sink.fill(passed.len(), |piece| {
                    piece.copy_from_slice(split_off(&mut passed, piece.len()));
                    Ok(())
                }).unwrap();
                prop_assert_eq!(source.left(), sink.left());
            }
            prop_assert_eq!(source.left(), 0);
            prop_assert_eq!(rooms.concat(), bytes);
        }
    }
}
