//! The options of `pingpong`: perftest's, with perftest's meaning.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::perftest::Perftest;
use crate::Failure;
use crate::cli::{self, Size};
use crate::connect::ConnectionOptions;
use crate::device::{Chosen, DeviceOptions, PathOptions};
use crate::placement::{self, Bind, JobOption, KeyOption};
use crate::refused::RefusedOptions;
use rdma_collectives::bootstrap::{self, Place, Roles};
use rdma_collectives::connect::Method;

/// Bytes of an atomic operation.
const ATOMIC: usize = 8;
/// perftest's default sizes of latency and of bandwidth tests.
const USUAL: (usize, usize) = (2, 64 << 10);

/// Operations that carry the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Sends and receives
    Send,
    /// RDMA writes
    Write,
    /// RDMA reads
    Read,
    /// Atomic operations on 8 bytes
    Atomic,
}

impl Op {
    /// Whether the other side does not notice the messages, and sends no answer.
    pub(super) fn is_one_sided(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }
}

/// The atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
pub enum AtomicType {
    /// Adds 1
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    /// Replaces each number by the next
    #[value(name = "CMP_AND_SWAP")]
    CmpAndSwap,
}

/// The transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Connection {
    /// Reliable connections
    #[value(name = "RC")]
    Rc,
    /// Unreliable connections
    #[value(name = "UC")]
    Uc,
    /// Unreliable datagrams
    #[value(name = "UD")]
    Ud,
}

impl Connection {
    /// perftest's name of the transport.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

/// Measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Latency
    Lat,
    /// Bandwidth
    Bw,
    /// Latency, then bandwidth
    Both,
}

/// Options for the side of this process, and for the address of the other.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = cli::JOB)]
pub struct Sides {
    /// The server's address; without it, both processes are started here
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "server")]
    pub connect: Option<String>,
    /// Wait for a client on this address (default: on all of IPv4)
    #[arg(long, value_name = "ADDRESS[:PORT]", num_args = 0..=1, default_missing_value = "0.0.0.0")]
    pub server: Option<String>,
    /// Port of the server's socket
    #[arg(short, long, value_name = "N", default_value_t = bootstrap::DEFAULT_PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(hide_short_help = true)]
    pub port: u16,
    /// Where the server, rank 0, listens under mpirun, Slurm or torchrun (default: what the
    /// environment says, or the one host of both)
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["server", "connect"])]
    #[arg(hide_short_help = true)]
    pub root: Option<String>,
    /// The number of the job.
    #[command(flatten)]
    pub job: JobOption,
    /// Seconds to wait for the other process; a process that is silent for a third of this time
    /// counts as dead
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = cli::seconds)]
    #[arg(hide_short_help = true)]
    pub timeout: Duration,
}

impl Sides {
    /// This process's place; `None` if it was the launcher of two processes that have ended well.
    ///
    /// # Errors
    /// If these processes failed, or the options are invalid.
    pub fn place(&self) -> Result<Option<Place>, Failure> {
        let by_hand = match (&self.server, &self.connect) {
            (Some(address), _) => Some((0, address)),
            (None, Some(address)) => Some((1, address)),
            (None, None) => None,
        };
        let by_hand = by_hand.map(|(rank, address)| (rank, 2, placement::with_port(address, self.port)));
        placement::place(Roles::ServerAndClient, by_hand, None, self.root.as_deref(), &self.job)
    }
}

