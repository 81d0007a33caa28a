//! Load on a server, over RDMA and over TCP by turns.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use rdma_net::Node;
use serde::Serialize;

use super::{Client, ServerOptions, tcp};
use crate::Failure;
use crate::cli::{self, Size};
use crate::exposed_table::MAX_VALUE;
use crate::load::{LoadClient, LoadOptions, LoadRow, Random, Samples, Zipf, drive};
use crate::progress::Progress;
use crate::waiting::Waiting;

/// Time after which the server that is started here disconnects a silent client: the clients of one
/// transport are silent while another is measured.
const IDLE: Duration = Duration::from_secs(86400);

/// Time for which one transport is measured before the next one's turn.
const SLICE: Duration = Duration::from_secs(1);

/// The load on the server.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = cli::WHAT)]
pub struct Options {
    #[command(flatten)]
    load: LoadOptions,
    /// Keys, which are all written before the measurement
    #[arg(long, value_name = "N", default_value = "10000", value_parser = keys)]
    #[arg(help_heading = cli::SIZES)]
    keys: usize,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = value_size)]
    #[arg(help_heading = cli::SIZES)]
    value_size: Size,
    /// Share of reads among the requests; the others write
    #[arg(long, value_name = "SHARE", default_value = "0.95", value_parser = share)]
    read_share: f64,
    /// Exponent of the keys' Zipf distribution: 0 for equal shares, to 0.999
    #[arg(long, value_name = "X", default_value = "0.99", value_parser = exponent)]
    zipf: f64,
    /// The transports to measure (default: rdma,tcp; of a server that is given: rdma)
    ///
    /// A server serves over TCP with `kv serve --tcp`.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    transport: Vec<Transport>,
}

fn keys(text: &str) -> Result<usize, String> {
    cli::number_in(text, 2..=10_000_000)
}

fn value_size(text: &str) -> Result<Size, String> {
    cli::multiple(text, Size(8), Size(MAX_VALUE))
}

fn share(text: &str) -> Result<f64, String> {
    cli::number_in(text, 0.0..=1.0)
}

fn exponent(text: &str) -> Result<f64, String> {
    cli::number_in(text, 0.0..=0.999)
}

/// A way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    /// Reads of the server's memory, and messages.
    Rdma,
    /// Requests over TCP.
    Tcp,
}

impl Options {
    /// Sets the transports that were left open: those of the server that is started here, or of one
    /// that is elsewhere, with its defaults.
    #[must_use]
    pub fn of_server(mut self, is_elsewhere: bool) -> Self {
        if self.transport.is_empty() {
            self.transport = if is_elsewhere { vec![Transport::Rdma] } else { vec![Transport::Rdma, Transport::Tcp] };
        }
        self
    }

    /// Connections of the clients over RDMA.
    #[must_use]
    pub fn connections(&self) -> u32 {
        u32::from(self.load.clients) + 1
    }

    /// A server whose table holds all keys, and their old values for a while.
    #[must_use]
    pub fn server(&self) -> ServerOptions {
        let Self { keys, value_size: Size(len), .. } = *self;
        let memory = Size(keys * (256 + 2 * len) + (64 << 20) + 64 * len);
        ServerOptions { keys, memory, grace: 20, idle: IDLE, tcp: self.transport.contains(&Transport::Tcp) }
    }

    fn line(&self) -> String {
        let Self { load, keys, value_size, read_share, zipf, .. } = self;
        let (clients, pace, percent) = (load.clients, load.pace(), read_share * 100.0);
        format!("{clients} clients, {pace}; {keys} keys of {value_size} B, {percent:.1} % reads, Zipf {zipf}")
    }
}

/// The result of a transport.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    transport: Transport,
    #[serde(flatten)]
    load: LoadRow,
    /// Searches that met a change and began again.
    retries: u64,
    /// Searches that were left to the server.
    by_message: u64,
}

