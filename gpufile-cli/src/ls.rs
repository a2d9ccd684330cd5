//! `gpufile ls`: the tensors and arrays of a model, from its headers alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueHint;
use gpufile::Engine;
use gpufile::formats::npy::NpyFile;
use serde_json::{Value, json};

use super::failure::Failure;
use super::location::Location;
use super::model::{Model, ModelFile, Tensor, engine, name_of, options};
use super::remote::RemoteArgs;
use super::stderr;
use super::table::say;
use super::table::{Table, print_json, printable};
use super::units::Bytes;

/// Lists the tensors of a model without reading their data.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  gpufile ls model.safetensors
  gpufile ls --json models/llama/model.safetensors.index.json
  gpufile ls llama-Q4_K_M.gguf
  gpufile ls https://example.org/model.safetensors

A URL is that of a safetensors file, an index, a .gguf or an .npy file, with http, https, s3 or az.

The exit status is 1 if a Zarr array or group cannot be read. The others are still listed.")]
pub struct Args {
    /// A safetensors or GGUF file, an index, a folder, an .npy file, Zarr arrays, or a URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    model: Location,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, PartialEq)]
struct Item {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    len_bytes: u64,
    /// The length in the file, if packed.
    packed_bytes: Option<u64>,
    file: PathBuf,
}

/// The items, and a line about each part of the model that cannot be listed.
#[derive(Debug, Default)]
struct Listed {
    items: Vec<Item>,
    broken: Vec<String>,
}

pub fn run(arguments: &Args) -> Result<ExitCode, Failure> {
    let Listed { items, broken } = list(&arguments.model, &arguments.remote, &engine()?)?;
    broken.iter().for_each(|line| stderr::fail(line));
    let status = if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let total_bytes = items.iter().map(|item| item.len_bytes).sum();
    if arguments.json {
        let tensors: Vec<Value> = items.iter().map(to_json).collect();
        print_json(&json!({ "tensors": tensors, "total_bytes": total_bytes }))?;
        return Ok(status);
    }
    if items.is_empty() && !broken.is_empty() {
        return Ok(status);
    }
    let has_packed = items.iter().any(|item| item.packed_bytes.is_some());
    let columns = ["name<", "dtype<", "shape<", "size", "packed", "file<"];
    let mut table =
        Table::new(&columns.into_iter().filter(|name| has_packed || *name != "packed").collect::<Vec<_>>());
    for item in &items {
        let size = Bytes(item.len_bytes).to_string();
        let shape = format!("{:?}", item.shape);
        let packed = item.packed_bytes.map_or_else(|| "-".to_owned(), |bytes| Bytes(bytes).to_string());
        let packed = has_packed.then_some(packed);
        let before = [item.name.clone(), item.dtype.clone(), shape, size];
        table.row(before.into_iter().chain(packed).chain([name_of(&item.file)]).collect());
    }
    table.print()?;
    let in_files: u64 = items.iter().map(|item| item.packed_bytes.unwrap_or(item.len_bytes)).sum();
    let packed = if has_packed { format!(", packed in {}", Bytes(in_files)) } else { String::new() };
    let dtypes = dtypes(&items);
    say(&format!("\n{} tensors, {}{packed}: {}", items.len(), Bytes(total_bytes), printable(&dtypes)))?;
    Ok(status)
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
        "packed_bytes": item.packed_bytes,
        "file": item.file.to_string_lossy(),
    })
}

fn list(location: &Location, remote: &RemoteArgs, engine: &Engine) -> Result<Listed, Failure> {
    remote.check(location)?;
    if location.name().extension().is_some_and(|extension| extension == "npy") {
        let file = match location {
            Location::Path(path) => NpyFile::open_with(path, &options(engine))?,
            Location::Url(url) => NpyFile::open_url_with(url, &remote.options()?.engine(engine))?,
        };
        let (header, path) = (file.header(), file.file().path());
        let item = Item {
            name: name_of(path),
            dtype: header
                .descr()
                .dtype()
                .map_or_else(|| header.descr().to_string(), |dtype| dtype.to_string()),
            shape: header.shape().to_vec(),
            len_bytes: header.data_len_bytes(),
            packed_bytes: None,
            file: path.to_owned(),
        };
        return Ok(Listed { items: vec![item], broken: vec![] });
    }
    if let Location::Path(path) = location
        && is_zarr(path).map_err(|error| Failure::Other(format!("cannot list {path:?}: {error}")))?
    {
        return zarr(path, &options(engine));
    }
    let model = Model::open(location, remote, engine)?;
    let of_file = |ModelFile { file, tensors }: ModelFile<'_>| {
        let item = |tensor: Tensor<'_>| Item {
            name: tensor.name.to_owned(),
            dtype: tensor.dtype.to_owned(),
            shape: tensor.shape.to_vec(),
            len_bytes: tensor.len_bytes,
            packed_bytes: tensor.packed_bytes,
            file: file.path().to_owned(),
        };
        tensors.into_iter().map(item).collect::<Vec<_>>()
    };
    Ok(Listed { items: model.files().into_iter().flat_map(of_file).collect(), broken: vec![] })
}

