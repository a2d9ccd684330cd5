//! candle's description of a model, made from that of gpufile.

use std::collections::HashMap;

use candle_core::Shape;
use candle_core::quantized::gguf_file::{self, Content, TensorInfo, VersionedMagic};
use gpufile::formats::gguf::{Array, Header, Metadata, Value};

use super::{dtype, shape_of};

/// Returns the description of all files, whose bytes begin at these places of the reader. Leaves out tensors of the types that
/// candle cannot dequantise, so that only a network that asks for one fails.
pub(super) fn of_files<'a>(metadata: &Metadata, files: impl Iterator<Item = (u64, &'a Header)>) -> Content {
    let tensors = files.flat_map(|(start, header)| header.tensors().map(move |info| (start, info)));
    let known = tensors.filter_map(|(start, info)| {
        let ggml_dtype = dtype::to_candle(info.ggml_type)?;
        let (shape, offset) = (Shape::from(shape_of(&info)), start + info.range.start);
        Some((info.name.to_owned(), TensorInfo { ggml_dtype, shape, offset }))
    });
    Content {
        magic: VersionedMagic::GgufV3,
        metadata: metadata.iter().map(|(key, value)| (key.to_owned(), to_candle(value))).collect(),
        tensor_infos: known.collect::<HashMap<_, _>>(),
        tensor_data_offset: 0,
    }
}

macro_rules! to_candle {
    ($value:ident, $($number:ident),+) => {
        match $value {
            $(Value::$number(value) => gguf_file::Value::$number(*value),)+
            Value::String(text) => gguf_file::Value::String(text.clone()),
            Value::Array(array) => gguf_file::Value::Array(match array {
                $(Array::$number(all) => all.iter().copied().map(gguf_file::Value::$number).collect(),)+
                Array::Strings(all) => all.iter().map(|text| gguf_file::Value::String(text.to_owned())).collect(),
            }),
        }
    };
}

fn to_candle(value: &Value) -> gguf_file::Value {
    to_candle!(value, U8, I8, U16, I16, U32, I32, U64, I64, F32, F64, Bool)
}
