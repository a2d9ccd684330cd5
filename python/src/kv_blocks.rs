//! The classes of `gpufile.kv_blocks`: stores of the blocks of KV caches, readers of them, and memory.
//!
//! `blocks` turns arguments into blocks, `region` has the memory, and `outcomes` turns the ends of blocks into objects.

mod blocks;
mod outcomes;
mod region;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cufile::fork::{Generation, Mutex};
use gpufile::kv_blocks::{self, BlockStoreBuilder, BlockTransfer, Stats};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::arguments;
use crate::engine::Engine;
use crate::error::{exception, not_pickled};
use crate::flight::future;
use crate::interrupts;
use crate::memory::type_name;
use crate::opening::{path_of, with_engine};
use crate::release::Detached;
use crate::transfer::Transfer;

use blocks::{Blocks, keys_of};
pub use outcomes::list_of;
use outcomes::{InFlightBlocks, outcome_type};
pub use region::Region;

/// The time between two looks at the calls of other threads that keep a store from being closed. They only start transfers.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// A store of fixed-size blocks in the files of a folder, which finds each block by its key.
///
/// A key is an integer of up to 128 bits, or 16 bytes, which stand for an integer with its highest byte first. ``folders`` is
/// a path, or a list of paths, for example one for each disk. The blocks of an earlier store with blocks of the same length are
/// there again. One process has a store open, and others read it as a ``BlockReader``.
///
/// ``block_bytes`` is the length of the longest block, and ``limit_bytes`` that of all files, by default 64 GiB. A further block evicts the
/// least recently used one, unless ``evicts`` is False. With ``checksums``, a fetch finds blocks whose bytes changed in their
/// file. With ``durable``, a block is stored only when the disk has it. With ``keep_evicted``, ``evicted`` returns the keys of
/// evicted blocks.
///
/// Calls do not wait for the storage, except opening and ``close``. Dropping a store does not wait; calls in flight continue.
#[pyclass(frozen, module = "gpufile.kv_blocks")]
pub struct BlockStore {
    open: Open<kv_blocks::BlockStore>,
    block_bytes: usize,
    recovery: kv_blocks::Recovery,
    /// `None` unless the program asked for them.
    evicted: Option<Arc<Mutex<Vec<u128>>>>,
}

/// A reader of a store that another process has open, or none.
///
/// It fetches blocks while the store stores, evicts and removes others, and changes nothing. The store does not know of it: a
/// block that is evicted while it is read is missing. Arguments are those of ``BlockStore``.
#[pyclass(frozen, module = "gpufile.kv_blocks")]
pub struct BlockReader {
    open: Open<kv_blocks::BlockReader>,
    block_bytes: usize,
}

/// A store or a reader, until it is closed.
struct Open<T: Send> {
    /// `None` after `close`, and in forked children.
    value: Mutex<Option<Arc<Detached<T>>>>,
    generation: Generation,
}

impl<T: Send> Open<T> {
    fn new(value: T) -> Self {
        let value = Mutex::new(Some(Arc::new(Detached::new(value))));
        Self { value, generation: Generation::current() }
    }

    fn get(&self) -> PyResult<Arc<Detached<T>>> {
        if !self.generation.is_current() {
            let text =
                "the store belongs to the parent process, which forked this one; open a BlockReader here";
            return Err(PyRuntimeError::new_err(text));
        }
        self.value.lock().clone().ok_or_else(|| PyValueError::new_err("the store is closed"))
    }

    fn take(&self) -> Option<Arc<Detached<T>>> {
        self.value.lock().take()
    }

    fn is_closed(&self) -> bool {
        self.value.lock().is_none()
    }
}

