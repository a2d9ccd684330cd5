//! The rows of a workload, as a table, CSV or JSON.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Row, Run};
use crate::stderr;
use crate::table::{bold, columns, cut, print, print_json};
use crate::units::{Bytes, Time, gbps};

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
                        p50_us,p90_us,p99_us,max_us,cpu_seconds,cached";

impl Report {
    pub fn new(format: Format) -> io::Result<Self> {
        match format {
            Format::Table => print(&format!("{}\n", bold(&table_head(columns())))),
            Format::Csv => print(&format!("{CSV_HEAD}\n")),
            Format::Json => Ok(()),
        }?;
        Ok(Self { format, rows: Vec::new(), failures: Vec::new() })
    }

    pub fn row(&mut self, row: Row) -> io::Result<()> {
        match self.format {
            Format::Table => print(&format!("{}\n", table_line(&row, columns()))),
            Format::Csv => print(&format!("{}\n", csv_line(&row))),
            Format::Json => Ok(()),
        }?;
        self.rows.push(row);
        Ok(())
    }

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

    /// Returns the latencies at the median, 90 %, 99 %, and the largest, in nanoseconds.
    fn percentiles(&self) -> [u64; 4] {
        let at = |quantile| self.latency.value_at_quantile(quantile);
        [at(0.5), at(0.9), at(0.99), self.latency.max()]
    }
}

/// The columns of the table: title, width, and the order in which they are left out on a narrow terminal; 0 stays.
const COLUMNS: [(&str, usize, u8); 11] = [
    ("io", 9, 0),
    ("size", 9, 0),
    ("workers", 7, 6),
    ("depth", 5, 4),
    ("GB/s", 8, 0),
    ("IOPS", 9, 0),
    ("p50", 8, 0),
    ("p90", 8, 3),
    ("p99", 8, 5),
    ("max", 8, 2),
    ("CPU s", 6, 1),
];
/// The least width of the last column.
const ROUTE: usize = 12;

fn fitting(most: Option<usize>) -> (Vec<usize>, usize) {
    let Some(most) = most else { return ((0..COLUMNS.len()).collect(), usize::MAX) };
    let mut left_out = 0;
    loop {
        let stays = |column: &usize| COLUMNS[*column].2 == 0 || COLUMNS[*column].2 > left_out;
        let columns: Vec<usize> = (0..COLUMNS.len()).filter(stays).collect();
        let used: usize = columns.iter().map(|column| COLUMNS[*column].1 + 1).sum::<usize>() + 1;
        if used + ROUTE <= most || columns.iter().all(|column| COLUMNS[*column].2 == 0) {
            return (columns, most.saturating_sub(used));
        }
        left_out += 1;
    }
}

fn line(cells: &[String; COLUMNS.len()], route: &str, most: Option<usize>) -> String {
    let (columns, route_width) = fitting(most);
    let cell = |column: &usize| {
        let (text, width) = (&cells[*column], COLUMNS[*column].1);
        if *column == 0 { format!("{text:<width$}") } else { format!("{text:>width$}") }
    };
    let cells: Vec<_> = columns.iter().map(cell).collect();
    format!("{}  {}", cells.join(" "), cut(route, route_width))
}

fn table_head(most: Option<usize>) -> String {
    line(&COLUMNS.map(|(title, ..)| title.to_owned()), "route", most)
}

fn table_line(row: &Row, most: Option<usize>) -> String {
    let [p50, p90, p99, max] = row.percentiles().map(|nanos| Time(Duration::from_nanos(nanos)).to_string());
    let Run { io, io_bytes, workers, depth, .. } = row.run;
    let places = row.places.iter().map(|(name, _)| name.clone());
    let cached = row.cached.map(|part| format!("{:.0} % cached", 100.0 * part));
    let where_from: Vec<_> = places.chain(cached).collect();
    let cells = [
        io.name().to_owned(),
        Bytes(io_bytes as u64).to_string(),
        workers.to_string(),
        depth.to_string(),
        format!("{:.2}", row.gbps()),
        format!("{:.0}", row.iops()),
        p50,
        p90,
        p99,
        max,
        format!("{:.2}", row.cpu_seconds),
    ];
    line(&cells, &format!("{} ({})", row.route, where_from.join(", ")), most)
}

