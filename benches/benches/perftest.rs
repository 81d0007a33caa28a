//! Unmodified programs of perftest on the software device, by `soft-rdma`, beside a cache line's
//! way and beside two copies through shared memory.
//!
//! `cargo bench -p rdma-benches --bench perftest -- [rounds=N] [launcher=FILE]`. It needs Debian's
//! `perftest`.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use rdma_benches::contender::{CacheLine, CopyTwice, Perftest, PerftestProgram as Program};
use rdma_benches::pair::{self, Contenders, Outcome, Plan};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{affinity, mode, programs};

const SMALL: usize = 2;
const LARGE: [usize; 2] = [64 << 10, 1 << 20];

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = mode::number("rounds", 10)?;
    let launcher = match mode::option("launcher") {
        Some(file) => Some(PathBuf::from(file).canonicalize()?),
        // A smoke run must not start a build of its own: the lock on the build folder may be held.
        None if mode::is_smoke() => {
            println!("1 skipped: a smoke run needs launcher=FILE to run perftest");
            None
        }
        // The follower starts no programs.
        None if pair::is_follower() => Some(PathBuf::new()),
        None => Some(programs::build(&["soft-rdma"])?.join("soft-rdma")),
    };
    // Before this process is pinned to one of them.
    let cores = affinity::two_cores()?;
    let perftest = |test, size| Perftest::new(launcher.clone()?, cores, test, size);
    let plan = Plan::new(mode::is_smoke(), rounds, Duration::from_millis(20));
    let outcomes = pair::compare(&plan, |role, channel| {
        let mut contenders: Contenders = vec![Box::new(CacheLine::connect(role, channel)?)];
        for size in LARGE {
            contenders.push(Box::new(CopyTwice::connect(role, channel, size)?));
        }
        let latency =
            [(Program::SendLatency, SMALL), (Program::SendLatency, LARGE[0]), (Program::WriteLatency, LARGE[0])];
        let bandwidth = LARGE.map(|size| [(Program::WriteBandwidth, size), (Program::ReadBandwidth, size)]);
        for (program, size) in latency.into_iter().chain(bandwidth.into_iter().flatten()) {
            if let Some(perftest) = perftest(program, size) {
                contenders.push(Box::new(perftest));
            }
        }
        Ok(contenders)
    })?;
    let [line, copies @ .., send, large_send, large_write, write, read, write_1m, read_1m] = &outcomes[..] else {
        println!("1 skipped: perftest is not installed");
        return Ok(());
    };
    report_latency(line, [send, large_send, large_write]);
    for (copy, tests) in copies.iter().zip([[write, read], [write_1m, read_1m]]) {
        report_bandwidth(copy, tests);
    }
    Ok(())
}

fn report_latency(line: &Outcome, tests: [&Outcome; 3]) {
    let heads = ["program", "us, one way, median (min-max)", "worst / best"];
    let mut table = Table::new("Latency of perftest's programs on soft0", &heads);
    // A round trip of the line is two ways.
    let one_way: Vec<f64> = line.rounds.iter().map(|ns| ns / 2.0).collect();
    table.row([line.name.clone(), table::spread(microseconds(&one_way)), worst_over_best(&one_way).1]);
    for test in tests {
        table.row([test.name.clone(), table::spread(microseconds(&test.rounds)), worst_over_best(&test.rounds).1]);
    }
    println!("{table}");
    let [send, large_send, large_write] = tests;
    let near: Vec<f64> =
        one_way.iter().zip(&send.rounds).filter(|(line, _)| **line <= 60.0).map(|(_, ns)| *ns).collect();
    if let Some(spread) = microseconds(&near) {
        let rounds = format!("{} us in {} rounds", table::spread(Some(spread)), near.len());
        table::bar(&send.name, "at most 0.35 us where a line takes at most 0.06 us", &rounds, spread.median <= 0.35);
    }
    if let Some(ratio) = paired_ratio(&large_write.rounds, &large_send.rounds) {
        let measured = format!("{} times", table::spread(Some(ratio)));
        table::bar(&large_write.name, "at most 2 times ib_send_lat", &measured, ratio.median <= 2.0);
    }
    tests.into_iter().for_each(steadiness);
}

fn report_bandwidth(copy: &Outcome, tests: [&Outcome; 2]) {
    let heads = ["contender", "us a message, median (min-max)", "x two copies", "worst / best"];
    let mut table = Table::new(format!("Bandwidth of perftest's programs on soft0, beside {}", copy.name), &heads);
    for outcome in [copy].into_iter().chain(tests) {
        // Speeds are compared: the time of two copies over this one.
        let ratio = paired_ratio(&copy.rounds, &outcome.rounds);
        let cells = [microseconds(&outcome.rounds), ratio].map(table::spread);
        let [time, ratio] = cells;
        table.row([outcome.name.clone(), time, ratio, worst_over_best(&outcome.rounds).1]);
    }
    println!("{table}");
    for test in tests {
        if let Some(ratio) = paired_ratio(&copy.rounds, &test.rounds) {
            let measured = format!("{} times", table::spread(Some(ratio)));
            table::bar(&test.name, "at least 0.7 times the speed of two copies", &measured, ratio.median >= 0.7);
        }
        steadiness(test);
    }
}

/// The bar for the spread of a test's rounds.
fn steadiness(test: &Outcome) {
    let (ratio, text) = worst_over_best(&test.rounds);
    table::bar(&test.name, "worst round at most 1.3 times the best", &text, ratio <= 1.3);
}

fn worst_over_best(rounds: &[f64]) -> (f64, String) {
    let ratio = Spread::of(rounds).map_or(f64::NAN, |spread| spread.max / spread.min);
    (ratio, table::number(ratio))
}

fn microseconds(nanoseconds: &[f64]) -> Option<Spread> {
    Spread::of(nanoseconds).map(|spread| spread.map(|ns| ns / 1000.0))
}
