//! Echo services over `rdma_net`, TCP and Unix sockets: latency of processes that poll and of
//! processes that sleep, requests and bytes per second of one and of many connections, and the
//! processor time of both sides.
//!
//! `cargo bench -p rdma-benches --bench services -- [rounds=N] [case=N] [only=N] [payload=BYTES]
//! [window=N] [polls=N]`: `case` runs one of the tables alone, `only` one of its rows without a
//! comparison, both from 0; the last three are of `rdma_net`, and `polls` is the number of turns
//! before a driver sleeps.

use std::error::Error;
use std::time::Duration;

use rdma_benches::pair::{self, Outcome, Plan};
use rdma_benches::services::{self, Case, Transport, Waiting};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{device, mode};

/// Bytes of a small and of a large request.
const SMALL: usize = 64;
const LARGE: usize = 64 << 10;
/// Connections of a busy server.
const MANY: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = mode::number("rounds", 15)?;
    let mut plan = Plan::new(mode::is_smoke(), rounds, Duration::from_millis(5));
    if !mode::is_smoke() {
        plan.warm_up = 2;
    }
    let mut cases = cases();
    if let Some(number) = mode::option("case") {
        cases = vec![*cases.get(number.parse::<usize>()?).ok_or("there is no such case")?];
    }
    let mut rows: Vec<Vec<Transport>> = cases.iter().map(|case| Transport::of(*case)).collect();
    if let Some(number) = mode::option("only") {
        let number: usize = number.parse()?;
        rows.iter_mut().for_each(|row| *row = row.iter().skip(number).take(1).copied().collect());
    }
    let outcomes = pair::compare(&plan, |role, channel| {
        let context = device::open()?.context;
        let mut contenders = Vec::new();
        for (case, row) in cases.iter().zip(&rows) {
            for transport in row {
                contenders.push(services::connect(role, channel, &context, *case, *transport)?);
            }
        }
        Ok(contenders)
    })?;
    let mut outcomes = outcomes.into_iter();
    let mut groups = Vec::new();
    for (case, row) in cases.iter().zip(rows) {
        groups.push((case, row.into_iter().zip(&mut outcomes).collect()));
    }
    for (case, outcomes) in &groups {
        report(case, outcomes);
    }
    compare(&groups);
    Ok(())
}

/// The outcomes of a case.
type Row = Vec<(Transport, Outcome)>;

fn tcp(row: &Row) -> Option<&Outcome> {
    row.iter().find(|(transport, _)| *transport == Transport::Tcp).map(|(_, outcome)| outcome)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (waiting, connections) in
        [(Waiting::Busy, 1), (Waiting::Asleep, 1), (Waiting::Default, 1), (Waiting::Default, MANY)]
    {
        cases.extend([SMALL, LARGE].map(|size| Case { size, connections, waiting }));
    }
    cases
}

fn title(case: &Case) -> String {
    let how = match case.waiting {
        Waiting::Busy => "polling processes",
        Waiting::Asleep => "sleeping processes",
        Waiting::Default => "default waiting",
    };
    let plural = if case.connections == 1 { "" } else { "s" };
    format!("Echo of {}, {how}, {} connection{plural}", table::bytes(case.size), case.connections)
}

fn report(case: &Case, outcomes: &Row) {
    let heads =
        ["service", "us per echo", "echoes/s", "GB/s each way", "TCP / this", "CPU us per echo", "CPU s per GB"];
    let mut table = Table::new(title(case), &heads);
    // An iteration is an echo on each connection.
    let each = |spread: Spread| spread.map(|ns| ns / f64::from(case.connections));
    for (_, outcome) in outcomes {
        let time = Spread::of(&outcome.rounds).map(each);
        let processor = Spread::of(&outcome.processor).map(each);
        let bytes = f64::from(u32::try_from(case.size).unwrap_or(u32::MAX));
        table.row([
            outcome.name.clone(),
            table::spread(time.map(|time| time.map(|ns| ns / 1e3))),
            time.map_or_else(String::new, |time| table::number(1e9 / time.median)),
            time.map_or_else(String::new, |time| table::number(bytes / time.median)),
            table::spread(tcp(outcomes).and_then(|tcp| paired_ratio(&tcp.rounds, &outcome.rounds))),
            table::spread(processor.map(|used| used.map(|ns| ns / 1e3))),
            // An echo moves its bytes twice.
            processor.map_or_else(String::new, |used| table::number(used.median / (2.0 * bytes))),
        ]);
    }
    println!("{table}");
}

/// Prints the bars.
fn compare(groups: &[(&Case, Row)]) {
    for (case, outcomes) in groups {
        let (bar, least) = match (case.waiting, case.connections, case.size) {
            (Waiting::Busy, _, SMALL) => {
                ("at least 8 times lower latency than TCP's on a runtime that never sleeps", 8.0)
            }
            (Waiting::Asleep, ..) => ("latency at most TCP's", 1.0),
            (Waiting::Default, MANY, SMALL) => ("at least 2 times TCP's requests/s", 2.0),
            (Waiting::Default, MANY, _) => ("at least 2 times TCP's bytes/s", 2.0),
            _ => continue,
        };
        judge(case, outcomes, outcomes, bar, least);
    }
    let find =
        |waiting| groups.iter().find(|(case, _)| (case.waiting, case.connections, case.size) == (waiting, 1, SMALL));
    if let (Some((case, busy)), Some((_, default))) = (find(Waiting::Busy), find(Waiting::Default)) {
        judge(case, busy, default, "at least 8 times lower latency than TCP's with default waiting", 8.0);
    }
}

/// Prints whether the transports of `rdma_net` are at least `least` times as fast as the TCP of a
/// row.
fn judge(case: &Case, outcomes: &Row, others: &Row, bar: &str, least: f64) {
    let Some(tcp) = tcp(others) else { return };
    for (_, one) in outcomes.iter().filter(|(transport, _)| transport.is_ours()) {
        let times = paired_ratio(&tcp.rounds, &one.rounds);
        let reached = times.is_some_and(|times| times.median >= least);
        table::bar(&format!("{}: {}", title(case), one.name), bar, &format!("{} times", table::spread(times)), reached);
    }
}
