//! `cargo xtask regen-bindings` writes or checks the generated files of both sys crates.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use quote::quote;

use crate::c_names;
use crate::docs::Docs;
use crate::emit::{Bound, head};
use crate::header::{CUDA_DRIVER, CUDA_RUNTIME, CUFILE, crt_headers};
use crate::packages::{CUDA_HEADER, CUFILE_HEADER};
use crate::since;
use crate::target::Target;
use crate::workspace::workspace;

/// Generates everything from the pinned headers, or from those in `include_dir`, which must hold all three.
pub fn run(include_dir: Option<PathBuf>, check: bool) -> Result<()> {
    let host = Target::host()?;
    let include_dirs = match include_dir {
        Some(dir) => vec![dir],
        None => vec![
            CUFILE_HEADER.folder_of("cufile.h", host)?,
            CUDA_HEADER.folder_of("cuda.h", host)?,
            crt_headers(host)?,
        ],
    };
    let from_cufile = format!("cufile.h of {} {}", CUFILE_HEADER.name, CUFILE_HEADER.version);
    let from_cuda = |file| format!("{file} of {} {}", CUDA_HEADER.name, CUDA_HEADER.version);

    let cufile = Bound::parse(&CUFILE.read(&include_dirs, host)?)?;
    let runtime = Bound::parse(&CUDA_RUNTIME.read(&include_dirs, host)?)?;
    let driver = Bound::parse(&CUDA_DRIVER.read(&include_dirs, host)?)?;
    let loader = quote!({ LoadError, SharedLibrary, Symbol });
    // For the names and calls of a module `c`.
    let (cufile_types, cuda_types) = ("use crate::bindings::*;", "use super::super::bindings::*;");
    let cufile_calls = format!("{cufile_types}\nuse crate::library::Library;");
    let runtime_calls = format!("{cuda_types}\nuse super::super::library::Library;");
    let driver_calls = format!("{runtime_calls}\nuse super::super::mem_op::*;");
    let (of_runtime, of_driver) = (from_cuda(CUDA_RUNTIME.file), from_cuda(CUDA_DRIVER.file));
    let files = [
        (
            "cufile-sys/src/bindings.rs",
            cufile.bindings(
                &from_cufile,
                quote! {
                    pub use cuda_rt_sys::driver::{CUresult, CUstream};
                    pub use core::primitive::{i64 as loff_t, i64 as off_t};
                    pub use libc::{sockaddr, timespec};
                },
            )?,
        ),
        (
            "cufile-sys/src/functions.rs",
            cufile.table(
                &from_cufile,
                "cuFile",
                since::CUFILE,
                &Docs::cufile()?,
                quote!(use crate::bindings::*; use cuda_rt_sys::loader::#loader;),
            )?,
        ),
        ("cufile-sys/src/c/names.rs", c_names::names(&cufile, &head(&from_cufile), cufile_types)?),
        (
            "cufile-sys/src/c/calls.rs",
            c_names::calls(&cufile, &head(&from_cufile), "cuFile", since::CUFILE, &cufile_calls)?,
        ),
        (
            "cuda-rt-sys/src/runtime/bindings.rs",
            runtime.bindings(
                &of_runtime,
                quote!(
                    pub use crate::driver::{CUevent_st, CUstream_st};
                ),
            )?,
        ),
        (
            "cuda-rt-sys/src/runtime/functions.rs",
            runtime.table(
                &of_runtime,
                "CUDA",
                since::CUDA_RUNTIME,
                &Docs::runtime(),
                quote!(use super::bindings::*; use crate::loader::#loader;),
            )?,
        ),
        ("cuda-rt-sys/src/runtime/c/names.rs", c_names::names(&runtime, &head(&of_runtime), cuda_types)?),
        (
            "cuda-rt-sys/src/runtime/c/calls.rs",
            c_names::calls(&runtime, &head(&of_runtime), "CUDA", since::CUDA_RUNTIME, &runtime_calls)?,
        ),
        ("cuda-rt-sys/src/driver/bindings.rs", driver.bindings(&of_driver, quote!())?),
        (
            "cuda-rt-sys/src/driver/functions.rs",
            driver.table(
                &of_driver,
                "CUDA",
                since::CUDA_DRIVER,
                &Docs::driver(),
                quote!(use super::bindings::*; use super::mem_op::*; use crate::loader::#loader;),
            )?,
        ),
        ("cuda-rt-sys/src/driver/c/names.rs", c_names::names(&driver, &head(&of_driver), cuda_types)?),
        (
            "cuda-rt-sys/src/driver/c/calls.rs",
            c_names::calls(&driver, &head(&of_driver), "CUDA", since::CUDA_DRIVER, &driver_calls)?,
        ),
    ];
    let mut drifted = Vec::new();
    for (path, text) in &files {
        let file = workspace().join(path);
        if fs::read_to_string(&file).is_ok_and(|old| old == *text) {
            continue;
        }
        drifted.push(*path);
        if !check {
            fs::create_dir_all(file.parent().context("a file in a folder")?)?;
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    match (drifted.as_slice(), check) {
        ([], _) => println!("{} generated files are up to date", files.len()),
        (drifted, false) => println!("written: {}", drifted.join(", ")),
        (drifted, true) => {
            bail!(
                "{} differ from what the headers give; run `cargo xtask regen-bindings`",
                drifted.join(", ")
            )
        }
    }
    Ok(())
}
