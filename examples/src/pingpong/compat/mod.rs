//! The address exchange and the traffic of rdma-core's `ibv_rc_pingpong` and `ibv_uc_pingpong`, so
//! that `pingpong --compat` can be either end of them.
//!
//! Both sides post receives of one size, exchange the addresses of their queue pairs over TCP, and
//! then send one message back and forth as often as the options say. The server sends back each
//! received message.

mod contents;
mod exchange;
mod session;
mod wire;

use std::io::{self, Write};
use std::time::Duration;

use clap::Parser;
use rdma::{Connected, LinkLayer, ProtectionDomain, QpBuilder, QueuePair};
use serde_json::json;

use super::options::{Connection, Sides};
use crate::bootstrap::{self, Place, Roles, Root};
use crate::cli::Size;
use crate::device::{Chosen, DeviceOptions, PathOptions, announce};
use crate::failure::{Kind, is_launched};
use crate::{Failure, cli};
use session::{Outcome, Session};
use wire::Address;

/// Most bytes of memory for receives, approximately, whatever number of receives is asked for.
const MEMORY: usize = 64 << 20;

/// Ping-pong with rdma-core's ibv_rc_pingpong or ibv_uc_pingpong; the options have those programs'
/// meaning.
///
/// Size, count, MTU and service level have to be those of the other side, which cannot be asked.
#[derive(Clone, Debug, Parser)]
#[command(name = "pingpong --compat", version, args_override_self = true, long_about = None)]
#[command(after_help = crate::failure::STATUS_HELP)]
pub struct Args {
    /// Exchange messages with a C program
    #[arg(long, required = true)]
    compat: bool,
    /// The C program: RC for ibv_rc_pingpong, UC for ibv_uc_pingpong
    #[arg(long, value_enum, ignore_case = true, default_value = "RC")]
    connection: Connection,
    #[command(flatten)]
    sides: Sides,
    /// Device: soft0, mlx5_0, mlx5_0:1, any, hardware
    #[arg(short = 'd', long = "ib-dev", visible_alias = "device", value_name = "NAME", env = "RDMA_DEVICE")]
    device: Option<String>,
    /// Port of the device
    #[arg(short = 'i', long = "ib-port", value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: Option<u8>,
    /// Index in the port's GID table (default: the GID that reaches farthest)
    #[arg(short = 'g', long = "gid-idx", visible_short_alias = 'x', visible_alias = "gid-index", value_name = "N")]
    gid_index: Option<u32>,
    /// Bytes of a message
    #[arg(short, long, value_name = "SIZE", default_value = "4096")]
    size: Size,
    /// The path's MTU
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024, value_parser = cli::mtu)]
    mtu: u32,
    /// Receives posted at a time, as far as memory allows
    #[arg(short, long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=65536))]
    rx_depth: u32,
    /// Messages in each direction
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=2_147_483_647))]
    iters: u64,
    /// Service level
    #[arg(short = 'l', long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=15))]
    sl: Option<u8>,
    /// Sleep until there are completions
    #[arg(short, long)]
    events: bool,
    /// Check the contents of every message; the C program needs its -c, too
    #[arg(short = 'c', long = "chk", visible_alias = "check")]
    check: bool,
    /// Print one JSON object
    #[arg(short = 'J', long)]
    json: bool,
}

impl Args {
    /// The C program at the other end.
    fn peer(&self) -> &'static str {
        if self.connection == Connection::Uc { "ibv_uc_pingpong" } else { "ibv_rc_pingpong" }
    }

    /// Number of posted receives: the requested number or what memory allows, and at least two
    /// unless fewer are requested.
    fn depth(&self) -> u32 {
        let in_memory = u32::try_from((MEMORY / self.size.0).max(2)).unwrap_or(u32::MAX);
        self.rx_depth.min(in_memory)
    }
}

