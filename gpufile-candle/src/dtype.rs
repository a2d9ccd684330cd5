use candle_core::{DType, Error, Result};
use gpufile::formats::Dtype;

/// The types that both have.
const TYPES: [(DType, Dtype); 14] = [
    (DType::U8, Dtype::U8),
    (DType::U32, Dtype::U32),
    (DType::I16, Dtype::I16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::BF16, Dtype::BF16),
    (DType::F16, Dtype::F16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::F8E4M3, Dtype::F8E4M3),
    (DType::F6E2M3, Dtype::F6E2M3),
    (DType::F6E3M2, Dtype::F6E3M2),
    (DType::F4, Dtype::F4),
    (DType::F8E8M0, Dtype::F8E8M0),
];

pub(crate) fn to_candle(dtype: Dtype) -> Result<DType> {
    let found = TYPES.iter().find(|(_, of_file)| *of_file == dtype);
    found.map(|(candles, _)| *candles).ok_or_else(|| Error::msg(format!("candle has no type for {dtype}")))
}

/// Returns the type in files.
///
/// # Errors
/// A newer candle has a type that files lack.
pub(crate) fn to_file(dtype: DType) -> Result<Dtype> {
    let found = TYPES.iter().find(|(candles, _)| *candles == dtype);
    found
        .map(|(_, of_file)| *of_file)
        .ok_or_else(|| Error::msg(format!("safetensors has no type for {}", dtype.as_str())))
}
