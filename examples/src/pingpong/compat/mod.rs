//! The address exchange and the traffic of rdma-core's `ibv_rc_pingpong`, `ibv_uc_pingpong` and
//! `ibv_srq_pingpong`, so that `pingpong --compat` can be either side of them.
//!
//! Both sides post receives of one size, exchange the addresses of their queue pairs over TCP, and
//! then send one message back and forth as often as the options say. The server sends back each
//! received message. With `--srq` the sides have several queue pairs, which take their receives
//! from one queue and complete on one completion queue, and the messages of all of them count.

mod contents;
mod exchange;
mod session;
mod wire;

use std::io::{self, Write};
use std::time::Duration;

use clap::Parser;
use rdma::transport::Connected;
use rdma::{ConnectOptions, Endpoint, LinkLayer, QueuePair, SharedReceiveQueue};
use serde_json::json;

use super::options::{Connection, Sides};
use crate::cli::Size;
use crate::device::{Chosen, DeviceOptions, PathOptions, announce};
use crate::failure::{Kind, is_launched};
use crate::{Failure, cli};
use rdma_collectives::bootstrap::{self, Place, Roles, Root};
use session::{Outcome, Queues, Session};
use wire::{Address, SHARED_LINES};

/// Most bytes of memory for receives, approximately, whatever number of receives is asked for.
const MEMORY: usize = 64 << 20;

/// Ping-pong with rdma-core's ibv_rc_pingpong, ibv_uc_pingpong or ibv_srq_pingpong; the options
/// have those programs' meaning.
///
/// Size, counts, MTU and service level have to be those of the other side, which cannot be asked.
#[derive(Clone, Debug, Parser)]
#[command(name = "pingpong --compat", version, args_override_self = true, long_about = None)]
#[command(after_help = crate::failure::STATUS_HELP)]
pub struct Args {
    /// Exchange messages with a C program
    #[arg(long, required = true)]
    #[arg(help_heading = cli::WHAT)]
    compat: bool,
    /// The C program: RC for ibv_rc_pingpong, UC for ibv_uc_pingpong
    #[arg(long, value_enum, ignore_case = true, default_value = "RC")]
    #[arg(help_heading = cli::WHAT)]
    connection: Connection,
    /// The C program is ibv_srq_pingpong: queue pairs that share their receives
    #[arg(long, visible_alias = "use-srq")]
    #[arg(help_heading = cli::WHAT)]
    srq: bool,
    /// Queue pairs that share their receives
    #[arg(short = 'q', long = "num-qp", value_name = "N", default_value_t = 16, requires = "srq")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..SHARED_LINES as i64))]
    #[arg(help_heading = cli::SIZES)]
    num_qp: u32,
    #[command(flatten)]
    sides: Sides,
    /// Device: soft0, mlx5_0, mlx5_0:1, any, hardware
    #[arg(short = 'd', long = "ib-dev", visible_alias = "device", value_name = "NAME", env = "RDMA_DEVICE")]
    #[arg(help_heading = cli::TRANSPORT)]
    device: Option<String>,
    /// Port of the device
    #[arg(short = 'i', long = "ib-port", value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    #[arg(help_heading = cli::TRANSPORT)]
    ib_port: Option<u8>,
    /// Index in the port's GID table (default: the GID that reaches farthest)
    #[arg(short = 'g', long = "gid-idx", visible_short_alias = 'x', visible_alias = "gid-index", value_name = "N")]
    #[arg(help_heading = cli::TRANSPORT)]
    gid_index: Option<u32>,
    /// Bytes of a message
    #[arg(short, long, value_name = "SIZE", default_value = "4096")]
    #[arg(help_heading = cli::SIZES)]
    size: Size,
    /// The path's MTU
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024, value_parser = cli::mtu)]
    #[arg(help_heading = cli::TRANSPORT)]
    mtu: u32,
    /// Receives posted at a time, as far as memory allows
    #[arg(short, long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=65536))]
    #[arg(help_heading = cli::SIZES)]
    rx_depth: u32,
    /// Messages in each direction, on all queue pairs together
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=2_147_483_647))]
    #[arg(help_heading = cli::SIZES)]
    iters: u64,
    /// Service level
    #[arg(short = 'l', long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=15))]
    #[arg(help_heading = cli::TRANSPORT)]
    sl: Option<u8>,
    /// Sleep until there are completions
    #[arg(short, long)]
    #[arg(help_heading = cli::TRANSPORT)]
    events: bool,
    /// Check the contents of every message; the C program needs its -c, too
    #[arg(short = 'c', long = "chk", visible_alias = "check")]
    #[arg(help_heading = cli::WHAT)]
    check: bool,
    /// Print one JSON object
    #[arg(short = 'J', long)]
    #[arg(help_heading = cli::OUTPUT)]
    json: bool,
}

