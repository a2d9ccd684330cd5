//! A chart of speeds, against the size of a transfer and against the number of threads, and its file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Row;
use crate::failure::Failure;
use crate::interrupt::Unfinished;
use crate::units::Bytes;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
/// The space around a panel: for the speeds at the left, for the titles above and below.
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const BELOW: f64 = 50.0;
/// The height of a line of the legend.
const LINE: f64 = 18.0;
/// Colours that people with colour blindness can tell apart.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// The points of each line behind its name, in the order of the runs: the value below the chart, and GB/s.
type Lines = Vec<(String, BTreeMap<u64, f64>)>;

/// The file of a chart. It is open before the runs, so none runs for a chart that cannot be written.
pub struct ChartFile<'a> {
    path: &'a Path,
    file: File,
    /// Set for a new file, until it has the chart.
    made: Option<Unfinished>,
}

impl<'a> ChartFile<'a> {
    /// Opens the file, or makes it. An earlier chart stays until there is a new one.
    ///
    /// # Errors
    /// The file cannot be written, or is the measured one.
    pub fn open(path: &'a Path, measured: &Path) -> Result<Self, Failure> {
        let failed = |error| cannot_write(path, &error);
        let created = Unfinished::create(|| {
            let file = File::options().write(true).create_new(true).open(path);
            file.map(|file| (file, path.to_owned()))
        });
        let (file, made) = match created {
            Ok((file, made)) => (Ok(file), Some(made)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (File::options().write(true).create(true).truncate(false).open(path), None)
            }
            Err(error) => (Err(error), None),
        };
        let this = Self { path, file: file.map_err(failed)?, made };
        let identity = |file: fs::Metadata| (file.dev(), file.ino());
        let [own, other] = [this.file.metadata(), fs::metadata(measured)];
        if identity(own.map_err(failed)?) == identity(other.map_err(failed)?) {
            return Err(Failure::Usage(format!("--svg would overwrite the measured file {path:?}")));
        }
        Ok(this)
    }

    /// Writes the chart.
    ///
    /// # Errors
    /// The file system refuses it.
    pub fn write(mut self, chart: &str) -> Result<(), Failure> {
        // Devices and pipes cannot be shortened.
        let is_file = self.file.metadata().is_ok_and(|file| file.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(chart.as_bytes()));
        written.map_err(|error| cannot_write(self.path, &error))?;
        self.made = None;
        Ok(())
    }
}

impl Drop for ChartFile<'_> {
    fn drop(&mut self) {
        if self.made.is_some() {
            // An empty file would only be in the way.
            let _ = fs::remove_file(self.path);
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("cannot write {path:?}: {error}"))
}

/// Returns the line that tells what a chart is of: the file, the host and the day.
pub fn caption(measured: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
    // SAFETY: zeros are a valid value of the struct.
    let mut day: libc::tm = unsafe { mem::zeroed() };
    // SAFETY: both outlive the call, which fills in the struct.
    unsafe { libc::gmtime_r(&(now as libc::time_t), &raw mut day) };
    let (year, month) = (day.tm_year + 1900, day.tm_mon + 1);
    format!("{} on {}, {year}-{month:02}-{:02}", measured.display(), host.trim(), day.tm_mday)
}

/// Returns a text as it stands in XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the chart as SVG: a panel for the sizes, and one for the threads if there are several.
pub fn draw(rows: &[Row], caption: &str) -> String {
    let by_size = |row: &Row| (row.run.io_bytes as u64, format!("{} workers", row.run.workers));
    let by_workers = |row: &Row| (row.run.workers, Bytes(row.run.io_bytes as u64).to_string());
    let size_panel = panel("size of a transfer", lines(rows, by_size), |bytes| Bytes(bytes).to_string());
    let workers = lines(rows, by_workers);
    let has_several = workers.iter().any(|(_, points)| points.len() > 1);
    let workers_panel = has_several.then(|| panel("workers", workers, |count| count.to_string()));
    let panels: Vec<_> = [Some(size_panel), workers_panel].into_iter().flatten().collect();
    let mut y = LINE + 6.0;
    let mut body = format!("<text x=\"{LEFT}\" y=\"{LINE}\">{}</text>\n", escaped(caption));
    for (height, panel) in &panels {
        let _ = writeln!(body, "<g transform=\"translate(0 {y})\">{panel}</g>");
        y += height;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// Returns a line for each combination of the other options.
fn lines(rows: &[Row], split: impl Fn(&Row) -> (u64, String)) -> Lines {
    let mut lines = Lines::new();
    for row in rows {
        let (x, other) = split(row);
        let depth = if row.run.depth > 1 { format!(", depth {}", row.run.depth) } else { String::new() };
        let name = format!("{}, {}, {other}{depth}", row.run.io.name(), row.run.via.name());
        let number = lines.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            lines.push((name, BTreeMap::new()));
            lines.len() - 1
        });
        lines[number].1.insert(x, row.gbps());
    }
    lines
}

