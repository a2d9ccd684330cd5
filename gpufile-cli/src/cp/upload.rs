//! Copies to an object of a store, which appears as a whole.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpufile::remote::without_secrets;

use super::source::Source;
use super::{Args, Copied, default_buffer};
use crate::failure::Failure;
use crate::interrupt::Uploading;
use crate::model::engine;
use crate::progress::Bar;
use crate::target::Place;

/// Returns the URL of an object with this name, if the URL ends with a slash.
fn in_folder(url: &str, name: &Path) -> Result<String, Failure> {
    match (url.ends_with('/'), name.to_str()) {
        (false, _) => Ok(url.to_owned()),
        (true, Some(name)) if !name.is_empty() => Ok(format!("{url}{name}")),
        (true, _) => Err(Failure::Usage(
            "DST ends with a slash, and SRC has no name that an object can have".to_owned(),
        )),
    }
}

/// Copies the source to the object at a URL.
///
/// # Errors
/// The source cannot be read, or the store refuses the object. An older object then stays.
pub fn copy(arguments: &Args, url: &str, place: &Place) -> Result<Copied, Failure> {
    if arguments.verify || arguments.no_sync {
        let text = "--verify and --no-sync are for paths: an object appears when it is complete";
        return Err(Failure::Usage(text.to_owned()));
    }
    let engine = engine()?;
    let source = Source::open_for_upload(&arguments.source, &arguments.remote, &engine)?;
    let url = &in_folder(url, &source.name)?;
    let options = arguments.remote.upload_options().engine(&engine);
    let len_bytes = source.len_bytes;
    let buffer_bytes = arguments.buffer.unwrap_or_else(default_buffer).min(len_bytes.max(1)) as usize;
    let mut buffer = place.alloc(buffer_bytes)?;
    let bar = Bar::of_bytes(len_bytes, "copying");
    let start = Instant::now();
    let uploading = Uploading::new();
    let mut run = || -> Result<Duration, Failure> {
        let mut is_cancelled = || uploading.is_ending();
        let mut upload = options.upload(url, len_bytes)?;
        for at in (0..len_bytes).step_by(buffer_bytes) {
            let count = (len_bytes - at).min(buffer_bytes as u64) as usize;
            source.file.read_exact_at(&mut buffer.first_mut(count), at)?;
            upload.write_unless(buffer.first(count), &mut is_cancelled)?;
            bar.add(count as u64);
        }
        upload.finish_unless(&mut is_cancelled)?;
        Ok(start.elapsed())
    };
    // The upload is aborted before signals go on.
    let uploaded = run();
    uploading.end(uploaded.is_ok());
    Ok(Copied {
        source: source.file.path().to_owned(),
        target: PathBuf::from(without_secrets(url)),
        len_bytes,
        data_bytes: len_bytes,
        took: uploaded?,
        routes: None,
    })
}
