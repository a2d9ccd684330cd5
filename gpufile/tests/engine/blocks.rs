//! Tests of writes that meet in one block of a file, on the direct route. There libcufile reads, changes and writes
//! whole blocks.

use std::env;
use std::fs;
use std::path::Path;

use cufile::FileSystems;
use cufile::cuda::DeviceBuffer;
use gpufile::formats::safetensors::{self, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::{BufSlice, Engine, EngineBuilder, File, IoRange, OpenOptions, Request, RouteKind, RoutePolicy};
use testkit::bed::{Bed, folders, pattern};
use testkit::{alone, in_a_fork, in_threads};

const BLOCK: usize = 4096;

/// Makes an emulated machine. Its unaligned writes take whole blocks, and its files use GPUDirect Storage.
fn bed() -> Bed {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.control(&format!("nvidia-fs 2 17 {}", FileSystems::NVME.bits()));
    bed
}

fn builder(bed: &Bed, threads: usize) -> EngineBuilder {
    Engine::builder().driver(bed.driver.clone()).threads(threads)
}

fn open(engine: &Engine, path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).engine(engine).open(path).unwrap()
}

/// Makes an engine that cuts ranges within blocks, and writes short ones by cuFile too.
fn own_engine(bed: &Bed, threads: usize) -> Engine {
    builder(bed, threads).gds_threshold_bytes(0).chunk_bytes(10_007).build()
}

fn each_direct(bed: &Bed, test: impl Fn(&Path)) {
    for folder in folders() {
        let path = folder.path().join("data");
        if open(&builder(bed, 1).build(), &path).route().kind() == RouteKind::Gds {
            test(&path);
        }
    }
}

