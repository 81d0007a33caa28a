//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write as _;

/// The kind of a metric.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A number that only grows; the name ends in `_total`.
    Counter,
    /// A number that goes up and down.
    Gauge,
}

/// A page of metrics.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    /// Adds a metric with one sample.
    pub(super) fn one(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Begins a metric, whose samples follow.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        debug_assert_eq!(name.ends_with("_total"), matches!(kind, Kind::Counter), "{name}");
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.add(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Adds a sample of the metric that was begun last.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.add(format_args!("{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' }));
        }
        self.add(format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
    }

    /// The text.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _written = self.text.write_fmt(text);
    }
}

/// A name of a metric from any text: other characters than those of names become `_`.
pub(super) fn name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_of_a_driver_break_no_line() {
        let mut page = Page::default();
        let metric = name("rdma_port_odd-name\n1_total");
        page.family(&metric, Kind::Counter, "A \\ and\na line.");
        page.sample(&metric, &[("device", "a\"b\\c\nd"), ("port", "1")], 3.0);
        page.one("up", Kind::Gauge, "Whether.", 0.5);
        let text = "# HELP rdma_port_odd_name_1_total A \\\\ and\\na line.\n# TYPE rdma_port_odd_name_1_total counter\n\
                    rdma_port_odd_name_1_total{device=\"a\\\"b\\\\c\\nd\",port=\"1\"} 3\n\
                    # HELP up Whether.\n# TYPE up gauge\nup 0.5\n";
        assert_eq!(page.into_text(), text);
    }
}
