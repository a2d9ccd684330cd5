//! Compiles the blocks of C in the guide for ports, as statements of one function each.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::target::Target;
use crate::workspace::workspace;

pub const PAGE: &str = "cufile/PORTING.md";

/// The code that the blocks leave to their program.
const BEFORE: &str = r#"#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <cufile.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int fail(CUfileError_t status);
int block(const char *path, CUfileHandle_t handle, void *memory, void *base, void *host, size_t size, off_t file_offset,
          off_t buffer_offset, cudaStream_t stream, CUfileBatchHandle_t batch, CUfileIOParams_t *params,
          CUfileIOEvents_t *events, void **buffers, unsigned count, ssize_t n) {
    CUfileError_t status = {0};
    unsigned i, done = 0;
    {
"#;
const AFTER: &str = "    }\n    return status.err + i + done + n;\n}\n";

/// Compiles each block of C in the page with the headers in some folders, and returns their number.
pub fn check(include_dirs: &[PathBuf], scratch: &Path) -> Result<usize> {
    let page = fs::read_to_string(workspace().join(PAGE)).context(PAGE)?;
    let blocks: Vec<_> = page.split("```c\n").skip(1).filter_map(|part| part.split("```").next()).collect();
    ensure!(!blocks.is_empty(), "no block of C in {PAGE}");
    fs::create_dir_all(scratch)?;
    for block in &blocks {
        compile(block, include_dirs, &scratch.join("block.c"))?;
    }
    Ok(blocks.len())
}

fn compile(block: &str, include_dirs: &[PathBuf], file: &Path) -> Result<()> {
    fs::write(file, format!("{BEFORE}{block}{AFTER}"))?;
    let mut command = Target::host()?.c_compiler();
    command.args([
        "-fsyntax-only",
        "-Werror=implicit-function-declaration",
        "-Werror=incompatible-pointer-types",
    ]);
    command.args(include_dirs.iter().map(|folder| format!("-I{}", folder.display()))).arg(file);
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "a block of C in {PAGE} does not compile:\n{block}\n{errors}");
    Ok(())
}