#[cfg(feature = "zarr")]
fn zarr(path: &Path, options: &gpufile::OpenOptions) -> Result<Listed, Failure> {
    use std::sync::Arc;

    use gpufile::formats::zarr::{Array, FileStore};

    let mut listed = Listed::default();
    for name in zarr_arrays(path, &mut listed.broken) {
        let file = path.join(&name);
        // Keys of a store are UTF-8, which the names of folders need not be. So each array has a store.
        let store = Arc::new(FileStore::new(&file).files(options));
        match Array::open(&store, "/") {
            Ok(array) => listed.items.push(Item {
                dtype: array.as_zarrs().data_type().to_string(),
                shape: array.shape().to_vec(),
                len_bytes: array.len_bytes(),
                packed_bytes: None,
                file,
                name: format!("/{}", name.display()),
            }),
            Err(error) => listed.broken.push(error.to_string()),
        }
    }
    Ok(listed)
}

#[cfg(not(feature = "zarr"))]
fn zarr(path: &Path, _: &gpufile::OpenOptions) -> Result<Listed, Failure> {
    Err(Failure::Other(format!("{path:?} is Zarr: build gpufile-cli with `--features zarr` to list it")))
}

fn is_zarr(path: &Path) -> io::Result<bool> {
    for name in ["zarr.json", ".zarray", ".zgroup"] {
        match fs::metadata(path.join(name)) {
            Ok(found) if found.is_file() => return Ok(true),
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(false)
}

/// Returns paths relative to the folder, in order. `broken` gets a line about each part that cannot be read.
#[cfg(feature = "zarr")]
fn zarr_arrays(root: &Path, broken: &mut Vec<String>) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(name) = folders.pop() {
        let folder = root.join(&name);
        match is_array(&folder) {
            // The folders of an array have its chunks.
            Ok(true) => {
                found.push(name);
                continue;
            }
            Ok(false) => {}
            Err(reason) => broken.push(format!("{:?}: {reason}", folder.join("zarr.json"))),
        }
        let mut failed =
            |path: &Path, error: io::Error| broken.push(format!("cannot list {path:?}: {error}"));
        let entries = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.unwrap_or_else(|error| {
            failed(&folder, error);
            Vec::new()
        });
        // A link could lead back into the same folder.
        for entry in entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            match is_zarr(&entry.path()) {
                Ok(true) => folders.push(name.join(entry.file_name())),
                Ok(false) => {}
                Err(error) => failed(&entry.path(), error),
            }
        }
    }
    found.sort_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    found
}

/// Returns whether it is an array, and not a group.
///
/// # Errors
/// The reason why its `zarr.json` does not tell.
#[cfg(feature = "zarr")]
fn is_array(folder: &Path) -> Result<bool, String> {
    /// The limit of the library for a metadata document.
    const MOST_BYTES: u64 = 256 << 20;
    if folder.join(".zarray").is_file() {
        return Ok(true);
    }
    let text = match super::files::read(&folder.join("zarr.json"), MOST_BYTES) {
        // A group of version 2.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        text => text.map_err(|error| error.to_string())?,
    };
    let node: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    match node["node_type"].as_str() {
        Some("array") => Ok(true),
        Some("group") => Ok(false),
        _ => Err("its node_type is neither \"array\" nor \"group\"".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use gpufile::formats::{SaveOptions, npy};

    use super::*;
    use crate::model::tests::{save_gguf, save_two};

    #[test]
    fn tensors_of_a_file_are_listed_with_types_and_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        save_two(&path, "a");
        let items =
            list(&Location::Path(path), &RemoteArgs::default(), &Engine::builder().build()).unwrap().items;
        let listed: Vec<_> =
            items.iter().map(|item| (&*item.name, &*item.dtype, &*item.shape, item.len_bytes)).collect();
        assert_eq!(listed, [("a.two", "F32", &[7][..], 28), ("a.one", "F16", &[3, 5], 30)]);
        assert_eq!(dtypes(&items), "F16 30 B, F32 28 B");
    }

    #[test]
    fn tensors_of_gguf_files_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.GGUF");
        save_gguf(&path);
        let items =
            list(&Location::Path(path), &RemoteArgs::default(), &Engine::builder().build()).unwrap().items;
        let listed: Vec<_> =
            items.iter().map(|item| (&*item.name, &*item.dtype, &*item.shape, item.len_bytes)).collect();
        assert_eq!(listed, [("output.weight", "Q4_K", &[2, 256][..], 288), ("norm", "F32", &[7], 28)]);
    }

    #[test]
    fn arrays_of_numpy_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        npy::write(&path, "<f4", &[2, 3], &[0_u8; 24][..], &SaveOptions::new()).unwrap();
        let [item] = &list(&Location::Path(path), &RemoteArgs::default(), &Engine::builder().build())
            .unwrap()
            .items[..]
        else {
            panic!("one array")
        };
        assert_eq!((&*item.name, &*item.dtype, &*item.shape), ("a.npy", "F32", &[2, 3][..]));
    }
}
