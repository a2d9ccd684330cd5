//! Sizes in bytes, as text.

/// The reason why [`parse_bytes`] did not accept a text.
///
/// ```
/// use gpufile::{ParseBytesError, parse_bytes};
///
/// let syntax = parse_bytes("4MB").unwrap_err(); // MB is 10^6 bytes to some, 2^20 to others
/// assert_eq!(syntax, ParseBytesError::Syntax { text: "4MB".to_owned() });
/// let overflow = parse_bytes("16777216 TiB").unwrap_err(); // 2^64 bytes
/// assert!(matches!(overflow, ParseBytesError::Overflow { .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseBytesError {
    /// The text is not a whole number with or without a unit.
    #[error(
        "cannot parse {text:?} as a size: write a whole number of bytes, or of k, M, G, T (KiB, MiB, GiB, TiB)"
    )]
    Syntax {
        /// The text that was parsed.
        text: String,
    },
    /// The size does not fit 64 bits.
    #[error("cannot parse {text:?} as a size: the largest is 2^64 - 1 bytes")]
    Overflow {
        /// The text that was parsed.
        text: String,
    },
}

/// Returns the number of bytes that a text names. The text is a whole number and an optional unit, with or without a
/// space between.
///
/// Units are binary, in upper or lower case: `k`, `KiB` (1024 bytes), `M`, `MiB`, `G`, `GiB`, `T`, `TiB`, and `B` for
/// bytes. `kB`, `MB` and the like are refused, because some readers take them as powers of 1000. Fractions are refused.
///
/// # Errors
/// [`ParseBytesError`], which repeats the text.
///
/// ```
/// use gpufile::parse_bytes;
///
/// assert_eq!(parse_bytes("4194304"), parse_bytes("4 MiB"));
/// assert_eq!(parse_bytes("64k")?, 65_536);
/// assert!(parse_bytes("1.5GiB").is_err());
/// # Ok::<(), gpufile::ParseBytesError>(())
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, ParseBytesError> {
    let syntax = || ParseBytesError::Syntax { text: text.to_owned() };
    let overflow = || ParseBytesError::Overflow { text: text.to_owned() };
    let trimmed = text.trim();
    let (digits, unit) =
        trimmed.split_at(trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len()));
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(syntax()),
    };
    if digits.is_empty() {
        return Err(syntax());
    }
    // Digits alone can only be too many.
    digits.parse().ok().and_then(|count: u64| count.checked_mul(1 << shift)).ok_or_else(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_with_binary_units_are_sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4194304", 4 << 20),
            ("512B", 512),
            ("64k", 64 << 10),
            ("64K", 64 << 10),
            ("64KiB", 64 << 10),
            ("4M", 4 << 20),
            ("4MiB", 4 << 20),
            ("4 MiB", 4 << 20),
            (" 4mib ", 4 << 20),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("2T", 2 << 40),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn syntax_errors_repeat_the_text() {
        for text in [
            "", " ", "MiB", "1.5GiB", "-1", "+1", "1e6", "0x10", "4MB", "4kB", "4MiB4", "4 M iB", "four",
            "４",
        ] {
            assert_eq!(parse_bytes(text), Err(ParseBytesError::Syntax { text: text.to_owned() }), "{text:?}");
        }
        let error = parse_bytes("4MB").unwrap_err().to_string();
        assert!(error.contains("\"4MB\"") && error.contains("MiB"), "{error}");
    }

    #[test]
    fn sizes_beyond_64_bits_overflow() {
        for text in ["18446744073709551616", "16777216T", "99999999999999999999999k"] {
            assert_eq!(
                parse_bytes(text),
                Err(ParseBytesError::Overflow { text: text.to_owned() }),
                "{text:?}"
            );
        }
        assert_eq!(parse_bytes("16777215T"), Ok(16_777_215 << 40));
    }
}
