use std::fmt;
use std::str::FromStr;

use crate::formats::clip::clip;
use crate::formats::{Dtype, FormatError};

/// The order of the bytes in an element.
///
/// ```
/// use gpufile::formats::npy::{ByteOrder, Descr};
///
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// let big: Descr = ">f8".parse()?;
/// assert_eq!((big.byte_order(), big.dtype()), (ByteOrder::Big, None));
/// let byte: Descr = "|u1".parse()?;
/// assert_eq!(byte.byte_order(), ByteOrder::None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ByteOrder {
    /// The lowest byte comes first.
    Little,
    /// The highest byte comes first.
    Big,
    /// The element is one byte, or a string of bytes.
    None,
}

/// The element type of an array: numpy's `descr`, such as `<f4`, `|b1` or `<M8[ns]`.
///
/// [`Display`](fmt::Display) shows numpy's own spelling, even if another one was parsed.
///
/// ```
/// use gpufile::formats::{Dtype, npy::Descr};
///
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// let descr: Descr = "<f4".parse()?;
/// assert_eq!((descr.item_bytes(), descr.dtype()), (4, Some(Dtype::F32)));
/// let text: Descr = "<U5".parse()?;
/// assert_eq!((text.item_bytes(), text.dtype()), (20, None));
/// assert!("|O".parse::<Descr>().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Descr {
    order: ByteOrder,
    kind: u8,
    /// The number after the kind: bytes, but characters of four bytes for `U`.
    count: u64,
    /// The unit of a time, with its brackets. Empty for other kinds, and for a time without a unit.
    unit: String,
}

impl Descr {
    /// Returns the order of the bytes in an element, or in each half of a complex one, or in each character of a `U`.
    pub fn byte_order(&self) -> ByteOrder {
        self.order
    }

    /// Returns numpy's letter for the kind of type: `b` for booleans, `i`, `u`, `f`, `c` for numbers, `m` and `M` for
    /// durations and times, `S` and `U` for text, `V` for anything else.
    pub fn kind(&self) -> char {
        self.kind.into()
    }

    /// Returns the number of bytes of one element: 0 for an empty string.
    pub fn item_bytes(&self) -> u64 {
        // `parse` has checked the product.
        if self.kind == b'U' { self.count * 4 } else { self.count }
    }

    /// Returns the type, if the elements are little-endian numbers or booleans of a type that [`Dtype`] has.
    pub fn dtype(&self) -> Option<Dtype> {
        if self.order == ByteOrder::Big {
            return None;
        }
        Some(match (self.kind, self.count) {
            (b'b', 1) => Dtype::Bool,
            (b'u', 1) => Dtype::U8,
            (b'u', 2) => Dtype::U16,
            (b'u', 4) => Dtype::U32,
            (b'u', 8) => Dtype::U64,
            (b'i', 1) => Dtype::I8,
            (b'i', 2) => Dtype::I16,
            (b'i', 4) => Dtype::I32,
            (b'i', 8) => Dtype::I64,
            (b'f', 2) => Dtype::F16,
            (b'f', 4) => Dtype::F32,
            (b'f', 8) => Dtype::F64,
            (b'c', 8) => Dtype::C64,
            (b'c', 16) => Dtype::C128,
            _ => return None,
        })
    }

    /// Parses a type.
    ///
    /// # Errors
    /// The reason, for an error that shows the type.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        const UNKNOWN: &str = "is not one of numpy's types of fixed size";
        let native = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };
        let (order, rest) = match text.as_bytes() {
            [b'<', rest @ ..] => (ByteOrder::Little, rest),
            [b'>', rest @ ..] => (ByteOrder::Big, rest),
            [b'=' | b'|', rest @ ..] | rest => (native, rest),
        };
        let [kind, rest @ ..] = rest else { return Err(UNKNOWN) };
        if *kind == b'O' {
            return Err("means Python objects, which cannot be loaded; save the array with another dtype");
        }
        let (kind, rest) = if *kind == b'?' && rest.is_empty() { (b'b', &b"1"[..]) } else { (*kind, rest) };
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (count, unit) = rest.split_at(digits);
        let count = number(count).ok_or(UNKNOWN)?;
        let known = match kind {
            b'b' => count == 1,
            b'i' | b'u' => matches!(count, 1 | 2 | 4 | 8),
            b'f' => matches!(count, 2 | 4 | 8 | 16),
            b'c' => matches!(count, 8 | 16 | 32),
            b'm' | b'M' => count == 8,
            b'S' | b'V' => true,
            b'U' => count.checked_mul(4).is_some(),
            _ => false,
        };
        let is_time = matches!(kind, b'm' | b'M');
        if !known || !(unit.is_empty() || is_time && is_unit(unit)) {
            return Err(UNKNOWN);
        }
        let order =
            if count == 1 && kind != b'U' || matches!(kind, b'S' | b'V') { ByteOrder::None } else { order };
        // `is_unit` lets only ASCII pass.
        let unit =
            if unit == b"[generic]" { String::new() } else { unit.iter().copied().map(char::from).collect() };
        Ok(Self { order, kind, count, unit })
    }
}

