//! A progress line on standard error, shown only on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of a run of several steps. Shows nothing if standard error is not a terminal, and
/// disappears when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Begins a run of `steps` steps.
    #[must_use]
    pub fn new(steps: usize) -> Self {
        let style = ProgressStyle::with_template("{msg} [{pos}/{len}] {elapsed}");
        let bar = ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        Self(bar)
    }

    /// Shows the present step, after `done` finished ones.
    pub fn step(&self, what: &str, done: usize) {
        self.0.set_message(what.to_owned());
        self.0.set_position(done as u64);
    }

    /// Runs `print` with the progress line hidden.
    pub fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The progress of a run that handles bytes, with its speed and the time left. Shows nothing if
/// standard error is not a terminal, and disappears when dropped.
#[derive(Debug)]
pub struct Bytes(ProgressBar);

impl Bytes {
    /// Begins a run of `total` bytes.
    #[must_use]
    pub fn new(total: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
        Self(ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// Counts `count` further bytes.
    pub fn add(&self, count: u64) {
        self.0.inc(count);
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
