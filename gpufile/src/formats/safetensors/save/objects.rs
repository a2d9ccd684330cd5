use std::path::{Path, PathBuf};

use super::super::headers::index_file::index_path;
use super::models::{Layout, Saved, len_of};
use super::plan::TensorData;
#[cfg(doc)]
use crate::formats::Error;
use crate::formats::save::object::{Failed, Objects, OfDestination};
use crate::formats::{InPlace, Result, SaveOptions};
use crate::storage::Destination;

/// Saves tensors as an object of a [`Destination`], or as several with an index, as [`save`](super::models::save) does with
/// files. The tensors may be in host and device memory.
///
/// With several objects, the index comes last. The objects of an older index and a single object of an older model stay. The
/// destination's documentation has an example.
///
/// # Errors
/// As [`save`](super::models::save). [`Error::Save`] names the object `name`, and the objects that the save left.
pub fn save_to(
    destination: &dyn Destination,
    name: &str,
    tensors: &[TensorData<'_>],
    options: &SaveOptions,
) -> Result<Saved> {
    let objects = OfDestination::new(destination, name, options);
    let mut objects = objects.map_err(|error| Failed::from(error).of(Path::new(name)))?;
    let (folder, last) = name.rsplit_once('/').map_or(("", name), |(folder, last)| (folder, last));
    let in_folder = |file: &str| if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") };
    save_objects(&mut objects, last, &in_folder, tensors, options)
}

/// Saves tensors as an object whose name has the last part `last`, or as several. `name_of` returns the name of an object by its
/// last part.
pub(super) fn save_objects(
    objects: &mut dyn Objects,
    last: &str,
    name_of: &dyn Fn(&str) -> String,
    tensors: &[TensorData<'_>],
    options: &SaveOptions,
) -> Result<Saved> {
    let path = objects.path(&name_of(last));
    if options.compress {
        let cause = crate::Cause::Invalid("objects cannot have packed tensors".to_owned());
        return Err(
            Failed::from(crate::Error::File { operation: "pack", path: path.clone(), cause }).of(&path)
        );
    }
    // Shards are named after the last part, as it is without escapes.
    match Layout::of(&path.with_file_name(last), &[tensors], options)? {
        Layout::One(plan) => {
            let len_bytes = plan.len_bytes();
            let saved = objects.save(&name_of(last), len_bytes, &mut plan.pieces());
            saved.map_err(|failed| failed.of(&path))?;
            Ok(Saved { path, len_bytes })
        }
        Layout::Several { plans, index } => {
            let index_name = name_of(&index_path(Path::new(last)).to_string_lossy());
            let mut saved = Vec::new();
            // The shard whose answer was lost. It may still be the older one, which is not removed.
            let mut unknown = None;
            let mut save_all = || {
                for (plan, file) in &plans {
                    let name = name_of(file);
                    match objects.save(&name, plan.len_bytes(), &mut plan.pieces()) {
                        Ok(()) => saved.push(name),
                        Err(failed) => {
                            unknown = (failed.in_place == InPlace::Unknown).then_some(name);
                            return Err(failed);
                        }
                    }
                }
                let len_bytes = index.len() as u64;
                objects.save(&index_name, len_bytes, &mut [index.as_bytes().into()].into_iter())
            };
            match save_all() {
                Ok(()) => Ok(Saved { path: objects.path(&index_name), len_bytes: len_of(&plans) }),
                Err(Failed { error, in_place }) => {
                    // The index is the last object. It may be in place, and then needs the others.
                    let is_old = saved.len() < plans.len() || in_place == InPlace::Old;
                    saved.retain(|name| !is_old || objects.remove(name).is_err());
                    let left: Vec<PathBuf> =
                        saved.iter().chain(&unknown).map(|name| objects.path(name)).collect();
                    let in_place = if is_old { InPlace::Old } else { InPlace::Unknown };
                    Err(crate::formats::Error::Save { path, error, in_place, left })
                }
            }
        }
    }
}
