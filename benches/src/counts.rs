//! The instruction counts that the project promises: `counts.txt` has them, and CI compares. A
//! change of a count is then a line of a commit.
//!
//! A count is exact, and the same again at each run of one program: callgrind counts one function,
//! in one thread, between one warm-up and the end. Another compiler makes other programs, so the
//! file names the compiler, and only counts of the same compiler are compared.

use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::{env, io};

use crate::callgrind;
use crate::ways::{self, beside_a_link, datagrams, lockstep, post_poll, send_receive};

/// The largest difference from the table, as a share of the count.
const TOLERANCE: f64 = 0.02;

const HEAD: &str = "\
# Instructions of an operation on 64 bytes, by callgrind. `cargo xtask counts` compares, within 2 %;
# `cargo xtask counts --update` writes this file. `raw` and `owned` are a post and its poll, by C's
# functions and by the safe interface. RESULTS.md has the bars.
";

/// The counted ways, in the order of the table.
fn names() -> impl Iterator<Item = &'static str> {
    let one_process = [&post_poll::Case::NAMES[..], &datagrams::NAMES, &send_receive::NAMES];
    let two_processes = [&lockstep::NAMES[..], &beside_a_link::NAMES];
    one_process.into_iter().chain(two_processes).flatten().copied()
}

/// Goes the way with this name in a process that callgrind counts.
///
/// # Errors
///
/// The way's error, or `InvalidInput` for a name that no way has.
pub fn go(name: &str) -> io::Result<()> {
    match name {
        name if post_poll::Case::NAMES.contains(&name) => ways::count::<post_poll::Case>(name),
        name if datagrams::NAMES.contains(&name) => ways::count::<datagrams::Datagrams>(name),
        name if send_receive::NAMES.contains(&name) => ways::count::<send_receive::Case>(name),
        name if lockstep::NAMES.contains(&name) => lockstep::count(name),
        name if beside_a_link::NAMES.contains(&name) => beside_a_link::count(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("nothing is counted as {name}"))),
    }
}

/// Counts with the compiler that made the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// The compiler's version and the architecture.
    pub compiler: String,
    rows: Vec<(String, f64)>,
}

impl Counts {
    /// Counts every way.
    ///
    /// # Errors
    ///
    /// `NotFound` when valgrind is not installed; otherwise the error of a way.
    pub fn measure() -> io::Result<Self> {
        let rows = names().map(|name| Ok((name.to_owned(), callgrind::per_iteration(name)?)));
        Ok(Self { compiler: compiler()?, rows: rows.collect::<io::Result<_>>()? })
    }

    /// Reads a table: the compiler, then lines of a count and a name.
    ///
    /// # Errors
    ///
    /// `InvalidData` with the line that is neither.
    pub fn parse(text: &str) -> io::Result<Self> {
        let mut counts = Self { compiler: String::new(), rows: Vec::new() };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            match first.parse() {
                Ok(count) => counts.rows.push((rest.trim().to_owned(), count)),
                Err(_) if counts.compiler.is_empty() => line.clone_into(&mut counts.compiler),
                Err(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("no count: {line}"))),
            }
        }
        Ok(counts)
    }

    /// What differs in `counted` from this table, a line each.
    #[must_use]
    pub fn differences(&self, counted: &Self) -> Vec<String> {
        let of = |rows: &[(String, f64)], name: &str| rows.iter().find(|row| row.0 == name).map(|row| row.1);
        let mut lines = Vec::new();
        for (name, now) in &counted.rows {
            match of(&self.rows, name) {
                None => lines.push(format!("{name}: not in the table, counted {now:.1}")),
                Some(table) if (now - table).abs() > TOLERANCE * table => {
                    let percent = (now - table) / table * 100.0;
                    lines.push(format!("{name}: {table:.1} in the table, counted {now:.1} ({percent:+.1} %)"));
                }
                Some(_) => {}
            }
        }
        let missing = self.rows.iter().filter(|row| of(&counted.rows, &row.0).is_none());
        lines.extend(missing.map(|row| format!("{}: {:.1} in the table, not counted", row.0, row.1)));
        lines
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        writeln!(f, "{}", self.compiler)?;
        let mut rows = String::new();
        for (name, count) in &self.rows {
            writeln!(rows, "{count:>7.1}  {name}")?;
        }
        f.write_str(&rows)
    }
}

/// The version of the compiler of this workspace, and the architecture.
fn compiler() -> io::Result<String> {
    let rustc = PathBuf::from(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let failed = |error| io::Error::other(format!("{}: {error}", rustc.display()));
    let output = Command::new(&rustc).arg("--version").output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.split_whitespace().nth(1) {
        Some(version) => Ok(format!("rustc {version}, {}", env::consts::ARCH)),
        None => Err(io::Error::other("rustc does not say its version")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, f64)]) -> Counts {
        let rows = rows.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Counts { compiler: "rustc 1.95.0, x86_64".into(), rows }
    }

    #[test]
    fn a_table_is_read_as_it_is_written() {
        let counts = table(&[("raw, soft0", 698.5), ("a poll", 3316.0)]);
        assert_eq!(Counts::parse(&counts.to_string()).unwrap(), counts);
        assert!(Counts::parse("rustc 1, a\nsomething else").is_err());
    }

    #[test]
    fn a_difference_beyond_the_tolerance_is_named() {
        let committed = table(&[("raw", 100.0), ("owned", 200.0), ("gone", 5.0)]);
        assert!(committed.differences(&committed).is_empty());
        let counted = table(&[("raw", 101.9), ("owned", 195.5), ("new", 7.0)]);
        let lines = [
            "owned: 200.0 in the table, counted 195.5 (-2.2 %)",
            "new: not in the table, counted 7.0",
            "gone: 5.0 in the table, not counted",
        ];
        assert_eq!(committed.differences(&counted), lines);
    }

    #[test]
    fn the_committed_table_has_every_way() {
        let committed = Counts::parse(include_str!("../counts.txt")).unwrap();
        let listed: Vec<&str> = committed.rows.iter().map(|row| row.0.as_str()).collect();
        assert_eq!(listed, names().collect::<Vec<_>>());
    }
}
