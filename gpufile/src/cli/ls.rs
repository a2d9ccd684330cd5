//! `gpufile ls`: the tensors and arrays of a model, from its headers alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::model::{checkpoint, name_of, options};
use super::table::{Table, print_json, printable};
use super::units::Bytes;
use super::{Failure, say};
use crate::OpenOptions;
use crate::formats::npy::NpyFile;

/// Lists the tensors of a model without reading their data.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile ls model.safetensors
  gpufile ls --json models/llama/model.safetensors.index.json")]
pub struct Args {
    /// A safetensors file, an index, a folder of these, an .npy file or a folder of Zarr arrays.
    model: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// A tensor or an array.
#[derive(Debug, PartialEq)]
struct Item {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    len_bytes: u64,
    file: PathBuf,
}

/// Prints the list.
pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let items = items(&arguments.model, &options()?)?;
    let total_bytes = items.iter().map(|item| item.len_bytes).sum();
    if arguments.json {
        let tensors: Vec<Value> = items.iter().map(to_json).collect();
        print_json(&json!({ "tensors": tensors, "total_bytes": total_bytes }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["name<", "dtype<", "shape<", "size", "file<"]);
    for item in &items {
        let size = Bytes(item.len_bytes).to_string();
        let shape = format!("{:?}", item.shape);
        table.row(vec![item.name.clone(), item.dtype.clone(), shape, size, name_of(&item.file)]);
    }
    table.print()?;
    say(&format!("\n{} tensors, {}: {}", items.len(), Bytes(total_bytes), printable(&dtypes(&items))))
}

/// Returns the bytes of each type of elements, the largest first.
fn dtypes(items: &[Item]) -> String {
    let mut totals = BTreeMap::<&str, u64>::new();
    for item in items {
        *totals.entry(&item.dtype).or_default() += item.len_bytes;
    }
    let mut totals: Vec<_> = totals.into_iter().collect();
    totals.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    totals.iter().map(|(dtype, bytes)| format!("{dtype} {}", Bytes(*bytes))).collect::<Vec<_>>().join(", ")
}

fn to_json(item: &Item) -> Value {
    json!({
        "name": item.name,
        "dtype": item.dtype,
        "shape": item.shape,
        "bytes": item.len_bytes,
        "file": item.file.to_string_lossy(),
    })
}

fn items(path: &Path, options: &OpenOptions) -> Result<Vec<Item>, Failure> {
    if path.extension().is_some_and(|extension| extension == "npy") {
        let file = NpyFile::open_with(path, options)?;
        let header = file.header();
        return Ok(vec![Item {
            name: name_of(path),
            dtype: header
                .descr()
                .dtype()
                .map_or_else(|| header.descr().to_string(), |dtype| dtype.to_string()),
            shape: header.shape().to_vec(),
            len_bytes: header.data_len(),
            file: path.to_owned(),
        }]);
    }
    if let Some(items) = zarr_items(path, options)? {
        return Ok(items);
    }
    let model = checkpoint(path, options)?;
    let of_file = |(file, header): (&crate::File, &crate::formats::safetensors::Header)| {
        let item = |tensor: crate::formats::safetensors::TensorInfo<'_>| Item {
            name: tensor.name.to_owned(),
            dtype: tensor.dtype.to_string(),
            shape: tensor.shape.to_vec(),
            len_bytes: tensor.len_bytes(),
            file: file.path().to_owned(),
        };
        header.tensors().map(item).collect::<Vec<_>>()
    };
    Ok(model.files().flat_map(of_file).collect())
}

/// Returns the Zarr arrays in a folder; `None` if it has no Zarr metadata.
#[cfg(feature = "zarr")]
fn zarr_items(path: &Path, options: &OpenOptions) -> Result<Option<Vec<Item>>, Failure> {
    use std::sync::Arc;

    use crate::formats::zarr::{Array, FileStore};

    if !is_zarr(path) {
        return Ok(None);
    }
    let store = Arc::new(FileStore::new(path).files(options));
    let mut items = Vec::new();
    for name in zarr_arrays(path)? {
        let array = Array::open(&store, &format!("/{name}"))?;
        items.push(Item {
            dtype: array.as_zarrs().data_type().to_string(),
            shape: array.shape().to_vec(),
            len_bytes: array.len_bytes(),
            file: path.join(&name),
            name: format!("/{name}"),
        });
    }
    Ok(Some(items))
}

/// Refuses a folder with Zarr metadata, which this program was built without.
#[cfg(not(feature = "zarr"))]
fn zarr_items(path: &Path, _: &OpenOptions) -> Result<Option<Vec<Item>>, Failure> {
    match is_zarr(path) {
        true => Err(Failure::Other(format!(
            "{path:?} is Zarr: build gpufile with `--features cli,zarr` to list it"
        ))),
        false => Ok(None),
    }
}

fn is_zarr(path: &Path) -> bool {
    ["zarr.json", ".zarray", ".zgroup"].iter().any(|name| path.join(name).is_file())
}

/// Returns the paths of the arrays in a folder, relative to it, in order.
#[cfg(feature = "zarr")]
fn zarr_arrays(root: &Path) -> Result<Vec<String>, Failure> {
    let is_array = |folder: &Path| {
        let node = std::fs::read(folder.join("zarr.json")).ok();
        let node = node.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        folder.join(".zarray").is_file() || node.is_some_and(|node| node["node_type"] == "array")
    };
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(name) = folders.pop() {
        let folder = root.join(&name);
        if is_array(&folder) {
            // The folders of an array have its chunks.
            found.push(name.to_string_lossy().into_owned());
            continue;
        }
        let failed = |error| Failure::Other(format!("cannot list {folder:?}: {error}"));
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // A link could lead back into the same folder.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_zarr(&entry.path()) {
                folders.push(name.join(entry.file_name()));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::File;
    use crate::cli::model::tests::save_two;
    use crate::formats::npy;

    #[test]
    fn tensors_of_a_file_are_listed_with_types_and_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        save_two(&path, "a");
        let items = items(&path, &File::options().read(true)).unwrap();
        let listed: Vec<_> =
            items.iter().map(|item| (&*item.name, &*item.dtype, &*item.shape, item.len_bytes)).collect();
        assert_eq!(listed, [("a.two", "F32", &[7][..], 28), ("a.one", "F16", &[3, 5], 30)]);
        assert_eq!(dtypes(&items), "F16 30 B, F32 28 B");
    }

    #[test]
    fn arrays_of_numpy_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        npy::write(&path, "<f4", &[2, 3], &[0_u8; 24][..]).unwrap();
        let [item] = &items(&path, &File::options().read(true)).unwrap()[..] else { panic!("one array") };
        assert_eq!((&*item.name, &*item.dtype, &*item.shape), ("a.npy", "F32", &[2, 3][..]));
    }
}