/// Returns a value that no open object refers to, after the calls of other threads that use it.
fn alone<T: Send>(mut shared: Arc<Detached<T>>) -> T {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(detached) => return detached.into_inner(),
            Err(used) => shared = used,
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

fn start(
    py: Python<'_>,
    blocks: Blocks,
    call: impl Send + FnOnce(&[kv_blocks::Block<'_>]) -> BlockTransfer,
) -> PyResult<Py<PyAny>> {
    let transfer = py.detach(move || blocks.pass_to(call));
    future(py, Transfer::new(InFlightBlocks(transfer)))
}

#[pymethods]
impl BlockStore {
    #[new]
    #[pyo3(signature = (folders, block_bytes, *, limit_bytes = None, blocks_per_file = None, checksums = false,
        durable = false, evicts = true, keep_evicted = false, engine = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        folders: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::block_bytes)] block_bytes: usize,
        #[pyo3(from_py_with = arguments::limit_bytes)] limit_bytes: Option<u64>,
        #[pyo3(from_py_with = arguments::blocks_per_file)] blocks_per_file: Option<u32>,
        checksums: bool,
        durable: bool,
        evicts: bool,
        keep_evicted: bool,
        engine: Option<&Bound<'_, Engine>>,
    ) -> PyResult<Self> {
        let (py, folders) = (folders.py(), folders_of(folders)?);
        let evicted = keep_evicted.then(Arc::<Mutex<Vec<u128>>>::default);
        let mut builder = builder(block_bytes, engine)?.checksums(checksums).durable(durable).evicts(evicts);
        if let Some(limit_bytes) = limit_bytes {
            builder = builder.limit_bytes(limit_bytes);
        }
        if let Some(blocks_per_file) = blocks_per_file {
            builder = builder.blocks_per_file(blocks_per_file);
        }
        if let Some(evicted) = evicted.clone() {
            // Threads of the store call this, so it needs no interpreter.
            builder = builder.on_evict(move |keys| evicted.lock().extend_from_slice(keys));
        }
        // A `__del__` that runs while the interpreter ends can import nothing.
        outcome_type(py)?;
        let opened = interrupts::run(py, move || builder.open_striped(folders))?;
        let store = opened.map_err(|error| exception(py, &error))?;
        let recovery = store.recovery();
        Ok(Self { open: Open::new(store), block_bytes, recovery, evicted })
    }

    /// Stores blocks, and returns at once a future, whose result has the outcome of each block, in the order of the keys.
    ///
    /// A block is stored in pieces. ``regions`` is the ``Region`` of all pieces, or a list with the region of each piece of a
    /// block. ``offsets`` has an integer for each block, where its piece begins in every region, or one for each piece of each block,
    /// block by block. Arrays of 64-bit integers are fastest. ``piece_bytes`` is the length of each piece, or a list with the length of
    /// each piece of a block, or of each piece of each block. In a block, the pieces follow each other in the order of the call.
    ///
    /// A block of a key that the store has replaces that one. After ``timeout`` seconds, a block ends with
    /// ``Outcome.DEADLINE``; a list has the timeout of each block, or None. The future holds the regions. Their
    /// memory may be in use for longer, as ``Region.bytes_in_use`` shows. Kernels that write the memory must have ended.
    #[pyo3(signature = (keys, regions, offsets, piece_bytes, *, timeout = None))]
    fn store(
        &self,
        keys: &Bound<'_, PyAny>,
        regions: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        piece_bytes: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let store = self.open.get()?;
        let blocks = Blocks::of(keys, regions, offsets, piece_bytes, 0, timeout)?;
        start(keys.py(), blocks, move |blocks| store.store(blocks))
    }

    /// Fetches blocks into memory, and returns at once a future, whose result has the outcome of each block.
    ///
    /// Arguments are those of ``store``. The pieces may be a part of the block, for example those of one layer, which begin at
    /// byte ``block_offset`` of it. Dropping or cancelling the future gives up blocks that have not begun. The memory of a block
    /// that does not end with ``Outcome.OK`` has unspecified bytes.
    #[pyo3(signature = (keys, regions, offsets, piece_bytes, *, block_offset = 0, timeout = None))]
    fn fetch(
        &self,
        keys: &Bound<'_, PyAny>,
        regions: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        piece_bytes: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::block_offset)] block_offset: usize,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let store = self.open.get()?;
        let blocks = Blocks::of(keys, regions, offsets, piece_bytes, block_offset, timeout)?;
        start(keys.py(), blocks, move |blocks| store.fetch(blocks))
    }

    /// Returns for each key whether the store has the block. Does not change which block is evicted next.
    fn contains(&self, keys: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let (store, listed) = (self.open.get()?, keys_of(keys)?);
        Ok(keys.py().detach(move || listed.into_iter().map(|key| store.contains(key)).collect()))
    }

    /// Returns how many of the keys come before the first one that the store does not have.
    fn prefix(&self, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (store, listed) = (self.open.get()?, keys_of(keys)?);
        Ok(keys.py().detach(move || listed.into_iter().take_while(|key| store.contains(*key)).count()))
    }

    /// Keeps blocks from being evicted until as many calls of ``unpin``. Returns for each key whether the store has the block.
    ///
    /// A block that replaces a pinned one is pinned. Pins end with the store, and when a block is removed or found corrupt.
    fn pin(&self, keys: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let (store, listed) = (self.open.get()?, keys_of(keys)?);
        Ok(keys.py().detach(move || listed.into_iter().map(|key| store.pin(key)).collect()))
    }

    /// Ends one call of ``pin`` for each key. Returns for each whether it was pinned.
    fn unpin(&self, keys: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let (store, listed) = (self.open.get()?, keys_of(keys)?);
        Ok(keys.py().detach(move || listed.into_iter().map(|key| store.unpin(key)).collect()))
    }

    /// Removes blocks, and returns how many of these the store had. Calls that are reading them still get them.
    fn remove(&self, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (store, listed) = (self.open.get()?, keys_of(keys)?);
        Ok(keys.py().detach(move || store.remove(&listed)))
    }

    /// Returns the keys of all blocks, as integers, in no order.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<u128>> {
        let store = self.open.get()?;
        Ok(py.detach(move || store.keys()))
    }

    /// Returns the keys of the blocks that were evicted since the last call, as integers.
    ///
    /// A key is there before the future of the store that evicted it is done. The block may have been stored again since, which
    /// ``contains`` tells. Raises ``ValueError`` if the store was opened without ``keep_evicted``.
    fn evicted(&self) -> PyResult<Vec<u128>> {
        self.open.get()?;
        let missing =
            || PyValueError::new_err("the store keeps no evicted keys: open it with keep_evicted=True");
        Ok(std::mem::take(&mut *self.evicted.as_ref().ok_or_else(missing)?.lock()))
    }

    /// Returns the counts since the store was opened: ``hits`` and ``misses`` of fetches, ``evictions``, ``bytes_stored``,
    /// ``bytes_fetched``, and the ``blocks`` of now.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.open.get()?;
        let (stats, blocks) = py.detach(move || (store.stats(), store.len()));
        let counts = counts(py, &stats)?;
        counts.set_item("blocks", blocks)?;
        Ok(counts)
    }

    /// The blocks that the store found when it was opened: ``whole`` ones, which it has, ``damaged`` ones, and ``unsynced`` ones,
    /// which may not have reached the disk before the machine stopped.
    #[getter]
    fn recovery<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        found.set_item("whole", self.recovery.whole)?;
        found.set_item("damaged", self.recovery.damaged)?;
        found.set_item("unsynced", self.recovery.unsynced)?;
        Ok(found)
    }

    /// Waits for all calls, and until the disk has all blocks. They are then there again after a power cut.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(store) = self.open.take() else { return Ok(()) };
        interrupts::run(py, move || alone(store).close())?.map_err(|error| exception(py, &error))
    }

    /// True after ``close``.
    #[getter]
    fn closed(&self) -> bool {
        self.open.is_closed()
    }

    fn __enter__(slf: Py<Self>) -> PyResult<Py<Self>> {
        slf.get().open.get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let instead = "it belongs to its process; open a BlockReader in others";
        Err(not_pickled("gpufile.kv_blocks.BlockStore", instead))
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed " } else { "" };
        format!("<{state}gpufile.kv_blocks.BlockStore block_bytes={}>", self.block_bytes)
    }
}

