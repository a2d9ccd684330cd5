//! Saving an open model with packed tensors, or without them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::headers::header::Header;
use super::super::open::files::ModelFiles;
use super::models::Saved;
use super::packed::{Form, Source, Writer};
use super::plan::{malformed, save_file};
use crate::formats::save::{failed, no_file_name};
use crate::formats::{Result, SaveOptions};
use crate::{Cause, Error, File, local_path};

pub fn convert(model: &ModelFiles, to: &Path, form: Form, options: &SaveOptions) -> Result<Saved> {
    local_path::check(to).map_err(|error| failed(to, error))?;
    let refused = |cause: Cause| failed(to, Error::File { operation: "save", path: to.to_owned(), cause });
    let name =
        |file: &File| file.path().file_name().map(OsStr::to_owned).ok_or_else(|| no_file_name(file.path()));
    let one = |number: usize, to: &Path| {
        let header = model.catalog.header(number as u32);
        save_one(&model.files[number], header, to, form, options)
    };
    if let [file] = &model.files[..] {
        let name = name(file).map_err(|error| failed(to, error))?;
        let path = if to.is_dir() { to.join(name) } else { to.to_owned() };
        let len_bytes = one(0, &path)?;
        return Ok(Saved { path, len_bytes });
    }
    let names: std::result::Result<Vec<_>, _> = model.files.iter().map(name).collect();
    let names = names.map_err(|error| failed(to, error))?;
    let mut weight_map = serde_json::Map::new();
    for (number, name) in names.iter().enumerate() {
        let is_plain = name.to_str().filter(|_| !names[..number].contains(name));
        let name = is_plain.ok_or_else(|| {
            refused(Cause::Invalid(format!(
                "the model has two files named {name:?}, or the name is not UTF-8"
            )))
        })?;
        for tensor in model.catalog.header(number as u32).tensors() {
            weight_map.insert(tensor.name.to_owned(), name.into());
        }
    }
    fs::create_dir_all(to).map_err(|error| refused(error.into()))?;
    let mut len_bytes = 0;
    for (number, name) in names.iter().enumerate() {
        len_bytes += one(number, &to.join(name))?;
    }
    let total_size = model.catalog.len_bytes();
    let index = serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    let index = format!("{index:#}\n");
    let path = to.join(index_name(&model.path));
    save_file(&path, options, |file| file.write_all_at(index.as_bytes(), 0))?;
    Ok(Saved { path, len_bytes })
}

/// Returns the name of the new index: that of the old one, if the model was opened by it.
fn index_name(path: &Path) -> PathBuf {
    const USUAL: &str = "model.safetensors.index.json";
    let is_index = path.extension().is_some_and(|extension| extension == "json");
    path.file_name().filter(|_| is_index).unwrap_or(OsStr::new(USUAL)).into()
}

/// Saves one file. Returns its length in bytes.
fn save_one(from: &File, header: &Header, to: &Path, form: Form, options: &SaveOptions) -> Result<u64> {
    let mut metadata = header.metadata().clone();
    metadata.extend(options.metadata.clone());
    let writer = Writer { header, form, metadata, sync: options.sync };
    // Wrong metadata is found before a file is written.
    writer.room().map_err(|error| malformed(to, error))?;
    let mut len_bytes = 0;
    save_file(to, options, |file| {
        len_bytes = writer.write(&mut InFile(from, header), file)?;
        Ok(())
    })?;
    Ok(len_bytes)
}

struct InFile<'a>(&'a File, &'a Header);

impl Source<'_> for InFile<'_> {
    fn read(&mut self, number: usize, offset: u64, target: &mut [u8]) -> crate::Result<()> {
        let start = self.1.in_file(self.1.nth(number as u32).offsets).start;
        self.0.read_exact_at(target, start + offset)
    }
}