/// Options of one side, which need not be those of the other.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = cli::TRANSPORT)]
pub struct LocalOptions {
    /// Device: soft0, mlx5_0, mlx5_0:1, any, hardware
    #[arg(short = 'd', long = "ib-dev", visible_alias = "device", value_name = "NAME", env = "RDMA_DEVICE")]
    pub device: Option<String>,
    /// Port of the device
    #[arg(short = 'i', long = "ib-port", value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    #[arg(hide_short_help = true)]
    pub ib_port: Option<u8>,
    /// Index in the port's GID table [env: RDMA_GID_INDEX] (default: the GID that reaches farthest)
    #[arg(short = 'x', long, value_name = "N")]
    #[arg(hide_short_help = true)]
    pub gid_index: Option<u32>,
    /// The path to the other side.
    #[command(flatten)]
    pub path: PathOptions,
    /// Pin each process to a core
    #[arg(long, value_parser = cli::one_of::<Bind>(), default_value_t = Bind::Auto)]
    #[arg(help_heading = cli::JOB, hide_short_help = true)]
    pub bind: Bind,
    /// The maker of the key for TCP between hosts.
    #[command(flatten)]
    pub key: KeyOption,
    /// Print one JSON object instead of tables
    #[arg(short = 'J', long)]
    #[arg(help_heading = cli::OUTPUT)]
    pub json: bool,
    /// Accepted for compatibility with perftest; the processors' frequency is never checked
    #[arg(short = 'F', long = "CPU-freq")]
    #[arg(help_heading = cli::OUTPUT, hide_short_help = true)]
    pub cpu_freq: bool,
}

impl LocalOptions {
    /// The device options among these.
    #[must_use]
    pub fn device(&self) -> DeviceOptions {
        let Self { ib_port: port, gid_index, path, .. } = *self;
        DeviceOptions { device: self.device.clone(), port, gid_index, path, preferred: None }
    }
}

