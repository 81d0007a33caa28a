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
use rdma_examples::connect::{ConnectionOptions, Method};
use rdma_examples::device::{DeviceOptions, announce};
use rdma_examples::launcher::{self, Place, Root};
use rdma_examples::pingpong::{Link, Op, Settings, bandwidth, compat, latency, report};
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
    #[command(flatten)]
    connection: ConnectionOptions,
    /// What to measure with (default: send)
    #[arg(long, value_enum)]
    op: Option<Op>,
    /// What to measure (default: both)
    #[arg(long, value_enum)]
    test: Option<Test>,
    /// Speak to rdma-core's ibv_rc_pingpong on the other side: one size of messages, back and forth
    #[arg(long)]
    compat: bool,
    /// One message size (default: 2 bytes to 8M; with --compat 4096)
    #[arg(short, long, value_name = "SIZE")]
    size: Option<Size>,
    /// Messages of each size (default: 1000 for latency, 5000 for bandwidth, fewer for large ones; with --compat 1000)
    #[arg(short = 'n', long, value_name = "N")]
    iters: Option<usize>,
    /// Largest packet payload on the path: 256, 512, 1024, 2048, 4096 (default: the port's; with --compat 1024)
    #[arg(short, long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Wait for completion events in place of polling
    #[arg(short, long)]
    events: bool,
    /// Check the contents of every message
    #[arg(short, long)]
    check: bool,
    /// Messages under way at once in bandwidth tests (default: 128)
    #[arg(short, long, value_name = "N")]
    tx_depth: Option<u32>,
    /// Receives posted at a time, as far as memory allows (default: 500)
    #[arg(short, long, value_name = "N", requires = "compat")]
    rx_depth: Option<u32>,
    /// Service level
    #[arg(short = 'l', long, value_name = "N", requires = "compat")]
    sl: Option<u8>,
    /// Where rank 0, which is the server, listens under mpirun, Slurm or torchrun (default: what the environment says, or the one
    /// host of both)
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["server", "connect"])]
    root: Option<String>,
    /// Seconds to wait for the other process
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Pin each process to a core (default: auto)
    #[arg(long, value_enum)]
    bind: Option<Bind>,
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
    if args.compat {
        let options = args.compat_options()?;
        let Some(place) = args.place()? else { return Ok(()) };
        return compat::run(place, &args.device, &options);
    }
    let settings = args.settings()?;
    let Some(place) = args.place()? else { return Ok(()) };
    let terms = Terms {
        program: "pingpong",
        settings: format!("{settings:?} {:?} {:?} {:?}", args.test(), args.size, args.iters),
        roles: Roles::SERVER_AND_CLIENT,
        timeout: Duration::from_secs(args.timeout),
    };
    let mut group = Group::meet(place, &terms)?;
    let result = side(&args, &settings, &mut group);
    group.conclude(result)
}

impl Args {
    fn settings(&self) -> Result<Settings, Failure> {
        self.check_common()?;
        if self.connection.is_asked_for() {
            self.check_manager()?;
        }
        let depth = self.tx_depth.unwrap_or(128);
        if depth == 0 || depth > 8192 {
            return Err(Failure::usage(format!("--tx-depth {depth}: give 1 to 8192")));
        }
        let largest = self.sizes().iter().copied().max().unwrap_or(0);
        cli::check_memory(8 * largest as u128, "the buffers")?;
        Ok(Settings { op: self.op.unwrap_or(Op::Send), mtu: self.mtu, events: self.events, check: self.check, depth })
    }

    /// Checks what every kind of run has.
    fn check_common(&self) -> Result<(), Failure> {
        if self.iters == Some(0) {
            return Err(Failure::usage("--iters 0 measures nothing; give 1 or more"));
        }
        if self.timeout == 0 || self.timeout > 86400 {
            return Err(Failure::usage(format!("--timeout {}: give 1 to 86400 seconds", self.timeout)));
        }
        match self.size {
            Some(Size(0)) => {
                Err(Failure::usage("--size 0: a message of no bytes has no contents to measure; give 1 or more"))
            }
            Some(size) if size.0 > 1 << 30 => Err(Failure::usage(format!("--size {size}: a message has at most 1G"))),
            _ => Ok(()),
        }
    }

