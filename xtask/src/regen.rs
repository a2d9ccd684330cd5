//! `cargo xtask regen-bindings` writes or checks the generated files of both sys crates.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use proc_macro2::TokenStream;
use quote::quote;

use crate::c_names;
use crate::emit::{self, Bound};
use crate::functions::Functions;
use crate::header::{CUDA_DRIVER, CUDA_RUNTIME, CUFILE, crt_headers};
use crate::packages::{self, CUDA_HEADER, CUFILE_HEADER};
use crate::target::Target;
use crate::workspace::workspace;

/// Uses the pinned headers, or those in `include_dir`, which must hold all three.
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
    let none = TokenStream::new();
    let bindings =
        |bound: &Bound, imports| -> Result<String> { Ok(bound.bindings(imports)? + &c_names::names(bound)?) };
    let table =
        |bound: &Bound, source: &str, product, known: &Functions, releases, imports| -> Result<String> {
            Ok(bound.table(source, product, known, releases, imports)?
                + &c_names::calls(bound, product, known)?)
        };
    let files = [
        (
            "cufile-sys/src/bindings.rs",
            bindings(
                &cufile,
                quote! {
                    pub use cuda_rt_sys::driver::{CUresult, CUstream};
                    pub use core::primitive::{i64 as loff_t, i64 as off_t};
                    pub use libc::{sockaddr, timespec};
                },
            )?,
        ),
        (
            "cufile-sys/src/functions.rs",
            table(
                &cufile,
                &from_cufile,
                "cuFile",
                &Functions::cufile()?,
                emit::releases(packages::CUFILE)?,
                quote!(use crate::bindings::*; use cuda_rt_sys::loader::#loader;),
            )?,
        ),
        (
            "cuda-rt-sys/src/runtime/bindings.rs",
            bindings(
                &runtime,
                quote!(
                    pub use crate::driver::{CUevent_st, CUstream_st};
                ),
            )?,
        ),
        (
            "cuda-rt-sys/src/runtime/functions.rs",
            table(
                &runtime,
                &from_cuda(CUDA_RUNTIME.file),
                "CUDA",
                &Functions::runtime(),
                none.clone(),
                quote!(use super::bindings::*; use crate::loader::#loader;),
            )?,
        ),
        ("cuda-rt-sys/src/driver/bindings.rs", bindings(&driver, none.clone())?),
        (
            "cuda-rt-sys/src/driver/functions.rs",
            table(
                &driver,
                &from_cuda(CUDA_DRIVER.file),
                "CUDA",
                &Functions::driver(),
                none,
                quote!(use super::bindings::*; use super::mem_op::*; use crate::loader::#loader;),
            )?,
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