fn csv_line(row: &Row) -> String {
    let Run { io, via, io_bytes, workers, depth } = row.run;
    let [p50, p90, p99, max] = row.percentiles().map(|nanos| nanos as f64 / 1e3);
    let places: Vec<_> = row.places.iter().map(|(name, _)| name.as_str()).collect();
    format!(
        "{},{},{},{io_bytes},{workers},{depth},{},{},{},{},{:.6},{:.4},{:.1},{p50:.3},{p90:.3},{p99:.3},{max:.3},{:.3},{}",
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
        row.cached.map(|part| format!("{part:.3}")).unwrap_or_default(),
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
        "cached": row.cached,
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

    pub fn row(io_bytes: usize, workers: u64, seconds: f64) -> Row {
        let mut latency = Tally::default().latency;
        (1..=100).for_each(|count| latency.record(count * 10_000).unwrap());
        Row {
            run: Run { io: Io::RAND_READ, via: Via::AUTO, io_bytes, workers, depth: 1 },
            places: vec![("GPU 0".to_owned(), 600_000_000), ("GPU 3".to_owned(), 400_000_000)],
            route: "some route".to_owned(),
            cached: Some(0.375),
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
        let line = table_line(&row, None);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[..7], ["randread", "64", "KiB", "4", "1", "2.00", "200"]);
        assert_eq!(words[7..9], ["500", "us"]);
        assert!(line.ends_with("some route (GPU 0, GPU 3, 38 % cached)"), "{line}");
        let value = to_json(&row);
        assert_eq!((&value["gbps"], &value["places"][1]["gbps"]), (&json!(2.0), &json!(0.8)));
        assert_eq!((&value["ops"], &value["iops"]), (&json!(100), &json!(200.0)));
        let p99 = value["latency_ns"]["p99"].as_f64().unwrap();
        assert!((p99 / 990_000.0 - 1.0).abs() < 0.01, "{p99}");
        assert_eq!(csv_line(&row).split(',').count(), CSV_HEAD.split(',').count());
        assert!(csv_line(&row).contains("GPU 0;GPU 3") && csv_line(&row).ends_with(",0.375"));
        assert_eq!(value["cached"], json!(0.375));
        let unknown = Row { cached: None, ..row };
        assert!(table_line(&unknown, None).ends_with("(GPU 0, GPU 3)") && csv_line(&unknown).ends_with(','));
    }

    #[test]
    fn titles_stand_above_their_columns() {
        let (head, line) = (table_head(None), table_line(&row(1 << 24, 12, 0.01), None));
        for (title, cell) in [("GB/s", "100.00"), ("workers", "12"), ("CPU s", "0.25")] {
            let end = |text: &str, part: &str| text.find(part).unwrap() + part.len();
            assert_eq!(end(&head, title), end(&line, cell), "{head}\n{line}");
        }
    }

    #[test]
    fn lines_fit_terminals_from_60_columns_on() {
        let row = row(1 << 24, 12, 0.01);
        for most in [60, 72, 80, 100, 120, 200] {
            for line in [table_head(Some(most)), table_line(&row, Some(most))] {
                assert!(line.chars().count() <= most, "{most}: {line}");
            }
            let head = table_head(Some(most));
            assert!(
                ["io", "size", "GB/s", "IOPS", "p50", "route"].iter().all(|it| head.contains(it)),
                "{head}"
            );
        }
        assert!(!table_head(Some(60)).contains("CPU s") && table_head(Some(120)).contains("CPU s"));
    }
}
