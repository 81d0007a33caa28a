//! The exchange and the traffic of rdma-core's `ibv_rc_pingpong`, so that `pingpong --compat` can be either end of it.
//!
//! Both sides post receives of one size, tell each other over TCP where their queue pairs are, and then send one message back and
//! forth, as often as both were told. The server sends back what it has received.

mod contents;
mod exchange;
mod session;
mod wire;

use std::io::{self, Write};
use std::time::Duration;

use rdma::{ConnectOptions, LinkLayer, Mtu};
use serde_json::json;

use crate::bootstrap;
use crate::cli::Size;
use crate::device::{Chosen, DeviceOptions, announce};
use crate::failure::Kind;
use crate::launcher::{self, Place, Root};
use crate::{Failure, cli};
use session::{Outcome, Session};
use wire::Address;

/// Receives hold at most about this much memory, however many are asked for.
const MEMORY: usize = 64 << 20;

/// How the program is run; all but the last three have to be the same at the other side, which cannot be asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a message.
    pub size: usize,
    /// Messages in each direction.
    pub iterations: u64,
    /// The path's MTU in bytes.
    pub mtu: u32,
    /// The service level: 0 to 15.
    pub service_level: u8,
    /// Receives that are posted at a time.
    pub receives: u32,
    /// Sleep until there are completions.
    pub events: bool,
    /// Check every message's contents.
    pub check: bool,
    /// How long the other side may be silent.
    pub timeout: Duration,
    /// Print one JSON object.
    pub json: bool,
}

impl Options {
    /// What `ibv_rc_pingpong` does when it is not told.
    #[must_use]
    pub fn new() -> Self {
        Self {
            size: 4096,
            iterations: 1000,
            mtu: 1024,
            service_level: 0,
            receives: 500,
            events: false,
            check: false,
            timeout: Duration::from_secs(30),
            json: false,
        }
    }

    /// Checks the options for what makes no sense.
    ///
    /// # Errors
    /// One line of complaint.
    pub fn validate(&self) -> Result<(), Failure> {
        let refuse = |text: String| Err(Failure::usage(text));
        if self.receives == 0 || self.receives > 1 << 16 {
            return refuse(format!("--rx-depth {}: give 1 to 65536", self.receives));
        }
        if self.service_level > 15 {
            return refuse(format!("--sl {}: a service level is 0 to 15", self.service_level));
        }
        if Mtu::from_bytes(self.mtu).is_none() {
            return refuse(format!("--mtu {}: an MTU is 256, 512, 1024, 2048 or 4096", self.mtu));
        }
        // The C program counts both in an `int`.
        if self.iterations > i32::MAX as u64 {
            return refuse(format!("--iters {}: ibv_rc_pingpong counts to {}", self.iterations, i32::MAX));
        }
        cli::check_memory(self.memory(), "the buffers")
    }

    /// Receives that are posted: as many as asked for, or what memory allows, and never too few for a message each way.
    fn depth(&self) -> u32 {
        let in_memory = u32::try_from((MEMORY / self.size).max(2)).unwrap_or(u32::MAX);
        self.receives.min(in_memory)
    }