#[pymethods]
impl BlockReader {
    #[new]
    #[pyo3(signature = (folders, block_bytes, *, checksums = false, engine = None))]
    fn new(
        folders: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::block_bytes)] block_bytes: usize,
        checksums: bool,
        engine: Option<&Bound<'_, Engine>>,
    ) -> PyResult<Self> {
        let (py, folders) = (folders.py(), folders_of(folders)?);
        let builder = builder(block_bytes, engine)?.checksums(checksums);
        outcome_type(py)?;
        let opened = interrupts::run(py, move || builder.open_reader(folders))?;
        let reader = opened.map_err(|error| exception(py, &error))?;
        Ok(Self { open: Open::new(reader), block_bytes })
    }

    /// Fetches blocks into memory as ``BlockStore.fetch`` does.
    #[pyo3(signature = (keys, regions, offsets, piece_bytes, *, block_offset = 0, timeout = None))]
    fn fetch(
        &self,
        keys: &Bound<'_, PyAny>,
        regions: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        piece_bytes: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::block_offset)] block_offset: usize,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let reader = self.open.get()?;
        let blocks = Blocks::of(keys, regions, offsets, piece_bytes, block_offset, timeout)?;
        start(keys.py(), blocks, move |blocks| reader.fetch(blocks))
    }

    /// Reads the index of the store, and returns the keys of all blocks, as integers, in no order.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<u128>> {
        let reader = self.open.get()?;
        interrupts::run(py, move || reader.keys())?.map_err(|error| exception(py, &error))
    }

    /// Returns the counts since the reader was opened: ``hits``, ``misses`` and ``bytes_fetched``.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let reader = self.open.get()?;
        let counts = counts(py, &py.detach(move || reader.stats()))?;
        counts.del_item("evictions")?;
        counts.del_item("bytes_stored")?;
        Ok(counts)
    }

    /// Closes the reader. Transfers in flight continue.
    fn close(&self) {
        drop(self.open.take());
    }

    /// True after ``close``.
    #[getter]
    fn closed(&self) -> bool {
        self.open.is_closed()
    }

    fn __enter__(slf: Py<Self>) -> PyResult<Py<Self>> {
        slf.get().open.get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let instead = "it belongs to its process; open another in the process that uses it";
        Err(not_pickled("gpufile.kv_blocks.BlockReader", instead))
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed " } else { "" };
        format!("<{state}gpufile.kv_blocks.BlockReader block_bytes={}>", self.block_bytes)
    }
}

