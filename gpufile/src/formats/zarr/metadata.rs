//! Reading the metadata documents of an array.
//!
//! zarrs could read them, but passes some values unchecked to code that relies on them.

use serde::de::DeserializeOwned;
use serde_json::Value;
use zarrs::metadata::ArrayMetadata;
use zarrs::metadata::v2::{ArrayMetadataV2, ArrayMetadataV2Order};
use zarrs::metadata::v3::ArrayMetadataV3;
use zarrs::storage::{ReadableStorageTraits, StoreKey};

use super::error::{ZarrError, plain_text};
use super::store::FileStore;

/// Reads the metadata of the array at a path in the store, of version 3 if the array has it.
pub(super) fn read(store: &FileStore, path: &str) -> Result<ArrayMetadata, ZarrError> {
    if let Some(metadata) = document::<ArrayMetadataV3>(store, path, "zarr.json")? {
        let unknown = metadata.additional_fields.iter().find(|(_, field)| field.must_understand());
        return match unknown {
            Some((name, _)) => {
                Err(open_error(format_args!("the field {name:?} must be understood, and is not known")))
            }
            None => Ok(ArrayMetadata::V3(metadata)),
        };
    }
    let Some(mut metadata) = document::<Value>(store, path, ".zarray")? else {
        return Err(open_error("there is neither zarr.json nor .zarray"));
    };
    // zarr-python writes truth values, and zarrs reads only numbers.
    if let Some(fill_value) = metadata.get_mut("fill_value")
        && let Some(truth) = fill_value.as_bool()
    {
        *fill_value = u8::from(truth).into();
    }
    let metadata = serde_json::from_value::<ArrayMetadataV2>(metadata);
    let mut metadata = metadata.map_err(|error| open_error(format_args!(".zarray: {error}")))?;
    if let Some(attributes) = document(store, path, ".zattrs")? {
        metadata.attributes = attributes;
    }
    if metadata.shape.is_empty() {
        // Without axes the order has no meaning, and zarrs would make an unchecked permutation of them.
        metadata.order = ArrayMetadataV2Order::C;
    }
    Ok(ArrayMetadata::V2(metadata))
}

/// Reads a JSON document in the folder of an array; `None` if there is no such file.
fn document<T: DeserializeOwned>(store: &FileStore, path: &str, name: &str) -> Result<Option<T>, ZarrError> {
    let key = format!("{path}/{name}");
    let key = StoreKey::new(key.trim_start_matches('/')).map_err(open_error)?;
    let Some(json) = store.get(&key).map_err(open_error)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&json);
    parsed.map(Some).map_err(|error| open_error(format_args!("{name}: {error}")))
}

fn open_error(error: impl std::fmt::Display) -> ZarrError {
    ZarrError::Open { message: plain_text(error) }
}
