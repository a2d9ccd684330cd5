//! The table of cases. The functions of its rows are in the other modules here.
//!
//! Each case moves bytes between FILE and the memory of GPU 0. The cases `gpus-…` move them between FILE and all GPUs of
//! the command line, the host cases between FILE and a vector. The time leaves these steps out, unless the doc of a case
//! includes them:
//!
//! - making an engine, and opening a file
//! - building the list of ranges
//! - poisoning the memory, and dropping the page cache
//! - comparing the bytes afterwards

use gpufile::File;
use gpufile::cuda::Device;
use gpufile::formats::safetensors::Placement;

use super::blocks::{IN_ONE_FILE, fetch_blocks, gather, store_blocks};
use super::first_load;
use super::memory::DeviceMemory;
use super::models::{by_rows_and_columns, load_model, reload_model, save_one, save_shards};
use super::reads::{
    BLOCKS, OF_64, OF_512, OF_700, PAGES, Scatter, Until, direct_read, first_byte, first_kernel, host_pread,
    host_read, latency, mapped_scatter, read, read_many, scatter, stream_read, unchecked,
};
use super::several::{one_alone, pinned_copies, read_each, read_file_by_each, read_many_on_all};
use super::stores;
use super::timing::Measured;
use super::writes::{direct_write, write_fresh, write_fresh_files, write_over, write_over_clean};
use super::{Bench, MIB, Result};

/// A measurement, under the name that all peers have for it.
pub struct Case {
    pub peer: &'static str,
    pub name: &'static str,
    /// The numbers of threads, one after the other; 0 leaves the number to the engine.
    pub threads: &'static [usize],
    pub run: Run,
    /// True if it writes to FILE itself.
    pub overwrites: bool,
}

pub enum Run {
    Device(OnDevice),
    Gpus(OnGpus),
    Host(OnHost),
}
type OnDevice = fn(&Bench, &mut DeviceMemory, usize) -> Result<Measured>;
type OnGpus = fn(&Bench, &[Device], usize) -> Result<Measured>;
type OnHost = fn(&Bench, usize) -> Result<Measured>;

const DEFAULT: &[usize] = &[0];
const SOME: &[usize] = &[0, 4, 8, 16];

