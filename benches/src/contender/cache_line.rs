//! A cache line that moves from one core to the other and back: the lower limit for the latency of
//! a message between cores.

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::pair::{Channel, Contender, Role};
use crate::shared::SharedPages;

/// A number that the two cores increment in turn.
#[derive(Debug)]
pub struct CacheLine {
    pages: SharedPages,
    next: u64,
}

impl CacheLine {
    /// Connects the two sides.
    ///
    /// # Errors
    ///
    /// When the page cannot be shared.
    pub fn connect(role: Role, channel: &mut Channel) -> io::Result<Self> {
        Ok(Self { pages: SharedPages::connect(role, channel, 4096)?, next: 0 })
    }
}

impl Contender for CacheLine {
    fn name(&self) -> String {
        "cache line".into()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let word = self.pages.word(0);
        let start = Instant::now();
        for _ in 0..iterations {
            word.store(self.next + 1, Ordering::Release);
            while word.load(Ordering::Acquire) != self.next + 2 {
                spin_loop();
            }
            self.next += 2;
        }
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        let word = self.pages.word(0);
        for _ in 0..iterations {
            while word.load(Ordering::Acquire) != self.next + 1 {
                spin_loop();
            }
            word.store(self.next + 2, Ordering::Release);
            self.next += 2;
        }
        Ok(())
    }
}
