//! Collectives by plain loads and stores on shared memory, without any library: the limit of what a
//! machine can do.
//!
//! All ranks map all memory to read and write, which the project's programs do not: with
//! [`Writes::All`], a rank may write its result into the output of every other rank. For each
//! operation there are several methods; the one that is fastest in the warm-up is timed.

mod kernel;
mod measure;
mod rank;
mod traffic;

use std::io;
use std::process::{Command, Stdio};

use crate::affinity;
use crate::point::{self, Place, Point};
use crate::shared::SharedPages;

use rank::Rank;

/// The first argument of the process that starts the ranks.
const LEAD: &str = "--limit";
/// The first argument of a rank.
const RANK: &str = "--limit-rank";

/// The tensors that a rank may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Those of all ranks.
    All,
    /// Its own, as in the project's programs.
    Own,
}

impl Writes {
    const BOTH: [Self; 2] = [Self::All, Self::Own];

    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Own => "own",
        }
    }
}

/// The command that measures a point: this executable, which has to call [`run_if_asked`].
///
/// # Errors
///
/// If the executable has no name.
pub(crate) fn command(point: Point, writes: Writes) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(LEAD).args(arguments(point, writes));
    Ok(command)
}

fn arguments(point: Point, writes: Writes) -> Vec<String> {
    let Point { operation, place, ranks, size, iterations, warmup } = point;
    let names = [writes.name(), operation.name(), place.name()].map(str::to_owned);
    let numbers = [ranks, size, iterations, warmup].map(|number| number.to_string());
    names.into_iter().chain(numbers).collect()
}

fn parse(arguments: &[String]) -> Option<(Point, Writes)> {
    let [writes, operation, place, numbers @ ..] = arguments else { return None };
    let writes = Writes::BOTH.into_iter().find(|known| known.name() == *writes)?;
    let place = Place::ALL.into_iter().find(|known| known.name() == *place)?;
    let numbers: Option<Vec<usize>> = numbers.iter().map(|number| number.parse().ok()).collect();
    let [ranks, size, iterations, warmup] = numbers?[..] else { return None };
    let operation = point::compared(operation)?;
    Some((Point { operation, place, ranks, size, iterations, warmup }, writes))
}

/// Runs the limit, and returns true, if this process was started for it.
///
/// # Errors
///
/// If memory cannot be shared, or if a rank fails.
pub fn run_if_asked() -> io::Result<bool> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let malformed = || io::Error::other("malformed arguments of the limit");
    match arguments.split_first() {
        Some((first, rest)) if first == LEAD => {
            let (point, writes) = parse(rest).ok_or_else(malformed)?;
            lead(point, writes)?;
        }
        Some((first, [path, rank, spins, rest @ ..])) if first == RANK => {
            let (rank, spins, job) = (rank.parse().ok(), spins.parse().ok(), parse(rest));
            let (Some(rank), Some(spins), Some((point, writes))) = (rank, spins, job) else { return Err(malformed()) };
            measure::measure(Rank::new(SharedPages::open(path)?, rank, point, spins), writes);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Starts the ranks, and prints a line like `collectives.c`.
fn lead(point: Point, writes: Writes) -> io::Result<()> {
    let pages = SharedPages::huge(rank::memory(point))?;
    let cores = affinity::cores()?;
    // A rank that shares its core gives it up soon.
    let is_alone = cores.len() >= point.ranks;
    let spins = if is_alone { u32::MAX } else { 4 };
    let mut ranks = Vec::new();
    for rank in 0..point.ranks {
        // As the project's programs do.
        if is_alone || point.ranks % cores.len() == 0 {
            affinity::pin(cores[rank % cores.len()])?;
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args([RANK, &pages.path(), &rank.to_string(), &spins.to_string()]);
        command.args(arguments(point, writes)).stdin(Stdio::null());
        ranks.push(command.spawn()?);
    }
    for mut rank in ranks {
        if !rank.wait()?.success() {
            return Err(io::Error::other("a rank has failed"));
        }
    }
    let (nanoseconds, wrong) = rank::results(&pages, point.ranks);
    println!("{} {:.4} {wrong}", point.size, nanoseconds / 1000.0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::tests::point;

    #[test]
    fn arguments_are_read_as_they_were_written() {
        for operation in point::COMPARED {
            for place in Place::ALL {
                for writes in Writes::BOTH {
                    let written = arguments(Point { operation, place, ..point(1024) }, writes);
                    let read = parse(&written).map(|(point, writes)| arguments(point, writes));
                    assert_eq!(read, Some(written));
                }
            }
        }
        assert!(parse(&["all_reduce".to_owned()]).is_none());
    }
}
