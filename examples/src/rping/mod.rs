//! The ping of rdmacm-utils' `rping`: a client and a server that the connection manager connects.
//!
//! One ping has four messages. The client sends the address of its text; the server reads the text
//! and sends "go ahead". The client sends the address of its answer buffer; the server writes the
//! text there and sends "go ahead". Each message has 16 bytes: an [`Advert`] from the client,
//! undefined contents from the server. There is no private data; the client ends the run by
//! disconnecting.

mod client;
mod server;
mod session;
mod wire;

use std::io::{self, Write};
use std::time::Duration;

use rdma::Context;
use rdma::cm::ConnOptions;
use serde_json::Value;

use crate::cli::{self, Size};
use crate::failure::say;
pub use client::run as client;
pub use server::{serve_all, serve_one};
pub use wire::Advert;
use wire::{ping_text, until_nul};

/// The port of rdmacm-utils' rping.
pub const PORT: u16 = 7174;
/// The smallest text: rdmacm-utils' own limit, which leaves space for the ping's number.
pub const SMALLEST: Size = Size(26);
/// The largest text.
pub const LARGEST: usize = 64 << 10;

/// How to ping.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = cli::WHAT)]
pub struct Settings {
    /// Bytes of each ping: 26 to 64K
    #[arg(short = 'S', long, value_name = "SIZE", default_value = "64", value_parser = size)]
    #[arg(help_heading = cli::SIZES)]
    pub size: usize,
    /// Pings (default: 100 if both sides are started here, else without end; 0: without end). A
    /// server takes it for compatibility with rdmacm-utils' rping, and like that one leaves the
    /// number to its client
    #[arg(short = 'C', long, value_name = "N")]
    pub count: Option<u64>,
    /// Check what comes back
    #[arg(short = 'V', long)]
    pub validate: bool,
    /// Print each ping's text
    #[arg(short, long, conflicts_with = "json")]
    #[arg(help_heading = cli::OUTPUT)]
    pub verbose: bool,
    /// Print one JSON object; a persistent server: one line for each client that ended well
    #[arg(short = 'J', long)]
    #[arg(help_heading = cli::OUTPUT)]
    pub json: bool,
    /// Say on standard error what is being done
    #[arg(short, long)]
    #[arg(help_heading = cli::OUTPUT)]
    pub debug: bool,
    /// Seconds that the other side may be silent (default: 30; a server waits for its first client
    /// without end)
    #[arg(long, value_name = "SECONDS", value_parser = cli::seconds)]
    #[arg(help_heading = cli::JOB)]
    pub timeout: Option<Duration>,
}

fn size(text: &str) -> Result<usize, String> {
    let size: Size = text.parse()?;
    let range = || format!("give {SMALLEST} to {}", Size(LARGEST));
    if (SMALLEST..=Size(LARGEST)).contains(&size) { Ok(size.0) } else { Err(range()) }
}

impl Settings {
    /// The longest time that the other side may be silent.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(30))
    }

    /// Prints the present step on standard error with `--debug`.
    fn step(&self, text: std::fmt::Arguments<'_>) {
        if self.debug {
            say(&format!("rping: {text}"));
        }
    }

    /// With `--verbose`, prints a text up to its NUL.
    fn show(&self, what: &str, text: &[u8]) -> io::Result<()> {
        if !self.verbose {
            return Ok(());
        }
        // Replaces bytes that are not printable: the text comes from the peer and may go to a
        // terminal.
        let printable = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' };
        let text: String = until_nul(text).iter().map(printable).collect();
        let mut out = io::stdout().lock();
        writeln!(out, "{what}: {text}")?;
        out.flush()
    }

    /// With `--json`, prints the result of a connection. `extra` is a JSON object.
    fn report(&self, context: &Context, pings: u64, mut extra: Value) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        extra["program"] = "rping".into();
        extra["device"] = context.name().into();
        extra["pings"] = pings.into();
        // Holds the lock for the whole line: clients of a persistent server may end at the same
        // time.
        let mut out = io::stdout().lock();
        writeln!(out, "{extra}")?;
        out.flush()
    }

    /// The parameters of the connection: rping's own.
    fn options(&self) -> ConnOptions {
        ConnOptions::new().responder_resources(1).initiator_depth(1).retry_count(7).rnr_retry_count(7)
    }
}
