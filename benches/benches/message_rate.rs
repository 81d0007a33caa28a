//! Messages of 64 bytes a second between two polling processes, in batches of 16 with 64 on their
//! way, beside UCX's active messages on the same cores.
//!
//! `cargo bench -p rdma-benches --bench message_rate -- [rounds=N]`

use std::error::Error;
use std::time::Duration;

use rdma_benches::contender::{MESSAGES, MessageRate, Test, Ucx};
use rdma_benches::pair::{self, Contenders, Outcome, Plan};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{affinity, callgrind, device, mode, ways};

/// Bytes in a message.
const SIZE: usize = 64;
/// Messages of a batch.
const BATCH: f64 = 16.0;

fn main() -> Result<(), Box<dyn Error>> {
    if mode::option("--count").is_some() {
        affinity::pin(affinity::two_cores()?.0)?;
        return Ok(MessageRate::within_a_process(&device::open()?, SIZE, ways::counted_iterations())?);
    }
    let rounds = mode::number("rounds", 7)?;
    let mut plan = Plan::new(mode::is_smoke(), rounds, Duration::from_millis(50));
    plan.blocks = plan.blocks.min(3);
    // Before this process is pinned to one of them.
    let cores = affinity::two_cores()?;
    let ucx = || Ucx::new(Test::Rate, cores, SIZE, MESSAGES).filter(|_| !mode::is_smoke());
    let outcomes = pair::compare(&plan, |role, channel| {
        let mut contenders: Contenders = vec![Box::new(MessageRate::connect(role, channel, &device::open()?, SIZE)?)];
        if let Some(ucx) = ucx() {
            contenders.push(Box::new(ucx));
        }
        Ok(contenders)
    })?;
    report(&outcomes);
    if !mode::is_smoke() {
        let instructions = callgrind::per_iteration("batch")? / BATCH;
        println!("both ends in one process: {} instructions a message", table::number(instructions));
    }
    Ok(())
}

fn report(outcomes: &[Outcome]) {
    // Nanoseconds of so many messages are millions of messages a second.
    let rate = |ns: f64| f64::from(u32::try_from(MESSAGES).unwrap_or(u32::MAX)) * 1000.0 / ns;
    let mut table = Table::new(format!("Messages of {SIZE} B, millions a second"), &["contender", "median (min-max)"]);
    for outcome in outcomes {
        let rates: Vec<f64> = outcome.rounds.iter().copied().map(rate).collect();
        table.row([outcome.name.clone(), table::spread(Spread::of(&rates))]);
    }
    println!("{table}");
    let [ours, ucx] = outcomes else {
        println!("1 skipped: ucx_perftest is not installed");
        return;
    };
    let ratio = paired_ratio(&ucx.rounds, &ours.rounds);
    let reached = ratio.is_some_and(|ratio| ratio.median >= 0.5);
    table::bar("messages over UCX's", "at least 0.5 (aim 0.8)", &table::spread(ratio), reached);
}
