//! A line on standard error that says how far a long run is, where somebody is there to see it.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Shows nothing during the first second, and nothing at all where standard error is not a terminal.
#[derive(Debug)]
pub struct Progress {
    visible: bool,
    shown: bool,
    started: Instant,
    last: Instant,
}

impl Progress {
    /// Starts the clock.
    #[must_use]
    pub fn new() -> Self {
        let now = Instant::now();
        Self { visible: io::stderr().is_terminal(), shown: false, started: now, last: now }
    }

    /// Says what is being done, `done` steps of `total` being over.
    pub fn step(&mut self, what: &str, done: usize, total: usize) {
        let now = Instant::now();
        if !self.visible || now - self.started < Duration::from_secs(1) || now - self.last < Duration::from_millis(100)
        {
            return;
        }
        self.last = now;
        self.shown = true;
        let seconds = (now - self.started).as_secs();
        // A progress line that cannot be written is not worth a failure.
        drop(write!(io::stderr(), "\r\x1b[K{what} [{done}/{total}] {seconds} s"));
    }

    /// Removes the line, so that a row of the table can be printed.
    pub fn clear(&mut self) {
        if self.shown {
            self.shown = false;
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