/// Options of the measurement, which must be equal on both sides.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = cli::WHAT)]
pub struct Options {
    /// Operation: perftest's ib_send_*, ib_write_*, ib_read_*, ib_atomic_*
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub op: Op,
    /// Measurement: perftest's *_lat, *_bw
    #[arg(long, value_enum, default_value_t = Test::Both)]
    pub test: Test,
    /// Atomic operation
    #[arg(short = 'A', long = "atomic_type", value_enum, ignore_case = true, default_value = "FETCH_AND_ADD")]
    #[serde(rename = "atomic_type")]
    #[arg(hide_short_help = true)]
    pub atomic_type: AtomicType,
    /// Connection type
    #[arg(short = 'c', long, value_enum, ignore_case = true, default_value = "RC")]
    pub connection: Connection,
    /// One message size (default: every other one from 2 to 8M)
    ///
    /// The default of -D is 2 for latency and 64K for bandwidth, as in perftest.
    #[arg(short, long, value_name = "SIZE")]
    #[arg(help_heading = cli::SIZES)]
    pub size: Option<Size>,
    /// All sizes from 2 to 8M
    #[arg(short = 'a', long, conflicts_with = "size")]
    #[arg(help_heading = cli::SIZES)]
    pub all: bool,
    /// Messages of each size and queue pair
    ///
    /// Default: 1000 for latency, 5000 for bandwidth, fewer for large ones.
    #[arg(short = 'n', long, value_name = "N", value_parser = cli::count)]
    #[arg(help_heading = cli::SIZES)]
    pub iters: Option<usize>,
    /// Duration of each test
    ///
    /// The first and the last quarter are not counted.
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    #[arg(conflicts_with_all = ["iters", "all", "events"])]
    #[arg(help_heading = cli::SIZES)]
    pub duration: Option<u64>,
    /// Bandwidth in both directions at once
    #[arg(short, long)]
    pub bidirectional: bool,
    /// Queue pairs of a bandwidth test
    #[arg(short = 'q', long = "qp", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    #[arg(help_heading = cli::SIZES)]
    pub qp: u16,
    /// Most messages in flight on each queue pair in bandwidth tests, as far as memory allows
    #[arg(short, long, value_name = "N", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    #[arg(help_heading = cli::SIZES)]
    #[arg(hide_short_help = true)]
    pub tx_depth: u32,
    /// Receives posted on each queue pair, as far as memory allows
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=16384))]
    #[arg(help_heading = cli::SIZES, hide_short_help = true)]
    pub rx_depth: u32,
    /// Largest message that is copied into its request (default: 220 for latency, or what the
    /// device can; else 0)
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1024))]
    #[serde(rename = "inline_size")]
    #[arg(help_heading = cli::SIZES, hide_short_help = true)]
    pub inline_size: Option<u32>,
    /// Largest packet payload on the path: 256, 512, 1024, 2048, 4096 (default: the port's)
    #[arg(short, long, value_name = "BYTES", value_parser = cli::mtu)]
    #[arg(help_heading = cli::TRANSPORT, hide_short_help = true)]
    pub mtu: Option<u32>,
    /// Sleep until a completion event instead of polling
    #[arg(short, long)]
    #[arg(help_heading = cli::WHAT)]
    #[arg(hide_short_help = true)]
    pub events: bool,
    /// Check the contents of every message
    #[arg(long)]
    pub check: bool,
    /// Print bandwidth in Gbit/s instead of MiB/s
    #[arg(long = "report_gbits")]
    #[serde(rename = "report_gbits")]
    #[arg(help_heading = cli::OUTPUT)]
    pub report_gbits: bool,
    /// Seconds at the begin and at the end of a test with --duration that are not counted
    ///
    /// Default: a quarter of the duration.
    #[arg(short = 'f', long, value_name = "SECONDS", requires = "duration")]
    #[arg(help_heading = cli::SIZES, hide_short_help = true)]
    pub margin: Option<u64>,
    /// Most reads or atomic operations in flight on each queue pair (default: those of -t)
    #[arg(short = 'o', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8192))]
    #[arg(help_heading = cli::SIZES, hide_short_help = true)]
    pub outs: Option<u32>,
    /// Messages for each completion of a bandwidth test, at most -t
    ///
    /// perftest's default is 100. Atomic operations have a completion each.
    #[arg(short = 'Q', long = "cq-mod", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    #[arg(help_heading = cli::SIZES, hide_short_help = true)]
    pub cq_mod: u32,
    /// Do not look for the peak bandwidth, which is 0 then
    #[arg(short = 'N', long = "noPeak", help_heading = cli::OUTPUT, hide_short_help = true)]
    #[serde(rename = "noPeak")]
    pub no_peak: bool,
    /// How to connect.
    #[command(flatten)]
    #[serde(skip)]
    pub manager: ConnectionOptions,
    /// Options of perftest that are refused.
    #[command(flatten)]
    #[serde(skip)]
    refused: RefusedOptions<Perftest>,
}

impl Options {
    /// Checks that the options fit together.
    ///
    /// # Errors
    /// If options contradict each other or are out of range.
    pub fn validate(&self) -> Result<(), Failure> {
        let refuse = |text: &str| Err(Failure::usage(text));
        match (self.size, self.op) {
            (Some(Size(ATOMIC)) | None, Op::Atomic) if !self.all => {}
            (_, Op::Atomic) => return refuse("atomic operations have 8 bytes; leave --size and --all out"),
            (Some(Size(0)), _) => return refuse("--size 0: a message of no bytes has no contents; give 1 or more"),
            (Some(size), _) if size.0 > 1 << 30 => {
                return refuse(&format!("--size {size}: a message has at most 1G"));
            }
            _ => {}
        }
        if self.connection == Connection::Ud && self.op != Op::Send {
            return refuse("datagrams (--connection UD) are sent; give --op send");
        }
        if self.connection == Connection::Uc && self.op.is_one_sided() {
            return refuse("unreliable connections (--connection UC) send and write; give --op send or --op write");
        }
        if self.connection != Connection::Rc && self.manager.is_asked_for() {
            return refuse("the connection manager makes reliable connections only; leave --rdma_cm out");
        }
        if self.test == Test::Lat && (self.bidirectional || self.qp > 1) {
            return refuse("--bidirectional and --qp are for bandwidth tests; leave --test lat out");
        }
        if self.outs.is_some() && !self.op.is_one_sided() {
            return refuse("--outs is for reads and atomic operations; give --op read or --op atomic");
        }
        if let (Some(seconds), Some(margin)) = (self.duration, self.margin) {
            if seconds <= margin.saturating_mul(2) {
                return refuse(&format!("--duration {seconds} is not longer than two times --margin {margin}"));
            }
        }
        if self.manager.is_asked_for() {
            self.check_mtu()?;
        }
        let largest = self.sizes(Test::Bw).iter().copied().max().unwrap_or(0);
        cli::check_memory(8 * largest as u128 * u128::from(self.qp), "the buffers")
    }