pub const CASES: &[Case] = &[
    device("first-byte", DEFAULT, first_byte),
    device("first-kernel", DEFAULT, first_kernel),
    device("first-load", DEFAULT, first_load::first),
    device("first-load-again", DEFAULT, first_load::again),
    device("first-load-and-start", DEFAULT, first_load::and_start),
    device("read-default", DEFAULT, read),
    device("read", &[1, 2, 4, 8, 12, 16], read),
    device("scatter-4k", SOME, |bench, memory, threads| scatter(bench, memory, threads, &PAGES)),
    device("scatter-64k", SOME, |bench, memory, threads| scatter(bench, memory, threads, &BLOCKS)),
    device("scatter-1m", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &Scatter { size: MIB, ops: 2048, stride: 1 })
    }),
    device("scatter-4k-scattered", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES })
    }),
    device("scatter-64k-scattered", SOME, |bench, memory, threads| {
        scatter(bench, memory, threads, &Scatter { stride: 7919, ..BLOCKS })
    }),
    device("mapped-scatter-4k", SOME, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &PAGES, unchecked)
    }),
    device("mapped-scatter-512", SOME, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &Scatter { stride: 1, ..OF_512 }, unchecked)
    }),
    device("mapped-scatter-4k-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES }, unchecked)
    }),
    device("mapped-scatter-700-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_700, unchecked)
    }),
    device("mapped-scatter-512-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_512, unchecked)
    }),
    device("mapped-scatter-64-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_64, unchecked)
    }),
    device("mapped-checked-4k-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &Scatter { stride: 7919, ..PAGES }, File::map)
    }),
    device("mapped-checked-700-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_700, File::map)
    }),
    device("mapped-checked-512-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_512, File::map)
    }),
    device("mapped-checked-64-scattered", DEFAULT, |bench, memory, threads| {
        mapped_scatter(bench, memory, threads, &OF_64, File::map)
    }),
    device("kv-fetch-16k", DEFAULT, fetch_blocks::<16, IN_ONE_FILE>),
    device("kv-fetch-64k", DEFAULT, fetch_blocks::<64, IN_ONE_FILE>),
    device("kv-fetch-256k", DEFAULT, fetch_blocks::<256, IN_ONE_FILE>),
    device("kv-files-fetch-64k", DEFAULT, fetch_blocks::<64, 16>),
    device("kv-store-16k", DEFAULT, store_blocks::<16, IN_ONE_FILE>),
    device("kv-store-64k", DEFAULT, store_blocks::<64, IN_ONE_FILE>),
    device("kv-store-256k", DEFAULT, store_blocks::<256, IN_ONE_FILE>),
    device("kv-files-store-64k", DEFAULT, store_blocks::<64, 16>),
    device("kv-module-fetch-16k", DEFAULT, stores::fetch::<16, IN_ONE_FILE, false>),
    device("kv-module-fetch-64k", DEFAULT, stores::fetch::<64, IN_ONE_FILE, false>),
    device("kv-module-fetch-256k", DEFAULT, stores::fetch::<256, IN_ONE_FILE, false>),
    device("kv-module-files-fetch-64k", DEFAULT, stores::fetch::<64, 16, false>),
    device("kv-module-checked-fetch-64k", DEFAULT, stores::fetch::<64, IN_ONE_FILE, true>),
    device("kv-module-store-16k", DEFAULT, stores::store::<16, IN_ONE_FILE, false>),
    device("kv-module-store-64k", DEFAULT, stores::store::<64, IN_ONE_FILE, false>),
    device("kv-module-store-256k", DEFAULT, stores::store::<256, IN_ONE_FILE, false>),
    device("kv-module-files-store-64k", DEFAULT, stores::store::<64, 16, false>),
    device("kv-module-checked-store-64k", DEFAULT, stores::store::<64, IN_ONE_FILE, true>),
    device("gather-4k", DEFAULT, gather::<4, 65_536>),
    device("gather-64k", DEFAULT, gather::<64, 16_384>),
    device("read-many-16m", SOME, read_many),
    device("stream-1g", DEFAULT, |bench, memory, threads| {
        stream_read(bench, memory, threads, Until::StreamIsDone)
    }),
    device("stream-1g-call", DEFAULT, |bench, memory, threads| {
        stream_read(bench, memory, threads, Until::CallReturns)
    }),
    device("latency-4k", DEFAULT, latency),
    overwriting("write-over", &[0, 1, 4, 8, 16], write_over),
    overwriting("write-over-clean", DEFAULT, write_over_clean),
    device("write-fresh", DEFAULT, write_fresh),
    device("write-fresh-files", DEFAULT, write_fresh_files),
    device("direct-read", SOME, direct_read),
    overwriting("direct-write", SOME, direct_write),
    Case { peer: "cuda", ..gpus("gpus-link", pinned_copies) },
    gpus("gpus-read", read_each),
    gpus("gpus-read-file", read_file_by_each),
    gpus("gpus-read-many", read_many_on_all),
    gpus("gpus-one-alone", one_alone),
    gpus("gpus-load-all", |bench, gpus, threads| load_model(bench, gpus, threads, &Placement::all())),
    gpus("gpus-load-all-first", first_load::to_all),
    gpus("gpus-load-all-again", reload_model),
    gpus("gpus-load-sliced", |bench, gpus, threads| load_model(bench, gpus, threads, &by_rows_and_columns())),
    gpus("gpus-load-balanced", |bench, gpus, threads| {
        load_model(bench, gpus, threads, &Placement::balanced())
    }),
    gpus("gpus-save-shards", save_shards),
    gpus("gpus-save-one", save_one),
    host("gpufile", "host-read", host_read),
    host("pread", "host-read", host_pread),
];

const fn device(name: &'static str, threads: &'static [usize], run: OnDevice) -> Case {
    Case { peer: "gpufile", name, threads, run: Run::Device(run), overwrites: false }
}

const fn overwriting(name: &'static str, threads: &'static [usize], run: OnDevice) -> Case {
    Case { overwrites: true, ..device(name, threads, run) }
}

const fn gpus(name: &'static str, run: OnGpus) -> Case {
    Case { peer: "gpufile", name, threads: DEFAULT, run: Run::Gpus(run), overwrites: false }
}

const fn host(peer: &'static str, name: &'static str, run: OnHost) -> Case {
    Case { peer, name, threads: &[0, 1, 2], run: Run::Host(run), overwrites: false }
}
