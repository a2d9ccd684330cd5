use std::fmt;

use crate::formats::FormatError;
use crate::formats::clip::clip;

/// The type of a tensor in a GGUF file.
///
/// A quantised type packs a fixed number of elements of one row into a block of bytes. Plain types have blocks of one
/// element.
///
/// ```
/// use gpufile::formats::gguf::GgmlType;
///
/// let q4 = GgmlType::from_number(12).unwrap();
/// assert_eq!((q4, q4.name()), (GgmlType::Q4K, "Q4_K"));
/// assert_eq!((q4.block_elements(), q4.block_bytes()), (256, 144));
/// assert_eq!(GgmlType::from_name("bf16"), Some(GgmlType::BF16));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GgmlType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary64.
    F64,
    /// The upper half of a binary32.
    BF16,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// 4 bits with a scale.
    Q4_0,
    /// 4 bits with a scale and a minimum.
    Q4_1,
    /// 5 bits with a scale.
    Q5_0,
    /// 5 bits with a scale and a minimum.
    Q5_1,
    /// 8 bits with a scale.
    Q8_0,
    /// 8 bits with a scale and a sum, for intermediate results.
    Q8_1,
    /// 2 bits, in super-blocks.
    Q2K,
    /// 3 bits, in super-blocks.
    Q3K,
    /// 4 bits, in super-blocks.
    Q4K,
    /// 5 bits, in super-blocks.
    Q5K,
    /// 6 bits, in super-blocks.
    Q6K,
    /// 8 bits, in super-blocks, for intermediate results.
    Q8K,
    /// Codebooks, 1.56 bits for each element.
    IQ1S,
    /// Codebooks, 1.75 bits for each element.
    IQ1M,
    /// Codebooks, 2.06 bits for each element.
    IQ2XXS,
    /// Codebooks, 2.31 bits for each element.
    IQ2XS,
    /// Codebooks, 2.56 bits for each element.
    IQ2S,
    /// Codebooks, 3.06 bits for each element.
    IQ3XXS,
    /// Codebooks, 3.44 bits for each element.
    IQ3S,
    /// A table of 16 values.
    IQ4NL,
    /// A table of 16 values, in super-blocks.
    IQ4XS,
    /// Ternary, 1.69 bits for each element.
    TQ1_0,
    /// Ternary, 2.06 bits for each element.
    TQ2_0,
    /// Four bits of the OCP microscaling formats, with an exponent.
    MXFP4,
    /// NVIDIA's four-bit floats, with scales of eight bits.
    NVFP4,
    /// 1 bit with a scale.
    Q1_0,
    /// 2 bits with a scale.
    Q2_0,
}

