//! A key-value service over `rdma_net`: clients read the server's memory and send changes by
//! message.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use rdma_examples::device::Place;
use rdma_examples::exposed_table::Refusal;
use rdma_examples::kv::{self, Client, ServerOptions, load};
use rdma_examples::metrics::MetricsOptions;
use rdma_examples::service::{self, ServiceOptions};
use rdma_examples::waiting::Waiting;
use rdma_examples::{Failure, address, cli};
use rdma_net::ListenOptions;
use serde_json::json;

/// A key-value service whose clients read the server's memory
#[derive(Parser)]
#[command(version, long_about = None, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Port of the server; 0 lets a server choose a free one
    #[arg(short, long, global = true, value_name = "PORT", default_value_t = kv::PORT)]
    #[arg(help_heading = cli::TRANSPORT)]
    port: u16,
    #[command(flatten)]
    service: ServiceOptions,
}

#[derive(Subcommand)]
enum Command {
    /// Serve clients until the process is ended
    Serve {
        /// The address to listen on
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: String,
        #[command(flatten)]
        options: ServerOptions,
        #[command(flatten)]
        metrics: MetricsOptions,
    },
    /// Print the value of a key
    Get {
        /// The server's address
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: String,
        key: String,
    },
    /// Set the value of a key
    Put {
        /// The server's address
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: String,
        key: String,
        value: String,
        /// Only if the key has this sequence number (0: only if it does not exist)
        #[arg(long, value_name = "N")]
        #[arg(help_heading = cli::WHAT)]
        expect: Option<u64>,
    },
    /// Remove a key
    Delete {
        /// The server's address
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: String,
        key: String,
        /// Only if the key has this sequence number
        #[arg(long, value_name = "N")]
        #[arg(help_heading = cli::WHAT)]
        expect: Option<u64>,
    },
    /// Measure requests per second and latencies, over RDMA and over TCP by turns
    Load {
        /// The server's address; without it, a server is started here
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: Option<String>,
        #[command(flatten)]
        options: load::Options,
    },
}

fn main() -> ExitCode {
    rdma_examples::run("kv", run)
}

fn run(args: Args) -> Result<(), Failure> {
    let service = &args.service;
    let resolve = |address: &str| address::resolve(address, args.port);
    match &args.command {
        Command::Serve { address, options, metrics } => {
            serve(service, resolve(address)?, options, *metrics, |at, metrics| service.print_addresses(at, metrics))
        }
        Command::Load { address, options } => {
            let options = &options.clone().of_server(address.is_some());
            let server = options.server();
            let none = MetricsOptions::default();
            let start =
                || service.start(move |service, at, started| serve(service, at, &server, none, |at, _| started(at)));
            let server = address.as_deref().map_or_else(start, resolve)?;
            service.run(kv::node_options(options.connections()), Place::Towards(server), |node| async move {
                load::run(&node, server, options, service.json).await
            })
        }
        Command::Get { address, key } => with_client(service, resolve(address)?, async |client| {
            let value = client.get(key.as_bytes()).await?.ok_or_else(|| Failure::new(Refusal::NoKey.to_string()))?;
            let text = String::from_utf8_lossy(&value.bytes);
            service.print(&json!({ "sequence": value.sequence, "value": text }), &text)
        }),
        Command::Put { address, key, value, expect } => with_client(service, resolve(address)?, async |client| {
            let sequence = client.put(key.as_bytes(), value.as_bytes(), *expect).await?;
            service.print(&json!({ "sequence": sequence }), &format!("sequence number {sequence}"))
        }),
        Command::Delete { address, key, expect } => with_client(service, resolve(address)?, async |client| {
            client.delete(key.as_bytes(), *expect).await?;
            service.print(&json!({ "deleted": true }), "deleted")
        }),
    }
}

/// Serves clients, and tells `started` the address and that of the metrics.
fn serve(
    service: &ServiceOptions,
    address: SocketAddr,
    options: &ServerOptions,
    metrics: MetricsOptions,
    started: impl FnOnce(SocketAddr, Option<SocketAddr>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    service.run(kv::node_options(kv::MAX_CLIENTS), Place::At(address), |node| async move {
        let table = Arc::new(options.table(node.domain())?);
        let limits = ListenOptions::new().first_message(kv::FIRST_REQUEST).idle(options.idle);
        let listen = |address| service::listen(&node, address, &limits);
        let listener = if options.tcp {
            let (listener, over_tcp) = kv::tcp::listen_too(address, listen).await?;
            tokio::spawn(kv::tcp::serve(over_tcp, Arc::clone(&table), options.idle));
            listener
        } else {
            listen(address)?
        };
        let metrics = metrics.serve(&node)?;
        started(listener.local_addr(), metrics.address())?;
        kv::serve(listener, table).await
    })
}

/// Does the work of a client.
fn with_client(
    service: &ServiceOptions,
    server: SocketAddr,
    work: impl AsyncFnOnce(&mut Client) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let done = service.run(kv::node_options(1), Place::Towards(server), |node| async move {
        let waiting = Waiting::for_peer(server);
        let mut client = Client::connect(&node, server).await?;
        drop(waiting);
        work(&mut client).await?;
        client.close().await
    });
    done.map_err(|failure| failure.context(format_args!("server {server}")))
}
