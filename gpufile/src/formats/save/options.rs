use std::collections::BTreeMap;

use super::access::Access;
use crate::OpenOptions;
use crate::formats::order::Order;

/// The options of a save.
///
/// A save writes a temporary file in the same folder, and renames it when it is complete. A program that opens the
/// path during the save finds the old contents or the new ones. The save works in the folder that it opened, even if
/// that is renamed.
///
/// The new file has the permissions of the one that it replaces, or those of any new file. If the path is a symbolic
/// link, the file replaces the link. A device, a FIFO, a socket or a folder is refused, also if a link points to it.
///
/// ```
/// use gpufile::formats::{SaveOptions, npy};
///
/// # fn main() -> gpufile::formats::Result<()> {
/// # let path = std::env::temp_dir().join(format!("gpufile-options-{}.npy", std::process::id()));
/// let without_fsync = SaveOptions::new().sync(false);
/// npy::write(&path, "|u1", &[3], &[1_u8, 2, 3][..], &without_fsync)?;
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Failures
/// The error, [`Error::Save`](super::Error::Save), says which data is in place, and which files were left behind.
/// Before the rename, that is the old data. If the folder cannot be synced after it, that is the new data.
/// `docs/saves.md` in the repository has the outcome of each step.
///
/// # Other processes
/// Saves of one model of several files by the same user wait for each other, for up to ten minutes. Other users cannot delay
/// a save.
///
/// A process that is killed during a save leaves the old data or the new, and perhaps temporary files named
/// `.NAME.RANDOM.gpufile-tmp`. A later save into that folder by the same user removes them. It removes only files of
/// that user that nobody else can write to, and whose process has ended. Their locks (`flock`) show that. On file
/// systems that are not local, they must also be without a write for a day. On SMB they stay.
///
/// A write beyond the process's limit of file sizes (`RLIMIT_FSIZE`) kills it by `SIGXFSZ`. If it ignores this signal, as
/// Python does, the save fails instead.
#[derive(Debug, Clone)]
#[must_use]
pub struct SaveOptions {
    pub(super) files: OpenOptions,
    pub(in crate::formats) sync: bool,
    pub(in crate::formats) metadata: BTreeMap<String, String>,
    pub(in crate::formats) shard_bytes: Option<u64>,
    pub(in crate::formats) order: Order,
    pub(in crate::formats) remove_old_model: bool,
    pub(in crate::formats) compress: bool,
    /// The device and the inode number of a file that is not removed, even if a killed process left it.
    pub(crate) kept: Option<(u64, u64)>,
    /// The permissions of the new file, if not those of the file that it replaces.
    pub(crate) access: Option<Access>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SaveOptions {
    /// Returns the default options: the global engine, waiting for the storage, no metadata, one file, C order.
    pub fn new() -> Self {
        Self {
            files: OpenOptions::new(),
            sync: true,
            metadata: BTreeMap::new(),
            shard_bytes: None,
            order: Order::C,
            remove_old_model: false,
            compress: false,
            kept: None,
            access: None,
        }
    }

    /// Sets the engine, the policy and the use of `O_DIRECT` of the file. Ignores access and creation options.
    pub fn files(mut self, files: &OpenOptions) -> Self {
        self.files = files.clone();
        self
    }

    /// Sets whether a save waits for the storage (`fsync`): for the file before the rename, and for the folder after
    /// it. Without this, a crash of the machine may leave an incomplete file instead of the old one.
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }

    /// Sets the entries of `__metadata__` in safetensors files, which describe them. Other formats have none.
    pub fn metadata(
        mut self,
        entries: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> Self {
        self.metadata = entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        self
    }

    /// Sets the most bytes of data of a file of a model. `safetensors::save` and `gguf::save_split` save a model with more to
    /// several files. Other formats have one file for each array.
    pub fn shard_bytes(mut self, bytes: u64) -> Self {
        self.shard_bytes = Some(bytes);
        self
    }

    /// Sets the order in which the buffer of an `.npy` array is. The tensors of safetensors files are in C order.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets whether the tensors of safetensors files are packed: in fewer bytes, from which each value comes back with all its
    /// bits. A GPU encodes its own tensors, and as many threads as the engine has encode the others, while earlier ones are
    /// written.
    ///
    /// `Checkpoint::compress` says which tensors are packed, and what loads such files. Files of other formats stay plain. Objects
    /// have no packed tensors: their save fails.
    pub fn compress(mut self, compress: bool) -> Self {
        self.compress = compress;
        self
    }

    /// Sets whether a save of a safetensors model removes the older model of that name, after the new one is in place.
    ///
    /// By default, a save changes no file except the one at the path, or the index of several. For the path
    /// `model.safetensors`, these are the files of the older model: `model.safetensors`, `model.safetensors.index.json`, and those
    /// that this index names, have a name such as `model-00001-of-00002.safetensors`, and belong to the owner of the index.
    /// The save fails if one cannot be removed, with the new model in place. Objects of a store are never removed.
    ///
    /// While the older files are removed, opening the folder can fail, because there are two models. Opening the path or the
    /// index does not. If the process is killed then, shards that no index names may stay. No later save removes them.
    pub fn remove_old_model(mut self, remove: bool) -> Self {
        self.remove_old_model = remove;
        self
    }
}
