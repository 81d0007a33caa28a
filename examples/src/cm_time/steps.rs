//! The steps of a connection's life, and their durations.

use std::io::{self, Write};
use std::time::Instant;

use serde::Serialize;

/// A step of a connection, named as in rdmacm-utils where it is measured there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the identifier.
    CreateId,
    /// Bind the identifier to the source address, if one is given.
    BindAddr,
    /// Find the device for the destination.
    ResolveAddr,
    /// Find the route to the destination.
    ResolveRoute,
    /// Create the queue pair.
    CreateQp,
    /// Bring the queue pair to INIT.
    InitQp,
    /// The time from the request to the response.
    Connect,
    /// Bring the queue pair to RTS, and tell the other side.
    Establish,
    /// All of the steps above.
    FullConnect,
    /// The time from this side's disconnect to the peer's.
    Disconnect,
    /// Destroy the queue pair.
    DestroyQp,
    /// Destroy the identifier.
    DestroyId,
}

/// The names of the steps in the table, in the order of `Step`.
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

/// The durations of one step over all connections.
#[derive(Clone, Debug)]
struct Times {
    first: Instant,
    last: Instant,
    count: usize,
    sum: f64,
    max: f64,
    min: f64,
}

/// The durations of all steps.
#[derive(Debug, Default)]
pub(super) struct Clock {
    steps: [Option<Times>; NAMES.len()],
}

impl Clock {
    /// Records that a step of some connection began at `began` and ends now; returns the present
    /// time.
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

    /// How often a step was done per second, from its first beginning to its last end.
    fn rate(&self, step: Step) -> f64 {
        let Some(times) = &self.steps[step as usize] else { return 0.0 };
        let seconds = (times.last - times.first).as_secs_f64();
        if seconds > 0.0 { times.count as f64 / seconds } else { 0.0 }
    }
}

/// A row of the table, for one step.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The step's name.
    pub step: &'static str,
    /// Milliseconds from the first connection's beginning of the step to the last connection's end.
    pub total_ms: f64,
    /// Longest duration over the connections.
    pub max_us: f64,
    /// Shortest duration over the connections.
    pub min_us: f64,
    /// Mean duration over the connections.
    pub avg_us: f64,
}

/// The results of a round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Number of connections made.
    pub connections: usize,
    /// Most connections in progress at a time.
    pub in_flight: usize,
    /// Connections made per second.
    pub connections_per_second: f64,
    /// Connections ended per second.
    pub disconnections_per_second: f64,
    /// The durations of the steps.
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

/// Prints the table of a round.
///
/// # Errors
/// If writing to `out` fails.
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
