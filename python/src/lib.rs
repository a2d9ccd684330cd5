//! The module `gpufile._gpufile`: files and memory for the Python package `gpufile`.
//!
//! `memory` turns Python objects into memory, `stream` into streams, and `error` turns errors into exceptions. `file` has
//! the class `File`, with the lists in `many`. `transfer` waits for what is in flight, for `File` and for `Future`, and `watch` tells event loops
//! of ends.
//! `driver` and `page_cache` are for `gpufile.kvikio`, `safetensors` has the headers and the groups of models. The public
//! names are those of the package, in `python/gpufile`.

mod check;
mod driver;
mod engine;
mod error;
mod file;
mod future;
mod many;
mod memory;
mod opening;
mod page_cache;
mod route;
mod safetensors;
mod stream;
mod transfer;
mod watch;

use pyo3::prelude::*;

/// The native part of gpufile. Import `gpufile` instead.
#[pymodule]
mod _gpufile {
    #[pymodule_export]
    use crate::check::main;
    #[pymodule_export]
    use crate::driver::{
        close_driver, driver_properties, libcufile_version, open_driver, set_driver_limit, set_poll_mode,
    };
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::future::Future;
    #[pymodule_export]
    use crate::memory::{deregister, memory_of, register};
    #[pymodule_export]
    use crate::page_cache::page_cache_residency;
    #[pymodule_export]
    use crate::route::Route;
    #[pymodule_export]
    use crate::safetensors::{
        Checkpoint, Group, parse_safetensors, save_safetensors, serialize_safetensors, verify_model, visible,
    };
    #[pymodule_export]
    use crate::watch::Watch;
}
