//! perftest's tables, column for column, so that scripts that parse perftest's output also parse
//! this.

use std::io::{self, Write};

use rdma::TransportType;
use serde::Serialize;

use super::link::Link;
use super::options::{Op, Options, Test};
use super::report_options::{Figure, ReportOptions};
use crate::device::Chosen;
use crate::statistics::Summary;
use crate::table::significant;

/// The horizontal line of perftest's tables.
pub(crate) const RULER: &str =
    "---------------------------------------------------------------------------------------";

/// A row of one of the tables; its JSON form has perftest's names.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(rename = "MsgSize")]
    size: usize,
    #[serde(rename = "n_iterations")]
    iterations: u64,
    #[serde(flatten)]
    figures: Figures,
}

/// What a measurement has found.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) row: Row,
    /// The latencies in microseconds, in the order of the messages; none of a test with
    /// `--duration`, or of bandwidth.
    pub(super) samples: Vec<f64>,
}

/// The results of a test.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
enum Figures {
    /// Latencies in microseconds.
    Samples {
        t_min: f64,
        t_max: f64,
        t_typical: f64,
        t_avg: f64,
        t_stdev: f64,
        percentile_99: f64,
        #[serde(rename = "percentile_99.9")]
        percentile_999: f64,
    },
    /// The latency, and messages per second, of a test with `--duration`.
    Duration { t_avg: f64, tps_average: f64 },
    /// MiB or Gbit per second, and millions of messages per second.
    Bandwidth {
        #[serde(rename = "BW_peak")]
        peak: f64,
        #[serde(rename = "BW_average")]
        average: f64,
        #[serde(rename = "MsgRate")]
        rate: f64,
        #[serde(skip)]
        gbits: bool,
    },
}

impl Row {
    /// Makes a row from a summary of latencies in microseconds.
    pub(super) fn latency(size: usize, iterations: u64, summary: &Summary) -> Self {
        let Summary { min: t_min, max: t_max, median: t_typical, mean: t_avg, stdev: t_stdev, p99, p999 } = *summary;
        let (percentile_99, percentile_999) = (p99, p999);
        let figures = Figures::Samples { t_min, t_max, t_typical, t_avg, t_stdev, percentile_99, percentile_999 };
        Self { size, iterations, figures }
    }

    /// Makes a row of a latency test with `--duration`.
    pub(super) fn latency_of_duration(size: usize, iterations: u64, t_avg: f64, tps_average: f64) -> Self {
        Self { size, iterations, figures: Figures::Duration { t_avg, tps_average } }
    }

    /// Makes a row from the average and the best rate, in messages per second.
    pub(crate) fn bandwidth(size: usize, iterations: u64, rate: f64, peak: f64, gbits: bool) -> Self {
        let unit = if gbits { 1e9 / 8.0 } else { f64::from(1 << 20) };
        let message = size as f64 / unit;
        let (peak, average, rate) = (peak * message, rate * message, rate / 1e6);
        Self { size, iterations, figures: Figures::Bandwidth { peak, average, rate, gbits } }
    }

    /// The average bandwidth in the printed unit, of a bandwidth test.
    pub(super) fn average(&self) -> Option<f64> {
        match self.figures {
            Figures::Bandwidth { average, .. } => Some(average),
            Figures::Samples { .. } | Figures::Duration { .. } => None,
        }
    }

    /// Millions of messages per second, of a bandwidth test.
    pub(super) fn rate(&self) -> Option<f64> {
        match self.figures {
            Figures::Bandwidth { rate, .. } => Some(rate),
            Figures::Samples { .. } | Figures::Duration { .. } => None,
        }
    }

    /// The average latency in microseconds, of a latency test.
    fn latency_average(&self) -> Option<f64> {
        match self.figures {
            Figures::Samples { t_avg, .. } | Figures::Duration { t_avg, .. } => Some(t_avg),
            Figures::Bandwidth { .. } => None,
        }
    }

    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { size, iterations, figures } = self;
        match figures {
            Figures::Samples { t_min, t_max, t_typical, t_avg, t_stdev, percentile_99, percentile_999 } => writeln!(
                out,
                " {size:<7} {iterations:<10}     {t_min:<7.2}        {t_max:<7.2}      {t_typical:<7.2}  \t       \
                 {t_avg:<7.2}     \t{t_stdev:<7.2}\t\t{percentile_99:<7.2} \t\t{percentile_999:<7.2}"
            ),
            Figures::Duration { t_avg, tps_average } => {
                writeln!(out, " {size:<7}       {iterations}            {t_avg:<7.2}        {tps_average:<7.2}")
            }
            Figures::Bandwidth { peak, average, rate, gbits } => {
                // perftest prints more digits for small rates, which would round to zero.
                let digits = if *gbits && *average < 0.1 { 6 } else { 2 };
                write!(out, " {size:<7}    {iterations:<10}       {peak:<7.digits$}            {average:<7.digits$}")?;
                writeln!(out, "\t\t     {rate:<7.6}")
            }
        }?;
        out.flush()
    }
}

/// Prints what a measurement has found: its row, the latencies if they are asked for, or one figure
/// alone.
pub(super) fn line(
    out: &mut dyn Write,
    measured: &Measured,
    wanted: &ReportOptions,
    options: &Options,
) -> io::Result<()> {
    let Measured { row, samples } = measured;
    if wanted.unsorted {
        latencies(out, samples)?;
    }
    if wanted.histogram {
        let mut sorted = samples.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        latencies(out, &sorted)?;
    }
    let figure = match wanted.output {
        None => {
            if !samples.is_empty() && (wanted.unsorted || wanted.histogram) {
                writeln!(out, "{RULER}")?;
                columns(out, Test::Lat, options)?;
            }
            return row.print(out);
        }
        Some(Figure::Bandwidth) => row.average(),
        Some(Figure::MessageRate) => row.rate(),
        Some(Figure::Latency) => row.latency_average(),
    };
    writeln!(out, "{:.6}", figure.unwrap_or_default())?;
    out.flush()
}

