//! Prometheus' text format, version 0.0.4.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::{Display, Write};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process;

use crate::failure::Failure;
use crate::interrupt::Unfinished;

#[derive(Default)]
pub struct Exposition {
    text: String,
}

#[derive(Clone, Copy)]
pub enum Kind {
    Gauge,
    Counter,
}

impl Exposition {
    /// Begins a metric, whose samples follow.
    pub fn metric<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Metric<'a> {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Metric { text: &mut self.text, name, known: HashSet::new() }
    }

    pub fn text(self) -> String {
        self.text
    }
}

pub struct Metric<'a> {
    text: &'a mut String,
    name: &'a str,
    /// Labels of the samples so far.
    known: HashSet<String>,
}

impl Metric<'_> {
    /// Adds no second sample with the same labels: a collector then refuses the whole page.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        let labels: Vec<_> =
            labels.iter().map(|(name, text)| format!("{name}=\"{}\"", escaped(text))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        if !self.known.contains(&labels) {
            let _ = writeln!(self.text, "{}{labels} {value}", self.name);
            self.known.insert(labels);
        }
        self
    }

    /// Adds a sample for each state: 1 for the present one, and 0 for the others.
    pub fn state(
        &mut self,
        labels: &[(&str, &str)],
        name: &str,
        states: &[&str],
        present: &str,
    ) -> &mut Self {
        for state in states {
            self.sample(&[labels, &[(name, state)]].concat(), u8::from(*state == present));
        }
        self
    }
}

/// Writes so that node_exporter's textfile collector never sees a part of the page; an earlier one stays
/// after an error.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Other(format!("cannot write the metrics {path:?}: {error}"));
    // The collector reads names that end with .prom only.
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", process::id()));
    let temporary = path.with_file_name(name);
    let created = Unfinished::create(|| File::create(&temporary).map(|file| (file, temporary.clone())));
    let (mut file, _unfinished) = created.map_err(failed)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        // The cause is the first error.
        let _ = fs::remove_file(&temporary);
        failed(error)
    })
}

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

    #[test]
    fn each_sample_comes_once_and_each_state_has_one() {
        let mut page = Exposition::default();
        page.metric("a", Kind::Gauge, "A.").sample(&[("x", "1")], 1).sample(&[("x", "1")], 2).state(
            &[("y", "z")],
            "state",
            &["on", "off"],
            "off",
        );
        let expected = "# HELP a A.\n# TYPE a gauge\na{x=\"1\"} 1\na{y=\"z\",state=\"on\"} 0\na{y=\"z\",state=\"off\"} 1\n";
        assert_eq!(page.text(), expected);
    }

    #[test]
    fn files_are_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.prom");
        for text in ["one 1\n", "two 2\n"] {
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::create_dir(folder.path().join("folder")).unwrap();
        write(&folder.path().join("folder"), "x 1\n").unwrap_err();
        write(Path::new("/nonexistent/a.prom"), "x 1\n").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