impl Args {
    /// The C program at the other side.
    fn peer(&self) -> &'static str {
        match self.connection {
            Connection::Uc => "ibv_uc_pingpong",
            _ if self.srq => "ibv_srq_pingpong",
            _ => "ibv_rc_pingpong",
        }
    }

    /// Number of queue pairs.
    fn queue_pairs(&self) -> u32 {
        if self.srq { self.num_qp } else { 1 }
    }

    /// Number of address lines that each side sends.
    fn lines(&self) -> usize {
        if self.srq { SHARED_LINES } else { 1 }
    }

    /// Number of posted receives: the requested number or what memory allows, and at least two, and
    /// one for each queue pair, unless fewer are requested.
    fn depth(&self) -> u32 {
        let in_memory = u32::try_from(MEMORY / self.size.0).unwrap_or(u32::MAX);
        self.rx_depth.min(in_memory.max(2).max(self.queue_pairs()))
    }

    /// Checks that the options fit together.
    fn validate(&self) -> Result<(), Failure> {
        let Self { size, connection, srq, num_qp, rx_depth, .. } = self;
        if size.0 == 0 || size.0 > 1 << 30 {
            return Err(Failure::usage(format!("--size {size}: give 1 to 1G")));
        }
        if *connection == Connection::Ud {
            return Err(Failure::usage("--connection UD: give RC or UC; there is no peer for ibv_ud_pingpong"));
        }
        if *srq && *connection != Connection::Rc {
            return Err(Failure::usage("--srq: ibv_srq_pingpong has reliable connections; leave --connection out"));
        }
        if *srq && rx_depth < num_qp {
            return Err(Failure::usage(format!(
                "--rx-depth {rx_depth}: {num_qp} queue pairs share at least {num_qp} receives; give more of these, or a smaller --num-qp"
            )));
        }
        let buffers = u128::from(self.depth()) + 2 * u128::from(self.queue_pairs());
        cli::check_memory(buffers * size.0 as u128, "the buffers")
    }
}

/// Runs one side: the server if the place is that of rank 0, else its client.
///
/// # Errors
/// If the device does not support the traffic, or the other side is no such program, goes away, or
/// sends other contents.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.validate()?;
    let Some(Place { rank, root, .. }) = args.sides.place()? else { return Ok(()) };
    let path = PathOptions { service_level: args.sl, ..PathOptions::default() };
    let device = DeviceOptions {
        device: args.device.clone(),
        port: args.ib_port,
        gid_index: args.gid_index,
        path,
        preferred: None,
    };
    let result = device.open().and_then(|chosen| match args.connection {
        Connection::Uc => {
            let queues = Queues { qp: QueuePair::unreliable, srq: SharedReceiveQueue::unreliable };
            run_side(rank == 0, root, &chosen, args, &queues)
        }
        _ => {
            let queues = Queues { qp: QueuePair::builder, srq: SharedReceiveQueue::builder };
            run_side(rank == 0, root, &chosen, args, &queues)
        }
    });
    match result {
        // The launcher's two processes share one standard error, so each names itself.
        Err(failure) if failure.kind() == Kind::Failed && is_launched() => {
            Err(failure.context(Roles::ServerAndClient.name(rank)))
        }
        result => result,
    }
}

fn run_side<T: Connected>(
    is_server: bool,
    root: Root,
    chosen: &Chosen,
    options: &Args,
    queues: &Queues<T>,
) -> Result<(), Failure> {
    let port = chosen.adapter.context.port_attr(chosen.adapter.port)?;
    let is_ethernet = port.link_layer() == LinkLayer::ETHERNET;
    let (mtu, most) = (chosen.mtu(Some(options.mtu))?, port.max_message_size());
    if options.size.0 > most as usize {
        let size = options.size;
        return Err(Failure::usage(format!("--size {size}: the port's messages have at most {most} bytes")));
    }
    let prepared = Session::prepare(chosen, options, queues, is_server)?;
    // Without a GID index the C program addresses by LID.
    let by_lid = !is_ethernet && options.gid_index.is_none();
    let own: Vec<Address> = prepared.endpoints().iter().map(|endpoint| Address::of(endpoint, by_lid)).collect();
    let (lines, timeout) = (wire::to_lines(&own, options.lines()), options.sides.timeout);
    if !is_server || !is_launched() {
        announce(&chosen.using(), options.json)?;
        announce(&advice(is_server, is_ethernet, options), options.json)?;
        announce_addresses("local address: ", &own, options)?;
    }
    let connect = |remote: &[Address]| {
        check_addresses(remote, is_ethernet, options)?;
        let how = ConnectOptions::new().path(chosen.adapter.path).mtu(mtu);
        let remote: Vec<Endpoint> = remote.iter().map(|address| address.endpoint(mtu)).collect();
        prepared.connect(&remote, &how).map_err(|failure| failure.context("cannot connect"))
    };
    let (session, remote) = match root {
        Root::Listener(listener) => exchange::serve(&listener, &lines, timeout, connect)?,
        Root::Address(address) if is_server => {
            exchange::serve(&bootstrap::listen(&address)?, &lines, timeout, connect)?
        }
        Root::Address(address) => {
            let remote = exchange::join(&address, &lines, timeout)?;
            (connect(&remote)?, remote)
        }
    };
    if !is_server || !is_launched() {
        announce_addresses("remote address:", &remote, options)?;
    }
    let outcome = session.run()?;
    if !is_server || !is_launched() {
        report(&outcome, chosen, options)?;
    }
    // Some drivers complete the last receive before they acknowledge it; the pause gives them time.
    std::thread::sleep(Duration::from_millis(50));
    outcome.wrong.map_or(Ok(()), |what| Err(Failure::new(what)))
}