/// Prints the latency of each message.
fn latencies(out: &mut dyn Write, samples: &[f64]) -> io::Result<()> {
    writeln!(out, "#, usec")?;
    for (at, sample) in samples.iter().enumerate() {
        writeln!(out, "{}, {}", at + 1, significant(*sample))?;
    }
    Ok(())
}

/// Prints the title, the settings, the addresses and the column heads.
pub(super) fn heading(
    chosen: &Chosen,
    link: &Link,
    options: &Options,
    (test, is_managed): (Test, bool),
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let on_off = |on: bool| if on { "ON" } else { "OFF" };
    let port = chosen.adapter.context.port_attr(chosen.adapter.port);
    let layer = port.map_or_else(|_| "unknown".to_owned(), |port| port.link_layer().to_string());
    let depth = if test == Test::Lat { 1 } else { link.plan.depth };
    let transport = if link.plan.capabilities.transport == TransportType::IWARP { "IW" } else { "IB" };
    writeln!(out, "{RULER}\n                    {}", options.title(test))?;
    if options.events {
        writeln!(out, " Test with events. Using {}", chosen.adapter.context.name())?;
    }
    writeln!(out, " Dual-port       : OFF\t\tDevice         : {}", chosen.adapter.context.name())?;
    writeln!(out, " Number of qps   : {}\t\tTransport type : {transport}", link.plan.lanes)?;
    writeln!(out, " Connection type : {}\t\tUsing SRQ      : OFF", options.connection.name())?;
    writeln!(out, " TX depth        : {depth}")?;
    if link.plan.op == Op::Send && options.bidirectional {
        writeln!(out, " RX depth        : {}", link.plan.receives)?;
    }
    if test == Test::Bw {
        writeln!(out, " CQ Moderation   : {}", link.plan.moderation)?;
    }
    writeln!(out, " Mtu             : {}[B]\n Link type       : {layer}", link.mtu.bytes().unwrap_or(0))?;
    if let Some(gid) = chosen.adapter.gid {
        writeln!(out, " GID index       : {}", gid.index)?;
    }
    if !link.plan.op.is_one_sided() {
        writeln!(out, " Max inline data : {}[B]", link.inline())?;
    }
    writeln!(out, " rdma_cm QPs\t : {}\n Data ex. method : Ethernet", on_off(is_managed))?;
    if options.check {
        writeln!(out, " Contents checked: ON")?;
    }
    writeln!(out, "{RULER}")?;
    // All queue pairs of this side, then all of the other, as in perftest.
    for (local, _) in &link.ends {
        writeln!(out, " local address: {local}")?;
    }
    for (_, remote) in &link.ends {
        writeln!(out, " remote address: {remote}")?;
    }
    writeln!(out, "{RULER}")?;
    columns(&mut out, test, options)
}

/// Prints the column heads of a test.
fn columns(mut out: &mut dyn Write, test: Test, options: &Options) -> io::Result<()> {
    match (test, options.duration) {
        (Test::Lat, Some(_)) => {
            writeln!(out, " #bytes        #iterations       t_avg[usec]    tps average")
        }
        (Test::Lat, None) => writeln!(
            out,
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
             99% percentile[usec]   99.9% percentile[usec] "
        ),
        _ => bandwidth_columns(&mut out, options.report_gbits),
    }
}

/// Prints the column heads of a bandwidth test.
pub(crate) fn bandwidth_columns(out: &mut dyn Write, gbits: bool) -> io::Result<()> {
    let unit = if gbits { "Gb/sec" } else { "MiB/sec" };
    writeln!(out, " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
}

/// Prints the end of a table.
pub(crate) fn foot() -> io::Result<()> {
    writeln!(io::stdout(), "{RULER}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(print: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Compares with rows of perftest 4.5 with these figures.
    #[test]
    fn rows_are_those_of_perftest() {
        let row = Row::bandwidth(1 << 20, 100, 200.0, 400.0, false);
        let expected = " 1048576    100              400.00             200.00 \t\t     0.000200\n";
        assert_eq!(text(|out| row.print(out)), expected);
        let row = Row::bandwidth(125_000_000, 5, 1.0, 0.0, true);
        let json = serde_json::to_value(row).unwrap();
        assert_eq!((&json["BW_average"], &json["BW_peak"]), (&1.0.into(), &0.0.into()));
        let row = Row::bandwidth(2, 1000, 1e6, 1e6, true);
        assert!(text(|out| row.print(out)).contains("0.016000            0.016000"));
        let mut samples = [1.0, 2.0, 3.0];
        let row = Row::latency(2, 3, &Summary::of(&mut samples));
        let fields: Vec<String> = text(|out| row.print(out)).split_whitespace().map(str::to_owned).collect();
        assert_eq!(fields, ["2", "3", "1.00", "3.00", "2.00", "2.00", "0.82", "3.00", "3.00"]);
        let row = Row::latency_of_duration(2, 1000, 0.5, 1e6);
        assert_eq!(text(|out| row.print(out)), " 2             1000            0.50           1000000.00\n");
        assert_eq!(serde_json::to_value(row).unwrap()["tps_average"], 1e6);
    }
}
