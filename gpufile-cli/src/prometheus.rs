//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write};

/// The text of several metrics.
#[derive(Default)]
pub struct Exposition {
    text: String,
}

/// The kind of a metric.
#[derive(Clone, Copy)]
pub enum Kind {
    Gauge,
    Counter,
}

impl Exposition {
    /// Begins a metric. Its samples follow.
    pub fn metric<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Metric<'a> {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Metric { text: &mut self.text, name }
    }

    /// Returns the text.
    pub fn text(self) -> String {
        self.text
    }
}

/// A metric to which samples are added.
pub struct Metric<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Metric<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        let labels: Vec<_> =
            labels.iter().map(|(name, text)| format!("{name}=\"{}\"", escaped(text))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}{labels} {value}", self.name);
        self
    }
}

/// Escapes the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Exposition::default();
        page.metric("a_bytes", Kind::Gauge, "Bytes.")
            .sample(&[("path", "/a\"b\\c\nd"), ("x", "y")], 5)
            .sample(&[], 0.5);
        let expected = "# HELP a_bytes Bytes.\n# TYPE a_bytes gauge\na_bytes{path=\"/a\\\"b\\\\c\\nd\",x=\"y\"} 5\na_bytes 0.5\n";
        assert_eq!(page.text(), expected);
    }
}