/// A type with its number, its name, the elements of a block, and the bytes of a block.
type Row = (GgmlType, u32, &'static str, u64, u64);

/// The sizes are those of ggml's structures.
const TYPES: [Row; 35] = [
    (GgmlType::F32, 0, "F32", 1, 4),
    (GgmlType::F16, 1, "F16", 1, 2),
    (GgmlType::Q4_0, 2, "Q4_0", 32, 18),
    (GgmlType::Q4_1, 3, "Q4_1", 32, 20),
    (GgmlType::Q5_0, 6, "Q5_0", 32, 22),
    (GgmlType::Q5_1, 7, "Q5_1", 32, 24),
    (GgmlType::Q8_0, 8, "Q8_0", 32, 34),
    (GgmlType::Q8_1, 9, "Q8_1", 32, 36),
    (GgmlType::Q2K, 10, "Q2_K", 256, 84),
    (GgmlType::Q3K, 11, "Q3_K", 256, 110),
    (GgmlType::Q4K, 12, "Q4_K", 256, 144),
    (GgmlType::Q5K, 13, "Q5_K", 256, 176),
    (GgmlType::Q6K, 14, "Q6_K", 256, 210),
    (GgmlType::Q8K, 15, "Q8_K", 256, 292),
    (GgmlType::IQ2XXS, 16, "IQ2_XXS", 256, 66),
    (GgmlType::IQ2XS, 17, "IQ2_XS", 256, 74),
    (GgmlType::IQ3XXS, 18, "IQ3_XXS", 256, 98),
    (GgmlType::IQ1S, 19, "IQ1_S", 256, 50),
    (GgmlType::IQ4NL, 20, "IQ4_NL", 32, 18),
    (GgmlType::IQ3S, 21, "IQ3_S", 256, 110),
    (GgmlType::IQ2S, 22, "IQ2_S", 256, 82),
    (GgmlType::IQ4XS, 23, "IQ4_XS", 256, 136),
    (GgmlType::I8, 24, "I8", 1, 1),
    (GgmlType::I16, 25, "I16", 1, 2),
    (GgmlType::I32, 26, "I32", 1, 4),
    (GgmlType::I64, 27, "I64", 1, 8),
    (GgmlType::F64, 28, "F64", 1, 8),
    (GgmlType::IQ1M, 29, "IQ1_M", 256, 56),
    (GgmlType::BF16, 30, "BF16", 1, 2),
    (GgmlType::TQ1_0, 34, "TQ1_0", 256, 54),
    (GgmlType::TQ2_0, 35, "TQ2_0", 256, 66),
    (GgmlType::MXFP4, 39, "MXFP4", 32, 17),
    (GgmlType::NVFP4, 40, "NVFP4", 64, 36),
    (GgmlType::Q1_0, 41, "Q1_0", 128, 18),
    (GgmlType::Q2_0, 42, "Q2_0", 64, 18),
];

const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl GgmlType {
    fn row(self) -> Row {
        *TYPES.iter().find(|row| row.0 == self).expect("the table has every type")
    }

    /// Returns all types, by number.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        TYPES.iter().map(|row| row.0)
    }

    /// Returns the type that ggml gives this number. `None` if it has none, or has removed it.
    pub fn from_number(number: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    /// Returns the type of this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES.iter().find(|row| row.2.eq_ignore_ascii_case(name)).map(|row| row.0)
    }

    /// Returns ggml's number of the type.
    pub fn number(self) -> u32 {
        self.row().1
    }

    /// Returns ggml's name of the type, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Returns the number of elements of a block. The last axis of a tensor has whole blocks.
    pub fn block_elements(self) -> u64 {
        self.row().3
    }

    /// Returns the number of bytes of a block.
    pub fn block_bytes(self) -> u64 {
        self.row().4
    }

    /// Returns the number of bytes of a tensor with this shape, slowest axis first.
    pub(super) fn tensor_bytes(self, name: &str, shape: &[u64]) -> Result<u64, FormatError> {
        let (_, _, dtype, block_elements, block_bytes) = self.row();
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(block_elements) {
            let tensor = clip(name);
            return Err(FormatError::PartialBlock { tensor, dtype, block_elements, elements: 0..row });
        }
        // The limit holds for the other axes even if one of them is 0.
        let mut axes = shape.iter().filter(|axis| **axis != 0);
        let elements = axes.try_fold(1, |product: u64, axis| product.checked_mul(*axis));
        let bytes = elements.and_then(|elements| (elements / block_elements).checked_mul(block_bytes));
        let bytes = bytes.ok_or_else(|| FormatError::SizeOverflow { tensor: Some(clip(name)) })?;
        Ok(if shape.contains(&0) { 0 } else { bytes })
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns the spelling of an unknown number, and the reason why it is no type.
pub(super) fn unknown(number: u32) -> (String, &'static str) {
    match REMOVED.iter().find(|(removed, _)| *removed == number) {
        Some((_, name)) => {
            (format!("{name} ({number})"), "was removed from the format; convert the model again")
        }
        None => (number.to_string(), "is unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_their_numbers_and_names() {
        assert!(TYPES.is_sorted_by_key(|row| row.1));
        for (expected, number, name, ..) in TYPES {
            assert_eq!(GgmlType::from_number(number), Some(expected));
            assert_eq!(GgmlType::from_name(&name.to_lowercase()), Some(expected));
            assert_eq!((expected.number(), expected.name()), (number, name));
        }
        for number in (0..43).filter(|number| GgmlType::from_number(*number).is_none()) {
            assert!(unknown(number).1.contains("removed"), "{number}");
        }
        assert_eq!((GgmlType::from_number(43), unknown(43)), (None, ("43".to_owned(), "is unknown")));
    }

    #[test]
    fn sizes_follow_from_the_parts_of_a_block() {
        // Bytes of scales, of minima and of codes.
        for (ggml_type, bytes) in [
            (GgmlType::Q4_1, 2 + 2 + 32 / 2),
            (GgmlType::Q5_0, 2 + 4 + 32 / 2),
            (GgmlType::Q8_1, 2 + 2 + 32),
            (GgmlType::Q2K, 2 + 2 + 256 / 16 + 256 / 4),
            (GgmlType::Q3K, 2 + 12 + 256 / 4 + 256 / 8),
            (GgmlType::Q4K, 2 + 2 + 12 + 256 / 2),
            (GgmlType::Q6K, 2 + 256 / 16 + 3 * 256 / 4),
            (GgmlType::Q8K, 4 + 256 + 2 * 256 / 16),
            (GgmlType::IQ3S, 2 + 13 * 256 / 32 + 4),
            (GgmlType::TQ1_0, 2 + 4 + 240 / 5),
            (GgmlType::NVFP4, 64 / 16 + 64 / 2),
            (GgmlType::Q2_0, 2 + 64 / 4),
        ] {
            assert_eq!(ggml_type.block_bytes(), bytes, "{ggml_type}");
        }
    }

    #[test]
    fn shapes_give_bytes_or_an_error() {
        let bytes = |ggml_type: GgmlType, shape: &[u64]| ggml_type.tensor_bytes("w", shape);
        assert_eq!(bytes(GgmlType::F32, &[]), Ok(4));
        assert_eq!(bytes(GgmlType::Q4_0, &[3, 64]), Ok(3 * 36));
        assert_eq!(bytes(GgmlType::Q4_0, &[0, 64]), Ok(0));
        let error = bytes(GgmlType::Q4K, &[4, 128]).unwrap_err();
        let text = r#"tensor "w": elements 0 to 128 are not whole blocks of Q4_K, which have 256 elements"#;
        assert_eq!(error.to_string(), text);
        for shape in [&[u64::MAX, 2][..], &[1 << 32, 0, 1 << 32], &[1 << 62]] {
            let error = bytes(GgmlType::F32, shape).unwrap_err();
            assert_eq!(error, FormatError::SizeOverflow { tensor: Some("w".to_owned()) });
        }
        assert_eq!(bytes(GgmlType::Q4K, &[]).unwrap_err().tensor(), Some("w"));
    }
}