/// Returns the height of a panel, and its elements. It has no more lines than there are colours.
fn panel(title: &str, mut lines: Lines, label: impl Fn(u64) -> String) -> (f64, String) {
    let left_out = lines.len().saturating_sub(COLOURS.len());
    lines.truncate(COLOURS.len());
    let points = || lines.iter().map(|(_, points)| points);
    let xs: Vec<u64> = {
        let mut xs: Vec<_> = points().flat_map(BTreeMap::keys).copied().collect();
        xs.sort_unstable();
        xs.dedup();
        xs
    };
    let most = round_up(points().flat_map(BTreeMap::values).copied().fold(0.0, f64::max));
    // The values stand at equal distances, as sizes usually are powers of two.
    let step = (WIDTH - LEFT - 40.0) / (xs.len().max(2) - 1) as f64;
    let x = |value: u64| LEFT + 10.0 + step * xs.iter().position(|&x| x == value).unwrap_or(0) as f64;
    let floor = HEIGHT - BELOW;
    let y = |speed: f64| floor - (floor - TOP) * speed / most;
    let mut text =
        format!("<text x=\"{LEFT}\" y=\"22\" font-weight=\"bold\">GB/s against the {title}</text>");
    for part in 0..=4 {
        let speed = most * f64::from(part) / 4.0;
        let (y, right) = (y(speed), WIDTH - 20.0);
        // A quarter of 0.6 is not quite 0.15.
        let speed = (speed * 1e6).round() / 1e6;
        let _ = write!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{speed}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    for &value in &xs {
        let (x, y) = (x(value), floor + 18.0);
        let _ =
            write!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>", label(value));
    }
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[number];
        let path: Vec<_> =
            points.iter().map(|(&value, &speed)| format!("{:.1},{:.1}", x(value), y(speed))).collect();
        let _ = write!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for point in &path {
            let (cx, cy) = point.split_once(',').unwrap_or_default();
            let _ = write!(text, "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let y = HEIGHT - 4.0 + LINE * number as f64;
        let _ = write!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>",
            y - 4.0,
            LEFT + 24.0,
            y - 4.0,
            LEFT + 32.0
        );
    }
    let mut rows = lines.len();
    if left_out > 0 {
        let y = HEIGHT - 4.0 + LINE * rows as f64;
        let _ = write!(text, "<text x=\"{LEFT}\" y=\"{y:.1}\">and {left_out} more, in the table</text>");
        rows += 1;
    }
    (HEIGHT + LINE * rows as f64 + 10.0, text)
}

/// Returns the next number with one digit that four steps divide well.
fn round_up(speed: f64) -> f64 {
    let unit = 10_f64.powf(speed.max(1e-3).log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        .map(|count| count * unit)
        .into_iter()
        .find(|&top| top >= speed)
        .unwrap_or(speed)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::row;
    use super::*;

    #[test]
    fn charts_have_a_line_for_each_combination() {
        let rows = [row(4096, 1, 1.0), row(65_536, 1, 0.5), row(4096, 8, 0.25), row(65_536, 8, 0.125)];
        let text = draw(&rows, "f <1> on h");
        assert_eq!(text.matches("<polyline").count(), 4, "{text}");
        assert_eq!(text.matches("<circle").count(), 8);
        for part in
            ["randread, auto, 8 workers", "randread, auto, 64 KiB", ">4 KiB<", ">8<", ">f &lt;1&gt; on h<"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The labels have no more digits than they need.
        let text = draw(&[row(4096, 1, 1.8)], "");
        assert!(
            [">0<", ">0.15<", ">0.3<", ">0.45<", ">0.6<"].iter().all(|label| text.contains(label)),
            "{text}"
        );
        // Without several numbers of threads, there is no panel for them.
        assert_eq!(draw(&rows[..2], "").matches("<polyline").count(), 1);
        assert!(draw(&[], "").ends_with("</svg>\n"));
    }

    #[test]
    fn charts_have_eight_lines_at_most_in_order() {
        let rows: Vec<_> = (1..=10).map(|workers| row(4096, workers, 1.0)).collect();
        let sizes = draw(&rows, "").split("</g>").next().unwrap().to_owned();
        assert_eq!(sizes.matches("<polyline").count(), 8, "{sizes}");
        let colours: std::collections::HashSet<_> =
            COLOURS.iter().filter(|of| sizes.contains(**of)).collect();
        assert_eq!(colours.len(), 8);
        let at = |name: &str| sizes.find(name).unwrap();
        assert!(at(", 2 workers") < at(", 8 workers") && !sizes.contains(", 10 workers"));
        assert!(sizes.contains("and 2 more, in the table"), "{sizes}");
    }

    #[test]
    fn higher_speeds_are_higher_up() {
        let text = draw(&[row(4096, 1, 1.0), row(65_536, 1, 0.5)], "");
        let points = text.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let ys: Vec<f64> =
            points.split(' ').map(|point| point.split_once(',').unwrap().1.parse().unwrap()).collect();
        assert!(ys[1] < ys[0] && ys[1] >= TOP && ys[0] <= HEIGHT - BELOW, "{points}");
    }

    #[test]
    fn scales_end_above_the_largest_speed() {
        for (speed, top) in [(0.7, 0.8), (1.0, 1.0), (3.3, 4.0), (55.0, 60.0), (99.0, 100.0)] {
            assert!((round_up(speed) - top).abs() < 1e-9, "{speed}");
        }
    }
}