    /// The largest size that the chosen connection method can carry.
    ///
    /// # Errors
    /// If the method and the options contradict each other.
    pub(super) fn most(&self, chosen: &Chosen, method: Method) -> Result<usize, Failure> {
        if method != Method::Endpoints {
            // iWARP uses the connection manager even without `--cm`, so `validate` may not have
            // checked this.
            self.check_mtu()?;
        }
        if self.connection != Connection::Ud {
            return Ok(usize::MAX);
        }
        let most = chosen.mtu(self.mtu)?.bytes().unwrap_or(0) as usize;
        match self.size {
            Some(Size(size)) if size > most => {
                Err(Failure::usage(format!("--size {size}: a datagram has at most {most} bytes, the path's MTU")))
            }
            _ => Ok(most),
        }
    }

    /// Refuses `--mtu`: the connection manager chooses the MTU.
    fn check_mtu(&self) -> Result<(), Failure> {
        let refuse = |mtu| Failure::usage(format!("--mtu {mtu}: the connection manager chooses the MTU; leave it out"));
        self.mtu.map_or(Ok(()), |mtu| Err(refuse(mtu)))
    }

    /// The time at the begin and at the end of a test with `--duration` that is not counted.
    pub(super) fn margin(&self) -> Duration {
        let quarter = || Duration::from_secs(self.duration.unwrap_or_default()) / 4;
        self.margin.map_or_else(quarter, Duration::from_secs)
    }

    /// The kinds of tests to run.
    pub(super) fn tests(&self) -> Vec<Test> {
        match self.test {
            Test::Both => vec![Test::Lat, Test::Bw],
            test => vec![test],
        }
    }

    /// The message sizes for a kind of test.
    pub(super) fn sizes(&self, test: Test) -> Vec<usize> {
        match (self.size, self.op) {
            (Some(size), _) => vec![size.0],
            (None, Op::Atomic) => vec![ATOMIC],
            (None, _) if self.duration.is_some() => vec![if test == Test::Lat { USUAL.0 } else { USUAL.1 }],
            (None, _) => (1..=23).step_by(if self.all { 1 } else { 2 }).map(|shift| 1 << shift).collect(),
        }
    }

    /// The number of messages of a size to measure.
    pub(super) fn iterations(&self, test: Test, size: usize) -> usize {
        let most = if test == Test::Lat { 1000 } else { 5000 };
        self.iters.unwrap_or_else(|| ((256 << 20) / size).clamp(50, most))
    }

    /// The title of a test, as perftest prints it.
    pub(super) fn title(&self, test: Test) -> String {
        let op = match (self.op, self.atomic_type) {
            (Op::Send, _) => "Send",
            (Op::Write, _) => "RDMA_Write",
            (Op::Read, _) => "RDMA_Read",
            (Op::Atomic, AtomicType::FetchAndAdd) => "Atomic FETCH_AND_ADD",
            (Op::Atomic, AtomicType::CmpAndSwap) => "Atomic CMP_AND_SWAP",
        };
        let kind = match test {
            Test::Lat => "Latency",
            _ if self.bidirectional => "Bidirectional BW",
            _ => "BW",
        };
        format!("{op} {kind} Test")
    }
}