/// Puts load on a server and prints a table, or a JSON object.
///
/// # Errors
/// If the server refuses or dies, or if an answer is wrong.
pub async fn run(node: &Node, server: SocketAddr, options: &Options, json: bool) -> Result<(), Failure> {
    fill(node, server, options).await?;
    let mut runs = Vec::new();
    for &transport in &options.transport {
        runs.push(Run::new(transport, node, server, options).await?);
    }
    let slices = usize::try_from(options.load.seconds.as_secs()).unwrap_or(usize::MAX);
    let progress = Progress::new(slices);
    for slice in 0..slices {
        for run in &mut runs {
            progress.step(&format!("{:?}", run.transport), slice);
            let clients = std::mem::take(&mut run.clients);
            run.clients = drive(clients, &options.load, SLICE, &mut run.samples).await?;
        }
    }
    drop(progress);
    let rows: Vec<Row> = runs.into_iter().map(Run::row).collect();
    print(options, &rows, json)
}

/// Writes all keys.
async fn fill(node: &Node, server: SocketAddr, options: &Options) -> Result<(), Failure> {
    let waiting = Waiting::for_peer(server);
    let mut client = Client::connect(node, server).await?;
    drop(waiting);
    for key in 0..options.keys {
        client.put(&key_bytes(key), &value(0, options.value_size), None).await?;
    }
    client.close().await
}

/// The clients of a transport and their latencies.
struct Run {
    transport: Transport,
    clients: Vec<Loader>,
    samples: Samples,
}

impl Run {
    async fn new(transport: Transport, node: &Node, server: SocketAddr, options: &Options) -> Result<Self, Failure> {
        let mut clients = Vec::new();
        let zipf = Zipf::new(options.keys, options.zipf);
        for _ in 0..options.load.clients {
            let way = match transport {
                Transport::Rdma => Way::Rdma(Box::new(Client::connect(node, server).await?)),
                Transport::Tcp => Way::Tcp(tcp::Client::connect(server).await?),
            };
            clients.push(Loader { way, zipf, read_share: options.read_share, value_size: options.value_size });
        }
        Ok(Self { transport, clients, samples: Samples::default() })
    }

    fn row(mut self) -> Row {
        let mut row =
            Row { transport: self.transport, load: LoadRow::of(&mut self.samples), retries: 0, by_message: 0 };
        for loader in &self.clients {
            if let Way::Rdma(client) = &loader.way {
                row.retries += client.counts().retries;
                row.by_message += client.counts().given_up;
            }
        }
        row
    }
}

/// A client under load.
struct Loader {
    way: Way,
    zipf: Zipf,
    read_share: f64,
    value_size: Size,
}

enum Way {
    Rdma(Box<Client>),
    Tcp(tcp::Client),
}

impl LoadClient for Loader {
    async fn request(&mut self, random: &mut Random) -> Result<(), Failure> {
        let key = key_bytes(self.zipf.rank(random));
        if random.fraction() >= self.read_share {
            let value = value(random.number(), self.value_size);
            match &mut self.way {
                Way::Rdma(client) => client.put(&key, &value, None).await?,
                Way::Tcp(client) => client.put(&key, &value).await?,
            };
            return Ok(());
        }
        let found = match &mut self.way {
            Way::Rdma(client) => client.get(&key).await?.map(|value| value.bytes),
            Way::Tcp(client) => client.get(&key).await?,
        };
        match found {
            Some(found) if is_whole(&found, self.value_size) => Ok(()),
            _ => Err(Failure::new("the server returned a value that was never written")),
        }
    }
}

fn key_bytes(key: usize) -> [u8; 16] {
    let mut bytes = *b"key-\0\0\0\0\0\0\0\0load";
    bytes[4..12].copy_from_slice(&key.to_le_bytes());
    bytes
}

/// A value: one word over and over.
fn value(word: u64, size: Size) -> Vec<u8> {
    word.to_le_bytes().repeat(size.0 / 8)
}

fn is_whole(value: &[u8], size: Size) -> bool {
    value.len() == size.0 && value[8..] == value[..value.len() - 8]
}

fn print(options: &Options, rows: &[Row], json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if json {
        let object = serde_json::json!({ "program": "kv", "load": options.line(), "rows": rows });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    writeln!(out, "# {}\n# transport {}    retries by message", options.line(), LoadRow::HEAD)?;
    for Row { transport, load, retries, by_message } in rows {
        let name = format!("{transport:?}").to_lowercase();
        writeln!(out, "{name:>11} {} {retries:>10} {by_message:>10}", load.text())?;
    }
    Ok(())
}