fn builder(block_bytes: usize, engine: Option<&Bound<'_, Engine>>) -> PyResult<BlockStoreBuilder> {
    if block_bytes == 0 {
        return Err(PyValueError::new_err("block_bytes is 0: expected at least 1"));
    }
    let files = with_engine(gpufile::File::options(), engine);
    Ok(kv_blocks::BlockStore::builder(block_bytes).files(&files))
}

/// Returns the folders of a store: one path, or several.
fn folders_of(folders: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    let is_one = folders.is_instance_of::<PyString>() || folders.is_instance_of::<PyBytes>();
    if is_one || folders.hasattr("__fspath__")? {
        return Ok(vec![path_of(folders, "folders")?]);
    }
    let listed = folders.cast::<PyList>().map(|list| list.iter().collect());
    let listed = listed.or_else(|_| folders.cast::<PyTuple>().map(|list| list.iter().collect()));
    let listed: Vec<_> = listed.map_err(|_| {
        let text = format!(
            "folders: expected str, bytes, os.PathLike or a list of these, not {}",
            type_name(folders)
        );
        PyTypeError::new_err(text)
    })?;
    let listed = listed.iter().enumerate();
    let list = listed.map(|(number, path)| path_of(path, format_args!("folders[{number}]")));
    let list: Vec<_> = list.collect::<PyResult<_>>()?;
    match list.is_empty() {
        true => Err(PyValueError::new_err("folders: expected a path, or a list of paths, not an empty list")),
        false => Ok(list),
    }
}

fn counts<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let counts = PyDict::new(py);
    counts.set_item("hits", stats.hits)?;
    counts.set_item("misses", stats.misses)?;
    counts.set_item("evictions", stats.evictions)?;
    counts.set_item("bytes_stored", stats.bytes_stored)?;
    counts.set_item("bytes_fetched", stats.bytes_fetched)?;
    Ok(counts)
}
