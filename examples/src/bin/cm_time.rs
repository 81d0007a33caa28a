//! Measures how fast the connection manager connects, step by step, as rdmacm-utils' `cmtime` does.
//!
//! Without `-s` and `-b` the program starts both sides on this machine.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use rdma_collectives::bootstrap::{Group, Roles};
use rdma_examples::cm_time::{self, Server, Settings};
use rdma_examples::device::{Chosen, DeviceOptions, announce};
use rdma_examples::progress::Progress;
use rdma_examples::{Failure, address, cli, placement};
use serde_json::json;

/// Measures how fast the RDMA connection manager connects, as rdmacm-utils' cmtime does.
#[derive(Clone, Debug, Parser)]
#[command(version, args_override_self = true, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    /// Connect to the server at this address
    #[arg(short, long, value_name = "ADDRESS[:PORT]")]
    #[arg(help_heading = cli::TRANSPORT)]
    server: Option<String>,
    /// With --server, the client's own address; otherwise the address to listen on (0.0.0.0: all)
    #[arg(short, long, value_name = "ADDRESS[:PORT]")]
    #[arg(help_heading = cli::TRANSPORT)]
    bind: Option<String>,
    #[command(flatten)]
    settings: Settings,
    /// One round per number: the most connections that are set up at the same time (cmtime of
    /// rdmacm-utils 44 supports no further round after a round of 1 connection)
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_values_t = [1, 32])]
    #[arg(value_parser = cli::count)]
    #[arg(help_heading = cli::WHAT)]
    in_flight: Vec<usize>,
    /// Port of the connection manager (default: 7471); with --bind, 0 takes a free port
    #[arg(short, long, value_name = "PORT")]
    #[arg(help_heading = cli::TRANSPORT)]
    port: Option<u16>,
    /// Device: soft0, mlx5_0, any, hardware
    #[arg(short, long, value_name = "NAME", env = "RDMA_DEVICE")]
    #[arg(help_heading = cli::TRANSPORT)]
    device: Option<String>,
    /// Print one JSON object instead of tables
    #[arg(short = 'J', long)]
    #[arg(help_heading = cli::OUTPUT)]
    json: bool,
}

fn main() -> ExitCode {
    rdma_examples::run("cm_time", run)
}

fn run(args: Args) -> Result<(), Failure> {
    if let Some(server) = &args.server {
        let server = address::resolve(server, args.port())?;
        let source = args.bind.as_deref().map(|source| address::resolve_source(source, &server)).transpose()?;
        return args.measure(&args.open()?, server, source);
    }
    if let Some(bind) = &args.bind {
        let chosen = args.open()?;
        announce(&chosen.using(), args.json)?;
        let mut server = Server::bind(&chosen.adapter.context, address::resolve(bind, args.port())?)?;
        writeln!(io::stderr(), "cm_time: listening on {}", server.local_addr())?;
        return server.serve(&args.settings).map(drop);
    }
    args.pair()
}

impl Args {
    fn open(&self) -> Result<Chosen, Failure> {
        DeviceOptions::named(self.device.clone()).open()
    }

    fn port(&self) -> u16 {
        self.port.unwrap_or(cm_time::PORT)
    }

    /// The client's side: measures and prints.
    fn measure(&self, chosen: &Chosen, server: SocketAddr, source: Option<SocketAddr>) -> Result<(), Failure> {
        let settings = &self.settings;
        announce(&chosen.using(), self.json)?;
        let total = settings.connections * self.in_flight.len();
        let total = u32::try_from(total).map_err(|_| Failure::usage("too many connections"))?;
        let mut rounds = Vec::new();
        let progress = Progress::new(self.in_flight.len());
        for (done, &in_flight) in self.in_flight.iter().enumerate() {
            progress.step("connections", done);
            let in_flight = in_flight.min(settings.connections);
            let round = cm_time::client(&chosen.adapter.context, settings, (server, source), in_flight, total);
            let round = round.map_err(|failure| match done {
                0 => failure,
                _ => failure.context(format_args!("round {}", done + 1)),
            })?;
            if !self.json {
                progress.print(|| cm_time::print(&mut io::stdout().lock(), &round))?;
            }
            rounds.push(round);
        }
        if self.json {
            let report = json!({
                "program": "cm_time", "device": chosen.line, "server": server.to_string(), "rounds": rounds,
            });
            writeln!(io::stdout(), "{report}")?;
        }
        Ok(())
    }

    /// Runs both sides on this machine.
    fn pair(&self) -> Result<(), Failure> {
        let terms = placement::terms("cm_time", &(), Roles::ServerAndClient, self.settings.patience);
        placement::run_pair(&terms, |group| self.side(group))
    }

    fn side(&self, group: &mut Group) -> Result<(), Failure> {
        let chosen = group.agree("the devices", self.open())?;
        let is_server = group.rank() == 0;
        let server = is_server.then(|| {
            let address = address::of_device(&chosen.adapter)?;
            Server::bind(&chosen.adapter.context, SocketAddr::new(address, self.port.unwrap_or(0)))
        });
        let server = group.agree("the listener", server.transpose())?;
        let address = address::tell(group, server.as_ref().map(Server::local_addr))?;
        if let Some(mut server) = server {
            // If the client dies, the launcher ends this process.
            return server.serve(&self.settings).map(drop);
        }
        self.measure(&chosen, address, None)
    }
}
