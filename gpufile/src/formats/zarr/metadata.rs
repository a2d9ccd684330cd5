//! The documents that describe an array.
//!
//! zarrs reads them too, but hands some on to code that takes them to be sound.

use serde::de::DeserializeOwned;
use serde_json::Value;
use zarrs::metadata::ArrayMetadata;
use zarrs::metadata::v2::{ArrayMetadataV2, ArrayMetadataV2Order};
use zarrs::metadata::v3::ArrayMetadataV3;
use zarrs::storage::{ReadableStorageTraits, StoreKey};

use super::error::{ZarrError, said};
use super::store::FileStore;

/// Reads the metadata of the array at a path in the store, of version 3 if there is one.
pub(super) fn read(store: &FileStore, path: &str) -> Result<ArrayMetadata, ZarrError> {
    if let Some(metadata) = document::<ArrayMetadataV3>(store, path, "zarr.json")? {
        let unknown = metadata.additional_fields.iter().find(|(_, field)| field.must_understand());
        return match unknown {
            Some((name, _)) => Err(open_error(format_args!("what {name:?} means is not known"))),
            None => Ok(ArrayMetadata::V3(metadata)),
        };
    }
    let Some(mut metadata) = document::<Value>(store, path, ".zarray")? else {
        return Err(open_error("there is neither zarr.json nor .zarray"));
    };
    // zarrs knows the truth values that zarr-python writes only as numbers.
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
        // Order means nothing without axes, and zarrs makes a permutation of them that it does not check.
        metadata.order = ArrayMetadataV2Order::C;
    }
    Ok(ArrayMetadata::V2(metadata))
}

/// Reads a JSON document in the folder of an array, if it is there.
fn document<T: DeserializeOwned>(store: &FileStore, path: &str, name: &str) -> Result<Option<T>, ZarrError> {
    let key = format!("{path}/{name}");
    let key = StoreKey::new(key.trim_start_matches('/')).map_err(open_error)?;
    let Some(json) = store.get(&key).map_err(open_error)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&json);
    parsed.map(Some).map_err(|error| open_error(format_args!("{name}: {error}")))
}

fn open_error(error: impl std::fmt::Display) -> ZarrError {
    ZarrError::Open { message: said(error) }
}
