//! A message by two copies through shared memory, without any library: the sender copies it into
//! the next of a few slots, and the receiver out of it. Both sides spin.

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::pair::{Channel, Contender, Role};
use crate::shared::SharedPages;

/// Number of slots.
const SLOTS: usize = 4;
/// The pages before the slots: two words in lines of their own, and space up to the next page.
const HEAD: usize = 4096;

/// Messages of one size in one direction.
///
/// Invariant **C1**: a slot belongs to the receiver from the moment at which the word `sent` counts
/// it until the word `taken` does, and to the sender otherwise.
#[derive(Debug)]
pub struct CopyTwice {
    pages: SharedPages,
    private: Vec<u8>,
    count: u64,
}

impl CopyTwice {
    /// Connects the two sides of a stream of messages of `size` bytes.
    ///
    /// # Errors
    ///
    /// When the pages cannot be shared.
    pub fn connect(role: Role, channel: &mut Channel, size: usize) -> io::Result<Self> {
        let pages = SharedPages::connect(role, channel, HEAD + SLOTS * size)?;
        Ok(Self { pages, private: vec![0x5a; size], count: 0 })
    }

    /// The first byte of the slot of a message.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of SLOTS")]
    fn slot(&self, message: u64) -> *mut u8 {
        let slot = (message % SLOTS as u64) as usize;
        self.pages.as_ptr().wrapping_add(HEAD + slot * self.private.len())
    }

    /// Waits until a word has reached a value.
    fn wait(&self, line: usize, value: u64) {
        while self.pages.word(line).load(Ordering::Acquire) < value {
            spin_loop();
        }
    }
}

/// The lines of the words: messages sent, messages taken.
const SENT: usize = 0;
const TAKEN: usize = 2;

impl Contender for CopyTwice {
    fn name(&self) -> String {
        format!("two copies, {}", crate::table::bytes(self.private.len()))
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..iterations {
            self.wait(TAKEN, (self.count + 1).saturating_sub(SLOTS as u64));
            let (slot, len) = (self.slot(self.count), self.private.len());
            // SAFETY: memcpy requires `len` readable and `len` writable bytes without overlap, and
            // no other access to the latter: `private` has `len`, the slot lies within the pages
            // (`connect` made space for `SLOTS`), and the slot is this side's (C1, just awaited).
            unsafe { libc::memcpy(slot.cast(), self.private.as_ptr().cast(), len) };
            self.count += 1;
            self.pages.word(SENT).store(self.count, Ordering::Release);
        }
        self.wait(TAKEN, self.count);
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        for _ in 0..iterations {
            self.wait(SENT, self.count + 1);
            let (slot, len) = (self.slot(self.count), self.private.len());
            // SAFETY: memcpy requires `len` readable and `len` writable bytes without overlap, and
            // no writes to the former: the slot lies within the pages and is this side's (C1, just
            // awaited), and `private` has `len` bytes.
            unsafe { libc::memcpy(self.private.as_mut_ptr().cast(), slot.cast(), len) };
            self.count += 1;
            self.pages.word(TAKEN).store(self.count, Ordering::Release);
        }
        Ok(())
    }
}
