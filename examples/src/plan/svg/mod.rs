//! A drawing of a network whose links are coloured by their load.
//!
//! Switches stand above what they connect. At each level the first group is drawn in full, the next
//! ones as boxes, and the rest as a number: the groups are alike, and the load is that of the
//! busiest.

mod canvas;

use super::cost::LevelLoad;
use super::network::{Kind, Network, Scope};
use super::report::{Report, ReportRow, describe};
use super::units::{show_bytes, show_rate, show_size, show_time};
use canvas::{Anchor, Canvas, Rectangle, load_color};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 20.0;
/// Where the topology begins, below the titles.
const TOP: f64 = 110.0;
/// Height of a row of switches with the links below it.
const ROW: f64 = 105.0;
const SWITCH: f64 = 34.0;
const HOST: f64 = 120.0;
/// The least width of a host that is drawn in full.
const HOST_WIDTH: f64 = 130.0;
const GAP: f64 = 12.0;
/// The most boxes beside a group that is drawn in full; the last one may stand for the rest.
const BOXES: usize = 3;
/// The most GPUs that are drawn of a host.
const GPUS: usize = 8;
const LEGEND_LINE: f64 = 22.0;

/// A row of switches.
struct Switches {
    name: &'static str,
    /// Hosts below one of them.
    hosts: usize,
}

struct Drawing<'a> {
    canvas: Canvas,
    network: &'a Network,
    /// The rows of switches, from the hosts outwards; the last has a single one.
    rows: Vec<Switches>,
    row: &'a ReportRow,
}

/// Draws the network of a report with the load of one of its rows.
#[must_use]
pub fn draw(report: &Report, row: &ReportRow) -> String {
    let network = &report.network;
    let rows = switches(network);
    let levels = row.prediction.levels.len() as f64;
    let legend = TOP + rows.len() as f64 * ROW + HOST + 40.0;
    let height = legend + (levels + 3.0) * LEGEND_LINE + MARGIN;
    let mut drawing = Drawing { canvas: Canvas::new(WIDTH, height), network, rows, row };
    drawing.titles(report);
    let all = Rectangle { x: MARGIN, y: TOP, width: WIDTH - 2.0 * MARGIN, height: 0.0 };
    let top = drawing.rows.last().map_or("host", |row| row.name);
    drawing.group(drawing.rows.len(), all, top);
    drawing.legend(legend);
    drawing.canvas.finish()
}

/// The rows of switches that connect several groups or hosts.
fn switches(network: &Network) -> Vec<Switches> {
    let hosts = network.hosts();
    let inner = network.tiers.iter().filter(|tier| tier.hosts < hosts);
    let mut rows: Vec<Switches> = inner.map(|tier| Switches { name: tier.group_name, hosts: tier.hosts }).collect();
    let top = network.tiers.get(rows.len()).map(|tier| tier.group_name);
    let top = top.unwrap_or(match (network.kind, rows.len()) {
        (Kind::Dragonfly, _) => "links between all groups",
        (_, 2) => "core switches",
        _ => "spine switches",
    });
    if hosts > 1 {
        rows.push(Switches { name: top, hosts });
    }
    rows
}