    fn memory(&self) -> u128 {
        (u128::from(self.depth()) + 2) * self.size as u128
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs one side: the server where the place is that of rank 0, else its client.
///
/// # Errors
/// Where the device cannot do it, the other side is none, or goes away, or sends something else.
pub fn run(place: Place, device: &DeviceOptions, options: &Options) -> Result<(), Failure> {
    let Place { rank, world, root, .. } = place;
    let side = if rank == 0 { "the server" } else { "the client" };
    if world != 2 {
        return Err(Failure::usage(format!("a job of {world} ranks: ping-pong is for 2")));
    }
    let result =
        device.open().and_then(|chosen| run_side(rank == 0, root, &chosen, device.gid_index.is_some(), options));
    match result {
        // The launcher's two share one standard error.
        Err(failure) if launcher::is_launched() && failure.kind() == Kind::Failed => Err(failure.context(side)),
        result => result,
    }
}

fn run_side(is_server: bool, root: Root, chosen: &Chosen, gid_given: bool, options: &Options) -> Result<(), Failure> {
    let port = chosen.context.port_attr(chosen.port)?;
    let is_ethernet = port.link_layer() == LinkLayer::ETHERNET;
    let (mtu, most) = (chosen.mtu(Some(options.mtu))?, port.max_message_size());
    if options.size > most as usize {
        return Err(Failure::usage(format!(
            "--size {}: the port's messages have at most {most} bytes",
            Size(options.size)
        )));
    }
    let prepared = Session::prepare(chosen, options)?;
    // Without a GID index the C program goes by LID.
    let own = Address::of(&prepared.endpoint(), !is_ethernet && !gid_given);
    if !is_server || !launcher::is_launched() {
        announce(&chosen.using(), options.json)?;
        announce(&advice(is_server, is_ethernet, options), options.json)?;
        announce(&format!("local address:  {own}"), options.json)?;
    }
    let connect = |remote: &Address| {
        if is_ethernet && remote.gid.is_none() {
            return Err(Failure::new(
                "the other side has sent no GID: ibv_rc_pingpong needs -g with an index of its port's \
                                     table (ibv_devinfo -v shows it)",
            ));
        }
        let how = ConnectOptions::new().mtu(mtu).rnr_retry(7).service_level(options.service_level);
        prepared.connect(&remote.endpoint(mtu), &how).map_err(|failure| failure.context("cannot connect"))
    };
    let (session, remote) = match root {
        Root::Listener(listener) => exchange::serve(&listener, own, options.timeout, connect)?,
        Root::Address(address) if is_server => {
            exchange::serve(&bootstrap::listen(&address)?, own, options.timeout, connect)?
        }
        Root::Address(address) => {
            let remote = exchange::join(&address, own, options.timeout)?;
            (connect(&remote)?, remote)
        }
    };
    if !is_server || !launcher::is_launched() {
        announce(&format!("remote address: {remote}"), options.json)?;
    }
    let outcome = session.run(is_server)?;
    if !is_server || !launcher::is_launched() {
        report(&outcome, chosen, options)?;
    }
    // Who has seen the last message may still owe its acknowledgement, if the driver works in this order.
    std::thread::sleep(Duration::from_millis(50));
    outcome.wrong.map_or(Ok(()), |what| Err(Failure::new(what)))
}

/// How the other side is to be started.
fn advice(is_server: bool, is_ethernet: bool, options: &Options) -> String {
    let Options { size, iterations, mtu, service_level, .. } = options;
    let gid = if is_ethernet { " -g INDEX" } else { "" };
    let level = if *service_level == 0 { String::new() } else { format!(" -l {service_level}") };
    let check = if options.check { " -c" } else { "" };
    let argument = if is_server { " THIS-HOST" } else { "" };
    format!("speaks to: ibv_rc_pingpong{gid} -s {size} -n {iterations} -m {mtu}{level}{check}{argument}")
}

fn report(outcome: &Outcome, chosen: &Chosen, options: &Options) -> Result<(), Failure> {
    let (bytes, seconds) = (options.size as u64 * options.iterations * 2, outcome.seconds);
    let rate = bytes as f64 * 8.0 / 1e6 / seconds;
    let each = seconds * 1e6 / options.iterations as f64;
    let mut out = io::stdout();
    if options.json {
        let report = json!({
            "program": "pingpong", "compat": "ibv_rc_pingpong", "device": chosen.line, "size": options.size,
            "iterations": options.iterations, "bytes": bytes, "seconds": seconds, "mbit_per_second": rate,
            "usec_per_iteration": each, "checked": options.check && outcome.wrong.is_none(),
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    let checked = if options.check && outcome.wrong.is_none() { ", contents checked" } else { "" };
    writeln!(out, "{bytes} bytes in {seconds:.2} seconds = {rate:.2} Mbit/sec")?;
    writeln!(out, "{} iters in {seconds:.2} seconds = {each:.2} usec/iter{checked}", options.iterations)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_fit_into_memory() {
        let depth = |size, receives| Options { size, receives, ..Options::new() }.depth();
        assert_eq!(depth(1, 500), 500);
        assert_eq!(depth(8 << 20, 500), 8);
        assert_eq!(depth(1 << 30, 500), 2);
        assert_eq!(depth(1 << 30, 1), 1);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        assert!(Options::new().validate().is_ok());
        for bad in [
            Options { receives: 0, ..Options::new() },
            Options { receives: 1 << 20, ..Options::new() },
            Options { service_level: 16, ..Options::new() },
            Options { mtu: 1500, ..Options::new() },
            Options { iterations: 1 << 31, ..Options::new() },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }
}
