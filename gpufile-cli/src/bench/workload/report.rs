//! The rows of a workload, as a table, CSV or JSON.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Row, Run};
use crate::stderr;
use crate::table::{bold, print, print_json};
use crate::units::{Bytes, Time, gbps};

/// The form of a report.
#[derive(Clone, Copy, PartialEq)]
pub enum Format {
    Table,
    Csv,
    Json,
}

/// The rows so far. Tables and CSV are printed row by row.
pub struct Report {
    format: Format,
    rows: Vec<Row>,
    failures: Vec<Value>,
}

const CSV_HEAD: &str = "io,via,route,io_bytes,workers,depth,places,read_bytes,written_bytes,ops,seconds,gbps,iops,\
                        p50_us,p90_us,p99_us,max_us,cpu_seconds";

impl Report {
    pub fn new(format: Format) -> io::Result<Self> {
        match format {
            Format::Table => print(&format!("{}\n", bold(&table_head()))),
            Format::Csv => print(&format!("{CSV_HEAD}\n")),
            Format::Json => Ok(()),
        }?;
        Ok(Self { format, rows: Vec::new(), failures: Vec::new() })
    }

    pub fn row(&mut self, row: Row) -> io::Result<()> {
        match self.format {
            Format::Table => print(&format!("{}\n", table_line(&row))),
            Format::Csv => print(&format!("{}\n", csv_line(&row))),
            Format::Json => Ok(()),
        }?;
        self.rows.push(row);
        Ok(())
    }

    /// Reports a run that failed.
    pub fn failure(&mut self, run: &Run, error: &str) {
        let Run { io, via, io_bytes, workers, depth } = run;
        let text = format!(
            "{} ({}) of {} with {workers} workers and depth {depth}: {error}",
            io.name(),
            via.name(),
            Bytes(*io_bytes as u64)
        );
        self.failures.push(json!(text));
        stderr::fail(&text);
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Prints what was not printed row by row.
    pub fn end(&self) -> io::Result<()> {
        if self.format != Format::Json {
            return Ok(());
        }
        let runs: Vec<_> = self.rows.iter().map(to_json).collect();
        print_json(&json!({ "runs": runs, "failures": self.failures }))
    }
}

impl Row {
    fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }

    pub fn gbps(&self) -> f64 {
        gbps(self.bytes(), self.seconds)
    }

    fn iops(&self) -> f64 {
        self.latency.len() as f64 / self.seconds.max(1e-9)
    }

    /// Returns the latencies at the median, at 90 %, at 99 %, and the largest, in nanoseconds.
    fn percentiles(&self) -> [u64; 4] {
        let at = |quantile| self.latency.value_at_quantile(quantile);
        [at(0.5), at(0.9), at(0.99), self.latency.max()]
    }
}

fn table_head() -> String {
    format!(
        "{:<9} {:>9} {:>7} {:>5} {:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>6}  route",
        "io", "size", "workers", "depth", "GB/s", "IOPS", "p50", "p90", "p99", "max", "CPU s"
    )
}

fn table_line(row: &Row) -> String {
    let [p50, p90, p99, max] = row.percentiles().map(|nanos| Time(Duration::from_nanos(nanos)));
    let Run { io, io_bytes, workers, depth, .. } = row.run;
    let places: Vec<_> = row.places.iter().map(|(name, _)| name.as_str()).collect();
    format!(
        "{:<9} {:>9} {workers:>7} {depth:>5} {:>8.2} {:>9.0} {p50:>8} {p90:>8} {p99:>8} {max:>8} {:>6.2}  {} ({})",
        io.name(),
        Bytes(io_bytes as u64),
        row.gbps(),
        row.iops(),
        row.cpu_seconds,
        row.route,
        places.join(", "),
    )
}