fn announce_addresses(whose: &str, addresses: &[Address], options: &Args) -> Result<(), Failure> {
    addresses.iter().try_for_each(|address| announce(&format!("{whose} {address}"), options.json))
}

/// Checks that this side can connect its queue pairs to those of the other side.
fn check_addresses(remote: &[Address], is_ethernet: bool, options: &Args) -> Result<(), Failure> {
    let (ours, theirs) = (options.queue_pairs() as usize, remote.len());
    if ours != theirs {
        return Err(Failure::new(format!(
            "the other side has {theirs} queue pairs and ours {ours}; give both the same number (-q)"
        )));
    }
    if is_ethernet && remote.iter().any(|address| address.gid.is_none()) {
        return Err(Failure::new(format!(
            "the other side has sent no GID: {} needs -g with an index of its port's table (ibv_devinfo -v shows it)",
            options.peer()
        )));
    }
    Ok(())
}

/// A line that tells how to start the other side.
fn advice(is_server: bool, is_ethernet: bool, options: &Args) -> String {
    let Args { size: Size(size), iters, mtu, .. } = options;
    let gid = if is_ethernet { " -g INDEX" } else { "" };
    let level = options.sl.map_or_else(String::new, |level| format!(" -l {level}"));
    let check = if options.check { " -c" } else { "" };
    let count = if options.srq { format!(" -q {}", options.num_qp) } else { String::new() };
    let argument = if is_server { " THIS-HOST" } else { "" };
    let peer = options.peer();
    format!("speaks to: {peer}{gid} -s {size} -n {iters} -m {mtu}{count}{level}{check}{argument}")
}

fn report(outcome: &Outcome, chosen: &Chosen, options: &Args) -> Result<(), Failure> {
    let (bytes, seconds) = (options.size.0 as u64 * options.iters * 2, outcome.seconds);
    let rate = bytes as f64 * 8.0 / 1e6 / seconds;
    let each = seconds * 1e6 / options.iters as f64;
    let mut out = io::stdout();
    if options.json {
        let report = json!({
            "program": "pingpong", "compat": options.peer(), "device": chosen.line, "size": options.size.0,
            "queue_pairs": options.queue_pairs(), "iterations": options.iters, "bytes": bytes, "seconds": seconds, "mbit_per_second": rate,
            "usec_per_iteration": each, "checked": options.check && outcome.wrong.is_none(),
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    let checked = if options.check && outcome.wrong.is_none() { ", contents checked" } else { "" };
    writeln!(out, "{bytes} bytes in {seconds:.2} seconds = {rate:.2} Mbit/sec")?;
    writeln!(out, "{} iters in {seconds:.2} seconds = {each:.2} usec/iter{checked}", options.iters)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_fit_into_memory() {
        let depth = |args: &[&str]| Args::parse_from([&["pingpong", "--compat"], args].concat()).depth();
        assert_eq!(depth(&["-s", "1"]), 500);
        assert_eq!(depth(&["-s", "8M"]), 8);
        assert_eq!(depth(&["-s", "1G"]), 2);
        assert_eq!(depth(&["-s", "1G", "-r", "1"]), 1);
        assert_eq!(depth(&["-s", "8M", "--srq"]), 16);
        assert_eq!(depth(&["-s", "8M", "--srq", "-q", "3"]), 8);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let parse = |args: &[&str]| Args::try_parse_from([&["pingpong", "--compat"], args].concat());
        for bad in [["-r", "0"], ["-r", "1000000"], ["-l", "16"], ["-n", "0"], ["-n", "2147483648"], ["-t", "5"]] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
        for bad in [&["-q", "4"][..], &["--srq", "-q", "0"], &["--srq", "-q", "256"]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        for bad in [&["--srq", "-r", "15"][..], &["--srq", "--connection", "UC"]] {
            assert!(parse(bad).unwrap().validate().is_err(), "{bad:?}");
        }
        parse(&["--srq", "-q", "255"]).unwrap().validate().unwrap();
    }
}
