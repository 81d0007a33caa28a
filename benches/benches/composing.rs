//! Many operations at a time over `rdma_net`: 64 reads under one doorbell beside 64 one at a time,
//! `Stream` and `Sink` beside the methods, and two drivers on two cores beside one.
//!
//! `cargo bench -p rdma-benches --bench composing -- [rounds=N]`.

use std::error::Error;
use std::io;
use std::time::Duration;

use rdma_benches::composing::{self, Messaging, READS, Reading};
use rdma_benches::drivers::{Provider, Shape, Writers};
use rdma_benches::pair::{self, Contenders, Outcome, Plan};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{device, mode, quiet};

/// Lengths of messages in bytes: of one fragment, and of one that the peer reads.
const LENGTHS: [usize; 2] = [64, 64 << 10];

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = mode::number("rounds", 15)?;
    let plan = Plan::new(mode::is_smoke(), rounds, Duration::from_millis(5));
    let outcomes = pair::compare(&plan, |role, channel| {
        let context = device::open()?.context;
        let mut contenders = Contenders::new();
        for reading in Reading::ALL {
            contenders.push(composing::reads(role, channel, &context, reading)?);
        }
        for len in LENGTHS {
            for messaging in Messaging::ALL {
                contenders.push(composing::messages(role, channel, &context, messaging, len)?);
            }
        }
        Ok(contenders)
    })?;
    let (reads, messages) = outcomes.split_at(Reading::ALL.len());
    report_reads(reads);
    for (len, group) in LENGTHS.into_iter().zip(messages.chunks(Messaging::ALL.len())) {
        report_messages(len, group);
    }
    let time = if mode::is_smoke() { Duration::from_millis(1) } else { Duration::from_millis(100) };
    for provider in [Provider::Null, Provider::Soft0] {
        report_drivers(provider, &drivers(provider, plan.rounds, time, plan.patience)?);
    }
    Ok(())
}

/// Writes per second of each shape, one value per round.
fn drivers(provider: Provider, rounds: usize, time: Duration, patience: Duration) -> io::Result<Vec<Vec<f64>>> {
    let writers: io::Result<Vec<_>> = Shape::ALL.into_iter().map(|shape| Writers::new(provider, shape)).collect();
    let mut writers = writers?;
    let mut rates = vec![Vec::new(); writers.len()];
    for _ in 0..rounds {
        quiet::wait(patience);
        for (one, rates) in writers.iter_mut().zip(&mut rates) {
            rates.push(one.run(time)?);
        }
    }
    Ok(rates)
}

fn report_reads(outcomes: &[Outcome]) {
    let [single, batches @ ..] = outcomes else { return };
    let title = format!("{READS} reads of 64 B");
    let mut table = Table::new(&title, &["way", "us for all", "one at a time / this"]);
    for outcome in outcomes {
        let time = Spread::of(&outcome.rounds).map(|time| time.map(|ns| ns / 1e3));
        let ratio = paired_ratio(&single.rounds, &outcome.rounds);
        table.row([outcome.name.clone(), table::spread(time), table::spread(ratio)]);
    }
    println!("{table}");
    for outcome in batches {
        judge(
            &title,
            &outcome.name,
            "at least 3 times one at a time",
            paired_ratio(&single.rounds, &outcome.rounds),
            3.0,
        );
    }
}

fn report_messages(len: usize, outcomes: &[Outcome]) {
    let [methods, others @ ..] = outcomes else { return };
    let title = format!("Messages of {} one way", table::bytes(len));
    let mut table = Table::new(&title, &["way", "ns per message", "methods / this"]);
    for outcome in outcomes {
        let ratio = paired_ratio(&methods.rounds, &outcome.rounds);
        table.row([outcome.name.clone(), table::spread(Spread::of(&outcome.rounds)), table::spread(ratio)]);
    }
    println!("{table}");
    for outcome in others {
        judge(&title, &outcome.name, "at most 5 % slower", paired_ratio(&methods.rounds, &outcome.rounds), 1.0 / 1.05);
    }
}

fn report_drivers(provider: Provider, rates: &[Vec<f64>]) {
    let [one, ..] = rates else { return };
    let title = format!("Writes of 64 B by 32 tasks on two connections, {provider:?}");
    let mut table = Table::new(&title, &["shape", "million writes/s", "this / one driver"]);
    for (shape, rates) in Shape::ALL.into_iter().zip(rates) {
        let millions = Spread::of(rates).map(|rate| rate.map(|rate| rate / 1e6));
        table.row([shape.name().to_owned(), table::spread(millions), table::spread(paired_ratio(rates, one))]);
    }
    println!("{table}");
    if let (Provider::Null, [one, two, _]) = (provider, rates) {
        judge(&title, Shape::TwoDrivers.name(), "at least 1.7 times one driver", paired_ratio(two, one), 1.7);
    }
}

/// Prints whether a ratio is at least `least`.
fn judge(title: &str, name: &str, bar: &str, times: Option<Spread>, least: f64) {
    let reached = times.is_some_and(|times| times.median >= least);
    table::bar(&format!("{title}: {name}"), bar, &format!("{} times", table::spread(times)), reached);
}
