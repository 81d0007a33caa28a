//! The memory of messages that arrive in several fragments.

use std::collections::VecDeque;

use super::{INBOX_LIMIT, memory_of};

/// A message takes memory of at most this many times the length that new memory has.
const SLACK: usize = 2;
/// Shortest memory in bytes, so that one vector serves messages of several lengths.
const MIN_LEN: usize = 256;

/// The fragments of an incomplete message, and memory for further ones.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    bytes: Vec<u8>,
    /// Vectors of messages that the application has dropped, in the order in which they came back.
    spares: VecDeque<Vec<u8>>,
    /// Memory of the spare vectors: at most [`INBOX_LIMIT`], unless there is one alone.
    spare_bytes: usize,
}

impl Assembly {
    /// Begins a message of `len` bytes, as the peer says: without a spare vector, this allocates at
    /// most as much as the receives of the window have.
    pub(super) fn begin(&mut self, len: usize, window: usize) {
        let new_len = |len: usize| len.checked_next_power_of_two().unwrap_or(len).max(MIN_LEN);
        let most = new_len(len).saturating_mul(SLACK);
        let at = self.spares.iter().rposition(|spare| (len..=most).contains(&spare.capacity()));
        let spare = at.and_then(|at| self.spares.remove(at));
        self.spare_bytes -= spare.as_ref().map_or(0, memory_of);
        self.bytes = spare.unwrap_or_else(|| Vec::with_capacity(new_len(len.min(window))));
    }

    /// Adds a fragment.
    pub(super) fn add(&mut self, fragment: &[u8]) {
        self.bytes.extend_from_slice(fragment);
    }

    /// Takes the message.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Keeps the memory of a message for another one.
    pub(super) fn keep(&mut self, mut message: Vec<u8>) {
        message.clear();
        self.spare_bytes += memory_of(&message);
        self.spares.push_back(message);
        while self.spare_bytes > INBOX_LIMIT && self.spares.len() > 1 {
            self.spare_bytes -= self.spares.pop_front().as_ref().map_or(0, memory_of);
        }
    }

    /// Frees all memory: no message is received any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(assembly: &mut Assembly, len: usize) -> Vec<u8> {
        assembly.begin(len, 1000);
        for _ in 0..len {
            assembly.add(&[1]);
        }
        assembly.finish()
    }

    #[test]
    fn a_message_takes_memory_that_fits_and_came_back_last() {
        let mut assembly = Assembly::default();
        let [first, second, long] = [500, 500, 3000].map(|len| message(&mut assembly, len));
        let (place, other) = (second.as_ptr(), long.as_ptr());
        for message in [long, first, second] {
            assembly.keep(message);
        }
        let [short, long] = [300, 2500].map(|len| message(&mut assembly, len));
        assert_eq!((short.as_ptr(), long.as_ptr()), (place, other));
        // A short one does not hold the memory of a long one.
        let long = message(&mut assembly, 3000);
        assembly.keep(long);
        assert!(message(&mut assembly, 100).capacity() < 3000);
    }

    #[test]
    fn what_a_peer_announces_allocates_no_more_than_the_window_has() {
        let mut assembly = Assembly::default();
        assembly.begin(1 << 30, 4000);
        assert!(assembly.bytes.capacity() <= 4096);
    }

    #[test]
    fn spare_memory_is_bounded_and_the_longest_message_is_kept() {
        let mut assembly = Assembly::default();
        let messages: Vec<_> = (0..40).map(|_| Vec::with_capacity(16 << 10)).collect();
        messages.into_iter().for_each(|message| assembly.keep(message));
        assert!(assembly.spare_bytes <= INBOX_LIMIT && assembly.spares.len() > 10);
        assembly.keep(Vec::with_capacity(1 << 20));
        assert_eq!(assembly.spares.len(), 1);
        let bytes = |assembly: &Assembly| assembly.spares.iter().map(memory_of).sum::<usize>();
        assert_eq!(assembly.spare_bytes, bytes(&assembly));
        drop(message(&mut assembly, 1 << 20));
        assert_eq!((assembly.spare_bytes, assembly.spares.len()), (0, 0));
    }
}
