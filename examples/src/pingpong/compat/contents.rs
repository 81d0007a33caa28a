//! Contents of the messages.
//!
//! `ibv_rc_pingpong` fills its buffer with one byte, and receives into the buffer from which it
//! sends: its server returns every message, and its client repeats the answer to its first message.
//! With `-c` its client zeroes the first byte of each page, and its server checks those bytes at
//! the end. A client may therefore send any contents with zeros in those places, and must get them
//! back. A server receives the C program's first message or the numbered messages of this program's
//! client.
//!
//! All queue pairs of `ibv_srq_pingpong` share one buffer of zeros: its answer to a message may be
//! another queue pair's message, or a mixture of both. So all messages to it have equal contents.

use crate::pingpong::contents::fill;

/// The byte that fills the buffers of the C programs with one queue pair.
const FILLING: u8 = 0x7b;
/// The byte that fills the buffer of `ibv_srq_pingpong`.
const SHARED_FILLING: u8 = 0;

/// The contents of messages of one size.
#[derive(Debug)]
pub(super) struct Contents {
    page: usize,
    /// Whether all messages have the contents of message 0.
    is_shared: bool,
    expected: Vec<u8>,
    plain: Vec<u8>,
}

impl Contents {
    /// The contents of messages to `ibv_srq_pingpong` if `is_shared`, else to a program with one
    /// queue pair.
    pub(super) fn new(size: usize, is_shared: bool) -> Self {
        Self::with_pages(size, rdma_mem::page_size(), is_shared)
    }

    fn with_pages(size: usize, page: usize, is_shared: bool) -> Self {
        let mut plain = vec![if is_shared { SHARED_FILLING } else { FILLING }; size];
        mark(&mut plain, page);
        Self { page, is_shared, expected: vec![0; size], plain }
    }

    /// The first message of the C program with `-c`.
    pub(super) fn plain(&self) -> &[u8] {
        &self.plain
    }

    /// Fills `bytes` with message `number`, which differs from all other messages as far as the
    /// size allows.
    pub(super) fn fill(&self, bytes: &mut [u8], number: u64) {
        fill(bytes, self.variant(number));
        mark(bytes, self.page);
    }

    /// Whether these bytes are the answer to this client's message `number`.
    pub(super) fn is_answer(&mut self, bytes: &[u8], number: u64) -> bool {
        let variant = self.variant(number);
        fill(&mut self.expected, variant);
        mark(&mut self.expected, self.page);
        bytes == self.expected
    }

    /// The number of the contents of message `number`.
    fn variant(&self, number: u64) -> u64 {
        if self.is_shared { 0 } else { number }
    }

    /// Whether these bytes are a client's message `number`: from the C program with `-c`, or from
    /// this program.
    pub(super) fn is_message(&mut self, bytes: &[u8], number: u64) -> bool {
        bytes == self.plain || self.is_answer(bytes, number)
    }
}

/// Zeroes the first byte of each page.
fn mark(bytes: &mut [u8], page: usize) {
    bytes.iter_mut().step_by(page).for_each(|byte| *byte = 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_contents_are_recognized() {
        for size in [1, 63, 4096, 4097, 10_000] {
            let mut contents = Contents::with_pages(size, 4096, false);
            // The C program's message with `-c`.
            let mut theirs = vec![0x7b; size];
            theirs.chunks_mut(4096).for_each(|page| page[0] = 0);
            assert!(contents.is_message(&theirs, 0) && contents.is_message(&theirs, 9));
            let mut ours = vec![0; size];
            for number in [0, 1, 200] {
                contents.fill(&mut ours, number);
                assert!(ours.chunks(4096).all(|page| page[0] == 0));
                assert!(contents.is_message(&ours, number) && contents.is_answer(&ours, number));
                // A message of one byte has only the byte that must be zero.
                assert_eq!(contents.is_answer(&ours, number + 1), size == 1);
                let last = size - 1;
                ours[last] ^= 1;
                assert!(!contents.is_message(&ours, number));
            }
        }
    }

    #[test]
    fn messages_of_queue_pairs_that_share_a_buffer_are_the_same() {
        let mut contents = Contents::with_pages(100, 4096, true);
        assert!(contents.is_message(&[0; 100], 3) && !contents.is_answer(&[0; 100], 3));
        let mut ours = vec![0; 100];
        contents.fill(&mut ours, 7);
        assert!(contents.is_message(&ours, 0) && contents.is_answer(&ours, 9));
        assert!(!contents.is_message(&[0x7b; 100], 0));
    }

    #[test]
    fn a_client_without_its_check_is_noticed() {
        let mut contents = Contents::with_pages(100, 4096, false);
        assert!(!contents.is_message(&[0x7b; 100], 0));
        assert!(!contents.is_message(&[0; 100], 0));
    }
}