impl Drawing<'_> {
    fn titles(&mut self, report: &Report) {
        let (operation, algorithm) = (report.operation, self.row.algorithm);
        let size = show_size(self.row.size);
        self.canvas.text(MARGIN, 34.0, 20.0, Anchor::Start, &format!("{operation} of {size} by {algorithm}"));
        let text = format!("{}: {}", self.network.kind.name(), describe(self.network));
        self.canvas.text(MARGIN, 58.0, 14.0, Anchor::Start, &text);
        let time = show_time(self.row.prediction.seconds);
        let text = format!("{time}, {:.1} GB/s bus bandwidth, limited by: {}", self.row.bus_bw, self.row.limit);
        self.canvas.text(MARGIN, 80.0, 14.0, Anchor::Start, &text);
    }

    /// Draws a group of switch row `rows`, 0 for a host, in full.
    fn group(&mut self, rows: usize, place: Rectangle, label: &str) {
        let Some(below) = rows.checked_sub(1) else { return self.host(place, label) };
        self.canvas.rectangle(Rectangle { height: SWITCH, ..place }, "#dfe7ef", label);
        let (child_hosts, child_name) = match below.checked_sub(1) {
            Some(row) => (self.rows[row].hosts, self.rows[row].name),
            None => (1, "host"),
        };
        let children = self.rows[below].hosts.min(self.network.hosts()).div_ceil(child_hosts);
        let inner = Rectangle { y: place.y + ROW, ..place };
        let fits = |hosts: &usize| *hosts as f64 * (HOST_WIDTH + GAP) <= inner.width;
        let full = if below == 0 { (1..=children).take_while(fits).count() } else { 1 };
        let places = split(inner, children, full);
        let drawn = places.len();
        for (index, child) in places.into_iter().enumerate() {
            self.uplink(below, &child, place.y + SWITCH, index == 0);
            let is_rest = index + 1 == drawn && drawn < children;
            let label = match below {
                _ if is_rest => format!("+ {} more", children - index),
                1.. if index < full => format!("{child_name} {}: {child_hosts} hosts", index + 1),
                _ => format!("{child_name} {}", index + 1),
            };
            if index < full {
                self.group(below, child, &label);
            } else {
                let height = if below == 0 { HOST } else { SWITCH };
                self.canvas.rectangle(Rectangle { height, ..child }, "#f3f5f7", &label);
            }
        }
    }

    /// Draws the links from a group of switch row `row` to the switch above, with their load if
    /// asked for.
    fn uplink(&mut self, row: usize, child: &Rectangle, top: f64, is_labelled: bool) {
        let mut uplinks = self.row.prediction.levels.iter().filter(|load| load.level.scope == Scope::Uplink);
        let Some(load) = uplinks.nth(row) else { return };
        let share = self.share(load);
        let x = child.x + child.width / 2.0;
        for offset in [-6.0, 0.0, 6.0] {
            self.canvas.line((x + offset, top), (x + offset, child.y), share);
        }
        if is_labelled {
            let text = format!("{} {:.0} %", load.level.name, 100.0 * share);
            self.canvas.text(x + 14.0, f64::midpoint(top, child.y), 11.0, Anchor::Start, &text);
        }
    }

    /// Draws a host: its GPUs below what connects them.
    fn host(&mut self, place: Rectangle, label: &str) {
        let frame = Rectangle { height: HOST, width: place.width.min(4.0 * HOST_WIDTH), ..place };
        self.canvas.rectangle(frame, "#ffffff", "");
        let bar = Rectangle { x: frame.x + 6.0, y: frame.y + 8.0, width: frame.width - 12.0, height: 24.0 };
        self.canvas.rectangle(bar, "#e8efe3", label);
        let (gpus, shown) = (self.network.per_host, self.network.per_host.min(GPUS));
        let port = self.row.prediction.levels.iter().find(|load| load.level.scope == Scope::Port);
        let share = port.map_or(0.0, |load| self.share(load));
        let step = bar.width / shown as f64;
        let (y, side) = (frame.y + 72.0, (step - 4.0).min(26.0));
        for index in 0..shown {
            let x = bar.x + (index as f64 + 0.5) * step;
            self.canvas.line((x, bar.y + bar.height), (x, y), share);
            let square = Rectangle { x: x - side / 2.0, y, width: side, height: 20.0 };
            self.canvas.rectangle(square, "#cfe0cf", "");
        }
        let text = if gpus > shown { format!("{shown} of {gpus} GPUs") } else { format!("{gpus} GPUs") };
        self.canvas.text(frame.x + frame.width / 2.0, y + 36.0, 11.0, Anchor::Middle, &text);
    }

    /// Draws the scale of colours and the figures of each level.
    fn legend(&mut self, top: f64) {
        let (first, step) = (MARGIN + 40.0, 20.0);
        self.canvas.text(MARGIN, top, 13.0, Anchor::Start, "0 %");
        for index in 0..=10 {
            let x = first + f64::from(index) * step;
            let place = Rectangle { x, y: top - 12.0, width: step, height: 14.0 };
            self.canvas.rectangle(place, &load_color(f64::from(index) / 10.0), "");
        }
        let text = "100 % of the time busy, the busiest links of each level:";
        self.canvas.text(first + 11.0 * step + 6.0, top, 13.0, Anchor::Start, text);
        for (index, load) in self.row.prediction.levels.iter().enumerate() {
            self.legend_line(top + (index as f64 + 1.3) * LEGEND_LINE, load);
        }
        let (alpha, gamma) = (show_time(self.row.prediction.alpha), show_time(self.row.prediction.gamma));
        let y = top + (self.row.prediction.levels.len() as f64 + 1.3) * LEGEND_LINE;
        let text = format!("Messages and latency take {alpha}, reductions {gamma}.");
        self.canvas.text(MARGIN, y, 13.0, Anchor::Start, &text);
    }

    fn legend_line(&mut self, y: f64, load: &LevelLoad) {
        let share = self.share(load);
        self.canvas.line((MARGIN, y - 4.0), (MARGIN + 30.0, y - 4.0), share);
        let owner = match load.level.scope {
            Scope::Port => "per GPU".to_owned(),
            Scope::Memory | Scope::Uplink => format!("per {} GPUs", load.level.group),
        };
        let (name, rate, bytes) = (load.level.name, show_rate(load.level.rate), show_bytes(load.bytes));
        let text = format!("{name}: {:.0} % busy with {bytes} at {rate} {owner} and direction", 100.0 * share);
        self.canvas.text(MARGIN + 40.0, y, 13.0, Anchor::Start, &text);
    }

    /// The share of the time for which a level is busy.
    fn share(&self, load: &LevelLoad) -> f64 {
        let seconds = self.row.prediction.seconds;
        if seconds > 0.0 { load.busy / seconds } else { 0.0 }
    }
}