/// Parses a decimal number. Numbers in a type may have leading zeros.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits
        .iter()
        .try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

/// Returns whether this is a unit of time: `[ns]`, or with a count of them `[25ns]`, or `[generic]`.
fn is_unit(unit: &[u8]) -> bool {
    let Some(unit) = unit.strip_prefix(b"[").and_then(|unit| unit.strip_suffix(b"]")) else { return false };
    let digits = unit.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (count, name) = unit.split_at(digits);
    let plain = count.is_empty() || number(count).is_some_and(|count| (1..=i32::MAX as u64).contains(&count));
    match name {
        b"generic" => count.is_empty(),
        b"Y" | b"M" | b"W" | b"D" | b"h" | b"m" | b"s" | b"ms" | b"us" | b"ns" | b"ps" | b"fs" | b"as" => {
            plain
        }
        _ => false,
    }
}

impl FromStr for Descr {
    type Err = FormatError;

    /// # Errors
    /// [`FormatError::UnsupportedDtype`].
    fn from_str(text: &str) -> Result<Self, FormatError> {
        Self::parse(text).map_err(|problem| FormatError::UnsupportedDtype {
            tensor: None,
            dtype: clip(text),
            problem,
            offset: None,
        })
    }
}

impl fmt::Display for Descr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            ByteOrder::Little => '<',
            ByteOrder::Big => '>',
            ByteOrder::None => '|',
        };
        write!(f, "{order}{}{}{}", self.kind(), self.count, self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each pair as numpy 2.4 has it: `numpy.dtype(left).str == right`.
    #[test]
    #[cfg(target_endian = "little")]
    fn descrs_print_like_numpy() {
        for (given, canonical, bytes) in [
            ("?", "|b1", 1),
            ("|?", "|b1", 1),
            ("<?", "|b1", 1),
            ("f4", "<f4", 4),
            ("=f4", "<f4", 4),
            ("|f4", "<f4", 4),
            (">i2", ">i2", 2),
            (">u1", "|u1", 1),
            ("<f16", "<f16", 16),
            ("<c32", "<c32", 32),
            ("S007", "|S7", 7),
            (">S3", "|S3", 3),
            ("S0", "|S0", 0),
            ("<U0", "<U0", 0),
            ("|U3", "<U3", 12),
            (">U1", ">U1", 4),
            (">V5", "|V5", 5),
            ("M8", "<M8", 8),
            ("m8[generic]", "<m8", 8),
            ("|M8[ns]", "<M8[ns]", 8),
            (">M8[25s]", ">M8[25s]", 8),
        ] {
            let descr: Descr = given.parse().unwrap();
            assert_eq!((descr.to_string().as_str(), descr.item_bytes()), (canonical, bytes), "{given}");
        }
    }

    #[test]
    fn descrs_outside_plain_numpy_are_refused() {
        for text in [
            "", "<", "<f", "f1", "i3", "b2", "c4", "B1", "M4[s]", "M8[]", "M8[2 s]", "M8[ns", "<f4[ns]", "O8",
        ] {
            assert!(text.parse::<Descr>().is_err(), "{text}");
        }
        assert!("|O".parse::<Descr>().unwrap_err().to_string().contains("Python objects"));
        assert!(format!("U{}", u64::MAX / 2).parse::<Descr>().is_err());
        assert!(format!("S{}0", u64::MAX).parse::<Descr>().is_err());
    }

    #[test]
    fn dtypes_round_trip_through_descr() {
        for descr in [
            "|b1", "|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16",
        ] {
            let dtype = descr.parse::<Descr>().unwrap().dtype().unwrap();
            assert_eq!(dtype.npy_descr(), Some(descr));
        }
        assert_eq!(">f4".parse::<Descr>().unwrap().dtype(), None);
    }
}