fn csv_line(row: &Row) -> String {
    let Run { io, via, io_bytes, workers, depth } = row.run;
    let [p50, p90, p99, max] = row.percentiles().map(|nanos| nanos as f64 / 1e3);
    let places: Vec<_> = row.places.iter().map(|(name, _)| name.as_str()).collect();
    format!(
        "{},{},{},{io_bytes},{workers},{depth},{},{},{},{},{:.6},{:.4},{:.1},{p50:.3},{p90:.3},{p99:.3},{max:.3},{:.3}",
        io.name(),
        via.name(),
        row.route,
        places.join(";"),
        row.read_bytes,
        row.written_bytes,
        row.latency.len(),
        row.seconds,
        row.gbps(),
        row.iops(),
        row.cpu_seconds,
    )
}

fn to_json(row: &Row) -> Value {
    let Run { io, via, io_bytes, workers, depth } = row.run;
    let [p50, p90, p99, max] = row.percentiles();
    let place = |(name, bytes): &(String, u64)| json!({ "memory": name, "bytes": bytes, "gbps": gbps(*bytes, row.seconds) });
    json!({
        "io": io.name(),
        "via": via.name(),
        "route": row.route,
        "io_bytes": io_bytes,
        "workers": workers,
        "depth": depth,
        "places": row.places.iter().map(place).collect::<Vec<_>>(),
        "read_bytes": row.read_bytes,
        "written_bytes": row.written_bytes,
        "ops": row.latency.len(),
        "seconds": row.seconds,
        "gbps": row.gbps(),
        "iops": row.iops(),
        "latency_ns": { "p50": p50, "p90": p90, "p99": p99, "max": max, "mean": row.latency.mean() },
        "cpu_seconds": row.cpu_seconds,
    })
}

#[cfg(test)]
pub mod tests {
    use super::super::args::{Io, Via};
    use super::super::worker::Tally;
    use super::*;

    /// Returns the row of a run that read a gigabyte in this time.
    pub fn row(io_bytes: usize, workers: u64, seconds: f64) -> Row {
        let mut latency = Tally::default().latency;
        (1..=100).for_each(|count| latency.record(count * 10_000).unwrap());
        Row {
            run: Run { io: Io::RAND_READ, via: Via::AUTO, io_bytes, workers, depth: 1 },
            places: vec![("GPU 0".to_owned(), 600_000_000), ("GPU 3".to_owned(), 400_000_000)],
            route: "some route".to_owned(),
            seconds,
            cpu_seconds: 0.25,
            read_bytes: 1_000_000_000,
            written_bytes: 0,
            latency,
        }
    }

    #[test]
    fn rows_have_speed_percentiles_and_route() {
        let row = row(65_536, 4, 0.5);
        let line = table_line(&row);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[..7], ["randread", "64", "KiB", "4", "1", "2.00", "200"]);
        assert_eq!(words[7..9], ["500", "us"]);
        assert!(line.ends_with("some route (GPU 0, GPU 3)"), "{line}");
        let value = to_json(&row);
        assert_eq!((&value["gbps"], &value["places"][1]["gbps"]), (&json!(2.0), &json!(0.8)));
        assert_eq!((&value["ops"], &value["iops"]), (&json!(100), &json!(200.0)));
        let p99 = value["latency_ns"]["p99"].as_f64().unwrap();
        assert!((p99 / 990_000.0 - 1.0).abs() < 0.01, "{p99}");
        assert_eq!(csv_line(&row).split(',').count(), CSV_HEAD.split(',').count());
        assert!(csv_line(&row).contains("GPU 0;GPU 3"));
    }

    #[test]
    fn titles_stand_above_their_columns() {
        let (head, line) = (table_head(), table_line(&row(1 << 24, 12, 0.01)));
        for (title, cell) in [("GB/s", "100.00"), ("workers", "12"), ("CPU s", "0.25")] {
            let end = |text: &str, part: &str| text.find(part).unwrap() + part.len();
            assert_eq!(end(&head, title), end(&line, cell), "{head}\n{line}");
        }
    }
}
