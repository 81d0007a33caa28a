//! Remote procedure calls over `rdma_net`: many clients on one shared receive queue.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use rdma_examples::device::Place;
use rdma_examples::load::LoadRow;
use rdma_examples::metrics::MetricsOptions;
use rdma_examples::rpc::{self, Method, load};
use rdma_examples::service::{self, ServiceOptions};
use rdma_examples::{Failure, address, cli};
use serde_json::json;

/// Remote procedure calls over RDMA
#[derive(Parser)]
#[command(version, long_about = None, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Port of the server; 0 lets a server choose a free one
    #[arg(short, long, global = true, value_name = "PORT", default_value_t = rpc::PORT)]
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
        /// Receives that all clients share
        #[arg(long, value_name = "N", default_value_t = RECEIVES, value_parser = clap::value_parser!(u32).range(64..=65536))]
        #[arg(help_heading = cli::WHAT)]
        receives: u32,
        /// Seconds after which a client that waits for no answer and sends nothing is disconnected
        #[arg(long, value_name = "N", default_value = "300", value_parser = cli::seconds)]
        #[arg(help_heading = cli::WHAT)]
        idle: Duration,
        #[command(flatten)]
        metrics: MetricsOptions,
    },
    /// Call a method and print the result
    Call {
        /// The server's address
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: String,
        method: Method,
        /// The body of the call: text for echo, numbers for sum, milliseconds for sleep
        #[arg(default_value = "")]
        body: String,
        /// Milliseconds in which the connection must be made and the answer come
        #[arg(long, value_name = "MS", default_value_t = 5000)]
        #[arg(help_heading = cli::WHAT)]
        deadline: u32,
    },
    /// Measure requests per second and latencies
    Load {
        /// The server's address; without it, a server is started here
        #[arg(value_name = "ADDRESS[:PORT]")]
        address: Option<String>,
        #[command(flatten)]
        options: load::Options,
    },
}

/// Receives that the clients of a server share.
const RECEIVES: u32 = 8192;

fn main() -> ExitCode {
    rdma_examples::run("rpc", run)
}

fn run(args: Args) -> Result<(), Failure> {
    let service = &args.service;
    let resolve = |address: &str| address::resolve(address, args.port);
    match &args.command {
        Command::Serve { address, receives, idle, metrics } => {
            let limits = (*receives, *idle);
            serve(service, resolve(address)?, limits, *metrics, |at, metrics| service.print_addresses(at, metrics))
        }
        Command::Call { address, method, body, deadline } => {
            let (server, time) = (resolve(address)?, Duration::from_millis((*deadline).into()));
            let (node, deadline) = (service.node(rpc::node_options(1), Place::Towards(server))?, Instant::now() + time);
            let result = service::run_until(node, Some(deadline), |node| async move {
                rpc::call_once(&node, server, *method, body.as_bytes(), time).await
            });
            let result = result.map_err(|failure| failure.context(format_args!("server {server}")))?;
            let text = String::from_utf8_lossy(&result);
            service.print(&json!({ "result": text }), &text)
        }
        Command::Load { address, options } => {
            let (limits, none) = ((RECEIVES, rpc::IDLE), MetricsOptions::default());
            let start =
                || service.start(move |service, at, started| serve(service, at, limits, none, |at, _| started(at)));
            let server = address.as_deref().map_or_else(start, resolve)?;
            let row =
                service.run(rpc::node_options(options.connections()), Place::Towards(server), |node| async move {
                    load::run(&node, server, options).await
                })?;
            let text = format!("# {}\n#{}\n {}", options.line(), LoadRow::HEAD, row.text());
            service.print(&json!({ "program": "rpc", "load": options.line(), "row": row }), &text)
        }
    }
}

/// Serves clients, and tells `started` the address and that of the metrics.
fn serve(
    service: &ServiceOptions,
    address: SocketAddr,
    (receives, idle): (u32, Duration),
    metrics: MetricsOptions,
    started: impl FnOnce(SocketAddr, Option<SocketAddr>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    service.run(rpc::node_options(rpc::MAX_CLIENTS), Place::At(address), |node| async move {
        let listener = service::listen(&node, address, &rpc::listen_options(receives))?;
        let metrics = metrics.serve(&node)?;
        started(listener.local_addr(), metrics.address())?;
        rpc::serve(listener, idle).await
    })
}
