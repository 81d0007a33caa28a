//! `soft0` between two hosts, which are two addresses of a loopback interface, or two network
//! namespaces with a veth pair between them: writes of 1 MiB beside a TCP stream and a plain
//! program of the same work, messages of 64 B beside a TCP ping-pong, an all-reduce of 64 MiB
//! beside the same ring over plain sockets, and encrypted writes beside a TLS stream. And what a
//! link to another host costs the work within a host.
//!
//! `cargo bench -p rdma-benches --bench hosts -- [rounds=N] [part=PART,...] [site=loopback,veth]`,
//! where a part is `writes`, `messages`, `all_reduce`, `many` (four ranks at each side), `tls` or
//! `local`. Namespaces need the right to make them.

use std::error::Error;
use std::io;
use std::process::Command;
use std::time::Duration;

use rdma_benches::contender::{
    AllReduce, AllReduceOfMany, Placement, RdmaSend, RdmaWrite, SocketRing, TcpFrames, TcpMessages, TcpSpin, TcpWrites,
    TlsWrites, WithAHost,
};
use rdma_benches::hosts::{Key, Site};
use rdma_benches::pair::{self, Channel, Contenders, Outcome, Plan, Role};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::ways::{post_poll, send_receive};
use rdma_benches::{device, mode, programs};

const MIB: usize = 1 << 20;
/// Bytes of a message.
const MESSAGE: usize = 64;
/// Bytes of a rank's elements.
const ELEMENTS: usize = 64 * MIB;
/// Writes in flight.
const IN_FLIGHT: u64 = 8;

/// The option of a process that measures the work within a host.
const LOCAL: &str = "--local";
/// The option of a process that compares encrypted connections.
const ENCRYPTED: &str = "--encrypted";
/// Where that process has no other host, may have one, and has a link to one.
const LINKS: [&str; 3] = ["off", "on", "linked"];
const LOCAL_WAYS: [&str; 2] = [send_receive::NAMES[0], post_poll::Case::NAMES[6]];

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(link) = mode::option(LOCAL) {
        return Ok(local(&link)?);
    }
    if let Some(site) = Site::of_this_process() {
        return Ok(compare(site)?);
    }
    let key = Key::new()?;
    for site in Site::ALL.into_iter().filter(|site| is_asked("site", site.name())) {
        for is_encrypted in [false, true] {
            if asked_parts(is_encrypted).is_empty() {
                continue;
            }
            if is_encrypted && !rdma::soft::tcp::can_encrypt() {
                println!("{}: skipped: this processor cannot encrypt", site.name());
                continue;
            }
            let mut command = site.command(&key)?;
            if is_encrypted {
                command.arg(format!("{ENCRYPTED}=yes")).env("RDMA_SOFT_TLS", "on");
            }
            let status = command.status()?;
            if !status.success() {
                return Err(format!("the comparison at {} failed: {status}", site.name()).into());
            }
        }
    }
    if is_asked("part", "local") {
        compare_local(&key)?;
    }
    Ok(())
}

/// Whether an option asks for a value, or is not given.
fn is_asked(option: &str, value: &str) -> bool {
    mode::option(option).is_none_or(|asked| asked.split(',').any(|asked| asked == value))
}

/// The parts with two hosts, each of `soft0` and plain sockets, and the encrypted one.
const PARTS: [&str; 4] = ["writes", "messages", "all_reduce", MANY];
/// The part with four ranks at each side, which has no bar.
const MANY: &str = "many";
const TLS: &str = "tls";

/// The parts that the options ask for, of those that are encrypted or of the others.
fn asked_parts(is_encrypted: bool) -> Vec<&'static str> {
    let parts: &[&str] = if is_encrypted { &[TLS] } else { &PARTS };
    parts.iter().copied().filter(|part| is_asked("part", part)).collect()
}

