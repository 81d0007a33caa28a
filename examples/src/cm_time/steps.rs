//! The steps of a connection's life, and how long they took.

use std::io::{self, Write};
use std::time::Instant;

use serde::Serialize;

/// A step of a connection, named as in rdmacm-utils where it is measured there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the identifier.
    CreateId,
    /// Bind it to the source address, where one is given.
    BindAddr,
    /// Find the device for the destination.
    ResolveAddr,
    /// Find the route there.
    ResolveRoute,
    /// Make the queue pair.
    CreateQp,
    /// Bring it to INIT.
    InitQp,
    /// From the request to the answer.
    Connect,
    /// Bring the queue pair to RTS, and tell the other side.
    Establish,
    /// All of the above.
    FullConnect,
    /// From the goodbye to the other side's.
    Disconnect,
    /// Destroy the queue pair.
    DestroyQp,
    /// Destroy the identifier.
    DestroyId,
}

/// The steps' names in the table, in their order.
const NAMES: [&str; 12] = [
    "create id",
    "bind addr",
    "resolve addr",
    "resolve route",
    "create qp",
    "init qp",
    "connect",
    "establish",
    "full connect",
    "disconnect",
    "destroy qp",
    "destroy id",
];

/// How long one step took, over all connections.
#[derive(Clone, Debug)]
struct Times {
    first: Instant,
    last: Instant,
    count: usize,
    sum: f64,
    max: f64,
    min: f64,
}

/// The times of all steps.
#[derive(Debug, Default)]
pub(super) struct Clock {
    steps: [Option<Times>; NAMES.len()],
}

impl Clock {
    /// Notes that a step of some connection began then and ended now; returns now.
    pub(super) fn ended(&mut self, step: Step, began: Instant) -> Instant {
        let now = Instant::now();
        let micros = (now - began).as_secs_f64() * 1e6;
        let new = Times { first: began, last: now, count: 0, sum: 0.0, max: 0.0, min: f64::INFINITY };
        let times = self.steps[step as usize].get_or_insert(new);
        times.first = times.first.min(began);
        times.last = times.last.max(now);
        times.count += 1;
        times.sum += micros;
        times.max = times.max.max(micros);
        times.min = times.min.min(micros);
        now
    }

    fn rows(&self) -> Vec<Row> {
        let row = |(step, times): (&&'static str, &Option<Times>)| {
            let Times { first, last, count, sum, max, min } = times.clone()?;
            let (total_ms, avg_us) = ((last - first).as_secs_f64() * 1e3, sum / count as f64);
            Some(Row { step, total_ms, max_us: max, min_us: min, avg_us })
        };
        NAMES.iter().zip(&self.steps).filter_map(row).collect()
    }

    /// How many of a step there were in a second, from the first one's beginning to the last one's
    /// end.
    fn rate(&self, step: Step) -> f64 {
        let Some(times) = &self.steps[step as usize] else { return 0.0 };
        let seconds = (times.last - times.first).as_secs_f64();
        if seconds > 0.0 { times.count as f64 / seconds } else { 0.0 }
    }
}

/// A row of the table: one step.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The step's name.
    pub step: &'static str,
    /// From the first connection's beginning of it to the last one's end.
    pub total_ms: f64,
    /// Longest of a connection.
    pub max_us: f64,
    /// Shortest of a connection.
    pub min_us: f64,
    /// Mean over the connections.
    pub avg_us: f64,
}

/// What a round gave.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// How many connections were made.
    pub connections: usize,
    /// How many of them were under way at the same time, at most.
    pub in_flight: usize,
    /// Connections made in a second.
    pub connections_per_second: f64,
    /// Connections ended in a second.
    pub disconnections_per_second: f64,
    /// The steps.
    pub steps: Vec<Row>,
}

impl Round {
    pub(super) fn new(connections: usize, in_flight: usize, clock: &Clock) -> Self {
        Self {
            connections,
            in_flight,
            connections_per_second: clock.rate(Step::FullConnect),
            disconnections_per_second: clock.rate(Step::Disconnect),
            steps: clock.rows(),
        }
    }
}

/// Prints a round's table.
///
/// # Errors
/// Errors of writing to `out`.
pub fn print(out: &mut dyn Write, round: &Round) -> io::Result<()> {
    let Round { connections, in_flight, connections_per_second, disconnections_per_second, .. } = round;
    writeln!(out, "# {connections} connections, {in_flight} at a time")?;
    writeln!(out, "{:<14}{:>11}{:>12}{:>12}{:>12}", "step", "total ms", "max us", "min us", "avg us")?;
    for Row { step, total_ms, max_us, min_us, avg_us } in &round.steps {
        writeln!(out, "{step:<13}:{total_ms:>11.2}{max_us:>12.2}{min_us:>12.2}{avg_us:>12.2}")?;
    }
    writeln!(out, "connections/s {connections_per_second:.1}, disconnections/s {disconnections_per_second:.1}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_add_up() {
        let mut clock = Clock::default();
        let now = Instant::now();
        let Some(earlier) = now.checked_sub(Duration::from_secs(2)) else { return };
        clock.ended(Step::FullConnect, earlier);
        clock.ended(Step::FullConnect, now);
        clock.ended(Step::Disconnect, now);
        let round = Round::new(2, 1, &clock);
        assert_eq!(round.steps.iter().map(|row| row.step).collect::<Vec<_>>(), ["full connect", "disconnect"]);
        let full = &round.steps[0];
        assert!(full.max_us >= 2e6 && full.min_us < 2e6 && full.total_ms >= 2e3, "{full:?}");
        assert!(full.avg_us > full.min_us && full.avg_us < full.max_us, "{full:?}");
        assert!(round.connections_per_second <= 1.0 && round.connections_per_second > 0.0);
    }

    #[test]
    fn the_table_has_a_line_for_each_step() {
        let mut clock = Clock::default();
        use Step::*;
        let mut all = [CreateId, BindAddr, ResolveAddr, ResolveRoute, CreateQp, InitQp].to_vec();
        all.extend([Connect, Establish, FullConnect, Disconnect, DestroyQp, DestroyId]);
        for (place, step) in all.into_iter().enumerate() {
            assert_eq!((step as usize, NAMES[place].replace(' ', "")), (place, format!("{step:?}").to_lowercase()));
            clock.ended(step, Instant::now());
        }
        let mut out = Vec::new();
        print(&mut out, &Round::new(1, 1, &clock)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2 + NAMES.len() + 1);
        let widths: Vec<usize> = text.lines().skip(1).take(NAMES.len() + 1).map(str::len).collect();
        assert!(widths.iter().all(|&width| width == widths[0]), "{text}");
    }
}
