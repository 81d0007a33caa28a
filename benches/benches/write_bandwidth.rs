//! RDMA writes into another process, beside `process_vm_writev` and `memcpy` to shared pages.
//!
//! `cargo bench -p rdma-benches --bench write_bandwidth -- [rounds=N]`

use std::error::Error;
use std::time::Duration;

use rdma_benches::contender::{Copy, Method, RdmaWrite, Target};
use rdma_benches::pair::{self, Contenders, Outcome, Plan};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{device, mode};

/// Writes in flight at a time.
const IN_FLIGHT: [u64; 2] = [1, 8];

const SIZES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = mode::number("rounds", 11)?;
    let plan = Plan::new(mode::is_smoke(), rounds, Duration::from_millis(2));
    let outcomes = pair::compare(&plan, |role, channel| {
        let opened = device::open()?;
        let mut contenders: Contenders = Vec::new();
        for size in SIZES {
            let target = Target::connect(role, channel, size)?;
            contenders.push(Box::new(Copy::new(&target, Method::CrossProcessWrite)));
            contenders.push(Box::new(Copy::new(&target, Method::Memcpy)));
            for in_flight in IN_FLIGHT {
                contenders.push(Box::new(RdmaWrite::connect(role, channel, &opened, size, in_flight)?));
            }
        }
        Ok(contenders)
    })?;
    for (size, outcomes) in SIZES.iter().zip(outcomes.chunks(outcomes.len() / SIZES.len())) {
        report(*size, outcomes);
    }
    Ok(())
}

fn report(size: usize, outcomes: &[Outcome]) {
    let bytes = u32::try_from(size).map_or(0.0, f64::from);
    let heads =
        ["contender", "GB/s, median (min-max)", "us, median (min-max)", "x process_vm_writev", "disturbed rounds"];
    let mut table = Table::new(format!("Writes of {} into another process", table::bytes(size)), &heads);
    let kernel = &outcomes[0];
    for outcome in outcomes {
        let time = Spread::of(&outcome.rounds);
        table.row([
            outcome.name.clone(),
            table::spread(time.map(|time| time.map(|ns| bytes / ns))),
            table::spread(time.map(|time| time.map(|ns| ns / 1000.0))),
            table::spread(paired_ratio(&kernel.rounds, &outcome.rounds)),
            format!("{} of {}", outcome.disturbed, outcome.rounds.len()),
        ]);
    }
    println!("{table}");
    for outcome in outcomes.iter().skip(2).filter(|_| size == 1 << 20) {
        let rate = Spread::of(&outcome.rounds).map(|time| time.map(|ns| bytes / ns));
        let (median, measured) = (rate.map_or(0.0, |rate| rate.median), format!("{} GB/s", table::spread(rate)));
        let what = format!("{}, 1 MiB", outcome.name);
        table::bar(&what, "15 GB/s at least", &measured, median >= 15.0);
        table::bar(&what, "30 GB/s aimed at", &measured, median >= 30.0);
        let ratio = paired_ratio(&kernel.rounds, &outcome.rounds);
        let measured = format!("{} times as fast", table::spread(ratio));
        let reached = ratio.is_some_and(|ratio| ratio.median >= 1.0);
        table::bar(&what, "no slower than process_vm_writev", &measured, reached);
    }
}
