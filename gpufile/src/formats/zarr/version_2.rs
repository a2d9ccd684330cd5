//! Metadata of version 2, as the metadata of version 3 that means the same.
//!
//! zarrs converts it too, but refuses some fill values of zarr-python and lets codecs pass that this crate refuses.

use serde_json::{Map, Number, Value, json};
use zarrs::config::global_config;
use zarrs::metadata::v2::{ArrayMetadataV2, ArrayMetadataV2Order, FillValueMetadataV2};
use zarrs::metadata::v3::{ArrayMetadataV3, FillValueMetadataV3, MetadataV3};
use zarrs::metadata_ext::v2_to_v3::array_metadata_v2_to_v3;

use super::error::{ZarrError, refused};

/// The types of elements, except for the character of the byte order.
const TYPES: [(&str, Kind); 14] = [
    ("b1", Kind::Bool),
    ("i1", Kind::Integer),
    ("i2", Kind::Integer),
    ("i4", Kind::Integer),
    ("i8", Kind::Integer),
    ("u1", Kind::Integer),
    ("u2", Kind::Integer),
    ("u4", Kind::Integer),
    ("u8", Kind::Integer),
    ("f2", Kind::Float),
    ("f4", Kind::Float),
    ("f8", Kind::Float),
    ("c8", Kind::Complex),
    ("c16", Kind::Complex),
];

#[derive(Clone, Copy)]
enum Kind {
    Bool,
    Integer,
    Float,
    Complex,
}

/// Converts a `.zarray` and its attributes.
pub(super) fn convert(
    mut document: Value,
    attributes: Map<String, Value>,
) -> Result<ArrayMetadataV3, ZarrError> {
    let wrong = |field: &str, value: &Value| refused(format_args!(".zarray: {field:?} is {value}"));
    let field = |field| document.get(field).unwrap_or(&Value::Null);
    let dtype = field("dtype");
    let is_known = |(name, _): &&(&str, Kind)| dtype.as_str().and_then(|dtype| dtype.get(1..)) == Some(*name);
    let Some((_, kind)) = TYPES.iter().find(is_known) else {
        return Err(refused(format_args!(
            ".zarray: the \"dtype\" {dtype} is not supported; only numbers and booleans are"
        )));
    };
    let fill = field("fill_value");
    let fill = fill_value(*kind, fill).ok_or_else(|| wrong("fill_value", fill))?;
    // zarrs does not read all fill values.
    if let Some(fill_value) = document.get_mut("fill_value") {
        *fill_value = Value::Null;
    }
    let metadata = serde_path_to_error::deserialize::<_, ArrayMetadataV2>(document);
    let mut metadata = metadata.map_err(|error| refused(format_args!(".zarray: {error}")))?;
    metadata.attributes = attributes;
    let mut metadata = to_version_3(&metadata)?;
    metadata.fill_value = fill;
    Ok(metadata)
}

/// Returns the codecs of an array of version 2.
pub(super) fn codecs(metadata: &ArrayMetadataV2) -> Result<Vec<MetadataV3>, ZarrError> {
    let metadata = ArrayMetadataV2 { fill_value: FillValueMetadataV2::Null, ..metadata.clone() };
    Ok(to_version_3(&metadata)?.codecs)
}

fn to_version_3(metadata: &ArrayMetadataV2) -> Result<ArrayMetadataV3, ZarrError> {
    if let Some(filter) = metadata.filters.iter().flatten().next() {
        return Err(refused(format_args!(
            ".zarray: \"filters\" has {:?}; filters are not supported",
            filter.id()
        )));
    }
    if let Some(compressor) = &metadata.compressor
        && !["blosc", "gzip", "zlib", "zstd"].contains(&compressor.id())
    {
        let id = compressor.id();
        return Err(refused(format_args!(".zarray: the \"compressor\" {id:?} is not supported")));
    }
    let mut metadata = metadata.clone();
    if metadata.shape.is_empty() {
        // Without axes the order has no meaning, and zarrs would make an unchecked permutation of them.
        metadata.order = ArrayMetadataV2Order::C;
    }
    let config = global_config();
    let converted = array_metadata_v2_to_v3(
        &metadata,
        config.codec_aliases_v2(),
        config.codec_aliases_v3(),
        config.data_type_aliases_v2(),
        config.data_type_aliases_v3(),
    );
    converted.map_err(|error| refused(format_args!(".zarray: {error}")))
}

/// Returns a fill value as version 3 has it, or `None` if it is none of the type. zarr-python writes `1.0` for the
/// integer 1, and 0 and 1 for truth values. Without a value, elements are 0.
fn fill_value(kind: Kind, value: &Value) -> Option<FillValueMetadataV3> {
    let value = if value.is_null() { json!(0) } else { value.clone() };
    let float = |value: &Value| {
        value.is_number() || ["NaN", "Infinity", "-Infinity"].map(Value::from).contains(value)
    };
    let value = match kind {
        Kind::Bool => match value.as_f64() {
            None => Value::Bool(value.as_bool()?),
            Some(0.0) => Value::Bool(false),
            Some(1.0) => Value::Bool(true),
            Some(_) => return None,
        },
        Kind::Integer => match value {
            Value::Number(number) => integer(&number)?.into(),
            _ => return None,
        },
        Kind::Float => Some(value).filter(float)?,
        Kind::Complex => match value {
            Value::Array(parts) if parts.len() == 2 && parts.iter().all(float) => parts.into(),
            value => json!([Some(value).filter(float)?, 0]),
        },
    };
    serde_json::from_value(value).ok()
}

/// Returns a number without fraction as JSON has integers.
fn integer(number: &Number) -> Option<Number> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    match number.is_f64() {
        false => Some(number.clone()),
        true => {
            let value = number.as_f64().filter(|value| value.fract() == 0.0 && value.abs() <= EXACT)?;
            Some((value as i64).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(kind: Kind, value: Value) -> Option<Value> {
        fill_value(kind, &value).map(|value| serde_json::to_value(value).unwrap())
    }

    #[test]
    fn fill_values_of_zarr_python_become_those_of_version_3() {
        for (kind, value, expected) in [
            (Kind::Bool, json!(null), json!(false)),
            (Kind::Bool, json!(1), json!(true)),
            (Kind::Bool, json!(0.0), json!(false)),
            (Kind::Bool, json!(true), json!(true)),
            (Kind::Integer, json!(null), json!(0)),
            (Kind::Integer, json!(1.0), json!(1)),
            (Kind::Integer, json!(-3.0), json!(-3)),
            (Kind::Integer, json!(u64::MAX), json!(u64::MAX)),
            (Kind::Float, json!("NaN"), json!("NaN")),
            (Kind::Float, json!(1), json!(1)),
            (Kind::Complex, json!(null), json!([0, 0])),
            (Kind::Complex, json!(1.0), json!([1.0, 0])),
            (Kind::Complex, json!([1.0, "NaN"]), json!([1.0, "NaN"])),
        ] {
            assert_eq!(fill(kind, value.clone()), Some(expected), "{value}");
        }
        for (kind, value) in [
            (Kind::Bool, json!(2)),
            (Kind::Bool, json!("true")),
            (Kind::Integer, json!(0.5)),
            (Kind::Integer, json!(1e300)),
            (Kind::Integer, json!("AAAA")),
            (Kind::Integer, json!(true)),
            (Kind::Float, json!("x")),
            (Kind::Float, json!([1.0, 2.0])),
            (Kind::Complex, json!([1.0])),
            (Kind::Complex, json!("x")),
        ] {
            assert_eq!(fill(kind, value.clone()), None, "{value}");
        }
    }
}
