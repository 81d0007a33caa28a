//! The round trip of a 64-byte message between two processes that sleep, beside two processes that
//! wake each other by a Unix socket: on one core, and on two.
//!
//! Each side sleeps in the call that takes the message (`ibv_get_cq_event`, `read`), or in poll(2).
//!
//! `cargo bench -p rdma-benches --bench wakeup -- [rounds=N]`.

use std::error::Error;
use std::time::Duration;

use rdma_benches::contender::{Kind, RdmaSleep, Sleep, UnixSleep};
use rdma_benches::pair::{self, Contenders, Outcome, Plan};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{device, mode};

/// Bytes in a message.
const SIZE: usize = 64;
/// How many times as long as a socket's a round trip may take.
const BAR: f64 = 1.3;
/// Contenders for each way to sleep: two kinds of socket, and the device.
const CONTENDERS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = mode::number("rounds", 15)?;
    let mut plan = Plan::new(mode::is_smoke(), rounds, Duration::from_millis(5));
    for on_one_core in [false, true] {
        plan.on_one_core = on_one_core;
        let outcomes = pair::compare(&plan, |role, channel| {
            let opened = device::open()?;
            let mut contenders: Contenders = Vec::new();
            for sleep in Sleep::ALL {
                contenders.push(Box::new(UnixSleep::connect(role, channel, Kind::Stream, sleep, SIZE)?));
                contenders.push(Box::new(UnixSleep::connect(role, channel, Kind::SeqPacket, sleep, SIZE)?));
                contenders.push(Box::new(RdmaSleep::connect(role, channel, &opened, SIZE, sleep)?));
            }
            Ok(contenders)
        })?;
        report(&outcomes, if on_one_core { "one core" } else { "two cores" });
    }
    Ok(())
}

fn report(outcomes: &[Outcome], cores: &str) {
    let heads = ["contender", "median (min-max), us", "x stream", "x seqpacket"];
    let mut table = Table::new(format!("Round trip of {SIZE} B between two sleeping processes on {cores}"), &heads);
    for group in outcomes.chunks(CONTENDERS) {
        let [stream, packets, send] = group else { return };
        for outcome in group {
            table.row([
                outcome.name.clone(),
                table::spread(Spread::of(&outcome.rounds).map(|spread| spread.map(|ns| ns / 1000.0))),
                table::spread(paired_ratio(&outcome.rounds, &stream.rounds)),
                table::spread(paired_ratio(&outcome.rounds, &packets.rounds)),
            ]);
        }
        for socket in [stream, packets] {
            if let Some(times) = paired_ratio(&send.rounds, &socket.rounds) {
                let bar = format!("at most {BAR} times as long as the {}", socket.name);
                let measured = format!("{} times", table::spread(Some(times)));
                table::bar(&format!("{} on {cores}", send.name), &bar, &measured, times.median <= BAR);
            }
        }
    }
    println!("{table}");
}
