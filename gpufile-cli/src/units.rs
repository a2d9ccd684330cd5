//! Sizes, speeds and times as people write and read them.

use std::fmt;
use std::time::Duration;

/// Parses `4096`, `64k`, `1MiB`.
pub fn size(text: &str) -> Result<u64, String> {
    match gpufile::parse_bytes(text).map_err(|error| error.to_string())? {
        0 => Err("use a size of at least 1 byte".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A number of bytes, shown in binary units.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        let shift = (self.0.max(1).ilog2() / 10).min(5) as usize;
        let Some(unit) = shift.checked_sub(1).map(|place| UNITS[place]) else {
            return f.pad(&format!("{} B", self.0));
        };
        let count = self.0 as f64 / (1_u64 << (10 * shift)) as f64;
        match count.fract() == 0.0 {
            true => f.pad(&format!("{count} {unit}")),
            false => f.pad(&format!("{count:.2} {unit}")),
        }
    }
}

/// Returns a speed in GB/s, which are powers of 1000 as in the data sheets of disks and links.
pub fn gbps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds / 1e9 } else { 0.0 }
}

/// A time in microseconds or longer units, with three digits.
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (count, unit) = match seconds {
            0.0..1e-3 => (seconds * 1e6, "us"),
            1e-3..1.0 => (seconds * 1e3, "ms"),
            _ => (seconds, "s"),
        };
        let digits = if count < 10.0 { 2 } else { usize::from(count < 100.0) };
        f.pad(&format!("{count:.digits$} {unit}"))
    }
}

/// Parses a time such as `10`, `500ms` or `2m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let millis = match unit {
        "ms" => 1,
        "s" | "" => 1000,
        "m" => 60_000,
        _ => 0,
    };
    match digits.parse::<u32>().ok().map(|count| u64::from(count) * millis) {
        Some(millis @ 1..) => Ok(Duration::from_millis(millis)),
        _ => Err("use a number of seconds, or a number with a unit: 10, 500ms, 2m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_binary_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (64 << 10, "64 KiB"),
            ((1 << 20) - 1, "1024.00 KiB"),
            (5 << 30, "5 GiB"),
            (3 << 59, "1536 PiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|", Bytes(4096)), "   4 KiB|");
    }

    #[test]
    fn shown_sizes_are_accepted_again() {
        for bytes in [1, 700, 4096, 1 << 20, 3 << 30, 9 << 40] {
            assert_eq!(size(&Bytes(bytes).to_string()), Ok(bytes));
        }
        assert!(size("0").unwrap_err().contains("at least 1 byte"));
        assert!(size("1MB").unwrap_err().contains("KiB"));
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "0", "-1", "1h", "ms", "99999999999"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_three_digits() {
        for (nanos, text) in [
            (0, "0.00 us"),
            (1_234, "1.23 us"),
            (45_600, "45.6 us"),
            (789_000, "789 us"),
            (1_500_000, "1.50 ms"),
            (2_000_000_000, "2.00 s"),
            (123_000_000_000, "123 s"),
        ] {
            assert_eq!(Time(Duration::from_nanos(nanos)).to_string(), text);
        }
    }

    #[test]
    fn speed_of_no_time_is_zero() {
        assert_eq!(gbps(1_000_000_000, 0.5), 2.0);
        assert_eq!(gbps(1, 0.0), 0.0);
    }
}
