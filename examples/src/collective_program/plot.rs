//! A picture of time and bandwidth by size, of this run and of earlier ones.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

use crate::Failure;
use crate::cli::Size;
use crate::table::significant;

/// Width and height of the picture in pixels.
const PICTURE: (u32, u32) = (1400, 560);

/// Decades of values below which an axis has labels between the powers of ten.
const FEW_DECADES: i32 = 4;

/// The measurements of one kind, by size.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    points: Vec<Point>,
}

/// The measurement of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    /// Bytes.
    size: f64,
    /// Microseconds.
    time: f64,
    /// GB/s.
    bus_bw: f64,
}

/// Reads the JSON report of an earlier run.
///
/// # Errors
/// If the file is none.
pub(super) fn read(path: &Path) -> Result<Value, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| Failure::new(format!("cannot read {name}: {error}")))?;
    let report: Value = serde_json::from_str(&text).unwrap_or_default();
    if series(&report, "").is_empty() {
        return Err(Failure::usage(format!("{name} is no report of a collective's program; --json writes one")));
    }
    Ok(report)
}

/// Draws reports, each with a prefix of its names, as SVG.
///
/// # Errors
/// If the drawing fails.
pub(super) fn svg(reports: &[(String, &Value)]) -> Result<String, Failure> {
    let series: Vec<Series> = reports.iter().flat_map(|(name, report)| series(report, name)).collect();
    let mut text = String::new();
    draw(&series, SVGBackend::with_string(&mut text, PICTURE).into_drawing_area())
        .map_err(|error| Failure::new(format!("cannot draw the picture: {error}")))?;
    Ok(text)
}

/// The measurements of a report; those with the same parameters are one series.
fn series(report: &Value, prefix: &str) -> Vec<Series> {
    let mut all: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for row in report["results"].as_array().into_iter().flatten() {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let mut words = vec![prefix.to_owned(), report["program"].as_str().unwrap_or_default().to_owned()];
        // Rows with the same `--algo` are one series, even if `auto` chose several algorithms.
        let algo = report["algo"].as_str().map_or_else(|| text("algo"), str::to_owned);
        words.extend([algo, text("type"), text("redop")]);
        if let Some(root @ 0..) = row["root"].as_i64() {
            words.push(format!("root {root}"));
        }
        words.retain(|word| !word.is_empty() && word != "none");
        for (side, name) in [("out_of_place", ""), ("in_place", ", in place")] {
            let number = |value: &Value| value.as_f64().filter(|number| *number > 0.0);
            let (size, time, bus_bw) = (&row["size"], &row[side]["time"], &row[side]["bus_bw"]);
            if let (Some(size), Some(time), Some(bus_bw)) = (number(size), number(time), number(bus_bw)) {
                all.entry(words.join(" ") + name).or_default().push(Point { size, time, bus_bw });
            }
        }
    }
    all.into_iter().map(|(name, points)| Series { name, points }).collect()
}

/// A failure to draw, as text: an error of the backend borrows the picture.
type Drawn<T> = Result<T, String>;

fn draw(series: &[Series], area: DrawingArea<SVGBackend<'_>, Shift>) -> Drawn<()> {
    area.fill(&WHITE).map_err(text)?;
    let halves = area.split_evenly((1, 2));
    chart(&halves[0], "time", "us", series, |point| point.time)?;
    chart(&halves[1], "bus bandwidth", "GB/s", series, |point| point.bus_bw)?;
    area.present().map_err(text)
}

/// Draws one value by size, both on logarithmic axes.
fn chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    caption: &str,
    unit: &str,
    series: &[Series],
    value: fn(&Point) -> f64,
) -> Drawn<()> {
    let points = || series.iter().flat_map(|series| &series.points);
    let (sizes, labels) = (sizes(points().map(|point| point.size)), labels(points().map(value)));
    let values = labels[0]..labels[labels.len() - 1];
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale().with_key_points(labels))
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(unit)
        .light_line_style(WHITE)
        .x_label_formatter(&|bytes| label(*bytes))
        .y_label_formatter(&|value| significant(*value))
        .draw()
        .map_err(text)?;
    for (index, Series { name, points }) in series.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let line = points.iter().map(|point| (point.size, value(point)));
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2));
        chart.draw_series(LineSeries::new(line, color).point_size(2)).map_err(text)?.label(name).legend(legend);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The least and the greatest of some positive numbers; 1 if there is none.
