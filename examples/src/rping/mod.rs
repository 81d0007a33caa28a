//! The ping of rdmacm-utils' `rping`: a client and a server that the connection manager connects.
//!
//! A ping: the client sends the address of its text; the server reads the text and sends "go
//! ahead"; the client sends the address of its answer buffer; the server writes the text there and
//! sends "go ahead". Each message has 16 bytes: an [`Advert`] from the client, anything from the
//! server. There is no private data; the client ends the run by disconnecting.

mod client;
mod server;
mod session;
mod wire;

use std::io::{self, Write};
use std::time::Duration;

use rdma::Context;
use rdma::cm::ConnOptions;
use serde_json::Value;

use crate::failure::say;
pub use client::run as client;
pub use server::{serve_all, serve_one};
pub use wire::{Advert, ping_text, until_nul};

/// The port of rdmacm-utils' rping.
pub const PORT: u16 = 7174;
/// The smallest text: rdmacm-utils' own limit, which leaves room for the number.
pub const SMALLEST: usize = 26;
/// The largest text.
pub const LARGEST: usize = 64 << 10;

/// How to ping.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes of each text, its closing zero included.
    pub size: usize,
    /// How many pings; without end if not given.
    pub count: Option<u64>,
    /// Compare what came back with what was offered.
    pub validate: bool,
    /// Print each text.
    pub verbose: bool,
    /// Print a JSON object for each connection that ended well.
    pub json: bool,
    /// Say on standard error what is being done.
    pub debug: bool,
    /// How long the other side may be silent.
    pub patience: Duration,
}

impl Settings {
    /// Says what is being done, where that is wanted.
    fn step(&self, text: std::fmt::Arguments<'_>) {
        if self.debug {
            say(&format!("rping: {text}"));
        }
    }

    /// Prints a text as far as its closing zero, where that is wanted.
    fn show(&self, what: &str, text: &[u8]) -> io::Result<()> {
        if !self.verbose {
            return Ok(());
        }
        // The peer's bytes, and somebody's terminal: what cannot be printed is not.
        let printable = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' };
        let text: String = until_nul(text).iter().map(printable).collect();
        let mut out = io::stdout().lock();
        writeln!(out, "{what}: {text}")?;
        out.flush()
    }

    /// Prints what a connection has done, where JSON is wanted. `extra` is an object.
    fn report(&self, context: &Context, pings: u64, mut extra: Value) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        extra["program"] = "rping".into();
        extra["device"] = context.name().into();
        extra["pings"] = pings.into();
        // In one piece: clients of a persistent server end at the same time.
        let mut out = io::stdout().lock();
        writeln!(out, "{extra}")?;
        out.flush()
    }

    /// The parameters of the connection: rping's own.
    fn options(&self) -> ConnOptions {
        ConnOptions::new().responder_resources(1).initiator_depth(1).retry_count(7).rnr_retry_count(7)
    }
}