/// Places for the children of a group: `full` large ones, then up to [`BOXES`] small ones.
fn split(all: Rectangle, children: usize, full: usize) -> Vec<Rectangle> {
    let full = full.clamp(1, children);
    let boxes = (children - full).min(BOXES);
    let small = if boxes == 0 { 0.0 } else { (all.width * 0.34 / boxes as f64).min(HOST_WIDTH) };
    let large = (all.width - boxes as f64 * small) / full as f64;
    let mut x = all.x;
    let widths = std::iter::repeat_n(large, full).chain(std::iter::repeat_n(small, boxes));
    let place = |width: f64| {
        let place = Rectangle { x: x + GAP / 2.0, y: all.y, width: width - GAP, height: 0.0 };
        x += width;
        place
    };
    widths.map(place).collect()
}

#[cfg(test)]
mod tests {
    use rdma_collectives::Collective;

    use super::*;

    #[test]
    fn drawings_name_every_level_and_stay_small() {
        for kind in [Kind::Host, Kind::FatTree, Kind::Rail, Kind::Dragonfly] {
            for ranks in [2, 16, 1024, 16_384] {
                let network = Network::preset(kind, ranks);
                let report = Report::new(&network, Collective::AllReduce, None, &[1e9]).unwrap();
                let row = report.last_best().unwrap();
                let svg = draw(&report, row);
                assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
                assert!(svg.len() < 60_000, "{kind:?} {ranks}: {}", svg.len());
                for load in &row.prediction.levels {
                    assert!(svg.contains(load.level.name), "{kind:?} {ranks}: {}", load.level.name);
                }
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{kind:?} {ranks}");
            }
        }
    }

    #[test]
    fn children_stand_beside_each_other() {
        let all = Rectangle { x: 10.0, y: 0.0, width: 1000.0, height: 0.0 };
        for children in [1, 2, 4, 5, 1000] {
            for full in [1, 3] {
                let places = split(all, children, full);
                assert!(places.len() <= children);
                assert!(places.windows(2).all(|pair| pair[0].x + pair[0].width < pair[1].x), "{children} {full}");
                assert!(places.iter().all(|place| place.x >= 10.0 && place.x + place.width <= 1010.0));
            }
        }
    }
}
