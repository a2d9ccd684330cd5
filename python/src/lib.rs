//! The module `gpufile._gpufile`: files and memory for the Python package `gpufile`.
//!
//! `memory` turns Python objects into memory, `stream` into streams, and `error` turns errors into exceptions. `file` has
//! the class `File`, `remote` and `folder` those of objects on servers, `formats` the headers of GGUF and `.npy` files, `single` and `many` their transfers, and `cached` the reads that never wait. `transfer` waits for what is in
//! flight, for `File` and for `Flight`, which futures have, and `watch` tells event loops of ends. `interrupts` has the waits that Ctrl-C ends, and
//! `release` the end of references to objects.
//! `mapping` has mapped files, and `lost_pages` what happens when such a file becomes shorter.
//! `namespaces` finds objects in modules. `lock` is for models that several threads use, and `private_folder` for those that processes share. `kv_blocks` has stores of the blocks of KV caches. `driver` and `page_cache` are for `gpufile.kvikio`, `safetensors` has the headers and the groups of models. The public
//! names are those of the package, in `python/gpufile`.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod arguments;
mod cached;
mod check;
mod copies;
mod driver;
mod engine;
mod error;
mod file;
mod flight;
mod folder;
mod formats;
mod interrupts;
mod kv_blocks;
mod lock;
mod lost_pages;
mod many;
mod mapping;
mod memory;
mod namespaces;
mod opening;
mod page_cache;
mod private_folder;
mod release;
mod remote;
mod route;
mod safetensors;
mod single;
mod stream;
mod transfer;
mod upload;
mod watch;

use cufile::fork::OnceCell;
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCFunction;

/// Refuses all interpreters of the process except the first one, whose classes and threads this module keeps.
///
/// # Errors
/// `ImportError`.
fn refuse_other_interpreters() -> PyResult<()> {
    static FIRST: OnceCell<i64> = OnceCell::new();
    // SAFETY: the thread that imports the module is attached to an interpreter.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    match *FIRST.get_or_init(|| number) == number {
        true => Ok(()),
        false => Err(PyImportError::new_err(
            "gpufile works in one interpreter of a process only, and another has imported it",
        )),
    }
}

/// The native part of gpufile. Import `gpufile` instead.
///
/// No test has run in a free-threaded interpreter, so it turns the lock on there.
#[pymodule(gil_used = true)]
mod _gpufile {
    use super::*;

    #[pymodule_export]
    use crate::check::main;
    #[pymodule_export]
    use crate::copies::copy_ranges;
    #[pymodule_export]
    use crate::driver::{
        close_driver, driver_properties, libcufile_version, open_driver, set_driver_limit, set_poll_mode,
    };
    #[pymodule_export]
    use crate::engine::{Engine, kvikio_settings};
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::flight::{Flight, keep_classes};
    #[pymodule_export]
    use crate::folder::RemoteFolder;
    #[pymodule_export]
    use crate::formats::{open_gguf, open_npy};
    #[pymodule_export]
    use crate::kv_blocks::{BlockReader, BlockStore, Region};
    #[pymodule_export]
    use crate::lock::Lock;
    #[pymodule_export]
    use crate::mapping::Mapping;
    #[pymodule_export]
    use crate::memory::{deregister, dlpack_parts, memory_of, prefer_huge_pages, register};
    #[pymodule_export]
    use crate::namespaces::places_of;
    #[pymodule_export]
    use crate::opening::{checked_path, is_address};
    #[pymodule_export]
    use crate::page_cache::page_cache_residency;
    #[pymodule_export]
    use crate::private_folder::private_folder;
    #[pymodule_export]
    use crate::remote::RemoteFile;
    #[pymodule_export]
    use crate::route::Route;
    #[pymodule_export]
    use crate::safetensors::{
        Checkpoint, Group, Plan, parse_safetensors, safetensors_order, save_safetensors,
        save_safetensors_pieces, save_safetensors_pieces_url, save_safetensors_url, serialize_safetensors,
        verify_model, visible,
    };
    #[pymodule_export]
    use crate::watch::Watch;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        refuse_other_interpreters()?;
        crate::interrupts::is_first_process();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        let end =
            PyCFunction::new_closure(py, None, None, |arguments, _| crate::release::end(arguments.py()))?;
        py.import("atexit")?.call_method1("register", (end,))?;
        Ok(())
    }
}
