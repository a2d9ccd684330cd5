//! The limit of the speed of reads from a server, found from measurements alone.

use crate::object::Reads;

/// The shortest object in bytes whose reads tell what limits them.
const LEAST_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// More connections were faster, up to the most that were tried.
    Connections,
    /// This program kept the processors of this machine busy.
    Processors,
    /// More connections were not faster, and this program did not keep the processors busy. Others may have.
    Server,
}

impl Limit {
    /// Decides from runs with more and more connections, on a machine with this number of processors. Returns `None`
    /// if an object is too short.
    pub fn of(runs: &[(usize, Reads)], len_bytes: u64, processors: usize) -> Option<Self> {
        let (_, fastest) = runs.iter().max_by(|(_, one), (_, other)| speed(one).total_cmp(&speed(other)))?;
        let (_, last) = runs.last()?;
        let others = runs[..runs.len() - 1].iter().map(|(_, reads)| speed(reads)).fold(0.0, f64::max);
        Some(match () {
            () if len_bytes < LEAST_BYTES => return None,
            () if fastest.cpu_seconds >= 0.8 * processors as f64 * fastest.seconds => Self::Processors,
            () if speed(last) >= 1.2 * others => Self::Connections,
            () => Self::Server,
        })
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Processors => "processors",
            Self::Server => "server-or-network",
        }
    }

    /// Returns the words for people. `enough` is the number of connections with which reads are about as fast as with any.
    pub fn words(self, enough: usize) -> String {
        match self {
            Self::Connections => {
                format!("the number of connections: set GPUFILE_NUM_THREADS to more than {enough}")
            }
            Self::Processors => "the processors of this machine, which this program kept busy".to_owned(),
            Self::Server => format!(
                "the server, the network or other programs here: more connections were not faster; GPUFILE_NUM_THREADS={enough} is enough"
            ),
        }
    }
}

/// Returns the fewest connections whose speed is within 10 % of the best.
pub fn enough(runs: &[(usize, Reads)]) -> usize {
    let best = runs.iter().map(|(_, reads)| speed(reads)).fold(0.0, f64::max);
    let fast = runs.iter().find(|(_, reads)| speed(reads) >= 0.9 * best);
    fast.map_or(1, |(connections, _)| *connections)
}

fn speed(reads: &Reads) -> f64 {
    reads.bytes() as f64 / reads.seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns runs of a second each.
    fn runs(sizes: [usize; 3], cpu_seconds: f64) -> Vec<(usize, Reads)> {
        let reads = |size| Reads { size, ops: 1, seconds: 1.0, cpu_seconds };
        [1, 4, 16].into_iter().zip(sizes.map(reads)).collect()
    }

    #[test]
    fn limits_follow_from_speeds_and_processors() {
        let long = 1 << 30;
        for (sizes, busy, limit, fast) in [
            ([100, 400, 1600], 0.5, Limit::Connections, 16),
            ([100, 400, 420], 0.5, Limit::Server, 4),
            ([100, 99, 50], 0.5, Limit::Server, 1),
            ([100, 400, 1600], 3.3, Limit::Processors, 16),
        ] {
            let runs = runs(sizes, busy);
            assert_eq!(Limit::of(&runs, long, 4), Some(limit), "{sizes:?}");
            assert_eq!(enough(&runs), fast, "{sizes:?}");
            assert_eq!(Limit::of(&runs, 1000, 4), None);
        }
        assert_eq!(Limit::of(&[], long, 4), None);
    }
}