/// Makes the contenders of a part: that with which the others compare first, `soft0` last.
fn contenders(part: &str, site: Site, role: Role, channel: &mut Channel) -> io::Result<Contenders> {
    let leader = site.address(Role::Leader);
    let elements = if mode::is_smoke() { MIB } else { ELEMENTS };
    let frames = |channel: &mut Channel, placement| {
        TcpFrames::connect(role, channel, leader, (MIB, IN_FLIGHT), placement).map(Box::new)
    };
    Ok(match part {
        "writes" => vec![
            Box::new(TcpWrites::connect(role, channel, leader, MIB)?),
            frames(channel, Placement::Copied)?,
            frames(channel, Placement::Read)?,
            Box::new(RdmaWrite::connect(role, channel, &device::open()?, MIB, IN_FLIGHT)?),
        ],
        TLS => vec![
            Box::new(TlsWrites::connect(role, channel, leader, MIB)?),
            Box::new(RdmaWrite::connect(role, channel, &device::open()?, MIB, IN_FLIGHT)?),
        ],
        "messages" => vec![
            Box::new(TcpSpin::connect_at(role, channel, leader, MESSAGE)?),
            Box::new(TcpMessages::connect(role, channel, leader, MESSAGE)?),
            Box::new(RdmaSend::connect(role, channel, &device::open()?, MESSAGE)?),
        ],
        MANY => vec![
            Box::new(SocketRing::connect(role, channel, leader, elements)?),
            Box::new(AllReduceOfMany::connect(role, channel, leader, elements, 4)?),
        ],
        _ => vec![
            Box::new(SocketRing::connect(role, channel, leader, elements)?),
            Box::new(AllReduce::connect(role, channel, leader, elements)?),
        ],
    })
}

