//! The clock, and the line that reports its times.

use std::error::Error;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Bench, Result};
use crate::cpu::cpu_seconds;

pub struct Lap {
    seconds: f64,
    cpu_seconds: f64,
}

impl Lap {
    pub fn new(seconds: f64, cpu_seconds: f64) -> Self {
        Self { seconds, cpu_seconds }
    }

    pub fn seconds(&self) -> (f64, f64) {
        (self.seconds, self.cpu_seconds)
    }

    /// Returns the time beyond the shortest of the others.
    pub fn beyond(self, others: [Self; 3]) -> Self {
        let shortest = others.map(|lap| lap.seconds).into_iter().fold(self.seconds, f64::min);
        Self { seconds: self.seconds - shortest, ..self }
    }
}

pub struct Measured {
    /// Bytes of each operation.
    pub size: usize,
    pub ops: usize,
    pub laps: Vec<Lap>,
}

pub fn timed<E: Into<Box<dyn Error>>>(work: impl FnOnce() -> Result<(), E>) -> Result<Lap> {
    let (cpu_before, start) = (cpu_seconds(), Instant::now());
    work().map_err(Into::into)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Lap { seconds, cpu_seconds: cpu_seconds() - cpu_before })
}

impl Bench {
    pub fn warm_laps(&self, mut lap: impl FnMut() -> Result<Lap>) -> Result<Vec<Lap>> {
        lap()?;
        self.cold_laps(lap)
    }

    /// Runs the repetitions, of which the first is as cold as the others.
    pub fn cold_laps(&self, mut lap: impl FnMut() -> Result<Lap>) -> Result<Vec<Lap>> {
        (0..self.repeats).map(|_| lap()).collect()
    }
}

impl Measured {
    /// Returns the line without peer and case.
    pub fn line(self, threads: usize) -> String {
        let Figures { median, best, gbps, us_per_op, cpu } = self.figures();
        format!(
            "size={} ops={} threads={threads} seconds={median:.9} best={best:.9} gbps={gbps:.3} \
             us_per_op={us_per_op:.3} cpu={cpu:.3}",
            self.size, self.ops
        )
    }

    pub fn fields(self, threads: usize) -> [(&'static str, Value); 8] {
        let Figures { median, best, gbps, us_per_op, cpu } = self.figures();
        [
            ("size", json!(self.size)),
            ("ops", json!(self.ops)),
            ("threads", json!(threads)),
            ("seconds", json!(median)),
            ("best", json!(best)),
            ("gbps", json!(gbps)),
            ("us_per_op", json!(us_per_op)),
            ("cpu", json!(cpu)),
        ]
    }

    fn figures(&self) -> Figures {
        let mut laps: Vec<_> = self.laps.iter().collect();
        laps.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let median = (laps[(laps.len() - 1) / 2].seconds + laps[laps.len() / 2].seconds) / 2.0;
        Figures {
            median,
            best: laps[0].seconds,
            gbps: self.size as f64 * self.ops as f64 / median / 1e9,
            us_per_op: median / self.ops as f64 * 1e6,
            cpu: laps[0].cpu_seconds,
        }
    }
}

struct Figures {
    median: f64,
    best: f64,
    gbps: f64,
    us_per_op: f64,
    cpu: f64,
}
