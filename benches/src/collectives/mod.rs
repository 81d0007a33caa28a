//! Collectives of the project, of several MPIs and of plain shared memory, each as a program that
//! measures one point.

mod mpi;
mod ours;

use std::io;
use std::process::Output;

pub use mpi::Mpi;
pub use ours::Ours;

use crate::limit::{self, Writes};
use crate::point::Point;
use crate::programs::run;

/// A program to be timed.
#[derive(Clone, Debug)]
pub enum Program {
    /// The project's own programs.
    Ours(Ours),
    /// Plain loads and stores on shared memory: see [`limit`].
    Limit(Writes),
    /// An MPI.
    Mpi(Mpi),
}

impl Program {
    /// The name in the table.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Ours(ours) => ours.name(),
            Self::Limit(Writes::All) => "limit",
            Self::Limit(Writes::Own) => "limit, own writes",
            Self::Mpi(mpi) => mpi.name(),
        }
    }

    /// Whether the program can run so many ranks at a sensible speed.
    #[must_use]
    pub fn runs(&self, ranks: usize, cores: usize) -> bool {
        ranks <= cores || !matches!(self, Self::Mpi(mpi) if mpi.only_spins())
    }

    /// Microseconds per operation, averaged over the ranks, at points that differ in size alone.
    ///
    /// # Errors
    ///
    /// If the program fails, prints other output, or reports wrong elements.
    pub fn times(&self, points: &[Point]) -> io::Result<Vec<f64>> {
        match self {
            Self::Ours(ours) => points.iter().map(|&point| ours.time(point)).collect(),
            Self::Limit(writes) => {
                let time = |&point: &Point| Ok(read_lines(&run(&mut limit::command(point, *writes)?)?, &[point])?[0]);
                points.iter().map(time).collect()
            }
            // An MPI takes a second to start.
            Self::Mpi(mpi) => read_lines(&run(&mut mpi.command(points)?)?, points),
        }
    }
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not the output of a collective: {text}"))
}

/// Parses the times in the lines of `collectives.c`: bytes, microseconds, wrong elements.
fn read_lines(output: &Output, points: &[Point]) -> io::Result<Vec<f64>> {
    let text = String::from_utf8_lossy(&output.stdout);
    let read = |(line, point): (&str, &Point)| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [bytes, time, "0"] if bytes == point.size.to_string() => time.parse().ok(),
            _ => None,
        }
    };
    let times: Option<Vec<f64>> = text.lines().zip(points).map(read).collect();
    times.filter(|times| times.len() == points.len()).ok_or_else(|| malformed(&text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::point::tests::point;

    fn read(text: &str, sizes: &[usize]) -> io::Result<Vec<f64>> {
        let output = Output { status: ExitStatus::from_raw(0), stdout: text.into(), stderr: Vec::new() };
        read_lines(&output, &sizes.iter().map(|&size| point(size)).collect::<Vec<_>>())
    }

    #[test]
    fn each_point_has_a_line() {
        let times = read("65536 9.8125 0\n8 0.25 0\n", &[65536, 8]).unwrap();
        assert!((times[0] - 9.8125).abs() < 1e-9 && (times[1] - 0.25).abs() < 1e-9);
        assert!(read("65536 9.8 3", &[65536]).is_err());
        assert!(read("8 9.8 0", &[65536]).is_err());
        assert!(read("8 9.8 0", &[8, 8]).is_err());
    }
}
