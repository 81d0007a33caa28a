//! Several ways to do one thing: nanoseconds, instructions and allocations of each.

pub mod beside_a_link;
pub mod datagrams;
pub mod lockstep;
pub mod post_poll;
pub mod send_receive;

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use crate::stats::{self, Spread};
use crate::table::{self, Table};
use crate::{affinity, allocations, callgrind, mode, pair, quiet};

/// Iterations before those that are timed or counted.
const WARM_UP: u64 = 100;

/// A way, ready to run.
pub trait Way: Sized {
    /// Makes the way with this name.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn named(name: &str) -> io::Result<Self>;

    /// Goes the way that many times.
    ///
    /// # Errors
    ///
    /// The device's error.
    fn run(&mut self, iterations: u64) -> io::Result<()>;
}

/// A way with its measurements.
#[derive(Debug)]
pub struct Measured<W> {
    name: &'static str,
    way: W,
    /// Nanoseconds of an iteration, by round.
    nanoseconds: Vec<f64>,
    /// Allocations of all iterations.
    pub allocations: u64,
    /// Instructions of an iteration, if they were counted.
    pub instructions: Option<f64>,
}

impl<W: Way> Measured<W> {
    fn new(name: &'static str) -> io::Result<Self> {
        let mut way = W::named(name)?;
        way.run(WARM_UP)?;
        Ok(Self { name, way, nanoseconds: Vec::with_capacity(64), allocations: 0, instructions: None })
    }

    /// A round: the median of some blocks.
    fn time(&mut self, iterations: u64) -> io::Result<()> {
        let mut blocks = [0.0; 9];
        let allocations = allocations::count();
        for block in &mut blocks {
            let start = Instant::now();
            self.way.run(iterations)?;
            *block = pair::per_iteration(start.elapsed(), iterations);
        }
        self.allocations += allocations::count() - allocations;
        self.nanoseconds.push(stats::median(&blocks));
        Ok(())
    }

    fn count(&mut self) -> io::Result<()> {
        match callgrind::per_iteration(self.name) {
            Ok(instructions) => self.instructions = Some(instructions),
            Err(error) if error.kind() == io::ErrorKind::NotFound => println!("1 skipped: valgrind is not installed"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Nanoseconds of an iteration beyond those of another way, by round.
    pub fn nanoseconds_over(&self, other: &Self) -> Vec<f64> {
        self.nanoseconds.iter().zip(&other.nanoseconds).map(|(this, other)| this - other).collect()
    }

    /// Instructions of an iteration beyond those of another way, if both were counted.
    pub fn instructions_over(&self, other: &Self) -> Option<f64> {
        Some(self.instructions? - other.instructions?)
    }
}

/// Measures the ways in turns; `block` is the number of iterations that are timed as one. `None` in
/// a process that callgrind has started to count one of the ways.
///
/// # Errors
///
/// An error of a way or of valgrind, or an option that is no number.
pub fn measure<W: Way>(names: &[&'static str], block: u64) -> Result<Option<Vec<Measured<W>>>, Box<dyn Error>> {
    if let Some(name) = mode::option("--count") {
        count::<W>(&name)?;
        return Ok(None);
    }
    let smoke = mode::is_smoke();
    let rounds = mode::number("rounds", if smoke { 1 } else { 15 })?;
    affinity::pin(affinity::two_cores()?.0)?;
    let mut measured = names.iter().map(|name| Measured::new(name)).collect::<io::Result<Vec<_>>>()?;
    for _ in 0..rounds {
        quiet::wait(Duration::from_secs(if smoke { 0 } else { 2 }));
        for one in &mut measured {
            one.time(if smoke { 10 } else { block })?;
        }
    }
    if !smoke {
        for one in &mut measured {
            one.count()?;
        }
    }
    Ok(Some(measured))
}

/// Goes the way with this name in a process that callgrind counts.
///
/// # Errors
///
/// The way's error.
pub fn count<W: Way>(name: &str) -> io::Result<()> {
    let mut way = W::named(name)?;
    way.run(WARM_UP)?;
    let iterations = counted_iterations();
    callgrind::counted(|| way.run(iterations))
}

/// How many iterations are counted.
#[must_use]
pub fn counted_iterations() -> u64 {
    mode::option("--iterations").and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// A table of all measurements, with a head for the column of names.
pub fn table<W>(title: &str, name: &'static str, measured: &[Measured<W>]) -> Table {
    let mut table = Table::new(title, &[name, "ns, median (min-max)", "instructions", "allocations"]);
    for one in measured {
        table.row([
            one.name.to_owned(),
            table::spread(Spread::of(&one.nanoseconds)),
            one.instructions.map_or_else(String::new, table::number),
            one.allocations.to_string(),
        ]);
    }
    table
}