fn on_device(bed: &Bed, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = bed.device.alloc(bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn lengths(&mut self, total: usize) -> Vec<usize> {
        let (mut lengths, mut left) = (Vec::new(), total);
        while left > 0 {
            let most = [100, 3 * BLOCK, 40_000, 400_000][self.below(4)];
            let length = (1 + self.below(most)).min(left);
            lengths.push(length);
            left -= length;
        }
        lengths
    }
}

fn differs(found: &[u8], expected: &[u8]) -> Option<usize> {
    assert_eq!(found.len(), expected.len());
    (0..expected.len()).find(|&at| found[at] != expected[at])
}

#[test]
fn saved_tensors_that_share_blocks_keep_their_bytes() {
    let bed = bed();
    let lengths: Vec<u64> = (0..16).map(|number| [512 << 10, 2002][number % 2]).collect();
    let bytes: Vec<_> = lengths.iter().map(|length| pattern(*length as usize)).collect();
    let buffers: Vec<_> = bytes.iter().map(|bytes| on_device(&bed, bytes)).collect();
    let names: Vec<_> = (0..lengths.len()).map(|number| format!("layer.{number:02}")).collect();
    let shapes: Vec<_> = lengths.iter().map(|length| [*length]).collect();
    each_direct(&bed, |path| {
        let of_host = path.with_extension("host");
        let tensors = |number: usize| (names[number].as_str(), Dtype::U8, shapes[number].as_slice());
        let host: Vec<_> = (0..lengths.len())
            .map(|number| {
                let (name, dtype, shape) = tensors(number);
                TensorData::new(name, dtype, shape, &bytes[number])
            })
            .collect();
        safetensors::save(&of_host, &host, &SaveOptions::new()).unwrap();
        let expected = fs::read(&of_host).unwrap();
        for threads in [2, 4, 16] {
            for threshold in [0, 16 << 10] {
                let engine = builder(&bed, threads).gds_threshold_bytes(threshold).build();
                let device: Vec<_> = (0..lengths.len())
                    .map(|number| {
                        let (name, dtype, shape) = tensors(number);
                        TensorData::new(name, dtype, shape, &buffers[number])
                    })
                    .collect();
                let options = SaveOptions::new().files(&OpenOptions::new().engine(&engine)).sync(false);
                safetensors::save(path, &device, &options).unwrap();
                let differs = differs(&fs::read(path).unwrap(), &expected);
                assert_eq!(differs, None, "{threads} threads, threshold {threshold}");
            }
        }
    });
}

#[test]
fn ranges_that_share_blocks_keep_their_bytes() {
    let bed = bed();
    let bytes = pattern(3 << 20);
    let buffer = on_device(&bed, &bytes);
    each_direct(&bed, |path| {
        for seed in 0..6 {
            let engine = builder(&bed, 4).gds_threshold_bytes([0, 16 << 10][seed as usize % 2]).build();
            let file = open(&engine, path);
            let file = if seed < 2 { file.with_chunk_bytes(10_007) } else { file };
            let mut at = 0;
            let ranges: Vec<_> = Random(seed)
                .lengths(bytes.len())
                .into_iter()
                .map(|len_bytes| {
                    let range = IoRange { file_offset: at as u64, buffer_offset: at, len_bytes };
                    at += len_bytes;
                    range
                })
                .collect();
            file.write_many(&buffer, &ranges).unwrap();
            assert_eq!(differs(&fs::read(path).unwrap(), &bytes), None, "seed {seed}");
        }
    });
}

#[test]
fn host_and_device_writes_to_one_block_keep_bytes() {
    let bed = bed();
    let bytes = pattern(3 << 20);
    let buffer = on_device(&bed, &bytes);
    each_direct(&bed, |path| {
        for seed in 0..6 {
            let engine = builder(&bed, 4).gds_threshold_bytes([0, 16 << 10][seed as usize % 2]).build();
            let file = open(&engine, path);
            // The same file is open once more, and once for the page cache alone.
            let again = OpenOptions::new().write(true).engine(&engine).open(path).unwrap();
            let posix = OpenOptions::new().write(true).engine(&engine).policy(RoutePolicy::PosixOnly);
            let files = [&file, &again, &posix.open(path).unwrap()];
            let (mut random, mut at) = (Random(seed), 0);
            let lengths = random.lengths(bytes.len());
            let requests: Vec<_> = lengths
                .into_iter()
                .map(|length| {
                    let range = at..at + length;
                    at += length;
                    let (file, offset) = (files[random.below(3)], range.start as u64);
                    match random.below(2) {
                        0 => Request { file, buffer: BufSlice::new(&bytes, range), offset },
                        _ => Request { file, buffer: buffer.slice(range), offset },
                    }
                })
                .collect();
            engine.write_many(&requests).unwrap();
            assert_eq!(differs(&fs::read(path).unwrap(), &bytes), None, "seed {seed}");
        }
    });
}

#[test]
fn concurrent_calls_in_one_block_keep_neighbouring_bytes() {
    const PARTS: usize = 24;
    let bed = bed();
    let engine = builder(&bed, 4).gds_threshold_bytes(0).build();
    each_direct(&bed, |path| {
        let file = open(&engine, path);
        for part_bytes in [1000, 20_001, 70_007] {
            let bytes = pattern(PARTS * part_bytes);
            let at = |number: usize| (number * part_bytes) as u64;
            let part = |number: usize| &bytes[number * part_bytes..][..part_bytes];
            file.set_len(0).unwrap();
            let device: Vec<_> =
                (0..PARTS).step_by(2).map(|number| (number, on_device(&bed, part(number)))).collect();
            let futures: Vec<_> =
                device.into_iter().map(|(number, part)| file.write_all_at_async(part, at(number))).collect();
            in_threads((1..PARTS).step_by(2).map(|number| {
                let (file, bed, part) = (&file, &bed, part(number));
                move || match number % 3 {
                    0 => file.write_all_at(part, at(number)).unwrap(),
                    1 => file.write_all_at(&on_device(bed, part), at(number)).unwrap(),
                    _ => file.inline().write_all_at(&on_device(bed, part), at(number)).unwrap(),
                }
            }));
            futures.into_iter().for_each(|future| assert_eq!(future.wait().0.unwrap(), part_bytes));
            assert_eq!(differs(&fs::read(path).unwrap(), &bytes), None, "parts of {part_bytes}");
        }
    });
}

#[test]
fn overlapping_writes_leave_one_writers_bytes() {
    const LEN: usize = 5 * BLOCK;
    let bed = bed();
    let engine = builder(&bed, 4).gds_threshold_bytes(0).build();
    let (long, short) = (on_device(&bed, &[1; LEN]), on_device(&bed, &[2; 100]));
    each_direct(&bed, |path| {
        for round in 0..20 {
            let file = open(&engine, path);
            file.write_all_at(&[0; LEN][..], 0).unwrap();
            let at = round as usize * 700;
            in_threads([(&long, 0), (&short, at as u64)].map(|(buffer, at)| {
                let file = &file;
                move || file.write_all_at(buffer, at).unwrap()
            }));
            let found = fs::read(path).unwrap();
            let within = &found[at..at + 100];
            assert!(within == [1; 100] || within == [2; 100], "round {round}");
            assert!(found[..at].iter().chain(&found[at + 100..]).all(|byte| *byte == 1), "round {round}");
        }
    });
}

fn neighbours_of_two_engines_are_whole(bed: &Bed, engines: impl Fn() -> [Engine; 2]) {
    let bytes = pattern(2 << 20);
    let buffer = on_device(bed, &bytes);
    each_direct(bed, |path| {
        for seed in 0..6 {
            let engines = engines();
            let file = open(&engines[0], path);
            let again = OpenOptions::new().write(true).engine(&engines[1]).open(path).unwrap();
            let (mut random, mut at) = (Random(seed), 0);
            let requests: Vec<_> = random
                .lengths(bytes.len())
                .into_iter()
                .map(|length| {
                    let range = at..at + length;
                    at += length;
                    let file = [&file, &again][random.below(2)];
                    Request { file, offset: range.start as u64, buffer: buffer.slice(range) }
                })
                .collect();
            engines[0].write_many(&requests).unwrap();
            assert_eq!(differs(&fs::read(path).unwrap(), &bytes), None, "seed {seed}");
        }
    });
}

#[test]
fn two_engines_writing_to_one_block_keep_bytes() {
    let bed = bed();
    neighbours_of_two_engines_are_whole(&bed, || [4, 2].map(|threads| own_engine(&bed, threads)));
}

#[test]
fn engines_of_a_forked_child_serialise_shared_blocks() {
    alone(|| {
        // The parent writes, but has no CUDA.
        let inherited = Engine::builder().gds_threshold_bytes(0).build();
        open(&inherited, tempfile::NamedTempFile::new().unwrap().path()).write_all_at(&[1][..], 0).unwrap();
        let child = in_a_fork(|| {
            let bed = bed();
            neighbours_of_two_engines_are_whole(&bed, || [4, 2].map(|threads| own_engine(&bed, threads)));
            for variable in ["CUFILE_LIBRARY", "CUDART_LIBRARY", "CUDA_LIBRARY"] {
                // SAFETY: the remaining workers do not read the environment.
                unsafe { env::set_var(variable, bed.emulator.as_ref().unwrap().path()) };
            }
            neighbours_of_two_engines_are_whole(&bed, || [own_engine(&bed, 4), inherited.clone()]);
        });
        assert_eq!(child, Ok(()));
    });
}
