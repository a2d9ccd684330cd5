//! `cargo xtask regen-bindings` writes or checks the generated files of both sys crates.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use quote::quote;

use crate::emit::Bound;
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
    let files = [
        (
            "cufile-sys/src/bindings.rs",
            cufile.bindings(
                &from_cufile,
                quote! {
                    pub use cuda_rt_sys::driver::{CUresult, CUstream};
                    pub use libc::{loff_t, off_t, sockaddr, timespec};
                },
            )?,
        ),
        ("cufile-sys/src/functions.rs", cufile.table(&from_cufile, "cuFile", since::CUFILE)?),
        (
            "cuda-rt-sys/src/runtime/bindings.rs",
            runtime.bindings(
                &from_cuda(CUDA_RUNTIME.file),
                quote!(
                    pub use crate::driver::{CUevent_st, CUstream_st};
                ),
            )?,
        ),
        (
            "cuda-rt-sys/src/runtime/functions.rs",
            runtime.table(&from_cuda(CUDA_RUNTIME.file), "CUDA", since::CUDA_RUNTIME)?,
        ),
        ("cuda-rt-sys/src/driver/bindings.rs", driver.bindings(&from_cuda(CUDA_DRIVER.file), quote!())?),
        (
            "cuda-rt-sys/src/driver/functions.rs",
            driver.table(&from_cuda(CUDA_DRIVER.file), "CUDA", since::CUDA_DRIVER)?,
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