/// Runs one side: the server if the place is that of rank 0, else its client.
///
/// # Errors
/// If the device does not support the traffic, or the other side is no such program, goes away, or
/// sends other contents.
pub fn run(args: &Args) -> Result<(), Failure> {
    let size = args.size.0;
    if size == 0 || size > 1 << 30 {
        return Err(Failure::usage(format!("--size {}: give 1 to 1G", args.size)));
    }
    if args.connection == Connection::Ud {
        return Err(Failure::usage("--connection UD: give RC or UC; there is no peer for ibv_ud_pingpong"));
    }
    cli::check_memory((u128::from(args.depth()) + 2) * size as u128, "the buffers")?;
    let Some(Place { rank, root, .. }) = args.sides.place()? else { return Ok(()) };
    let path = PathOptions { service_level: args.sl, ..PathOptions::default() };
    let device = DeviceOptions { device: args.device.clone(), port: args.ib_port, gid_index: args.gid_index, path };
    let result = device.open().and_then(|chosen| match args.connection {
        Connection::Uc => run_side(rank == 0, root, &chosen, args, QueuePair::unreliable),
        _ => run_side(rank == 0, root, &chosen, args, QueuePair::builder),
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
    builder: fn(&ProtectionDomain) -> QpBuilder<T>,
) -> Result<(), Failure> {
    let port = chosen.context.port_attr(chosen.port)?;
    let is_ethernet = port.link_layer() == LinkLayer::ETHERNET;
    let (mtu, most) = (chosen.mtu(Some(options.mtu))?, port.max_message_size());
    if options.size.0 > most as usize {
        let size = options.size;
        return Err(Failure::usage(format!("--size {size}: the port's messages have at most {most} bytes")));
    }
    let prepared = Session::prepare(chosen, options, builder)?;
    // Without a GID index the C program addresses by LID.
    let own = Address::of(&prepared.endpoint(), !is_ethernet && options.gid_index.is_none());
    if !is_server || !is_launched() {
        announce(&chosen.using(), options.json)?;
        announce(&advice(is_server, is_ethernet, options), options.json)?;
        announce(&format!("local address:  {own}"), options.json)?;
    }
    let connect = |remote: &Address| {
        if is_ethernet && remote.gid.is_none() {
            return Err(Failure::new(format!(
                "the other side has sent no GID: {} needs -g with an index of its port's table (ibv_devinfo -v shows it)",
                options.peer()
            )));
        }
        let how = chosen.path.connect_options().mtu(mtu).rnr_retry(7);
        prepared.connect(&remote.endpoint(mtu), &how).map_err(|failure| failure.context("cannot connect"))
    };
    let (session, remote) = match root {
        Root::Listener(listener) => exchange::serve(&listener, own, options.sides.timeout, connect)?,
        Root::Address(address) if is_server => {
            exchange::serve(&bootstrap::listen(&address)?, own, options.sides.timeout, connect)?
        }
        Root::Address(address) => {
            let remote = exchange::join(&address, own, options.sides.timeout)?;
            (connect(&remote)?, remote)
        }
    };
    if !is_server || !is_launched() {
        announce(&format!("remote address: {remote}"), options.json)?;
    }
    let outcome = session.run(is_server)?;
    if !is_server || !is_launched() {
        report(&outcome, chosen, options)?;
    }
    // Some drivers complete the last receive before they acknowledge it; the pause gives them time.
    std::thread::sleep(Duration::from_millis(50));
    outcome.wrong.map_or(Ok(()), |what| Err(Failure::new(what)))
}

/// A line that tells how to start the other side.
fn advice(is_server: bool, is_ethernet: bool, options: &Args) -> String {
    let Args { size: Size(size), iters, mtu, .. } = options;
    let gid = if is_ethernet { " -g INDEX" } else { "" };
    let level = options.sl.map_or_else(String::new, |level| format!(" -l {level}"));
    let check = if options.check { " -c" } else { "" };
    let argument = if is_server { " THIS-HOST" } else { "" };
    let peer = options.peer();
    format!("speaks to: {peer}{gid} -s {size} -n {iters} -m {mtu}{level}{check}{argument}")
}

fn report(outcome: &Outcome, chosen: &Chosen, options: &Args) -> Result<(), Failure> {
    let (bytes, seconds) = (options.size.0 as u64 * options.iters * 2, outcome.seconds);
    let rate = bytes as f64 * 8.0 / 1e6 / seconds;
    let each = seconds * 1e6 / options.iters as f64;
    let mut out = io::stdout();
    if options.json {
        let report = json!({
            "program": "pingpong", "compat": options.peer(), "device": chosen.line, "size": options.size.0,
            "iterations": options.iters, "bytes": bytes, "seconds": seconds, "mbit_per_second": rate,
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
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for bad in [["-r", "0"], ["-r", "1000000"], ["-l", "16"], ["-n", "0"], ["-n", "2147483648"], ["-t", "5"]] {
            assert!(Args::try_parse_from([&["pingpong", "--compat"], &bad[..]].concat()).is_err(), "{bad:?}");
        }
    }
}
