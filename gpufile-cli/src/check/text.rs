//! The report as text: the verdict first, then what to do, then the facts.

mod machine;

use std::fmt::Write;
use std::time::Duration;

use super::attempt::{Attempt, BYTES};
use super::cause::Cause;
use super::effect::Effect;
use super::machine::Machine;
use super::outcome::Outcome;
use super::pci::{Distance, PciDevice};
use super::target::Target;
use crate::findings::Page;
use crate::table::printable;

/// The causes that the short report has.
const MOST_CAUSES: usize = 5;

pub fn report(machine: &Machine, outcomes: &[Outcome], is_verbose: bool) -> String {
    let mut report = Report { page: Page::default(), is_verbose };
    for outcome in outcomes {
        let verdict = outcome.verdict().key().to_uppercase();
        report.page.wrapped(&format!("{}: {verdict}: ", outcome.path.display()), &outcome.headline());
    }
    report.causes(outcomes);
    for outcome in outcomes {
        if let Ok(target) = &outcome.target {
            report.page.title(&outcome.path.display().to_string());
            report.target(machine, target);
        }
        if let Some(Ok(attempt)) = &outcome.attempt {
            report.attempt(attempt);
        }
    }
    report.page.title("machine");
    report.libraries(machine);
    report.gpus(machine);
    report.disks_and_cards(machine);
    report.kernel(machine);
    report.configuration(machine);
    report.storages(machine);
    report.features(machine);
    report.page.text
}

struct Report {
    page: Page,
    is_verbose: bool,
}

impl Report {
    /// Writes each cause once, worst first.
    fn causes(&mut self, outcomes: &[Outcome]) {
        let mut found: Vec<(&Cause, Vec<String>)> = Vec::new();
        for outcome in outcomes {
            let path = printable(&outcome.path.to_string_lossy());
            for cause in &outcome.causes {
                match found.iter_mut().find(|(known, _)| *known == cause) {
                    Some((_, paths)) => paths.push(path.clone()),
                    None => found.push((cause, vec![path.clone()])),
                }
            }
        }
        found.sort_by_key(|(cause, _)| cause.effect());
        if found.is_empty() {
            return;
        }
        self.page.title("what to do");
        let shown = if self.is_verbose { found.len() } else { found.len().min(MOST_CAUSES) };
        for (index, (cause, paths)) in found[..shown].iter().enumerate() {
            // A cause that not all paths share names its paths.
            let paths =
                if paths.len() < outcomes.len() { format!(" ({})", paths.join(", ")) } else { String::new() };
            let note = match cause.effect() {
                Effect::Fails | Effect::Stops | Effect::Stages => "",
                Effect::Limits => "limit: ",
                Effect::Slows => "slower: ",
            };
            self.page.wrapped(&format!("  {}. ", index + 1), &format!("{note}{}{paths}", cause.problem()));
            self.page.wrapped("     -> ", &cause.remedy());
        }
        if shown < found.len() {
            let _ = writeln!(self.page.text, "  {} more: gpufile check --verbose", found.len() - shown);
        }
    }

    fn target(&mut self, machine: &Machine, target: &Target) {
        let file_system = match &target.mount {
            Some(mount) => {
                let options =
                    if self.is_verbose { mount.options.join(",") } else { first(&mount.options, 6) };
                format!(
                    "{} from {}, on {} ({options})",
                    target.file_system,
                    printable(&mount.source),
                    printable(&mount.point.to_string_lossy())
                )
            }
            None => target.file_system.clone(),
        };
        self.page.line("file system", &file_system);
        if !target.layers.is_empty() {
            let names: Vec<String> = target.layers.iter().map(ToString::to_string).collect();
            let record = match target.udev_record {
                Some(false) => "; no udev record",
                _ => "",
            };
            self.page.line("block device", &format!("{}{record}", names.join(" > ")));
        }
        for (name, disk) in target.disks() {
            for device in disk.pci.iter().filter_map(|address| machine.device(address)) {
                self.distances(machine, &format!("  {name}"), device);
            }
        }
        let alignment =
            target.alignment.map_or("none, or unknown to the kernel".to_owned(), |(memory, offset)| {
                format!("memory at {memory}, offset and length at {offset} bytes")
            });
        self.page.line("O_DIRECT", &alignment);
        if let Some(cached) = target.cached {
            self.page.line("page cache", &format!("{:.0} % of the file", 100.0 * cached));
        }
        if self.is_verbose {
            for (kind, reason) in &target.why_not {
                self.page.line("route", &format!("not {kind}: {reason}"));
            }
        }
    }

    fn distances(&mut self, machine: &Machine, name: &str, device: &PciDevice) {
        let gpus = machine.gpus().iter().filter_map(|gpu| Some((gpu.ordinal, gpu.pci.as_ref()?)));
        let found: Vec<String> =
            gpus.map(|(ordinal, pci)| format!("GPU {ordinal}: {}", Distance::between(pci, device))).collect();
        if !found.is_empty() {
            self.page.line(name, &found.join("; "));
        }
    }

    fn attempt(&mut self, attempt: &Attempt) {
        let place = attempt.gpu.map_or("host memory".to_owned(), |gpu| format!("the memory of GPU {gpu}"));
        let millis = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let read = millis(attempt.read);
        let moved = match attempt.write {
            Some(write) => {
                let write = millis(write);
                format!("{} MiB from {place} in {write}, and back in {read}, with equal bytes", BYTES >> 20)
            }
            None => format!("read into {place} in {read}; nothing can be written here"),
        };
        self.page.line("try", &format!("{moved}; {}", attempt.proof()));
    }
}

fn first(options: &[String], most: usize) -> String {
    let more = if options.len() > most { ",…" } else { "" };
    format!("{}{more}", options[..options.len().min(most)].join(","))
}
