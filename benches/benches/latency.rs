//! A 64-byte message between two polling processes, beside a cache line's way, TCP and UCX: half a
//! round trip. And writes into private memory on which the target spins, beside sends of that size.
//!
//! `cargo bench -p rdma-benches --bench latency -- [rounds=N]`. UCX takes part if Debian's
//! `ucx-utils` is installed.

use std::error::Error;
use std::time::Duration;

use rdma_benches::contender::{CacheLine, RdmaMemory, RdmaSend, TcpSpin, Test, Ucx};
use rdma_benches::pair::{self, Contenders, Outcome, Plan};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{affinity, device, mode};

/// Bytes in a message.
const SIZE: usize = 64;
/// Bytes in a large one, and how many times as long as a send a write may take.
const LARGE: [usize; 2] = [64 << 10, 1 << 20];
const BARS: [f64; 2] = [3.0, 1.5];

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = mode::number("rounds", 15)?;
    let mut plan = Plan::new(mode::is_smoke(), rounds, Duration::from_micros(500));
    if !mode::is_smoke() {
        plan.warm_up = 20;
    }
    // Before this process is pinned to one of them. There and back are two messages.
    let cores = affinity::two_cores()?;
    let ucx = || Ucx::new(Test::Latency, cores, SIZE, 2).filter(|_| !mode::is_smoke());
    let large = if mode::is_smoke() { &LARGE[..1] } else { &LARGE };
    let outcomes = pair::compare(&plan, |role, channel| {
        let opened = device::open()?;
        let mut contenders: Contenders = vec![
            Box::new(CacheLine::connect(role, channel)?),
            Box::new(TcpSpin::connect(role, channel, SIZE)?),
            Box::new(RdmaSend::connect(role, channel, &opened, SIZE)?),
        ];
        for size in large {
            contenders.push(Box::new(RdmaSend::connect(role, channel, &opened, *size)?));
            contenders.push(Box::new(RdmaMemory::connect(role, channel, &opened, *size)?));
        }
        if let Some(ucx) = ucx() {
            contenders.push(Box::new(ucx));
        }
        Ok(contenders)
    })?;
    let [line, tcp, send, rest @ ..] = &outcomes[..] else { return Err("contenders are missing".into()) };
    let (large, ucx) = rest.split_at(2 * large.len());
    report_latency(line, tcp, send, ucx.first());
    report_large(large);
    if send.rounds.len() >= 20 {
        let spread = Spread::of(&send.rounds);
        let worst = spread.map_or(f64::NAN, |spread| spread.max / spread.median);
        let measured = format!("{} times", table::number(worst));
        table::bar("RC send of 64 B", "worst round at most 1.3 times the median", &measured, worst <= 1.3);
    }
    Ok(())
}

fn report_latency(line: &Outcome, tcp: &Outcome, send: &Outcome, ucx: Option<&Outcome>) {
    // Half of a round trip, in microseconds.
    let one_way = |outcome: &Outcome| Spread::of(&outcome.rounds).map(|spread| spread.map(|ns| ns / 2.0 / 1000.0));
    let heads = ["contender", "min, us", "median, us", "max, us", "x cache line", "x UCX", "disturbed rounds"];
    let mut table = Table::new(format!("Latency of {SIZE} B between two cores, one way"), &heads);
    for outcome in [line, tcp, send].into_iter().chain(ucx) {
        let spread = one_way(outcome);
        table.row([
            outcome.name.clone(),
            spread.map_or_else(String::new, |s| table::number(s.min)),
            spread.map_or_else(String::new, |s| table::number(s.median)),
            spread.map_or_else(String::new, |s| table::number(s.max)),
            table::spread(paired_ratio(&outcome.rounds, &line.rounds)),
            table::spread(ucx.and_then(|ucx| paired_ratio(&outcome.rounds, &ucx.rounds))),
            format!("{} of {}", outcome.disturbed, outcome.rounds.len()),
        ]);
    }
    println!("{table}");
    let times = paired_ratio(&tcp.rounds, &send.rounds);
    let reached = times.is_some_and(|times| times.median >= 8.0);
    let measured = format!("{} times", table::spread(times));
    table::bar("RC send of 64 B", "at least 8 times lower than TCP", &measured, reached);
    let times = ucx.and_then(|ucx| paired_ratio(&send.rounds, &ucx.rounds));
    if let Some(times) = times {
        let measured = format!("{} times", table::spread(Some(times)));
        table::bar("RC send of 64 B", "at most 1.5 times UCX's active message", &measured, times.median <= 1.5);
    }
}

fn report_large(outcomes: &[Outcome]) {
    let heads = ["contender", "median (min-max), us", "x send", "disturbed rounds"];
    let mut table = Table::new("Large messages, one way", &heads);
    for (pair, bar) in outcomes.chunks(2).zip(BARS) {
        let [send, write] = pair else { return };
        for outcome in pair {
            table.row([
                outcome.name.clone(),
                table::spread(Spread::of(&outcome.rounds).map(|spread| spread.map(|ns| ns / 2000.0))),
                table::spread(paired_ratio(&outcome.rounds, &send.rounds)),
                format!("{} of {}", outcome.disturbed, outcome.rounds.len()),
            ]);
        }
        if let Some(times) = paired_ratio(&write.rounds, &send.rounds) {
            let bar_text = format!("at most {bar} times as long as the send");
            table::bar(&write.name, &bar_text, &format!("{} times", table::spread(Some(times))), times.median <= bar);
        }
    }
    println!("{table}");
}
