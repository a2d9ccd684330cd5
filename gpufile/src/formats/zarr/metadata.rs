//! Reading the metadata documents of an array.
//!
//! zarrs could read them, but passes some values unchecked to code that relies on them.

use serde::de::DeserializeOwned;
use serde_json::Value;
use zarrs::metadata::ArrayMetadata;
use zarrs::metadata::v3::ArrayMetadataV3;
use zarrs::storage::{ReadableStorageTraits, StoreKey};

use super::error::{ZarrError, refused};
use super::store::FileStore;
use super::version_2;

/// The most bytes of a document of an array. Parsing takes some tens of bytes for each.
const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// Reads the metadata of the array at a path in the store, of version 3 if the array has it.
pub(super) fn read(store: &FileStore, path: &str) -> Result<ArrayMetadata, ZarrError> {
    if let Some(metadata) = document::<ArrayMetadataV3>(store, path, "zarr.json")? {
        let unknown = metadata.additional_fields.iter().find(|(_, field)| field.must_understand());
        return match unknown {
            Some((name, _)) => Err(refused(format_args!(
                "the field {name:?} is marked \"must_understand\", but is not known"
            ))),
            None => Ok(ArrayMetadata::V3(metadata)),
        };
    }
    let Some(metadata) = document::<Value>(store, path, ".zarray")? else {
        let spelling =
            ["zarr.json", ".zarray"].iter().find_map(|name| store.other_spelling(&format!("{path}/{name}")));
        let spelling = spelling.unwrap_or_default();
        return Err(refused(format_args!("there is neither zarr.json nor .zarray{spelling}")));
    };
    let attributes = document(store, path, ".zattrs")?.unwrap_or_default();
    Ok(ArrayMetadata::V3(version_2::convert(metadata, attributes)?))
}

/// Reads a JSON document in the folder of an array; `None` if there is no such file.
fn document<T: DeserializeOwned>(store: &FileStore, path: &str, name: &str) -> Result<Option<T>, ZarrError> {
    let key = format!("{path}/{name}");
    let key = StoreKey::new(key.trim_start_matches('/')).map_err(refused)?;
    if store.size_key(&key).map_err(refused)?.is_some_and(|len_bytes| len_bytes > MAX_DOCUMENT_BYTES) {
        return Err(refused(format_args!("{name} is over the limit of {MAX_DOCUMENT_BYTES} bytes")));
    }
    let Some(json) = store.get(&key).map_err(refused)? else { return Ok(None) };
    let mut parser = serde_json::Deserializer::from_slice(&json);
    let parsed = serde_path_to_error::deserialize(&mut parser).map_err(|error| error.to_string());
    let ended = |parsed| parser.end().map(|()| Some(parsed)).map_err(|error| error.to_string());
    parsed.and_then(ended).map_err(|error| refused(format_args!("{name}: {error}")))
}
