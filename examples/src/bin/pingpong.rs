//! Latency and bandwidth between two processes over one reliable connection, by message size, in perftest's tables.
//!
//! Without arguments it starts both processes; `--server` waits for a client on another terminal or host, and the
//! server's address as argument makes a client.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma_examples::bootstrap::{self, Group, Roles, Terms};
use rdma_examples::cli::{self, Size};
use rdma_examples::device::{DeviceOptions, announce};
use rdma_examples::launcher::{self, Place, Root};
use rdma_examples::pingpong::{Link, Op, Settings, bandwidth, latency, report};
use rdma_examples::placement::{self, Bind};
use rdma_examples::progress::Progress;
use rdma_examples::{Failure, table};
use serde_json::json;

/// Latency and bandwidth of a reliable connection, by message size.
#[derive(Clone, Parser)]
#[command(version, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    /// The server's address; without it, both processes are started here
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "server")]
    connect: Option<String>,
    /// Wait for a client, on this address (default: all of the host's, port 18515)
    #[arg(long, value_name = "ADDRESS[:PORT]", num_args = 0..=1, default_missing_value = "0.0.0.0")]
    server: Option<String>,
    #[command(flatten)]
    device: DeviceOptions,
    /// What to measure with
    #[arg(long, value_enum, default_value_t = Op::Send)]
    op: Op,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Test::Both)]
    test: Test,
    /// One message size (default: 2 bytes to 8M)
    #[arg(short, long, value_name = "SIZE")]
    size: Option<Size>,
    /// Messages of each size (default: 1000 for latency, 5000 for bandwidth, fewer for large ones)
    #[arg(short = 'n', long, value_name = "N")]
    iters: Option<usize>,
    /// Largest packet payload on the path: 256, 512, 1024, 2048, 4096 (default: the port's)
    #[arg(short, long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Wait for completion events in place of polling
    #[arg(short, long)]
    events: bool,
    /// Check the contents of every message
    #[arg(short, long)]
    check: bool,
    /// Messages under way at once in bandwidth tests
    #[arg(short, long, value_name = "N", default_value_t = 128)]
    tx_depth: u32,
    /// Seconds to wait for the other process
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Pin each process to a core
    #[arg(long, value_enum, default_value_t = Bind::Auto)]
    bind: Bind,
    /// Print one JSON object in place of tables
    #[arg(short = 'J', long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Test {
    Lat,
    Bw,
    Both,
}

fn main() -> ExitCode {
    rdma_examples::run("pingpong", run)
}

fn run() -> Result<(), Failure> {
    let Some(args) = cli::parse::<Args>()? else { return Ok(()) };
    let settings = args.settings()?;
    let Some(place) = args.place()? else { return Ok(()) };
    let terms = Terms {
        program: "pingpong",
        settings: format!("{settings:?} {:?} {:?} {:?}", args.test, args.size, args.iters),
        roles: Roles::SERVER_AND_CLIENT,
        timeout: Duration::from_secs(args.timeout),
    };
    let mut group = Group::meet(place, &terms)?;
    let result = side(&args, &settings, &mut group);
    group.conclude(result)
}

impl Args {
    fn settings(&self) -> Result<Settings, Failure> {
        if self.iters == Some(0) {
            return Err(Failure::usage("--iters 0 measures nothing; give 1 or more"));
        }
        if self.tx_depth == 0 || self.tx_depth > 8192 {
            return Err(Failure::usage(format!("--tx-depth {}: give 1 to 8192", self.tx_depth)));
        }
        if self.timeout == 0 || self.timeout > 86400 {
            return Err(Failure::usage(format!("--timeout {}: give 1 to 86400 seconds", self.timeout)));
        }
        let sizes = self.sizes();
        let largest = sizes.iter().copied().max().unwrap_or(0);
        if largest == 0 {
            return Err(Failure::usage("--size 0: a message of no bytes has no contents to measure; give 1 or more"));
        }
        if largest > 1 << 30 {
            return Err(Failure::usage(format!("--size {}: a message has at most 1G", Size(largest))));
        }
        cli::check_memory(8 * largest as u128, "the buffers")?;
        Ok(Settings { op: self.op, mtu: self.mtu, events: self.events, check: self.check, depth: self.tx_depth })
    }

    fn sizes(&self) -> Vec<usize> {
        self.size.map_or_else(|| (1..=23).step_by(2).map(|shift| 1 << shift).collect(), |size| vec![size.0])
    }

    fn iterations(&self, size: usize, most: usize) -> usize {
        self.iters.unwrap_or_else(|| ((256 << 20) / size).clamp(50, most))
    }

    fn place(&self) -> Result<Option<Place>, Failure> {
        if let Some(place) = launcher::launched_place()? {
            return Ok(Some(place));
        }
        let (rank, address) = match (&self.server, &self.connect) {
            (Some(address), _) => (0, address),
            (None, Some(address)) => (1, address),
            (None, None) => {
                let name = |rank: usize| if rank == 0 { "the server" } else { "the client" }.to_owned();
                return placement::launch(2, name).map(|()| None);
            }
        };
        let address = placement::with_port(address);
        placement::check_address(&address)?;
        let root = if rank == 0 { Root::Listener(bootstrap::listen(&address)?) } else { Root::Address(address) };
        Ok(Some(Place { rank, world: 2, root, job: 0 }))
    }
}

/// One of the two processes. The client measures and prints.
fn side(args: &Args, settings: &Settings, group: &mut Group) -> Result<(), Failure> {
    let chosen = group.agree(args.device.open())?;
    chosen.check_hosts(group)?;
    let cores = placement::bind(group, args.bind)?;
    let client = group.rank() == 1;
    // The launcher's two processes share one output, and one line is enough.
    if client || !launcher::is_launched() {
        announce(&chosen.using(), args.json)?;
    }
    let (mut latencies, mut bandwidths) = (Vec::new(), Vec::new());
    let mut progress = Progress::new();
    let sizes = args.sizes();
    let print = client && !args.json;
    if args.test != Test::Bw {
        for (done, &size) in sizes.iter().enumerate() {
            progress.step("latency", done, sizes.len());
            let mut link = Link::connect(&chosen, group, settings, size, cores.shared)?;
            if print && done == 0 {
                report::heading(&link, "Latency")?;
                table::latency_head(&mut io::stdout())?;
            }
            let row = latency::measure(&mut link, group, size, args.iterations(size, 1000))?;
            progress.clear();
            if print {
                table::latency_row(&mut io::stdout(), &row)?;
            }
            latencies.push(row);
        }
    }
    if args.test != Test::Lat {
        for (done, &size) in sizes.iter().enumerate() {
            progress.step("bandwidth", done, sizes.len());
            let mut link = Link::connect(&chosen, group, settings, size, cores.shared)?;
            if print && done == 0 {
                report::heading(&link, "BW")?;
                table::bandwidth_head(&mut io::stdout())?;
            }
            let row = bandwidth::measure(&mut link, group, size, args.iterations(size, 5000))?;
            progress.clear();
            if print {
                table::bandwidth_row(&mut io::stdout(), &row)?;
            }
            bandwidths.push(row);
        }
    }
    if print {
        writeln!(io::stdout(), "{}", table::RULER)?;
    } else if client {
        let report = json!({
            "program": "pingpong", "op": settings.op.to_string(), "device": chosen.line,
            "latency": latencies, "bandwidth": bandwidths,
        });
        writeln!(io::stdout(), "{report}")?;
    }
    Ok(())
}
