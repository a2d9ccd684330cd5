//! Maintenance of the workspace: `cargo xtask help` lists the commands.

#[cfg(test)]
mod advice;
mod artifacts;
mod bundle;
mod c_blocks;
mod c_names;
mod conformance;
mod coverage;
mod dist;
mod emit;
mod functions;
mod guide;
mod header;
mod kernels;
#[cfg(test)]
mod layers;
mod limited;
mod mutants;
mod names;
#[cfg(test)]
mod numbers;
mod packages;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod parity;
mod public_api;
mod regen;
mod release;
mod samples;
#[cfg(test)]
mod scripts;
mod settings;
mod speed_chart;
#[cfg(test)]
mod tables;
mod target;
mod workspace;

use std::env;

use anyhow::{Result, bail};

const HELP: &str = "\
usage: cargo xtask COMMAND

  regen-bindings [--check] [--include-dir DIR]
      write the generated files of cufile-sys and cuda-rt-sys from the pinned headers, or from those in DIR, which
      must hold all three, cufile.h, cuda.h and cuda_runtime_api.h, and what they include; --check only compares and
      fails on any difference

  regen-kernels [--check]
      compile the kernels of gpufile to PTX and to cubins, with the pinned compiler; --check only compares and fails on
      any difference

  public-api [--check]
      write the public API of cufile and gpufile, a line for each item that no derive, no bitflags and not the table of
      settings makes, into their public-api.txt, and count it; --check only compares and fails on any difference

  conformance
      compare the bindings with the header of every supported libcufile and CUDA runtime through a C compiler, for
      this host and, where aarch64-linux-gnu-gcc, qemu-aarch64 and Rust's target aarch64-unknown-linux-gnu are, for
      aarch64, then load each of the host's real libraries in a process of its own and check what needs no GPU; fails
      on any surprise

  samples [--emulator [--c-sources DIR] | --library PATH] [--dir DIR] [--bin-dir DIR] [NAME...]
      build the examples and run those whose names contain a NAME, or all, each with a time limit, on files made for
      them in DIR (the folder for temporary files unless told); --library chooses the libcufile, --bin-dir takes
      executables that are built already; --emulator runs them on the emulator instead of a GPU, and then once more
      with each fault that must make them fail; fails if a sample does not do what it should; --c-sources compiles the C
      programs in DIR, NVIDIA's gds/samples, in the place of the examples, and compares their calls with the same tables

  coverage
      run the tests that cufile/PORTING.md names, each alone on the emulator; fails if a function of cuFile is missing
      there, if its test does not call it, or if it is no alias of an item of cufile

  names
      document libcufile and gpufile, and fail if the search of libcufile does not find a name of cufile.h or of
      cuda.bindings.cufile, or neither search finds a name of KvikIO's C++ headers or of kvik-rs

  mutants [--count N] [--seed S] [--since COMMIT] [--list]
      draw N (100) of all mutants that cargo-mutants makes, by the seed S (1), run the tests with each, and list those
      that no test noticed; --since draws from the files that differ from COMMIT; --list only names the sample; needs
      cargo-mutants and cargo-nextest

  settings [--check]
      write the table of docs/settings.md from that in gpufile/src/settings/table.rs, as a release does; --check only
      compares and fails on any difference

  speed-chart
      draw docs/speed.svg, the bars of README.md, from a table of BENCHMARKS.md

  guide
      build the pages that docs/SUMMARY.md lists as a site in target/guide/html, with the pinned mdBook, which the first
      run compiles; fails if a link of the site leads nowhere

  dist [wheels] [program]
      build the files of a release for x86-64 and aarch64, for glibc 2.17, into target/dist, or only the parts that are
      named: the wheels and the source distribution of the Python package; the program as archive and as Debian package,
      with a Containerfile; always with bills of materials and checksums

  bundle DIR
      put the tests, the examples and this program into DIR, for a GPU host without a Rust toolchain
";

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["regen-bindings", options @ ..] => {
            let (mut check, mut include_dir) = (false, None);
            let mut options = options.iter();
            while let Some(option) = options.next() {
                match (*option, options.as_slice()) {
                    ("--check", _) => check = true,
                    ("--include-dir", [dir, ..]) => {
                        include_dir = Some(dir.into());
                        options.next();
                    }
                    _ => bail!("{option}: not an option, or without its value\n\n{HELP}"),
                }
            }
            regen::run(include_dir, check)
        }
        ["regen-kernels"] => kernels::run(false),
        ["regen-kernels", "--check"] => kernels::run(true),
        ["public-api"] => public_api::run(false),
        ["public-api", "--check"] => public_api::run(true),
        ["conformance"] => conformance::run(),
        ["samples", options @ ..] => samples::run(&samples::Options::parse(options)?),
        ["coverage"] => coverage::run(),
        ["names"] => names::run(),
        ["mutants", options @ ..] => mutants::run(&mutants::Options::parse(options)?),
        ["settings"] => settings::run(false),
        ["settings", "--check"] => settings::run(true),
        ["speed-chart"] => speed_chart::run(),
        ["guide"] => guide::run(),
        ["dist", parts @ ..] => dist::run(&dist::Part::parse(parts)?),
        ["bundle", folder] => bundle::run(folder.as_ref()),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => bail!("no such command\n\n{HELP}"),
    }
}
