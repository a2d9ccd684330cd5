//! The options of a workload. NVIDIA's gdsio has the same letters, and numbers for some of the words.

use std::time::Duration;

use gpufile::{DirectIo, RoutePolicy};

use crate::target::MemoryArgs;
use crate::units::{duration, size};
use crate::values::Words;

/// The options of a workload. Without any, `bench` runs its named cases.
#[derive(clap::Args, Debug, Clone, Default, PartialEq)]
pub struct WorkloadArgs {
    /// Patterns: read,write,randread,randwrite,mix,randmix [default: first 4].
    #[arg(short = 'I', long, value_name = "IO,IO", value_delimiter = ',', hide_possible_values = true,
        value_parser = Words::new(Io::WORDS, Io::parse))]
    pub io: Vec<Io>,
    /// Routes to measure: auto, cufile, posix, host [default: auto].
    #[arg(short = 'x', long, value_name = "VIA,VIA", value_delimiter = ',', hide_possible_values = true,
        value_parser = Words::new(Via::WORDS, Via::parse))]
    pub via: Vec<Via>,
    /// Bytes of the file for each GPU [default: 1GiB].
    #[arg(short = 's', long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Bytes per call [default: 64KiB,1MiB,16MiB].
    #[arg(short = 'i', long, value_name = "SIZE,SIZE", value_delimiter = ',', value_parser = size)]
    pub io_size: Vec<u64>,
    /// Calling threads for each GPU [default: 4].
    #[arg(short = 'w', long, value_name = "N,N", value_delimiter = ',', value_parser = count)]
    pub workers: Vec<u64>,
    /// Transfers in flight for each thread [default: 1].
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = count)]
    pub depth: Vec<u64>,
    /// Time of a run, such as 10, 500ms, 2m [default: once through the file].
    #[arg(short = 'T', long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Share of reads in a mix, in percent [default: 70].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub mix: Option<u8>,
    /// When to bypass the page cache: auto, always, never.
    #[arg(long, value_name = "WHEN", hide_possible_values = true,
        value_parser = Words::new(DIRECT_WORDS, direct))]
    pub direct: Option<DirectIo>,
    /// Drops the file from the page cache before each run.
    #[arg(long)]
    pub cold: bool,
    /// Compares all bytes. The speed includes the time for that.
    #[arg(short = 'V', long)]
    pub verify: bool,
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Prints CSV.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Io {
    pub reads: bool,
    pub writes: bool,
    pub is_random: bool,
}

impl Io {
    pub const READ: Self = Self { reads: true, writes: false, is_random: false };
    pub const WRITE: Self = Self { reads: false, writes: true, is_random: false };
    pub const RAND_READ: Self = Self { is_random: true, ..Self::READ };
    pub const RAND_WRITE: Self = Self { is_random: true, ..Self::WRITE };
    const WORDS: [&str; 6] = ["read", "write", "randread", "randwrite", "mix", "randmix"];
    const MIX: Self = Self { reads: true, ..Self::WRITE };
    const RAND_MIX: Self = Self { is_random: true, ..Self::MIX };

    fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "read" | "0" => Self::READ,
            "write" | "1" => Self::WRITE,
            "randread" | "2" => Self::RAND_READ,
            "randwrite" | "3" => Self::RAND_WRITE,
            "mix" => Self::MIX,
            "randmix" => Self::RAND_MIX,
            _ => return Err("choose read, write, randread, randwrite, mix or randmix".to_owned()),
        })
    }

    pub fn name(self) -> &'static str {
        match (self.is_random, self.reads, self.writes) {
            (false, true, true) => "mix",
            (false, true, false) => "read",
            (false, false, _) => "write",
            (true, true, true) => "randmix",
            (true, true, false) => "randread",
            (true, false, _) => "randwrite",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    Gpu(RoutePolicy),
    Host,
}

impl Via {
    pub const AUTO: Self = Self::Gpu(RoutePolicy::Auto);
    const WORDS: [&str; 4] = ["auto", "cufile", "posix", "host"];

    /// Accepts the numbers of gdsio's equivalent transfer types, too.
    fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::AUTO,
            "cufile" | "0" => Self::Gpu(RoutePolicy::RequireCufile),
            "host" | "1" => Self::Host,
            "posix" | "2" => Self::Gpu(RoutePolicy::PosixOnly),
            "3" | "5" | "6" | "7" => {
                return Err("choose cufile or posix, and --depth for asynchronous transfers".to_owned());
            }
            "4" => return Err("choose posix, and --direct never for the page cache".to_owned()),
            _ => return Err("choose auto, cufile, posix or host".to_owned()),
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Gpu(RoutePolicy::RequireCufile) => "cufile",
            Self::Gpu(RoutePolicy::PosixOnly) => "posix",
            Self::Gpu(_) => "auto",
        }
    }
}

fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(count @ 1..=1024) => Ok(count),
        _ => Err("use a number from 1 to 1024".to_owned()),
    }
}

const DIRECT_WORDS: [&str; 3] = ["auto", "always", "never"];

fn direct(text: &str) -> Result<DirectIo, String> {
    match text {
        "auto" => Ok(DirectIo::Auto),
        "always" => Ok(DirectIo::Always),
        "never" => Ok(DirectIo::Never),
        _ => Err("choose auto, always or never".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_routes_have_words_and_numbers_of_gdsio() {
        for (text, name) in [("0", "read"), ("1", "write"), ("2", "randread"), ("3", "randwrite")] {
            assert_eq!(Io::parse(text).unwrap().name(), name);
            assert_eq!(Io::parse(name), Io::parse(text));
        }
        for name in ["mix", "randmix"] {
            assert_eq!(Io::parse(name).unwrap().name(), name);
        }
        for (text, name) in [("0", "cufile"), ("1", "host"), ("2", "posix")] {
            assert_eq!(Via::parse(text).unwrap().name(), name);
            assert_eq!(Via::parse(name), Via::parse(text));
        }
        assert!(Via::parse("6").unwrap_err().contains("--depth"));
        assert!(Io::parse("4").is_err() && Via::parse("8").is_err());
    }

    #[test]
    fn words_that_completions_list_are_accepted() {
        assert!(Io::WORDS.iter().all(|word| Io::parse(word).unwrap().name() == *word));
        assert!(Via::WORDS.iter().all(|word| Via::parse(word).unwrap().name() == *word));
        assert!(DIRECT_WORDS.iter().all(|word| direct(word).is_ok()));
    }
}
