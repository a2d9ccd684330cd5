//! Measures the cost of each safe call beyond the C function, with a libcufile whose functions are empty. First it compares reads
//! through the emulator, raw and safe ones in turn.
//!
//! `cargo bench -p libcufile`

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use cufile::{Batch, Entry, FileHandle, IoBufMut};
use cufile_sys::{
    CUfileBatchMode_t, CUfileIOParams_anon_batch, CUfileIOParams_anon_u, CUfileIOParams_t, CUfileOpcode_t,
};
use divan::{Bencher, black_box};
use testkit::bed::Bed;
use testkit::no_op::{self, OnTheDevice};

fn main() {
    in_turn();
    divan::main();
}

/// Alternates raw and safe reads, so that both meet the same noise.
fn in_turn() {
    const ROUNDS: usize = 4000;
    const CALLS: u32 = 50;
    let bed = Bed::emulated();
    let file = FileHandle::register(&bed.driver, bed.file("data", &[1; LEN_BYTES])).unwrap();
    let (functions, mut buffer) = (bed.driver.library().functions(), vec![0u8; LEN_BYTES]);
    let base: *mut c_void = buffer.as_mut_ptr().cast();
    // Reads of no bytes, so that the call costs the least.
    let mut raw = || {
        // SAFETY: the buffer and the handle are alive.
        unsafe { (functions.cuFileRead)(black_box(&file).as_raw(), black_box(base), 0, 0, 0) };
    };
    let mut empty: Vec<u8> = Vec::with_capacity(LEN_BYTES);
    let mut safe = || {
        black_box(black_box(&file).read_at(black_box(&mut empty), 0).unwrap());
    };
    let time = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_secs_f64() / f64::from(CALLS) * 1e9
    };
    let (mut of_raw, mut of_safe) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_raw.push(time(&mut raw));
        of_safe.push(time(&mut safe));
    }
    let mut differences: Vec<f64> = of_raw.iter().zip(&of_safe).map(|(raw, safe)| safe - raw).collect();
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    println!(
        "emulator, in turn: raw {:.1} ns, safe {:.1} ns, median of the differences {:.1} ns",
        median(&mut of_raw),
        median(&mut of_safe),
        median(&mut differences)
    );
}

const LEN_BYTES: usize = 4096;
const ENTRIES: usize = 128;

#[divan::bench]
fn read_raw(bencher: Bencher) {
    let (functions, file, mut buffer) = (no_op::functions(), no_op::file(), vec![0u8; LEN_BYTES]);
    let base: *mut c_void = buffer.as_mut_ptr().cast();
    bencher.bench_local(|| {
        // SAFETY: the function does nothing.
        unsafe { (black_box(&functions).cuFileRead)(file.as_raw(), black_box(base), LEN_BYTES, 0, 0) }
    });
}

#[divan::bench]
fn read_at_host(bencher: Bencher) {
    let (file, mut buffer) = (no_op::file(), vec![0u8; LEN_BYTES]);
    bencher.bench_local(|| black_box(&*file).read_at(black_box(&mut buffer), 0).unwrap());
}

#[divan::bench]
fn read_at_device(bencher: Bencher) {
    let (file, mut buffer) = (no_op::file(), OnTheDevice(LEN_BYTES));
    bencher.bench_local(|| black_box(&*file).read_at(black_box(&mut buffer), 0).unwrap());
}

#[divan::bench(counters = [ENTRIES])]
fn submit_raw(bencher: Bencher) {
    let (functions, file) = (no_op::functions(), no_op::file());
    let batch = CUfileIOParams_anon_batch {
        devPtr_base: ptr::without_provenance_mut(0x1000),
        file_offset: 0,
        devPtr_offset: 0,
        size: LEN_BYTES,
    };
    let entry = CUfileIOParams_t {
        mode: CUfileBatchMode_t::CUFILE_BATCH,
        u: CUfileIOParams_anon_u { batch },
        fh: file.as_raw(),
        opcode: CUfileOpcode_t::CUFILE_READ,
        cookie: ptr::null_mut(),
    };
    let mut entries = vec![entry; ENTRIES];
    bencher.bench_local(|| {
        let entries = black_box(&mut entries);
        // SAFETY: the function does nothing.
        unsafe {
            (black_box(&functions).cuFileBatchIOSubmit)(
                ptr::null_mut(),
                ENTRIES as u32,
                entries.as_mut_ptr(),
                0,
            )
        }
    });
}

fn submit<B: IoBufMut + 'static>(bencher: Bencher, buffer: impl Fn() -> B) {
    let file = no_op::file();
    let entries = || (0..ENTRIES as u64).map(|id| Entry::read(&file, buffer(), 0).id(id)).collect::<Vec<_>>();
    bencher
        .with_inputs(|| (Batch::new(file.driver(), ENTRIES).unwrap(), entries()))
        .bench_local_refs(|(batch, entries)| batch.submit(entries.drain(..)).unwrap());
}

#[divan::bench(counters = [ENTRIES])]
fn submit_device(bencher: Bencher) {
    submit(bencher, || OnTheDevice(LEN_BYTES));
}

#[divan::bench(counters = [ENTRIES])]
fn submit_device_of_any_type(bencher: Bencher) {
    submit(bencher, || Box::new(OnTheDevice(LEN_BYTES)) as Box<dyn IoBufMut>);
}

#[divan::bench(counters = [ENTRIES])]
fn make_and_submit_device(bencher: Bencher) {
    let file: Arc<FileHandle> = no_op::file();
    bencher
        .with_inputs(|| (Batch::new(file.driver(), ENTRIES).unwrap(), Vec::with_capacity(ENTRIES)))
        .bench_local_refs(|(batch, entries)| {
            let file = black_box(&file);
            entries.extend((0..ENTRIES as u64).map(|id| Entry::read(file, OnTheDevice(LEN_BYTES), 0).id(id)));
            batch.submit(entries.drain(..)).unwrap();
        });
}
