//! Checks that a case leaves nothing behind.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use testkit::Emulator;

use crate::faults::{Counts, MAY_LEAVE};

const LIVE: [&str; 16] = [
    "allocations",
    "device-bytes",
    "pinned-bytes",
    "host-registrations",
    "reservations",
    "physical",
    "streams",
    "modules",
    "events",
    "contexts",
    "handles",
    "direct-handles",
    "buffers",
    "batches",
    "stream-registrations",
    "use-count",
];

pub struct Alive(Vec<(&'static str, i64)>);

impl Alive {
    pub fn now(emulator: &Emulator, folder: &Path) -> Self {
        let entries = |path: &str| fs::read_dir(path).unwrap().count() as i64;
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let folder = folder.to_str().unwrap();
        let mut counts = vec![
            ("descriptors", entries("/proc/self/fd")),
            ("threads", entries("/proc/self/task")),
            ("mappings of files", maps.lines().filter(|line| line.contains(folder)).count() as i64),
        ];
        counts.extend(LIVE.iter().map(|what| (*what, emulator.live(what))));
        Self(counts)
    }

    /// Waits for `patience` until nothing newer than `self` is left. Returns the rest, except resources whose freeing
    /// was made to fail.
    pub fn leftovers(
        &self,
        emulator: &Emulator,
        folder: &Path,
        counts: &Counts,
        patience: Duration,
    ) -> Vec<String> {
        let start = Instant::now();
        loop {
            let now = Self::now(emulator, folder);
            let pairs = self.0.iter().zip(&now.0);
            let differ = pairs.filter(|((what, before), (_, now))| {
                let may_stay = MAY_LEAVE
                    .iter()
                    .any(|(function, left)| left.contains(what) && counts.is_struck(function));
                // A joined thread still exists for a moment.
                now < before && *what != "threads" || now > before && !may_stay
            });
            let differ: Vec<_> = differ
                .map(|((what, before), (_, now))| format!("{what}: {before} before, {now} left"))
                .collect();
            if differ.is_empty() || start.elapsed() > patience {
                return differ;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}
