use std::fmt;

/// The type of a tensor's elements, in the formats that this crate reads and writes.
///
/// Elements are little-endian. Those smaller than a byte are packed without padding.
///
/// ```
/// use gpufile::formats::Dtype;
///
/// let dtype = Dtype::from_safetensors("BF16").unwrap();
/// assert_eq!((dtype, dtype.size_bits(), dtype.npy_descr()), (Dtype::BF16, 16, None));
/// assert_eq!((Dtype::F32.name(), Dtype::F32.npy_descr()), ("F32", Some("<f4")));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Four bits of the OCP microscaling formats, E2M1.
    F4,
    /// Six bits of the OCP microscaling formats: two of exponent, three of mantissa.
    F6E2M3,
    /// Six bits of the OCP microscaling formats: three of exponent, two of mantissa.
    F6E3M2,
    /// Eight bits: four of exponent, three of mantissa, no infinities.
    F8E4M3,
    /// Eight bits: five of exponent, two of mantissa.
    F8E5M2,
    /// A power of two in eight bits: a scale of the OCP microscaling formats.
    F8E8M0,
    /// [`F8E4M3`](Self::F8E4M3) with one zero and another bias.
    F8E4M3Fnuz,
    /// [`F8E5M2`](Self::F8E5M2) with one zero, another bias and no infinities.
    F8E5M2Fnuz,
    /// Complex, two [`F32`](Self::F32).
    C64,
    /// Complex, two [`F64`](Self::F64). Not in safetensors.
    C128,
}

/// The types in the order of safetensors, whose files begin with the tensors of the last.
const SAFETENSORS: [Dtype; 22] = [
    Dtype::Bool,
    Dtype::F4,
    Dtype::F6E2M3,
    Dtype::F6E3M2,
    Dtype::U8,
    Dtype::I8,
    Dtype::F8E5M2,
    Dtype::F8E4M3,
    Dtype::F8E8M0,
    Dtype::F8E4M3Fnuz,
    Dtype::F8E5M2Fnuz,
    Dtype::I16,
    Dtype::U16,
    Dtype::F16,
    Dtype::BF16,
    Dtype::I32,
    Dtype::U32,
    Dtype::F32,
    Dtype::C64,
    Dtype::F64,
    Dtype::I64,
    Dtype::U64,
];

impl Dtype {
    /// Returns the number of bits of one element. A packed type has fewer than eight.
    pub const fn size_bits(self) -> u32 {
        match self {
            Dtype::F4 => 4,
            Dtype::F6E2M3 | Dtype::F6E3M2 => 6,
            Dtype::Bool | Dtype::U8 | Dtype::I8 => 8,
            Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::F8E8M0 | Dtype::F8E4M3Fnuz | Dtype::F8E5M2Fnuz => 8,
            Dtype::U16 | Dtype::I16 | Dtype::F16 | Dtype::BF16 => 16,
            Dtype::U32 | Dtype::I32 | Dtype::F32 => 32,
            Dtype::U64 | Dtype::I64 | Dtype::F64 | Dtype::C64 => 64,
            Dtype::C128 => 128,
        }
    }

    /// Returns the name in safetensors, and `C128` for the type that safetensors lacks.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "BOOL",
            Dtype::U8 => "U8",
            Dtype::U16 => "U16",
            Dtype::U32 => "U32",
            Dtype::U64 => "U64",
            Dtype::I8 => "I8",
            Dtype::I16 => "I16",
            Dtype::I32 => "I32",
            Dtype::I64 => "I64",
            Dtype::F16 => "F16",
            Dtype::BF16 => "BF16",
            Dtype::F32 => "F32",
            Dtype::F64 => "F64",
            Dtype::F4 => "F4",
            Dtype::F6E2M3 => "F6_E2M3",
            Dtype::F6E3M2 => "F6_E3M2",
            Dtype::F8E4M3 => "F8_E4M3",
            Dtype::F8E5M2 => "F8_E5M2",
            Dtype::F8E8M0 => "F8_E8M0",
            Dtype::F8E4M3Fnuz => "F8_E4M3FNUZ",
            Dtype::F8E5M2Fnuz => "F8_E5M2FNUZ",
            Dtype::C64 => "C64",
            Dtype::C128 => "C128",
        }
    }

    /// Returns the type that safetensors calls `name`.
    pub fn from_safetensors(name: &str) -> Option<Self> {
        SAFETENSORS.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Returns numpy's name of the type, as [`npy::Descr`](crate::formats::npy::Descr) parses it. `None` for the
    /// types that numpy lacks.
    pub const fn npy_descr(self) -> Option<&'static str> {
        Some(match self {
            Dtype::Bool => "|b1",
            Dtype::U8 => "|u1",
            Dtype::U16 => "<u2",
            Dtype::U32 => "<u4",
            Dtype::U64 => "<u8",
            Dtype::I8 => "|i1",
            Dtype::I16 => "<i2",
            Dtype::I32 => "<i4",
            Dtype::I64 => "<i8",
            Dtype::F16 => "<f2",
            Dtype::F32 => "<f4",
            Dtype::F64 => "<f8",
            Dtype::C64 => "<c8",
            Dtype::C128 => "<c16",
            _ => return None,
        })
    }

    /// Returns the type's rank in safetensors: tensors of higher rank come first. `None` if safetensors lacks the
    /// type.
    pub(super) fn safetensors_rank(self) -> Option<usize> {
        SAFETENSORS.iter().position(|&dtype| dtype == self)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns the number of bits of an array: the product of `shape`, times `element_bits`. `None` if the array has more
/// than 2^64 - 1 bytes.
///
/// The limit holds for the other axes even if one axis is 0, as in numpy.
pub(super) fn array_bits(shape: &[u64], element_bits: u128) -> Option<u128> {
    let mut axes = shape.iter().filter(|&&axis| axis != 0);
    let bits = axes.try_fold(element_bits, |bits, &axis| bits.checked_mul(axis.into()))?;
    u64::try_from(bits.div_ceil(8)).ok()?;
    Some(if shape.contains(&0) { 0 } else { bits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_parse_from_their_names() {
        for dtype in SAFETENSORS {
            assert_eq!(Dtype::from_safetensors(dtype.name()), Some(dtype));
        }
        assert_eq!(Dtype::from_safetensors("C128"), None);
        assert_eq!(Dtype::from_safetensors("f32"), None);
    }

    #[test]
    fn safetensors_ranks_order_dtypes_by_size() {
        let bytes: Vec<u32> = SAFETENSORS.iter().map(|dtype| dtype.size_bits().max(8)).collect();
        assert!(bytes.is_sorted());
    }
}
