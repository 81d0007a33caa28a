//! A key-value service over `rdma::net`: clients read the server's memory and send changes by
//! message.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rdma::Context;
use rdma::net::ListenOptions;
use rdma_examples::cli::{self, Size};
use rdma_examples::device::DeviceOptions;
use rdma_examples::kv::{self, Client, Store, load};
use rdma_examples::service::{self, ServiceOptions};
use rdma_examples::{Failure, address};
use serde_json::json;
use tokio::net::TcpListener;

/// Time in which a new client must send its first request.
const FIRST_REQUEST: Duration = Duration::from_secs(5);

/// A key-value service whose clients read the server's memory
#[derive(Parser)]
#[command(version, long_about = None, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Port of the server; 0 lets a server choose a free one
    #[arg(short, long, global = true, value_name = "PORT", default_value_t = kv::PORT)]
    port: u16,
    #[command(flatten)]
    service: ServiceOptions,
}

#[derive(Subcommand)]
enum Command {
    /// Serve clients until the process is ended
    Serve {
        /// The address to listen on
        address: String,
        /// Most keys
        #[arg(long, value_name = "N", default_value = "100000", value_parser = cli::count)]
        keys: usize,
        /// Memory of the table and its values
        #[arg(long, value_name = "SIZE", default_value = "256M")]
        memory: Size,
        /// Milliseconds before the memory of an old value is used again
        #[arg(long, value_name = "MS", default_value_t = 100)]
        grace: u64,
        /// Serve the same requests over TCP too, at the same address
        #[arg(long)]
        tcp: bool,
    },
    /// Print the value of a key
    Get {
        /// The server's address
        address: String,
        key: String,
    },
    /// Set the value of a key
    Put {
        /// The server's address
        address: String,
        key: String,
        value: String,
        /// Only if the key has this sequence number (0: only if it does not exist)
        #[arg(long, value_name = "N")]
        expect: Option<u64>,
    },
    /// Remove a key
    Delete {
        /// The server's address
        address: String,
        key: String,
        /// Only if the key has this sequence number
        #[arg(long, value_name = "N")]
        expect: Option<u64>,
    },
    /// Measure requests per second and latencies, over RDMA and over TCP by turns
    Load {
        /// The server's address; without it, a server is started here
        address: Option<String>,
        #[command(flatten)]
        options: load::Options,
    },
}

fn main() -> ExitCode {
    rdma_examples::run("kv", run)
}

fn run(args: Args) -> Result<(), Failure> {
    let (service, context) = (&args.service, args.service.open()?);
    let resolve = |address: &str| address::resolve(address, args.port);
    match &args.command {
        Command::Serve { address, keys, memory, grace, tcp } => {
            let table = TableOptions { keys: *keys, memory: memory.0, grace: Duration::from_millis(*grace) };
            serve(&context, resolve(address)?, table, *tcp, |address| service.print_address(address))
        }
        Command::Load { address, options } => {
            let server = match address {
                Some(address) => resolve(address)?,
                None => start_server(&context, options)?,
            };
            let node_options = kv::node_options(options.connections());
            service::run(&context, &node_options, |node| async move {
                load::run(&node, server, options, service.json).await
            })
        }
        Command::Get { address, key } => with_client(&context, resolve(address)?, async |client| {
            let value =
                client.get(key.as_bytes()).await?.ok_or_else(|| Failure::new(kv::Refusal::NoKey.to_string()))?;
            let text = String::from_utf8_lossy(&value.bytes);
            service.print(&json!({ "sequence": value.sequence, "value": text }), &text)
        }),
        Command::Put { address, key, value, expect } => with_client(&context, resolve(address)?, async |client| {
            let sequence = client.put(key.as_bytes(), value.as_bytes(), *expect).await?;
            service.print(&json!({ "sequence": sequence }), &format!("sequence number {sequence}"))
        }),
        Command::Delete { address, key, expect } => with_client(&context, resolve(address)?, async |client| {
            client.delete(key.as_bytes(), *expect).await?;
            service.print(&json!({ "deleted": true }), "deleted")
        }),
    }
}

/// The size of a server's table.
struct TableOptions {
    keys: usize,
    memory: usize,
    grace: Duration,
}

/// Serves clients, and tells `started` the address.
fn serve(
    context: &Context,
    address: SocketAddr,
    table: TableOptions,
    tcp: bool,
    started: impl FnOnce(SocketAddr) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let TableOptions { keys, memory, grace } = table;
    service::run(context, &kv::node_options(kv::MAX_CLIENTS), |node| async move {
        let store = Arc::new(Store::new(node.domain(), keys, memory, grace)?);
        let options = ListenOptions::new().first_message(FIRST_REQUEST);
        let listener = service::listen(&node, address, &options)?;
        let address = listener.local_addr();
        if tcp {
            let advice = "leave it out on iWARP, which takes the same ports";
            let cannot = |error| Failure::new(format!("cannot listen on {address} over TCP: {error}; {advice}"));
            let listener = TcpListener::bind(address).await.map_err(cannot)?;
            tokio::spawn(kv::tcp::serve(listener, Arc::clone(&store)));
        }
        started(address)?;
        kv::serve(listener, store).await
    })
}

/// Starts a server on a thread of this process; returns its address.
fn start_server(context: &Context, options: &load::Options) -> Result<SocketAddr, Failure> {
    let table = TableOptions { keys: options.keys, memory: options.memory(), grace: Duration::from_millis(20) };
    let (chosen, tcp) = (DeviceOptions::named(Some(context.name())).open()?, options.needs_tcp());
    let address = SocketAddr::new(address::of_device(&chosen)?, 0);
    service::start(move |started| serve(&chosen.context, address, table, tcp, started))
}

/// Does the work of a client.
fn with_client(
    context: &Context,
    server: SocketAddr,
    work: impl AsyncFnOnce(&mut Client) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let done = service::run(context, &kv::node_options(1), |node| async move {
        let mut client = Client::connect(&node, server).await?;
        work(&mut client).await?;
        client.close().await
    });
    done.map_err(|failure| failure.context(format_args!("server {server}")))
}
