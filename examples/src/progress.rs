//! A progress line on standard error, shown only on a terminal.

use std::sync::Once;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress of a run of several steps. Shows nothing before the first step, or if standard
/// error is not a terminal, and disappears when dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// The first step.
    first: Once,
}

impl Progress {
    /// Begins a run of `steps` steps; a run without steps shows nothing. Of the ranks of a job,
    /// which share a terminal, only one may show its steps.
    #[must_use]
    pub fn new(steps: usize) -> Self {
        let style = ProgressStyle::with_template("{msg} [{pos}/{len}] {elapsed}");
        let target = if steps == 0 { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        Self { bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())), first: Once::new() }
    }

    /// Shows the present step, after `done` finished ones.
    pub fn step(&self, what: &str, done: usize) {
        self.bar.set_message(what.to_owned());
        self.bar.set_position(done as u64);
        // Not before: the line would stand among what the program prints first.
        self.first.call_once(|| {
            if !self.bar.is_hidden() {
                self.bar.enable_steady_tick(Duration::from_secs(1));
            }
        });
    }

    /// Runs `print` with the progress line hidden.
    pub fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
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
