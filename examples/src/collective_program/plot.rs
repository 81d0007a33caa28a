//! A picture of time and bandwidth by size, of this run and of earlier ones.

use std::collections::BTreeMap;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

use crate::Failure;
use crate::cli::Size;

/// Width and height of the picture in pixels.
const PICTURE: (u32, u32) = (1400, 560);

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
    let (sizes, values) = (range(points().map(|point| point.size)), range(points().map(value)));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(sizes.log_scale().base(2.0), values.log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(unit)
        .light_line_style(WHITE)
        .x_label_formatter(&|bytes| label(*bytes))
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

/// The range of some positive values, widened where it would be empty.
fn range(values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let (least, most) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    if least < most { least..most * 1.1 } else { least.min(1.0)..most.max(2.0) }
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
    fn a_picture_of_nothing_or_of_one_point_is_drawn() {
        svg(&[]).unwrap();
        let mut one = report();
        one["results"].as_array_mut().unwrap().pop();
        svg(&[(String::new(), &one)]).unwrap();
    }
}
