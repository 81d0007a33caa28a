//! Debian's perftest on the software device: two processes under `soft-rdma`, which measure
//! themselves.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::pair::Contender;
use crate::programs::{Killed, run};

/// Longest wait for the server to listen.
const START: Duration = Duration::from_secs(10);

/// A program of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the programs")]
pub enum Test {
    SendLatency,
    WriteLatency,
    WriteBandwidth,
    ReadBandwidth,
}

impl Test {
    /// The name of the program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SendLatency => "ib_send_lat",
            Self::WriteLatency => "ib_write_lat",
            Self::WriteBandwidth => "ib_write_bw",
            Self::ReadBandwidth => "ib_read_bw",
        }
    }

    fn is_latency(self) -> bool {
        matches!(self, Self::SendLatency | Self::WriteLatency)
    }
}

/// Messages of one size between two cores. A message's time is the typical one of a latency test
/// (half a round trip), and the inverse of a bandwidth test's rate.
#[derive(Debug)]
pub struct Perftest {
    launcher: PathBuf,
    cores: (usize, usize),
    test: Test,
    size: usize,
    /// Messages in a run.
    messages: u32,
}

impl Perftest {
    /// Measures messages of `size` bytes by a program that `launcher` runs on the software device.
    /// `None` if the program is not installed.
    #[must_use]
    pub fn new(launcher: PathBuf, cores: (usize, usize), test: Test, size: usize) -> Option<Self> {
        let found = Command::new(test.name()).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        // So many that they take a good part of a second: 10 KiB in a microsecond.
        let messages = (2_000_000_000 / size.max(10_000)).clamp(1000, 200_000);
        let messages = u32::try_from(messages).unwrap_or(1000);
        found.is_ok().then_some(Self { launcher, cores, test, size, messages })
    }

    /// The command of one side.
    fn end(&self, core: usize, port: u16) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).arg(&self.launcher).args([self.test.name(), "-F"]);
        let numbers = [("-p", u64::from(port)), ("-s", self.size as u64), ("-n", u64::from(self.messages))];
        for (flag, number) in numbers {
            command.args([flag, &number.to_string()]);
        }
        command
    }

    /// Runs both sides; returns what the client prints.
    fn run(&self) -> io::Result<String> {
        let (here, there) = self.cores;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let _server = Killed(self.end(there, port).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let deadline = Instant::now() + START;
        loop {
            // The client does not wait for the server to listen.
            std::thread::sleep(Duration::from_millis(200));
            match run(self.end(here, port).arg("localhost")) {
                Ok(output) => return Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => {}
            }
        }
    }
}

impl Contender for Perftest {
    fn name(&self) -> String {
        format!("{}, {}", self.test.name(), crate::table::bytes(self.size))
    }

    fn is_a_program(&self) -> bool {
        true
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let text = self.run()?;
        let malformed = || io::Error::other(format!("not the output of {}:\n{text}", self.test.name()));
        let number = result(&text, self.size).ok_or_else(malformed)?;
        let microseconds = if self.test.is_latency() { number } else { microseconds(self.size, number) };
        Ok(Duration::from_secs_f64(microseconds * 1e-6).saturating_mul(u32::try_from(iterations).unwrap_or(u32::MAX)))
    }
}

/// Microseconds of a message at a rate in MiB/s.
fn microseconds(size: usize, rate: f64) -> f64 {
    f64::from(u32::try_from(size).unwrap_or(u32::MAX)) / (rate * 1.048_576)
}

/// Parses the line of a size. Behind size and iterations a latency test prints the shortest, the
/// longest and the typical time in microseconds, a bandwidth test the peak and the average rate.
fn result(text: &str, size: usize) -> Option<f64> {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let fields = lines.rev().find(|fields| fields.first() == Some(&size.to_string().as_str()))?;
    let column = if fields.len() > 5 { 4 } else { 3 };
    fields.get(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_time_is_found() {
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 2       1000          0.19           66.15        0.20     \t       0.29        \t0.14   \t\t0.79    \t\t66.15  \n---\n";
        assert_eq!(result(text, 2), Some(0.20));
        assert_eq!(result(text, 4), None);
    }

    #[test]
    fn the_average_rate_is_found() {
        let text = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      5000             30000.1            20000.00                    0.32\n";
        assert_eq!(result(text, 65536), Some(20000.0));
        assert!((microseconds(65536, 20000.0) - 3.125).abs() < 1e-9);
    }
}