fn extremes(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let found = numbers.fold(None, |found: Option<(f64, f64)>, number| {
        Some(found.map_or((number, number), |(least, most)| (least.min(number), most.max(number))))
    });
    found.unwrap_or((1.0, 1.0))
}

/// The axis of some sizes. A single size stands in its middle.
fn sizes(sizes: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = extremes(sizes);
    if least < most { least..most * 1.1 } else { least / 2.0..most * 2.0 }
}

/// The labels of an axis of some values, on which it begins and ends.
fn labels(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let (least, most) = extremes(values);
    let (first, last) = (power_of_ten(least), power_of_ten(most));
    let digits: &[f64] = if last - first < FEW_DECADES { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = (first..=last + 1).map(|exponent| 10_f64.powi(exponent));
    let all: Vec<f64> = powers.flat_map(|power| digits.iter().map(move |digit| digit * power)).collect();
    let begin = all.iter().rposition(|label| *label <= least).unwrap_or(0);
    let end = all.iter().position(|label| *label > most).unwrap_or(all.len() - 1);
    all[begin..=end].to_vec()
}

#[allow(clippy::cast_possible_truncation, reason = "the logarithm of a positive number is short")]
fn power_of_ten(number: f64) -> i32 {
    number.log10().floor() as i32
}

#[allow(clippy::cast_possible_truncation, reason = "a label's size is a power of two and fits")]
fn label(bytes: f64) -> String {
    Size(bytes as usize).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Value {
        let time = |time: f64| json!({ "time": time, "bus_bw": 0.1 * time });
        let row = |size: usize, in_place: Value| {
            json!({
                "size": size, "type": "float", "redop": "sum", "root": -1, "algo": "ring",
                "out_of_place": time(3.0), "in_place": in_place,
            })
        };
        json!({ "program": "all_reduce", "results": [row(8, time(2.0)), row(64, Value::Null)] })
    }

    #[test]
    fn rows_of_the_same_kind_are_a_series() {
        let series = series(&report(), "before:");
        let names: Vec<(&str, usize)> =
            series.iter().map(|series| (series.name.as_str(), series.points.len())).collect();
        assert_eq!(
            names,
            [("before: all_reduce ring float sum", 2), ("before: all_reduce ring float sum, in place", 1)]
        );
    }

    #[test]
    fn a_picture_has_every_series() {
        let picture = svg(&[(String::new(), &report()), ("old:".to_owned(), &report())]).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        for part in ["bus bandwidth", "old: all_reduce ring float sum, in place", "64"] {
            assert!(picture.contains(part), "{part}");
        }
    }

    #[test]
    fn values_lie_between_labels() {
        let labels = |values: &[f64]| labels(values.iter().copied());
        assert_eq!(labels(&[3.1, 3.4]), [2.0, 5.0]);
        assert_eq!(labels(&[1.0]), [1.0, 2.0]);
        assert_eq!(labels(&[0.3, 40.0]), [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(labels(&[0.002, 90.0]), [0.001, 0.01, 0.1, 1.0, 10.0, 100.0]);
        assert_eq!(labels(&[]), [1.0, 2.0]);
    }

    /// The times of the report differ by little, and there is no power of ten between them.
    #[test]
    fn every_axis_has_labels() {
        let picture = svg(&[(String::new(), &report())]).unwrap();
        let texts: Vec<&str> = picture.lines().map(str::trim).filter(|line| !line.starts_with('<')).collect();
        // Microseconds, GB/s, bytes.
        for labels in [["2", "5"], ["0.2", "0.5"], ["16", "64"]] {
            assert!(labels.iter().all(|label| texts.contains(label)), "{labels:?}: {texts:?}");
        }
    }

    #[test]
    fn a_picture_of_nothing_or_of_one_point_is_drawn() {
        svg(&[]).unwrap();
        let mut one = report();
        one["results"].as_array_mut().unwrap().pop();
        svg(&[(String::new(), &one)]).unwrap();
    }
}
