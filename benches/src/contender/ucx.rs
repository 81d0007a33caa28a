//! UCX over shared memory between two processes, measured by its own benchmark: `ucx_perftest` of
//! Debian's ucx-utils.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::pair::Contender;
use crate::programs::Killed;

/// The kind of measurement of `ucx_perftest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Active messages that go back and forth, one at a time.
    Latency,
    /// A stream of active messages.
    Rate,
}

/// Active messages, counted in iterations of `messages` messages.
#[derive(Debug)]
pub struct Ucx {
    test: Test,
    cores: (usize, usize),
    size: usize,
    /// Messages per iteration.
    messages: u64,
}

/// Messages per run, so many that the start of two processes does not matter.
const RUN: u64 = 1_000_000;

impl Ucx {
    /// Measures messages of `size` bytes between two cores; `None` if `ucx_perftest` is not
    /// installed.
    #[must_use]
    pub fn new(test: Test, cores: (usize, usize), size: usize, messages: u64) -> Option<Self> {
        let found = Command::new("ucx_perftest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok().then_some(Self { test, cores, size, messages })
    }
}

/// Creates a command for `ucx_perftest` on a core.
fn perftest(core: usize, port: u16) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), "ucx_perftest", "-p", &port.to_string()]);
    command.env("UCX_TLS", "posix,self").env("UCX_WARN_UNUSED_ENV_VARS", "n").stderr(Stdio::null());
    command
}

impl Contender for Ucx {
    fn name(&self) -> String {
        "UCX active messages (posix)".into()
    }

    fn is_a_program(&self) -> bool {
        true
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let (here, there) = self.cores;
        let port = 13_000 + u16::try_from(std::process::id() % 1000).unwrap_or(0);
        let _server = Killed(perftest(there, port).stdout(Stdio::null()).spawn()?);
        // The client does not wait for the server to listen, so this pause lets it start.
        std::thread::sleep(Duration::from_millis(200));
        let (size, count) = (self.size.to_string(), RUN.to_string());
        let test = if self.test == Test::Latency { "ucp_am_lat" } else { "ucp_am_bw" };
        let client = perftest(here, port).args(["127.0.0.1", "-t", test, "-s", &size, "-n", &count]).output()?;
        let rate = rate(&String::from_utf8_lossy(&client.stdout));
        let rate = rate.ok_or_else(|| io::Error::other("ucx_perftest printed no message rate"))?;
        let messages = u32::try_from(iterations * self.messages).map_err(io::Error::other)?;
        Ok(Duration::from_secs_f64(f64::from(messages) / rate))
    }
}

/// Parses the overall message rate: the last number of the line that begins with `Final:`.
fn rate(text: &str) -> Option<f64> {
    text.lines().find(|line| line.starts_with("Final:"))?.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found() {
        let text = "x\nFinal:  500000  0.301  3.837  4.664  15.91  13.09  260634  214423\n";
        assert_eq!(rate(text), Some(214_423.0));
        assert_eq!(rate("nothing"), None);
    }
}
