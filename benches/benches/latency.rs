//! A 64-byte message between two polling processes, beside a cache line's way and TCP: half a round
//! trip.
//!
//! `cargo bench -p rdma-benches --bench latency -- [rounds=N]`

use std::error::Error;
use std::time::Duration;

use rdma_benches::contender::{CacheLine, RdmaSend, TcpSpin};
use rdma_benches::pair::{self, Contenders, Outcome, Plan};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{device, mode};

/// Bytes in a message.
const SIZE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = match mode::option("rounds") {
        Some(rounds) => rounds.parse()?,
        None => 15,
    };
    let mut plan = Plan::new(mode::is_smoke(), rounds, Duration::from_micros(500));
    if !mode::is_smoke() {
        plan.warm_up = 20;
    }
    let outcomes = pair::compare(&plan, |role, channel| {
        let opened = device::open()?;
        let contenders: Contenders = vec![
            Box::new(CacheLine::connect(role, channel)?),
            Box::new(TcpSpin::connect(role, channel, SIZE)?),
            Box::new(RdmaSend::connect(role, channel, &opened, SIZE)?),
        ];
        Ok(contenders)
    })?;
    report(&outcomes);
    Ok(())
}

fn report(outcomes: &[Outcome]) {
    // Half of a round trip, in microseconds.
    let one_way = |outcome: &Outcome| Spread::of(&outcome.rounds).map(|spread| spread.map(|ns| ns / 2.0 / 1000.0));
    let heads = ["contender", "min, us", "median, us", "max, us", "x cache line", "TCP / this", "disturbed rounds"];
    let mut table = Table::new(format!("Latency of {SIZE} B between two cores, one way"), &heads);
    let (line, tcp) = (&outcomes[0], &outcomes[1]);
    for outcome in outcomes {
        let spread = one_way(outcome);
        table.row([
            outcome.name.clone(),
            spread.map_or_else(String::new, |s| table::number(s.min)),
            spread.map_or_else(String::new, |s| table::number(s.median)),
            spread.map_or_else(String::new, |s| table::number(s.max)),
            table::spread(paired_ratio(&outcome.rounds, &line.rounds)),
            table::spread(paired_ratio(&tcp.rounds, &outcome.rounds)),
            format!("{} of {}", outcome.disturbed, outcome.rounds.len()),
        ]);
    }
    println!("{table}");
    let (Some(line), Some(send)) = (one_way(line), one_way(&outcomes[2])) else { return };
    let times = paired_ratio(&tcp.rounds, &outcomes[2].rounds);
    let measured = format!("{} us", table::number(send.median));
    if line.median <= 0.080 {
        table::bar(
            "RC send of 64 B",
            "at most 0.35 us where a line takes at most 0.08 us",
            &measured,
            send.median <= 0.35,
        );
    } else {
        println!(
            "bar: RC send of 64 B: not applicable, a line takes {} us; measured {measured}",
            table::number(line.median)
        );
    }
    let reached = times.is_some_and(|times| times.median >= 8.0);
    table::bar(
        "RC send of 64 B",
        "at least 8 times lower than TCP",
        &format!("{} times", table::spread(times)),
        reached,
    );
}
