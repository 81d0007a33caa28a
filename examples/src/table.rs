//! nccl-tests' table, column for column, so that scripts that parse nccl-tests' output also parse
//! this.

use std::io::{self, Write};

use serde::Serialize;

use rdma_collectives::{Collective, Traffic};

/// The result of one collective, measured out of place or in place.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CollectiveTime {
    /// Mean time of one operation, in microseconds.
    pub time: f64,
    /// Size divided by time, in GB/s (1e9 bytes).
    pub alg_bw: f64,
    /// `alg_bw` times the collective's factor: comparable with the hardware's speed for any number
    /// of ranks.
    pub bus_bw: f64,
    /// Number of elements with a wrong value; `None` if the result was not checked.
    pub nwrong: Option<u64>,
    /// Bytes of the messages of one operation, at the rank that sends or receives most; `None` if
    /// there are none, or they are not counted.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
}

impl CollectiveTime {
    /// Computes the figures of a collective from its time in seconds, the bytes whose rate is the
    /// algorithm's bandwidth, and the factor of the bus bandwidth.
    #[must_use]
    pub fn new(seconds: f64, (bytes, factor): (f64, f64), nwrong: Option<u64>) -> Self {
        let alg_bw = if seconds > 0.0 { bytes / seconds / 1e9 } else { 0.0 };
        Self { time: seconds * 1e6, alg_bw, bus_bw: alg_bw * factor, nwrong, traffic: None }
    }
}

/// nccl-tests' factor from algorithm bandwidth to bus bandwidth.
#[must_use]
pub fn bus_factor(collective: Collective, ranks: usize) -> f64 {
    use Collective::*;
    let n = ranks as f64;
    match collective {
        AllReduce => 2.0 * (n - 1.0) / n,
        AllGather | ReduceScatter | AllToAll | AllToAllV | Gather | Scatter => (n - 1.0) / n,
        Broadcast | Reduce | SendRecv | HyperCube | Barrier => 1.0,
    }
}

/// A row of nccl-tests' table.
#[derive(Clone, Debug, Serialize)]
pub struct CollectiveRow {
    /// Bytes per rank.
    pub size: usize,
    /// Elements per rank.
    pub count: usize,
    /// Element type, by nccl-tests' name.
    #[serde(rename = "type")]
    pub dtype: &'static str,
    /// Name of the reduction.
    pub redop: &'static str,
    /// Root rank, or -1 if there is none.
    pub root: i32,
    /// Name of the algorithm.
    pub algo: &'static str,
    /// The time with the result in another buffer than the input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_place: Option<CollectiveTime>,
    /// The time with the result in the input's buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place: Option<CollectiveTime>,
}

/// Formats a number in `width` columns as nccl-tests does: with two decimals, one, none, and then
/// with an exponent.
#[must_use]
pub fn fit(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    format!("{value:.0e}")
}

/// Prints nccl-tests' column heads.
///
/// # Errors
/// If writing to `out` fails.
pub fn collective_head(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "#")?;
    let (name, units) = (["time", "algbw", "busbw", "#wrong"], ["(us)", "(GB/s)", "(GB/s)", ""]);
    let row = |out: &mut dyn Write, left: [&str; 5], right: [&str; 4]| -> io::Result<()> {
        write!(out, "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", left[0], left[1], left[2], left[3], left[4])?;
        for _ in 0..2 {
            write!(out, "  {:>7}  {:>6}  {:>6}  {:>6}", right[0], right[1], right[2], right[3])?;
        }
        writeln!(out)
    };
    writeln!(out, "# {:>50}  {:^31}  {:^31}", "", "out-of-place", "in-place")?;
    row(out, ["size", "count", "type", "redop", "root"], name)?;
    row(out, ["(B)", "(elements)", "", "", ""], units)
}

/// Prints one row of nccl-tests' table.
///
/// # Errors
/// If writing to `out` fails.
pub fn collective_row(out: &mut dyn Write, row: &CollectiveRow) -> io::Result<()> {
    let CollectiveRow { size, count, dtype, redop, root, .. } = row;
    write!(out, "{size:>12}  {count:>12}  {dtype:>8}  {redop:>6}  {root:>6}")?;
    for side in [&row.out_of_place, &row.in_place] {
        let Some(t) = side else {
            write!(out, "  {:>7}  {:>6}  {:>6}  {:>6}", "-", "-", "-", "-")?;
            continue;
        };
        let wrong = t.nwrong.map_or_else(|| "N/A".to_owned(), |n| n.to_string());
        let (time, alg, bus) = (fit(t.time, 7), fit(t.alg_bw, 6), fit(t.bus_bw, 6));
        write!(out, "  {time:>7}  {alg:>6}  {bus:>6}  {wrong:>6}")?;
    }
    writeln!(out)?;
    out.flush()
}

/// Prints the bytes of the messages of a row, if they were counted.
///
/// # Errors
/// If writing to `out` fails.
pub fn traffic_line(out: &mut dyn Write, row: &CollectiveRow) -> io::Result<()> {
    let sides = [row.out_of_place, row.in_place];
    let Some(Traffic { sent, received }) = sides.into_iter().flatten().find_map(|time| time.traffic) else {
        return Ok(());
    };
    writeln!(out, "# Bytes of a rank's messages at size {}: {sent} sent, {received} received", row.size)
}

/// The sums over all columns of all rows, and the last row.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    last: Option<CollectiveRow>,
    columns: u64,
    bus_bw: f64,
    wrong: u64,
}