    fn check_manager(&self) -> Result<(), Failure> {
        match self.mtu {
            Some(mtu) => {
                Err(Failure::usage(format!("--mtu {mtu}: the connection manager chooses the MTU; leave it out")))
            }
            None => Ok(()),
        }
    }

    /// What ibv_rc_pingpong has, too; the rest is refused.
    fn compat_options(&self) -> Result<compat::Options, Failure> {
        self.check_common()?;
        let not_there = |option: String, instead: &str| {
            Err(Failure::usage(format!("--compat does what ibv_rc_pingpong does, and that has no {option}; {instead}")))
        };
        if self.connection.is_asked_for() {
            return not_there("--cm".into(), "it exchanges addresses over TCP");
        }
        match (self.op, self.test, self.tx_depth, self.bind) {
            (Some(op @ (Op::Write | Op::Read)), ..) => not_there(format!("--op {op}"), "it sends messages"),
            (_, Some(Test::Bw | Test::Both), ..) => not_there("bandwidth test".into(), "leave --test out"),
            (_, _, Some(_), _) => not_there("--tx-depth".into(), "one message is under way at a time"),
            (_, _, _, Some(Bind::Auto | Bind::Core)) => not_there("--bind".into(), "use taskset, on both sides"),
            _ => {
                let usual = compat::Options::new();
                let options = compat::Options {
                    size: self.size.map_or(usual.size, |size| size.0),
                    iterations: self.iters.map_or(usual.iterations, |iters| iters as u64),
                    mtu: self.mtu.unwrap_or(usual.mtu),
                    service_level: self.sl.unwrap_or(usual.service_level),
                    receives: self.rx_depth.unwrap_or(usual.receives),
                    events: self.events,
                    check: self.check,
                    timeout: Duration::from_secs(self.timeout),
                    json: self.json,
                };
                options.validate().map(|()| options)
            }
        }
    }

    fn test(&self) -> Test {
        self.test.unwrap_or(Test::Both)
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
                if let Some(place) = placement::from_environment(self.root.as_deref()) {
                    let place = place?;
                    return match place.world {
                        2 => Ok(Some(place)),
                        world => Err(Failure::usage(format!(
                            "ping-pong is for 2 processes, and the environment says {world}"
                        ))),
                    };
                }
                if let Some(root) = &self.root {
                    return Err(Failure::usage(format!(
                        "--root {root} is for mpirun, Slurm and torchrun; give it to --server"
                    )));
                }
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
    let cores = placement::bind(group, args.bind.unwrap_or(Bind::Auto))?;
    let client = group.rank() == 1;
    // The launcher's two processes share one output, and one line is enough.
    if client || !launcher::is_launched() {
        announce(&chosen.using(), args.json)?;
    }
    let method = args.connection.settle(&chosen, group, 1, args.json)?;
    // Without --cm, this is found out only here.
    let fits = if method == Method::Endpoints { Ok(()) } else { args.check_manager() };
    group.agree(fits)?;
    let (mut latencies, mut bandwidths) = (Vec::new(), Vec::new());
    let mut progress = Progress::new();
    let sizes = args.sizes();
    let print = client && !args.json;
    if args.test() != Test::Bw {
        for (done, &size) in sizes.iter().enumerate() {
            progress.step("latency", done, sizes.len());
            let mut link = Link::connect(&chosen, group, settings, size, method, cores.shared)?;
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
    if args.test() != Test::Lat {
        for (done, &size) in sizes.iter().enumerate() {
            progress.step("bandwidth", done, sizes.len());
            let mut link = Link::connect(&chosen, group, settings, size, method, cores.shared)?;
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
