use burn_core::tensor::{BoolStore, DType};
use gpufile::formats::Dtype;

/// The types that both have.
const TYPES: [(DType, Dtype); 13] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U16, Dtype::U16),
    (DType::U8, Dtype::U8),
    (DType::Bool(BoolStore::Native), Dtype::Bool),
];

pub(crate) fn to_burn(dtype: Dtype) -> Option<DType> {
    TYPES.iter().find(|(_, of_file)| *of_file == dtype).map(|(burns, _)| *burns)
}

pub(crate) fn to_file(dtype: DType) -> Option<Dtype> {
    TYPES.iter().find(|(burns, _)| *burns == dtype).map(|(_, of_file)| *of_file)
}
