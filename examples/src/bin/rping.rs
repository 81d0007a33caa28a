//! Pings over the connection manager: both sides of the protocol of rdmacm-utils' `rping`.
//!
//! Without `-s` and `-c` the program starts both sides on this machine and checks every answer.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::{ArgAction, Parser};
use rdma::cm::blocking::{ListenOptions, Listener};
use rdma::transport::Rc;
use rdma_collectives::bootstrap::{Group, Roles};
use rdma_examples::device::{Chosen, DeviceOptions, announce};
use rdma_examples::rping::{self, Settings};
use rdma_examples::{Failure, address, cli, placement};

/// Number of pings of a local pair if `--count` is not given.
const PINGS: u64 = 100;

/// Pings over connections of the RDMA connection manager, as rdmacm-utils' rping does.
#[derive(Clone, Debug, Parser)]
#[command(version, args_override_self = true, disable_version_flag = true, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    /// Wait for a client
    #[arg(short, long, conflicts_with_all = ["client", "source"])]
    #[arg(help_heading = cli::WHAT)]
    server: bool,
    /// Ping a server
    #[arg(short, long, requires = "address")]
    #[arg(help_heading = cli::WHAT)]
    client: bool,
    /// The server's address; with --server, the address to listen on (default: all IPv4 addresses;
    /// ::0: all IPv6 addresses)
    #[arg(short, long, value_name = "ADDRESS[:PORT]")]
    #[arg(help_heading = cli::TRANSPORT)]
    address: Option<String>,
    /// The client's own address
    #[arg(short = 'I', long, value_name = "ADDRESS", requires = "client")]
    #[arg(help_heading = cli::TRANSPORT)]
    source: Option<String>,
    /// Port of the connection manager (default: 7174)
    #[arg(short, long, value_name = "PORT")]
    #[arg(help_heading = cli::TRANSPORT)]
    port: Option<u16>,
    #[command(flatten)]
    settings: Settings,
    /// Keep serving after a client has disconnected, and serve several clients at the same time
    #[arg(short = 'P', long, requires = "server")]
    #[arg(help_heading = cli::WHAT)]
    persistent: bool,
    /// Exit after this number of clients
    #[arg(long, value_name = "N", requires = "persistent", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(help_heading = cli::WHAT)]
    clients: Option<u64>,
    /// Accepted for compatibility: the queue pair is always created without the connection manager
    #[arg(short = 'q', long)]
    #[arg(help_heading = cli::TRANSPORT)]
    own_qp: bool,
    /// Device: soft0, mlx5_0, any, hardware
    #[arg(long, value_name = "NAME", env = "RDMA_DEVICE")]
    #[arg(help_heading = cli::TRANSPORT)]
    device: Option<String>,
    /// Print version
    #[arg(long, action = ArgAction::Version)]
    #[arg(help_heading = cli::OUTPUT)]
    version: Option<bool>,
}

fn main() -> ExitCode {
    rdma_examples::run("rping", run)
}

fn run(args: Args) -> Result<(), Failure> {
    if args.server {
        return serve(&args);
    }
    if args.client {
        return ping(&args);
    }
    pair(args)
}

impl Args {
    fn open(&self) -> Result<Chosen, Failure> {
        DeviceOptions::named(self.device.clone()).open()
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(rping::PORT)
    }
}

fn listen(chosen: &Chosen, address: SocketAddr) -> Result<Listener<Rc>, Failure> {
    Listener::bind(&chosen.adapter.context, address, &ListenOptions::new().reuse_addr(true))
        .map_err(|error| Failure::from(error).context(format_args!("cannot listen on {address}")))
}

fn serve(args: &Args) -> Result<(), Failure> {
    let settings = &args.settings;
    let chosen = args.open()?;
    announce(&chosen.using(), args.settings.json)?;
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), args.port());
    let address = args.address.as_deref().map_or(Ok(any), |address| address::resolve(address, args.port()))?;
    let listener = listen(&chosen, address)?;
    if args.persistent {
        return rping::serve_all(&chosen.adapter.context, settings, &listener, args.clients);
    }
    rping::serve_one(&chosen.adapter.context, settings, &listener, settings.timeout).map(drop)
}

fn ping(args: &Args) -> Result<(), Failure> {
    let server = address::resolve(args.address.as_deref().unwrap_or_default(), args.port())?;
    let source = args.source.as_deref().map(|source| address::resolve_source(source, &server)).transpose()?;
    let chosen = args.open()?;
    announce(&chosen.using(), args.settings.json)?;
    rping::client(&chosen.adapter.context, &args.settings, server, source).map(drop)
}

/// Runs both sides on this machine.
fn pair(mut args: Args) -> Result<(), Failure> {
    args.settings.count.get_or_insert(PINGS);
    args.settings.validate = true;
    let terms = placement::terms("rping", &(), Roles::ServerAndClient, args.settings.patience());
    placement::run_pair(&terms, |group| side(&args, group))
}

fn side(args: &Args, group: &mut Group) -> Result<(), Failure> {
    let settings = &args.settings;
    let chosen = group.agree("the devices", args.open())?;
    let is_server = group.rank() == 0;
    let listener = is_server.then(|| {
        let address = match &args.address {
            Some(address) => address::resolve(address, args.port.unwrap_or(0))?,
            None => SocketAddr::new(address::of_device(&chosen.adapter)?, args.port.unwrap_or(0)),
        };
        listen(&chosen, address)
    });
    let listener = group.agree("the listener", listener.transpose())?;
    let server = address::tell(group, listener.as_ref().map(Listener::local_addr))?;
    if let Some(listener) = listener {
        // The client's report covers both sides.
        let settings = &Settings { json: false, ..settings.clone() };
        return rping::serve_one(&chosen.adapter.context, settings, &listener, Some(settings.patience())).map(drop);
    }
    announce(&chosen.using(), args.settings.json)?;
    let pings = rping::client(&chosen.adapter.context, settings, server, None)?;
    if !settings.json {
        writeln!(io::stdout(), "{pings} pings of {} bytes by {server}: all came back as they were", settings.size)?;
    }
    Ok(())
}
