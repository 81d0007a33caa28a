//! Measures how fast connections are set up and ended, step by step, as rdmacm-utils' `cmtime`
//! does.
//!
//! Both sides are event loops over the connection manager's non-blocking calls, so that any number
//! of connections can be under way.

mod client;
mod pool;
mod server;
mod steps;

use std::time::Duration;

use rdma::cm::ConnOptions;

use crate::cli;
pub use client::run as client;
pub use server::Server;
pub use steps::{Round, Row, Step, print};

/// The port of rdmacm-utils' cmtime.
pub const PORT: u16 = 7471;
/// Options of a measurement.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = cli::WHAT)]
pub struct Settings {
    /// Connections of each round
    #[arg(short, long, value_name = "N", default_value = "100", value_parser = connections)]
    pub connections: usize,
    /// How often an address or a route is tried again
    #[arg(short, long, value_name = "N", default_value_t = 2)]
    pub retries: u32,
    /// Milliseconds that an address or a route may take
    #[arg(short = 't', long = "timeout", value_name = "MS", default_value = "2000", value_parser = milliseconds)]
    pub resolution: Duration,
    /// Seconds that the other side may be silent (a server waits for its client without end)
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = cli::seconds)]
    #[arg(help_heading = cli::JOB)]
    pub patience: Duration,
}

fn connections(text: &str) -> Result<usize, String> {
    cli::number_in(text, 1..=100_000)
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    cli::number_in(text, 1..=3_600_000).map(Duration::from_millis)
}

/// The private data of the client's requests: the number of connections of all its rounds, so that
/// the server knows when it is done. A client that sends no announcement (rdmacm-utils' cmtime) has
/// one round, as long as the server's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announcement {
    /// Number of connections of all the client's rounds.
    total: u32,
}

impl Announcement {
    /// The first bytes of an announcement.
    const MAGIC: [u8; 12] = *b"rdma-cm_time";
    /// Length of an announcement in bytes.
    const LEN: usize = 16;

    /// Encodes the announcement as private data.
    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..12].copy_from_slice(&Self::MAGIC);
        bytes[12..].copy_from_slice(&self.total.to_be_bytes());
        bytes
    }

    /// Decodes private data, which may be padded with zeros.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (total, _) = bytes.strip_prefix(&Self::MAGIC)?.split_first_chunk()?;
        Some(Self { total: u32::from_be_bytes(*total) })
    }
}

/// The parameters of every connection; no data is sent over it.
fn options() -> ConnOptions {
    ConnOptions::new().responder_resources(1).initiator_depth(1).retry_count(7).rnr_retry_count(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_recognised() {
        let announcement = Announcement { total: 0x0102_0304 };
        let mut bytes = announcement.to_bytes().to_vec();
        assert_eq!(bytes[12..], [1, 2, 3, 4]);
        bytes.resize(56, 0);
        assert_eq!(Announcement::from_bytes(&bytes), Some(announcement));
        for foreign in [&b""[..], &b"rdma-cm_time"[..], &b"rdma-cm_time\0\0\0"[..], &[0; 56]] {
            assert_eq!(Announcement::from_bytes(foreign), None);
        }
    }
}
