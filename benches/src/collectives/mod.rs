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
            Self::Ours(_) => "ours",
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

    /// Microseconds per operation, averaged over the ranks.
    ///
    /// # Errors
    ///
    /// If the program fails, prints other output, or reports wrong elements.
    pub fn time(&self, point: Point) -> io::Result<f64> {
        match self {
            Self::Ours(ours) => ours.time(point),
            Self::Limit(writes) => read_line(&run(&mut limit::command(point, *writes)?)?, point),
            Self::Mpi(mpi) => read_line(&run(&mut mpi.command(point)?)?, point),
        }
    }
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not the output of a collective: {text}"))
}

/// Parses the time in a line of `collectives.c`: bytes, microseconds, wrong elements.
fn read_line(output: &Output, point: Point) -> io::Result<f64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<&str> = text.split_whitespace().collect();
    match fields[..] {
        [bytes, time, "0"] if bytes == point.size.to_string() => time.parse().map_err(|_| malformed(&text)),
        _ => Err(malformed(&text)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::point::tests::point;

    fn read(text: &str, size: usize) -> io::Result<f64> {
        let output = Output { status: ExitStatus::from_raw(0), stdout: text.into(), stderr: Vec::new() };
        read_line(&output, point(size))
    }

    #[test]
    fn a_line_is_read() {
        assert!((read("65536 9.8125 0\n", 65536).unwrap() - 9.8125).abs() < 1e-9);
        assert!(read("65536 9.8 3", 65536).is_err());
        assert!(read("8 9.8 0", 65536).is_err());
    }
}
