//! Load on a server.

use std::net::SocketAddr;
use std::time::Duration;

use rdma_net::Node;

use super::{Client, MAX_BODY, Method};
use crate::Failure;
use crate::cli::{self, Size};
use crate::load::{LoadClient, LoadOptions, LoadRow, Random, Samples, drive};
use crate::waiting::Waiting;

/// Time in which each call must be answered.
const DEADLINE: Duration = Duration::from_secs(10);

/// The load on the server.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = cli::WHAT)]
pub struct Options {
    #[command(flatten)]
    load: LoadOptions,
    /// Calls in flight on each connection
    #[arg(long, value_name = "N", default_value = "4", value_parser = in_flight)]
    in_flight: usize,
    /// Bytes of a call, and of its answer
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = size)]
    #[arg(help_heading = cli::SIZES)]
    size: Size,
}

fn in_flight(text: &str) -> Result<usize, String> {
    cli::number_in(text, 1..=64)
}

fn size(text: &str) -> Result<Size, String> {
    cli::multiple(text, Size(8), Size(MAX_BODY))
}

impl Options {
    /// Connections of the clients.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.load.clients.into()
    }

    /// The load, as text for the report.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { load, in_flight, size } = self;
        format!("{} clients with {in_flight} calls of {size} B in flight, {}", load.clients, load.pace())
    }
}

/// Puts load on a server.
///
/// # Errors
/// If the server dies or refuses, or if an answer is wrong.
pub async fn run(node: &Node, server: SocketAddr, options: &Options) -> Result<LoadRow, Failure> {
    let mut callers = Vec::new();
    let waiting = Waiting::for_peer(server);
    for _ in 0..options.load.clients {
        let client = Client::connect(node, server).await?;
        let caller = Caller { client, body: vec![0; options.size.0] };
        // The server disconnects clients that make no call, and others are still to connect.
        caller.client.call(Method::Echo, &[], DEADLINE).await?;
        callers.extend(vec![caller; options.in_flight]);
    }
    drop(waiting);
    let mut samples = Samples::default();
    drop(drive(callers, &options.load, options.load.seconds, &mut samples).await?);
    Ok(LoadRow::of(&mut samples))
}

/// One of the callers of a connection.
#[derive(Clone)]
struct Caller {
    client: Client,
    body: Vec<u8>,
}

impl LoadClient for Caller {
    async fn request(&mut self, random: &mut Random) -> Result<(), Failure> {
        self.body[..8].copy_from_slice(&random.number().to_le_bytes());
        let answer = self.client.call(Method::Echo, &self.body, DEADLINE).await?;
        if answer == self.body { Ok(()) } else { Err(Failure::new("the answer is that of another call")) }
    }
}
