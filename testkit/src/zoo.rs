//! Folders as models come in, and the answer that each has to give. `zoo.json` describes them; the tests of the
//! Python package read it, too.
//!
//! A folder has a value for each path: a list of the tensors of a safetensors file, an object for the map of an index, or a
//! text: `-> TARGET` for a link, `dir:`, `text:…`, `hex:…`, `zeros:N`, and `cut:N TENSORS` or `pad:N TENSORS` for a file
//! with N bytes fewer, or N zeros more. A tensor's bytes are `PATH:NAME`, so that they tell which file they come from.
//!
//! `open` is the path to open in the folder. `want` has the file of each tensor, and `warn` words of the warnings, without
//! which there is none; or `error` has words of the error. `list` names files that give the same answer as a list. Every
//! model in several files does.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A folder, and the answer for it.
pub struct Case {
    /// The clause, and words for the folder.
    pub name: String,
    /// The clause of the rule.
    pub clause: String,
    folder: Vec<(String, Value)>,
    open: String,
    /// The file of each tensor, as a path in the folder; or the words of the error.
    pub wanted: Result<BTreeMap<String, String>, Vec<String>>,
    /// Words of the warnings.
    pub warn: Vec<String>,
    list: Option<Vec<String>>,
}

/// A folder that was made.
pub struct Made {
    /// The folder.
    pub root: TempDir,
    /// The path to open.
    pub path: PathBuf,
    /// Files to open as a list, if the same answer is wanted.
    pub list: Option<Vec<PathBuf>>,
}

/// Returns all cases.
pub fn cases() -> Vec<Case> {
    let all: Vec<Value> = serde_json::from_str(include_str!("zoo.json")).unwrap();
    all.iter().map(Case::of).collect()
}

fn words(value: &Value) -> Vec<String> {
    let words = value.as_array().map(Vec::as_slice).unwrap_or_default();
    words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

impl Case {
    fn of(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let want = value["want"].as_object();
        let wanted = want.map(|want| {
            want.iter().map(|(name, file)| (name.clone(), file.as_str().unwrap().to_owned())).collect()
        });
        Self {
            name: format!("{}: {}", text("clause"), text("name")),
            clause: text("clause"),
            folder: value["folder"].as_object().unwrap().clone().into_iter().collect(),
            open: text("open"),
            wanted: wanted.ok_or_else(|| words(&value["error"])),
            warn: words(&value["warn"]),
            list: value.get("list").map(words),
        }
    }

    /// Makes the folder.
    pub fn make(&self) -> Made {
        let root = tempfile::tempdir().unwrap();
        for (path, value) in &self.folder {
            make(root.path(), path, value);
        }
        let path = if self.open.is_empty() { root.path().to_owned() } else { root.path().join(&self.open) };
        let in_root = |files: &[String]| files.iter().map(|file| root.path().join(file)).collect::<Vec<_>>();
        let list = match (&self.list, &self.wanted) {
            (Some(list), _) => Some(in_root(list)),
            (None, Ok(want)) => {
                let mut files: Vec<_> = want.values().cloned().collect();
                files.sort();
                files.dedup();
                // An index is found beside the files.
                let is_beside = |file: &String| Path::new(file).parent() == Some(Path::new(""));
                (files.len() > 1 && files.iter().all(is_beside)).then(|| in_root(&files))
            }
            (None, Err(_)) => None,
        };
        Made { root, path, list }
    }
}

/// Returns the bytes of a tensor.
pub fn bytes_of(file: &str, name: &str) -> Vec<u8> {
    format!("{file}:{name}").into_bytes()
}

/// Returns the bytes of a file with these tensors.
pub fn safetensors<'a>(file: &str, names: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for name in names {
        let start = data.len();
        data.extend(bytes_of(file, name));
        let shape = [data.len() - start];
        header.insert(
            name.to_owned(),
            json!({ "dtype": "U8", "shape": shape, "data_offsets": [start, data.len()] }),
        );
    }
    let mut text = Value::Object(header).to_string();
    // The data begin at a multiple of 8 bytes.
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat()
}

fn make(root: &Path, file: &str, value: &Value) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let bytes = match value {
        Value::Array(names) => safetensors(file, names.iter().map(|name| name.as_str().unwrap())),
        Value::Object(_) => serde_json::to_vec(&json!({ "metadata": {}, "weight_map": value })).unwrap(),
        _ => match bytes_from(root, file, value.as_str().unwrap()) {
            Some(bytes) => bytes,
            None => return,
        },
    };
    fs::write(path, bytes).unwrap();
}

/// Returns the described bytes; `None` for what is no file, but made.
fn bytes_from(root: &Path, file: &str, text: &str) -> Option<Vec<u8>> {
    let path = root.join(file);
    if let Some(target) = text.strip_prefix("-> ") {
        symlink(target, path).unwrap();
        return None;
    }
    let (kind, rest) = text.split_once(':').unwrap();
    let (number, names) = rest.split_once(' ').unwrap_or((rest, ""));
    let number = || number.parse::<usize>().unwrap();
    let file = || safetensors(file, names.split(' '));
    Some(match kind {
        "text" => rest.as_bytes().to_vec(),
        "hex" => {
            (0..rest.len()).step_by(2).map(|at| u8::from_str_radix(&rest[at..at + 2], 16).unwrap()).collect()
        }
        "zeros" => vec![0; number()],
        "cut" => {
            let bytes = file();
            bytes[..bytes.len() - number()].to_vec()
        }
        "pad" => [file(), vec![0; number()]].concat(),
        "dir" => {
            fs::create_dir(path).unwrap();
            return None;
        }
        other => panic!("{other:?}"),
    })
}
