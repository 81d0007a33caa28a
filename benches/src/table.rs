//! Tables that read well in a terminal and are valid Markdown.

use std::fmt;

use crate::mode;
use crate::stats::Spread;

/// A table whose first column is text and whose other columns are right-aligned.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table with a title and column heads.
    pub fn new(title: impl Into<String>, heads: &[&str]) -> Self {
        Self { title: title.into(), rows: vec![heads.iter().map(ToString::to_string).collect()] }
    }

    /// Appends a row; missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).max(3)).collect();
        writeln!(f, "\n### {}\n", self.title)?;
        for (index, row) in self.rows.iter().enumerate() {
            for (column, &width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                if column == 0 {
                    write!(f, "| {cell:width$} |")?;
                } else {
                    write!(f, " {cell:>width$} |")?;
                }
            }
            writeln!(f)?;
            if index == 0 {
                for (column, &width) in widths.iter().enumerate() {
                    match column {
                        0 => write!(f, "|{}|", "-".repeat(width + 2))?,
                        _ => write!(f, "{}:|", "-".repeat(width + 1))?,
                    }
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// Formats a number with three significant digits and no exponent.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        a if a >= 100.0 => format!("{value:.0}"),
        a if a >= 10.0 => format!("{value:.1}"),
        a if a >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a spread as `median (min-max)`.
#[must_use]
pub fn spread(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |s| format!("{} ({}-{})", number(s.median), number(s.min), number(s.max)))
}

/// Formats a number of bytes with a unit: `64 KiB`, `1 MiB`, `8 B`.
#[must_use]
pub fn bytes(size: usize) -> String {
    match size {
        s if s >= 1 << 20 && s % (1 << 20) == 0 => format!("{} MiB", s >> 20),
        s if s >= 1 << 10 && s % (1 << 10) == 0 => format!("{} KiB", s >> 10),
        s => format!("{s} B"),
    }
}

/// Prints a measurement and the project's own bar for it. A missed bar does not fail the benchmark;
/// a smoke run prints no bars.
pub fn bar(what: &str, bar: &str, measured: &str, reached: bool) {
    if mode::is_smoke() {
        return;
    }
    println!("bar: {what}: {bar}; measured {measured}: {}", if reached { "PASS" } else { "FAIL" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new("t", &["name", "x"]);
        table.row(["long name".into(), "1.00".into()]);
        table.row(["s".into()]);
        let text = table.to_string();
        let widths: Vec<usize> = text.lines().filter(|l| l.starts_with('|')).map(str::len).collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
    }

    #[test]
    fn numbers_and_sizes() {
        assert_eq!((number(1234.5), number(12.345), number(0.0514)), ("1234".into(), "12.3".into(), "0.051".into()));
        assert_eq!((bytes(8), bytes(65536), bytes(1 << 24)), ("8 B".into(), "64 KiB".into(), "16 MiB".into()));
    }
}
