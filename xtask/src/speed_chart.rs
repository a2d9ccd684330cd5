//! `cargo xtask speed-chart`: draws `docs/speed.svg`, the bars of README.md, from a table of BENCHMARKS.md.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};

use crate::workspace::workspace;

const BENCHMARKS: &str = "BENCHMARKS.md";
const CHART: &str = "docs/speed.svg";

const TABLE: &str = "## tmpfs";
/// The row with the speed of the link.
const LINK: &str = "link, each way";
/// Rows that are drawn, and their labels.
const ROWS: [(&str, &str); 6] = [
    ("read, default settings", "one large read, default settings"),
    ("16,384 × 64 KiB", "16,384 reads of 64 KiB"),
    ("65,536 × 4 KiB, contiguous destination", "65,536 reads of 4 KiB"),
    ("stream-ordered, 1 GiB", "read ordered with a CUDA stream"),
    ("overwrite", "overwrite"),
    ("new file", "new file"),
];
/// Contenders in the order of the columns, each with its colour.
const CONTENDERS: [(&str, &str); 3] =
    [("gpufile", "#2f81f7"), ("libcufile from C", "#8b949e"), ("kvikio", "#b7a27a")];

/// No wider than the window of a telephone, where a wider picture would shrink with its letters.
const WIDTH: f64 = 380.0;
const TOP: f64 = 66.0;
const BAR: f64 = 13.0;
/// The height of a label, and of the bars below it.
const LABEL: f64 = 20.0;
const GROUP: f64 = LABEL + 3.0 * BAR + 6.0;
/// The length of a bar as fast as the link.
const LINK_WIDTH: f64 = 350.0;

pub fn run() -> Result<()> {
    let chart = draw(&fs::read_to_string(workspace().join(BENCHMARKS))?)?;
    fs::write(workspace().join(CHART), chart).context(CHART)?;
    println!("written: {CHART}");
    Ok(())
}

fn draw(benchmarks: &str) -> Result<String> {
    let (_, table) = benchmarks.split_once(TABLE).with_context(|| format!("no heading {TABLE:?}"))?;
    let link = *figures(table, LINK)?.first().context("no figure for the link")?;
    let machine = benchmarks.lines().find_map(machine_of).context("no line names the machine")?;
    let bottom = TOP + GROUP * ROWS.len() as f64;
    let height = bottom + 38.0;

    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="GB/s of gpufile, libcufile and kvikio">
<style>
text {{ font: 13px sans-serif; fill: #1f2328 }}
.value {{ font-size: 11px }}
.inside {{ fill: #ffffff }}
.link {{ stroke: #57606a; stroke-dasharray: 4 3 }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .link {{ stroke: #9da7b3 }} }}
</style>
<text x="0" y="14">GB/s between a cached file of 4 GiB on tmpfs</text>
<text x="0" y="31">and one {machine} without GPUDirect</text>
"##
    );
    for (index, (name, colour)) in CONTENDERS.iter().enumerate() {
        let x = 120.0 * index as f64;
        writeln!(svg, r#"<rect x="{x}" y="45" width="12" height="12" fill="{colour}"/>"#)?;
        writeln!(svg, r#"<text x="{}" y="56">{name}</text>"#, x + 18.0)?;
    }
    for (index, (case, label)) in ROWS.iter().enumerate() {
        let y = TOP + GROUP * index as f64;
        writeln!(svg, r#"<text x="0" y="{}">{label}</text>"#, y + LABEL - 5.0)?;
        for (place, (figure, (_, colour))) in figures(table, case)?.iter().zip(CONTENDERS).enumerate() {
            let (y, width) = (y + LABEL + BAR * place as f64, figure / link * LINK_WIDTH);
            writeln!(
                svg,
                r#"<rect x="0" y="{y}" width="{width:.1}" height="{}" fill="{colour}"/>"#,
                BAR - 1.0
            )?;
            // Behind a long bar, the figure would lie on the line of the link.
            let (class, x, anchor) = match width > LINK_WIDTH * 0.85 {
                true => ("value inside", width - 5.0, "end"),
                false => ("value", width + 5.0, "start"),
            };
            let y = y + 10.0;
            writeln!(
                svg,
                r#"<text class="{class}" x="{x:.1}" y="{y}" text-anchor="{anchor}">{figure}</text>"#
            )?;
        }
    }
    let x = LINK_WIDTH;
    writeln!(svg, r#"<line class="link" x1="{x}" y1="{}" x2="{x}" y2="{bottom}"/>"#, TOP + LABEL - 6.0)?;
    writeln!(
        svg,
        r#"<text class="value" x="{x}" y="{}" text-anchor="middle">link {link}</text>"#,
        bottom + 15.0
    )?;
    let y = bottom + 32.0;
    writeln!(
        svg,
        r#"<text class="value" x="0" y="{y}">The best settings of each, except where the row says default.</text>"#
    )?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn machine_of(line: &str) -> Option<&str> {
    let (name, _) =
        line.strip_prefix("The machine is a virtual machine with one ")?.split_once(" (driver")?;
    Some(name)
}

fn figures(table: &str, case: &str) -> Result<Vec<f64>> {
    let row = table.lines().map(|line| line.trim_matches('|').split('|').map(str::trim));
    let mut cells = row
        .map(|cells| cells.collect::<Vec<_>>())
        .find(|cells| cells[0] == case)
        .with_context(|| format!("no row {case:?} under {TABLE:?} of {BENCHMARKS}"))?;
    cells.drain(..1);
    let cells = cells.into_iter().filter(|cell| !cell.is_empty());
    cells.map(|cell| number(cell).with_context(|| format!("{cell:?} begins with no number"))).collect()
}

fn number(cell: &str) -> Option<f64> {
    let cell = cell.trim_start_matches('*');
    let end = cell.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(cell.len());
    cell[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_shows_the_figures_of_benchmarks() {
        let read = |name: &str| fs::read_to_string(workspace().join(name)).unwrap();
        let drawn = draw(&read(BENCHMARKS)).unwrap();
        assert!(drawn == read(CHART), "run `cargo xtask speed-chart`");
    }

    #[test]
    fn figures_are_the_first_number_in_each_cell() {
        let table = "| case | a | b | c |\n|---|---|---|---|\n| read | **53.1** @16 | 1.84 | |\n";
        assert_eq!(figures(table, "read").unwrap(), [53.1, 1.84]);
        assert!(figures(table, "write").unwrap_err().to_string().contains("\"write\""));
        assert!(figures("| read | fast |", "read").is_err());
    }
}
