use candle_core::quantized::GgmlDType;
use gpufile::formats::gguf::GgmlType;

/// The types that both have.
const TYPES: [(GgmlDType, GgmlType); 15] = [
    (GgmlDType::F32, GgmlType::F32),
    (GgmlDType::F16, GgmlType::F16),
    (GgmlDType::BF16, GgmlType::BF16),
    (GgmlDType::Q4_0, GgmlType::Q4_0),
    (GgmlDType::Q4_1, GgmlType::Q4_1),
    (GgmlDType::Q5_0, GgmlType::Q5_0),
    (GgmlDType::Q5_1, GgmlType::Q5_1),
    (GgmlDType::Q8_0, GgmlType::Q8_0),
    (GgmlDType::Q8_1, GgmlType::Q8_1),
    (GgmlDType::Q2K, GgmlType::Q2K),
    (GgmlDType::Q3K, GgmlType::Q3K),
    (GgmlDType::Q4K, GgmlType::Q4K),
    (GgmlDType::Q5K, GgmlType::Q5K),
    (GgmlDType::Q6K, GgmlType::Q6K),
    (GgmlDType::Q8K, GgmlType::Q8K),
];

/// Returns candle's type. `None` if candle cannot dequantise the blocks.
pub(super) fn to_candle(of_file: GgmlType) -> Option<GgmlDType> {
    TYPES.iter().find(|(_, ggml_type)| *ggml_type == of_file).map(|(candles, _)| *candles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_same_sizes_on_both_sides() {
        for (candles, of_file) in TYPES {
            let sizes = (candles.block_size() as u64, candles.type_size() as u64);
            assert_eq!(sizes, (of_file.block_elements(), of_file.block_bytes()), "{of_file}");
        }
        assert_eq!(to_candle(GgmlType::IQ2XS), None);
    }
}