impl Totals {
    /// Adds a row.
    pub fn add(&mut self, row: CollectiveRow) {
        for time in [row.out_of_place, row.in_place].into_iter().flatten() {
            self.columns += 1;
            self.bus_bw += time.bus_bw;
            self.wrong = self.wrong.saturating_add(time.nwrong.unwrap_or_default());
        }
        self.last = Some(row);
    }

    /// Number of elements with a wrong value.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.wrong
    }

    /// The row that was added last.
    #[must_use]
    pub fn last(&self) -> Option<&CollectiveRow> {
        self.last.as_ref()
    }
}

/// Prints nccl-tests' closing lines; the average is over all columns of all rows.
///
/// # Errors
/// If writing to `out` fails.
pub fn collective_foot(out: &mut dyn Write, totals: &Totals) -> io::Result<()> {
    let Totals { columns, bus_bw, wrong, .. } = totals;
    let average = bus_bw / (*columns).max(1) as f64;
    let verdict = if *wrong == 0 { "OK" } else { "FAILED" };
    writeln!(out, "# Out of bounds values : {wrong} {verdict}")?;
    writeln!(out, "# Avg bus bandwidth    : {} ", significant(average))?;
    writeln!(out, "#")
}

/// The names of the values of [`csv_row`].
pub const CSV_HEAD: &str = "size,count,type,redop,root,algo,out_of_place_us,out_of_place_algbw,out_of_place_busbw,\
                            out_of_place_wrong,in_place_us,in_place_algbw,in_place_busbw,in_place_wrong";

/// Formats a row as comma-separated values; what was not measured is empty.
#[must_use]
pub fn csv_row(row: &CollectiveRow) -> String {
    let CollectiveRow { size, count, dtype, redop, root, algo, .. } = row;
    let mut text = format!("{size},{count},{dtype},{redop},{root},{algo}");
    for side in [&row.out_of_place, &row.in_place] {
        text += &match side {
            None => ",,,,".to_owned(),
            Some(CollectiveTime { time, alg_bw, bus_bw, nwrong, .. }) => {
                let wrong = nwrong.map_or_else(String::new, |n| n.to_string());
                format!(",{time:.3},{alg_bw:.6},{bus_bw:.6},{wrong}")
            }
        };
    }
    text
}

/// Formats a number with six significant digits, as C's `%g` does.
pub(crate) fn significant(value: f64) -> String {
    // Finds the number of decimals that gives six significant digits; very small values get nine.
    let mut bound = 1e5;
    let mut decimals: usize = 0;
    while value < bound && decimals < 9 {
        bound /= 10.0;
        decimals += 1;
    }
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(print: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// A row of `size` bytes that was measured out of place.
    fn row(size: usize, time: CollectiveTime) -> CollectiveRow {
        let (dtype, redop, algo) = ("float", "sum", "ring");
        let (count, out_of_place) = (size / 4, Some(time));
        CollectiveRow { size, count, dtype, redop, root: -1, algo, out_of_place, in_place: None }
    }

    #[test]
    fn numbers_fit_as_nccl_tests_prints_them() {
        assert_eq!(fit(1.234, 6), "1.23");
        assert_eq!(fit(1234.56, 6), "1234.6");
        assert_eq!(fit(123_456.7, 6), "123457");
        assert_eq!(fit(12_345_678.0, 6), "1e7");
    }

    #[test]
    fn rows_and_heads_align() {
        let time = CollectiveTime::new(10e-6, (f64::from(1 << 20), 1.5), Some(0));
        assert!((time.alg_bw - 104.8576).abs() < 1e-6);
        assert!((time.bus_bw - 157.2864).abs() < 1e-6);
        let row = CollectiveRow { in_place: Some(CollectiveTime { nwrong: None, ..time }), ..row(1 << 20, time) };
        let head = text(collective_head);
        let row = text(|out| collective_row(out, &row));
        assert_eq!(head.lines().nth(2).unwrap().len(), row.trim_end_matches('\n').len());
        let fields: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            fields,
            [
                "1048576", "262144", "float", "sum", "-1", "10.00", "104.86", "157.29", "0", "10.00", "104.86",
                "157.29", "N/A"
            ]
        );
    }

    #[test]
    fn csv_rows_have_as_many_values_as_names() {
        let time = CollectiveTime::new(10e-6, (1000.0, 2.0), Some(0));
        let row = row(1000, time);
        assert_eq!(csv_row(&row), "1000,250,float,sum,-1,ring,10.000,0.100000,0.200000,0,,,,");
        assert_eq!(csv_row(&row).split(',').count(), CSV_HEAD.split(',').count());
    }

    #[test]
    fn footer_says_what_was_wrong() {
        let time = CollectiveTime::new(1e-6, (1000.0, 1.0), Some(3));
        let mut totals = Totals::default();
        totals.add(row(1000, time));
        totals.add(row(2000, CollectiveTime { nwrong: None, ..time }));
        let foot = text(|out| collective_foot(out, &totals));
        assert_eq!((totals.wrong(), totals.last().map(|row| row.size)), (3, Some(2000)));
        assert!(foot.contains("# Out of bounds values : 3 FAILED"), "{foot}");
        assert!(foot.contains("# Avg bus bandwidth    : 1 "), "{foot}");
    }

    #[test]
    fn averages_have_six_digits() {
        for (value, text) in [(0.0, "0"), (12.34567, "12.3457"), (1234567.0, "1234567"), (0.00012, "0.00012")] {
            assert_eq!(significant(value), text);
        }
    }
}