/// Compares the parts at a site, in the process that `main` has started for it.
fn compare(site: Site) -> io::Result<()> {
    if let Err(why) = site.enter() {
        println!("1 skipped: {}: {why}", site.name());
        return Ok(());
    }
    let mut plan = Plan::new(mode::is_smoke(), number_of_rounds()?, Duration::from_millis(40));
    plan.blocks = plan.blocks.min(3);
    let parts = asked_parts(mode::option(ENCRYPTED).is_some());
    let outcomes = pair::compare_with(
        &plan,
        |command| site.set(command, Role::Follower),
        |role, channel| {
            site.connect(role, channel)?;
            let pairs = parts.iter().map(|part| contenders(part, site, role, channel));
            Ok(pairs.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
        },
    )?;
    let mut rest = outcomes.as_slice();
    for part in &parts {
        let count = match *part {
            "writes" => 4,
            "messages" => 3,
            _ => 2,
        };
        let (outcomes, behind) = rest.split_at(count);
        report(site, part, outcomes);
        rest = behind;
    }
    Ok(())
}

fn number_of_rounds() -> io::Result<usize> {
    mode::number("rounds", 7).map_err(io::Error::other)
}

/// Prints a part: the plain sockets, what else it has, `soft0`, and the bar.
fn report(site: Site, part: &str, outcomes: &[Outcome]) {
    let [sockets, .., ours] = outcomes else { return };
    let mib_per_second = |mib: f64| move |ns: f64| mib * 1e9 / ns / 1024.0;
    let elements = f64::from(u32::try_from(ELEMENTS / MIB).unwrap_or(0));
    let (title, unit, scale): (_, _, Box<dyn Fn(f64) -> f64>) = match part {
        "writes" => ("Writes of 1 MiB", "GiB/s", Box::new(mib_per_second(1.0))),
        TLS => ("Encrypted writes of 1 MiB", "GiB/s", Box::new(mib_per_second(1.0))),
        "messages" => ("Messages of 64 B, one way", "us", Box::new(|ns| ns / 2000.0)),
        MANY => ("all_reduce of 64 MiB, 8 ranks beside 2", "GiB/s", Box::new(mib_per_second(elements))),
        _ => ("all_reduce of 64 MiB, 2 ranks", "GiB/s", Box::new(mib_per_second(elements))),
    };
    let is_rate = unit != "us";
    let ratio = |outcome: &Outcome| match is_rate {
        true => paired_ratio(&sockets.rounds, &outcome.rounds),
        false => paired_ratio(&outcome.rounds, &sockets.rounds),
    };
    let other = if part == TLS { "TLS's" } else { "TCP's" };
    let times = format!("{} x {other}", if is_rate { "rate," } else { "time," });
    let unit = format!("{unit}, median (min-max)");
    let heads = ["contender", &unit, &times, "processor, us", "disturbed rounds"];
    let mut table = Table::new(format!("{title}: {}", site.name()), &heads);
    for outcome in outcomes {
        table.row([
            outcome.name.clone(),
            table::spread(Spread::of(&outcome.rounds).map(|spread| spread.map(&scale))),
            table::spread(ratio(outcome)),
            table::spread(Spread::of(&outcome.processor).map(|spread| spread.map(|ns| ns / 1000.0))),
            format!("{} of {}", outcome.disturbed, outcome.rounds.len()),
        ]);
    }
    println!("{table}");
    let Some(ratio) = ratio(ours) else { return };
    let (bar, reached) = match part {
        "writes" => ("at least 0.5 of TCP's rate (aim 0.8)", ratio.median >= 0.5),
        TLS => ("at least 0.7 of the rate of a TLS stream", ratio.median >= 0.7),
        "messages" => ("at most 1.3 times TCP's time", ratio.median <= 1.3),
        MANY => return,
        _ => ("at least 0.8 of the ring's rate", ratio.median >= 0.8),
    };
    table::bar(&format!("{title}, {}", site.name()), bar, &table::spread(Some(ratio)), reached);
}

/// Measures the work within a host, with a follower on another, and prints the nanoseconds of each
/// way in a line.
fn local(link: &str) -> io::Result<()> {
    if Site::Loopback.enter().is_err() {
        return Ok(());
    }
    let plan = Plan::new(mode::is_smoke(), 1, Duration::from_millis(10));
    let is_linked = link == "linked";
    let prepare = |command: &mut Command| {
        if link != "off" {
            Site::Loopback.set(command, Role::Follower);
        }
    };
    let outcomes = pair::compare_with(&plan, prepare, |role, channel| {
        let opened = device::open()?;
        let [message, poll] = LOCAL_WAYS;
        let contenders: Contenders = vec![
            Box::new(WithAHost::<send_receive::Case>::new(role, channel, &opened, message, is_linked)?),
            Box::new(WithAHost::<post_poll::Case>::new(role, channel, &opened, poll, false)?),
        ];
        Ok(contenders)
    })?;
    for outcome in outcomes {
        println!("{}", outcome.rounds.first().copied().unwrap_or(f64::NAN));
    }
    Ok(())
}

/// Compares processes without another host, with one that may have one, and with a link that idles.
fn compare_local(key: &Key) -> Result<(), Box<dyn Error>> {
    let mut times = LOCAL_WAYS.map(|_| LINKS.map(|_| Vec::new()));
    for round in 0..if mode::is_smoke() { 1 } else { number_of_rounds()? } {
        for step in 0..LINKS.len() {
            let at = (round + step) % LINKS.len();
            let mut command = Site::Loopback.command(key)?;
            command.arg(format!("{LOCAL}={}", LINKS[at]));
            if LINKS[at] == "off" {
                command.env_remove("RDMA_SOFT_TCP").env_remove("RDMA_SOFT_KEY");
            }
            let output = programs::run(&mut command)?;
            let text = String::from_utf8_lossy(&output.stdout);
            if text.is_empty() {
                println!("1 skipped: work within a process: a network namespace needs a right");
                return Ok(());
            }
            for (times, line) in times.iter_mut().zip(text.lines()) {
                times[at].push(line.parse::<f64>()?);
            }
        }
    }
    let heads = ["way", "TCP off, ns", "on, ns", "with a link, ns", "on / off", "with a link / off"];
    let mut table = Table::new("Work within a process, median (min-max)", &heads);
    for (name, times) in LOCAL_WAYS.iter().zip(&times) {
        let [off, on, linked] = times;
        let ratio = |times: &[f64]| paired_ratio(times, off);
        let mut row = vec![(*name).to_owned()];
        row.extend(times.iter().map(|times| table::spread(Spread::of(times))));
        row.extend([on, linked].map(|times| table::spread(ratio(times))));
        table.row(row);
        if let Some(ratio) = ratio(linked) {
            let measured = format!("{} times", table::spread(Some(ratio)));
            table::bar(name, "at most 1.02 times with a link that idles", &measured, ratio.median <= 1.02);
        }
    }
    println!("{table}");
    Ok(())
}
