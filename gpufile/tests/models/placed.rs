//! Tests of models that are loaded to several GPUs: whole tensors, slices and copies.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::placements::{check_alignment, expected, mixed};
use gpufile::cuda::Device;
use gpufile::formats::safetensors::{
    self, Checkpoint, Cut, PlacedTensors, Placement, Share, TensorData, TensorInfo,
};
use gpufile::formats::{Dtype, Error, SaveOptions};
use gpufile::{Engine, IoBuf, IoRange, OpenOptions, RoutePolicy};
use testkit::Emulator;
use testkit::bed::{Bed, pattern};

/// The name, type and shape of each tensor. Those with a `2` or a `3` are large.
const MODEL: [(&str, Dtype, &[u64]); 15] = [
    ("norm", Dtype::F32, &[33]),
    ("packed", Dtype::F4, &[6, 2]),
    ("odd", Dtype::U8, &[2, 3]),
    ("none", Dtype::F64, &[0, 4]),
    ("no.columns", Dtype::F32, &[5, 0, 2]),
    ("step", Dtype::I64, &[]),
    ("one", Dtype::BF16, &[1, 1, 1]),
    ("row", Dtype::F16, &[1, 1001]),
    ("column", Dtype::F16, &[1003, 1]),
    ("mask", Dtype::Bool, &[5]),
    ("deep", Dtype::I16, &[7, 3, 11, 5]),
    ("wide.2", Dtype::BF16, &[301, 4003]),
    ("thin", Dtype::F32, &[301, 9]),
    ("embed.3", Dtype::BF16, &[501, 3001]),
    ("bias", Dtype::F32, &[77]),
];

fn contents() -> BTreeMap<&'static str, Vec<u8>> {
    let one = |(number, (name, dtype, shape)): (usize, &(&'static str, Dtype, &[u64]))| {
        let bits = shape.iter().product::<u64>() * u64::from(dtype.size_bits());
        (*name, pattern(number * 64 + (bits / 8) as usize).split_off(number * 64))
    };
    MODEL.iter().enumerate().map(one).collect()
}

/// Writes a model in several shards, without a GPU. Returns the path to open.
fn saved(bed: &Bed) -> PathBuf {
    let contents = contents();
    let tensors: Vec<_> = MODEL
        .iter()
        .map(|(name, dtype, shape)| TensorData::new(name, *dtype, shape, &contents[name]))
        .collect();
    let path = bed.path("model.safetensors");
    let options = SaveOptions::new().sync(false).shard_bytes(3 << 20);
    let index = safetensors::save(&path, &tensors, &options).unwrap().path;
    assert_ne!(index, path);
    index
}

fn open(bed: &Bed, path: &Path, policy: RoutePolicy) -> Checkpoint {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(4).bounce_buffer_bytes(1 << 20).build();
    Checkpoint::open_with([path], &OpenOptions::new().engine(&engine).policy(policy)).unwrap()
}

fn devices(bed: &Bed, count: usize) -> Vec<Device> {
    (0..count as u32).map(|gpu| bed.driver.cuda().device(gpu).unwrap()).collect()
}

/// Returns the numbers of GPUs to test with, which the bed has at the same time.
fn counts(bed: &Bed) -> Vec<usize> {
    if let Some(emulator) = &bed.emulator {
        emulator.control("gpus 8");
        return vec![1, 2, 4, 8];
    }
    let count = bed.driver.cuda().device_count().unwrap() as usize;
    [1, 2, 4, 8].into_iter().filter(|wanted| *wanted <= count).collect()
}

fn emulator(bed: &Bed) -> &Emulator {
    bed.emulator.as_ref().unwrap()
}

/// Checks the contents of all parts. Returns the names, each as often as it is on a GPU.
fn check(loaded: &[PlacedTensors], devices: &[Device]) -> Vec<String> {
    let contents = contents();
    let mut names = Vec::new();
    for (on_gpu, device) in loaded.iter().zip(devices) {
        assert_eq!(on_gpu.buffer().device().ordinal(), device.ordinal());
        let bytes = on_gpu.buffer().to_vec().unwrap();
        assert_eq!(on_gpu.iter().len(), on_gpu.iter().len());
        for part in on_gpu.iter() {
            let name = part.info.name;
            assert!(bytes[part.range.clone()] == expected(&part, &contents[name]), "{name}");
            check_alignment(&part);
            let bits = part.shape().iter().product::<u64>() * u64::from(part.info.dtype.size_bits());
            assert_eq!(bits, 8 * part.bytes.len_bytes() as u64, "{name}");
            let found = on_gpu.tensor(name).unwrap();
            assert_eq!((found.range, found.slice), (part.range, part.slice));
            names.push(name.to_owned());
        }
    }
    assert_eq!(loaded.len(), devices.len());
    names
}

/// Returns the names of the tensors on all GPUs, sorted, where `copies` is the number of GPUs that get a tensor.
fn names_of(gpus: usize, copies: impl Fn(&str) -> usize) -> Vec<String> {
    let mut names: Vec<_> =
        MODEL.iter().flat_map(|(name, ..)| vec![(*name).to_owned(); copies(name)]).collect();
    assert!(names.len() <= MODEL.len() * gpus);
    names.sort();
    names
}

#[test]
fn every_gpu_gets_its_tensors_and_slices() {
    Bed::each(|bed| {
        let path = saved(bed);
        for policy in [RoutePolicy::PosixOnly, RoutePolicy::RequireCufile] {
            for gpus in counts(bed) {
                if policy == RoutePolicy::RequireCufile && gpus > 2 {
                    continue;
                }
                let (checkpoint, devices) = (open(bed, &path, policy), devices(bed, gpus));
                for turn in 0..5 {
                    let load = || checkpoint.load();
                    check(&load().placed(&mixed(&MODEL, gpus, turn)).to_devices(&devices).unwrap(), &devices);
                }
                for (placement, copies) in [(Placement::all(), gpus), (Placement::balanced(), 1)] {
                    // A load can be repeated.
                    for _ in 0..2 {
                        let loaded = checkpoint.load().placed(&placement).to_devices(&devices).unwrap();
                        let mut names = check(&loaded, &devices);
                        names.sort();
                        assert_eq!(names, names_of(gpus, |_| copies));
                    }
                }
            }
        }
    });
}

#[test]
fn shared_bytes_are_read_once_for_each_group_of_peers() {
    let bed = Bed::emulated();
    let path = saved(&bed);
    let checkpoint = open(&bed, &path, RoutePolicy::PosixOnly);
    counts(&bed);
    // Without shared bytes, the access between GPUs stays as it is.
    let (all, balanced) = (devices(&bed, 8), Placement::balanced());
    check(&checkpoint.load().placed(&balanced).to_devices(&all).unwrap(), &all);
    assert_eq!(emulator(&bed).calls("cudaDeviceEnablePeerAccess"), 0);
    for gpus in counts(&bed) {
        let devices = devices(&bed, gpus);
        for group in [1, 2, 3, 16] {
            emulator(&bed).control(&format!("peer-group {group}"));
            let copies = emulator(&bed).calls("cudaMemcpyPeerAsync");
            let mut last = None;
            let placement = Placement::all();
            let load = checkpoint.load().placed(&placement).watch(|progress| {
                last = Some(progress);
                ControlFlow::Continue(())
            });
            check(&load.to_devices(&devices).unwrap(), &devices);
            let last = last.unwrap();
            assert_eq!(last.done_bytes, checkpoint.len_bytes() * gpus.div_ceil(group) as u64);
            assert_eq!(last.total_bytes, last.done_bytes);
            let are_copied = emulator(&bed).calls("cudaMemcpyPeerAsync") > copies;
            assert_eq!(are_copied, gpus > 1 && group > 1);
        }
    }
    // GPUs that cannot get more peers read for themselves.
    emulator(&bed).fault("cudaDeviceEnablePeerAccess", "err=711 times=all");
    let copies = emulator(&bed).calls("cudaMemcpyPeerAsync");
    check(&checkpoint.load().placed(&Placement::all()).to_devices(&all).unwrap(), &all);
    assert_eq!(emulator(&bed).calls("cudaMemcpyPeerAsync"), copies);
}

#[test]
fn groups_have_all_tensors_once_and_in_order() {
    Bed::each(|bed| {
        let path = saved(bed);
        for gpus in counts(bed) {
            let (checkpoint, devices) = (open(bed, &path, RoutePolicy::PosixOnly), devices(bed, gpus));
            for (turn, ahead_bytes) in [0, 100_000, 5 << 20, usize::MAX].into_iter().enumerate() {
                let placement = mixed(&MODEL, gpus, turn);
                let all = checkpoint.load().placed(&placement).to_devices(&devices).unwrap();
                let mut found: Vec<Vec<String>> = vec![Vec::new(); gpus];
                let groups = checkpoint.load().placed(&placement).ahead_bytes(ahead_bytes);
                let mut count = 0;
                for group in groups.groups(&devices).unwrap() {
                    let group = group.unwrap();
                    check(&group, &devices);
                    for (found, on_gpu) in found.iter_mut().zip(&group) {
                        found.extend(on_gpu.iter().map(|part| part.info.name.to_owned()));
                    }
                    count += 1;
                }
                for (found, on_gpu) in found.iter().zip(&all) {
                    assert!(on_gpu.iter().map(|part| part.info.name).eq(found.iter().map(String::as_str)));
                }
                match ahead_bytes {
                    0 => assert!(count >= 11, "{count}"),
                    usize::MAX => assert_eq!(count, 1),
                    _ => assert!(count > 1, "{count}"),
                }
            }
        }
    });
}

#[test]
fn memory_beside_the_tensors_stays_within_its_limit() {
    // Each worker has two staging buffers. Bounce buffers, which are as long, have room for gaps.
    const THREADS: usize = 2;
    const BOUNCE: usize = 512 << 10;
    const STAGING: i64 = (THREADS * 2 * (BOUNCE + BOUNCE / 8 + 4 * 4096)) as i64;
    for gpus in [1, 2, 4, 8] {
        for is_sliced in [false, true] {
            let bed = Bed::emulated();
            emulator(&bed).control("gpus 8");
            let path = saved(&bed);
            let engine = Engine::builder().driver(bed.driver.clone()).threads(THREADS);
            let engine = engine.bounce_buffer_bytes(BOUNCE).policy(RoutePolicy::PosixOnly).build();
            let checkpoint = Checkpoint::open_with([&path], &OpenOptions::new().engine(&engine)).unwrap();
            let devices = devices(&bed, gpus);
            let placement = match is_sliced {
                false => Placement::all(),
                true => Placement::by(|tensor| match tensor.shape {
                    [_, columns] if *columns > 8 => Share::Slice { axis: 1, cut: Cut::Even },
                    _ => Share::All,
                }),
            };
            // The largest tensor has 3.01 MB, so each group has a limit of its own.
            const AHEAD: usize = 7 << 20;
            for group in checkpoint.load().placed(&placement).ahead_bytes(AHEAD).groups(&devices).unwrap() {
                drop(group.unwrap());
            }
            let peak = emulator(&bed).live("peak-gpu-bytes");
            assert!(peak <= AHEAD as i64 + STAGING + 10_000, "{peak} on {gpus} GPUs");

            let loaded = checkpoint.load().placed(&placement).to_devices(&devices).unwrap();
            let tensors = loaded.iter().map(|on_gpu| {
                let lens = on_gpu.iter().map(|part| part.bytes.len_bytes());
                lens.sum::<usize>()
            });
            let peak = emulator(&bed).live("peak-gpu-bytes").max(0);
            let most = tensors.max().unwrap() as i64;
            assert!(peak <= most.max(AHEAD as i64) + STAGING + 10_000, "{peak} for {most} on {gpus} GPUs");
        }
    }
}

#[test]
fn loads_fill_the_memory_of_earlier_ones() {
    let bed = Bed::emulated();
    emulator(&bed).control("gpus 2");
    let path = saved(&bed);
    let (checkpoint, devices) = (open(&bed, &path, RoutePolicy::PosixOnly), devices(&bed, 2));
    let placement = Placement::all();
    let load = || checkpoint.load().placed(&placement);
    let addresses = |loaded: &[PlacedTensors]| -> Vec<_> {
        loaded.iter().map(|on_gpu| on_gpu.buffer().as_ptr()).collect()
    };
    let first = load().to_devices(&devices).unwrap();
    let before = addresses(&first);
    // In any order, and overwritten.
    let mut memory: Vec<_> = first.into_iter().rev().map(PlacedTensors::into_buffer).collect();
    memory.iter_mut().for_each(|buffer| buffer.fill(0x5a).unwrap());
    let second = load().reuse(memory).to_devices(&devices).unwrap();
    assert_eq!(addresses(&second), before);
    check(&second, &devices);

    // What is too small, or on another GPU, is freed before anything is allocated.
    let small = devices[0].alloc(1 << 20).unwrap();
    let other = second.into_iter().map(PlacedTensors::into_buffer).next_back();
    let freed = (1 << 20) + other.as_ref().unwrap().len_bytes() as i64;
    let before = emulator(&bed).live("device-bytes");
    let held = emulator(&bed).hold("cudaMalloc", "");
    let one = thread::scope(|scope| {
        let loading = scope.spawn(|| load().reuse(other).reuse([small]).to_devices(&devices[..1]).unwrap());
        held.wait_for(1);
        assert_eq!(emulator(&bed).live("device-bytes"), before - freed);
        drop(held);
        loading.join().unwrap()
    });
    check(&one, &devices[..1]);

    // A failed load frees what it took.
    let len_bytes = one[0].buffer().len_bytes() as i64;
    // Workers hold their staging buffers until they have seen the end of a load.
    let live_without_staging = |expected: i64| {
        let start = Instant::now();
        loop {
            checkpoint.files().next().unwrap().0.engine().release_buffers();
            let live = emulator(&bed).live("device-bytes");
            if live == expected || start.elapsed() > Duration::from_secs(10) {
                return live;
            }
            thread::sleep(Duration::from_millis(1));
        }
    };
    assert_eq!(live_without_staging(len_bytes), len_bytes);
    emulator(&bed).fault("cudaMemcpyAsync", "after=5 err=700");
    let failed = load().reuse(one.into_iter().map(PlacedTensors::into_buffer)).to_devices(&devices[..1]);
    assert!(matches!(failed, Err(Error::File(_))), "{failed:?}");
    assert_eq!(live_without_staging(0), 0);
}

#[test]
fn cancelled_loads_leave_no_memory() {
    let bed = Bed::emulated();
    let path = saved(&bed);
    for gpus in counts(&bed) {
        let (checkpoint, devices) = (open(&bed, &path, RoutePolicy::PosixOnly), devices(&bed, gpus));
        let engine = checkpoint.files().next().unwrap().0.engine().clone();
        // A worker may put its lane back just after the end of the transfer.
        let assert_freed = || {
            let live = || (emulator(&bed).live("device-bytes"), emulator(&bed).live("streams"));
            let start = Instant::now();
            while engine.release_buffers() > 0 || live() != (0, 0) {
                assert!(start.elapsed().as_secs() < 20, "{:?} are left", live());
                thread::sleep(Duration::from_millis(1));
            }
        };
        let placement = Placement::all();
        let load = checkpoint.load().placed(&placement).watch(|_| ControlFlow::Break(()));
        let error = load.to_devices(&devices).unwrap_err();
        assert!(matches!(error, Error::Cancelled { .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Other);
        assert_freed();

        let load = checkpoint.load().placed(&placement).ahead_bytes(1 << 20);
        let mut groups = load.groups(&devices).unwrap();
        check(&groups.next().unwrap().unwrap(), &devices);
        check(&groups.next().unwrap().unwrap(), &devices);
        drop(groups);
        assert_freed();

        let mut calls = 0;
        let load = checkpoint.load().placed(&placement).ahead_bytes(1 << 20).watch(|_| {
            calls += 1;
            if calls < 4 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let mut groups = load.groups(&devices).unwrap();
        let error = groups.find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Cancelled { .. }), "{error}");
        assert!(groups.next().is_none());
        drop(groups);
        assert_freed();

        // A panic does not look like the end of the model.
        let load =
            checkpoint.load().placed(&placement).ahead_bytes(1 << 20).watch(|_| panic!("the callback"));
        let mut groups = load.groups(&devices).unwrap();
        let next = AssertUnwindSafe(|| groups.find_map(Result::err));
        catch_unwind(next).unwrap_err();
        assert!(matches!(groups.next(), Some(Err(Error::Cancelled { .. }))));
        assert!(groups.next().is_none());
        drop(groups);
        assert_freed();
        check(&checkpoint.load().placed(&placement).to_devices(&devices).unwrap(), &devices);
    }
}

#[test]
fn failures_are_errors_and_the_next_load_succeeds() {
    let bed = Bed::emulated();
    let path = saved(&bed);
    let is_peer = |error: &Error| matches!(error, Error::PeerCopy { .. });
    let is_file = |error: &Error| matches!(error, Error::File(_));
    let is_memory = |error: &Error| matches!(error, Error::Memory { .. });
    type Kind<'a> = &'a dyn Fn(&Error) -> bool;
    let faults: [(&str, Kind<'_>); 7] = [
        ("cudaStreamSynchronize err=719 times=all", &is_peer),
        ("cudaMemcpyPeerAsync err=700", &is_peer),
        ("cudaMemcpyPeerAsync after=3 err=217", &is_peer),
        ("cudaStreamCreateWithFlags err=2", &|error| is_peer(error) || is_file(error)),
        ("cudaMemcpyAsync err=719 times=all", &is_file),
        ("cudaMemcpyAsync after=5 err=700", &is_file),
        ("cudaMalloc after=1 err=2", &is_memory),
    ];
    for gpus in counts(&bed).into_iter().filter(|gpus| *gpus > 1) {
        let devices = devices(&bed, gpus);
        for (fault, is_expected) in &faults {
            for in_groups in [false, true] {
                // The lanes of a new engine create their streams anew.
                let checkpoint = open(&bed, &path, RoutePolicy::PosixOnly);
                let placement = Placement::all();
                let load = checkpoint.load().placed(&placement).ahead_bytes(1 << 20);
                emulator(&bed).control(&format!("fault {fault}"));
                let error = match in_groups {
                    false => load.to_devices(&devices).err(),
                    true => load.groups(&devices).unwrap().find_map(|group| match group {
                        Ok(group) => {
                            check(&group, &devices);
                            None
                        }
                        Err(error) => Some(error),
                    }),
                };
                emulator(&bed).control("clear");
                // A lane without a stream may do its work in another way.
                match error {
                    Some(error) => assert!(is_expected(&error), "{fault}: {error}"),
                    None => assert!(fault.starts_with("cudaStreamCreate"), "{fault}"),
                }
                check(&checkpoint.load().placed(&placement).to_devices(&devices).unwrap(), &devices);
            }
        }
    }
}

#[test]
fn a_failed_gpu_gives_an_error_and_others_go_on() {
    for gpus in [1, 2, 4, 8] {
        let bed = Bed::emulated();
        emulator(&bed).control("gpus 8");
        let path = saved(&bed);
        let (checkpoint, devices) = (open(&bed, &path, RoutePolicy::PosixOnly), devices(&bed, gpus));
        // Ranges with gaps pass through a kernel. From its failure on, all calls on its GPU fail.
        let failing = gpus / 2;
        let range = |number: usize| IoRange {
            file_offset: 64 * number as u64,
            buffer_offset: 96 * number,
            len_bytes: 64,
        };
        let ranges: Vec<_> = (0..1000).map(range).collect();
        let mut buffer = devices[failing].alloc(96_000).unwrap();
        emulator(&bed).fault("cuLaunchKernel", "status=700");
        let file = checkpoint.files().next().unwrap().0;
        file.read_many(&mut buffer, &ranges).unwrap_err();
        for turn in 0..5 {
            let load = checkpoint.load();
            let error = load.placed(&mixed(&MODEL, gpus, turn)).to_devices(&devices).unwrap_err();
            assert!(error.to_string().contains("cudaErrorIllegalAddress"), "{error}");
        }
        let mut others = devices;
        others.remove(failing);
        if !others.is_empty() {
            let placement = mixed(&MODEL, others.len(), 0);
            check(&checkpoint.load().placed(&placement).to_devices(&others).unwrap(), &others);
        }
    }
}

#[test]
fn truncated_shards_are_reported_by_name() {
    let bed = Bed::emulated();
    let path = saved(&bed);
    for gpus in counts(&bed) {
        let (checkpoint, devices) = (open(&bed, &path, RoutePolicy::PosixOnly), devices(&bed, gpus));
        let (shard, header) = checkpoint.files().last().unwrap();
        let file = fs::File::options().write(true).open(shard.path()).unwrap();
        let bytes = fs::read(shard.path()).unwrap();
        file.set_len(header.file_len_bytes() - 1).unwrap();
        for turn in 0..5 {
            let error =
                checkpoint.load().placed(&mixed(&MODEL, gpus, turn)).to_devices(&devices).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
            let name = shard.path().file_name().unwrap().to_str().unwrap();
            assert!(error.to_string().contains(name), "{error}");
        }
        fs::write(shard.path(), bytes).unwrap();
    }
}

#[test]
fn impossible_placements_are_refused_before_reading() {
    let bed = Bed::emulated();
    let path = saved(&bed);
    let checkpoint = open(&bed, &path, RoutePolicy::PosixOnly);
    let devices = devices(&bed, 2);
    let columns = |_: &TensorInfo<'_>| Share::Slice { axis: 1, cut: Cut::Chunks };
    let refused = |name: &str, share: Placement, devices: &[Device]| {
        let load = || checkpoint.load().only([name]).unwrap();
        let error = load().placed(&share).to_devices(devices).unwrap_err().to_string();
        let groups = load().placed(&share).groups(devices);
        assert_eq!(groups.unwrap_err().to_string(), error);
        error
    };
    let bits = r#"tensor "packed": bits 0 to 4 are not whole bytes"#;
    assert!(refused("packed", Placement::by(columns), &devices).ends_with(bits));
    let axis = refused("step", Placement::by(columns), &devices);
    assert!(axis.contains("cannot slice axis 1 of a tensor with 0 axes"), "{axis}");
    let gpu = refused("norm", Placement::by(|_| Share::On(2)), &devices);
    assert!(gpu.contains("GPU 2, because the list has 2 GPUs"), "{gpu}");
    assert!(refused("norm", Placement::balanced(), &[]).contains("has 0 GPUs"));
    assert_eq!(emulator(&bed).live("device-bytes"), 0);
    let nothing = checkpoint.load().only([""; 0]).unwrap();
    let empty = Placement::all();
    let loaded = nothing.placed(&empty).to_devices(&devices).unwrap();
    assert!(loaded.len() == 2 && loaded.iter().all(|placed| placed.iter().len() == 0));
}

fn save_shards(path: &Path, loaded: &[PlacedTensors]) -> Result<PathBuf, Box<Error>> {
    let whole = |on_gpu: &PlacedTensors| on_gpu.iter().filter_map(|part| part.to_save()).count();
    assert!(loaded.iter().all(|on_gpu| whole(on_gpu) == on_gpu.iter().len()));
    let of_gpus: Vec<Vec<TensorData<'_>>> =
        loaded.iter().map(|on_gpu| on_gpu.iter().filter_map(|part| part.to_save()).collect()).collect();
    let shards: Vec<&[TensorData<'_>]> = of_gpus.iter().map(Vec::as_slice).collect();
    let options = SaveOptions::new().sync(false).remove_old_model(true).files(&options_of(loaded));
    safetensors::save_shards(path, &shards, &options).map(|saved| saved.path).map_err(Box::new)
}

fn options_of(loaded: &[PlacedTensors]) -> OpenOptions {
    let cuda = loaded[0].buffer().device().cuda().clone();
    let engine = Engine::builder().cuda(cuda).threads(1).bounce_buffer_bytes(1 << 20).build();
    OpenOptions::new().engine(&engine).policy(RoutePolicy::PosixOnly)
}

fn assert_saved(path: &Path) {
    let contents = contents();
    let loaded = Checkpoint::open(path).unwrap().load().to_host().unwrap();
    assert_eq!(loaded.iter().len(), MODEL.len());
    for (name, dtype, shape) in MODEL {
        let info = loaded.tensor(name).unwrap().info;
        assert_eq!((info.dtype, info.shape), (dtype, shape));
        assert!(loaded.bytes(name) == Some(&contents[name]), "{name}");
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn each_gpu_saves_its_tensors_to_its_own_shard() {
    Bed::each(|bed| {
        let path = saved(bed);
        for gpus in counts(bed) {
            let (checkpoint, devices) = (open(bed, &path, RoutePolicy::PosixOnly), devices(bed, gpus));
            let placement = Placement::balanced();
            let loaded = checkpoint.load().placed(&placement).to_devices(&devices).unwrap();
            let folder = bed.path(&format!("saved-{gpus}"));
            fs::create_dir(&folder).unwrap();
            for _ in 0..2 {
                save_shards(&folder.join("model.safetensors"), &loaded).unwrap();
                assert_saved(&folder);
                let files = if gpus == 1 { 1 } else { gpus + 1 };
                assert_eq!(names_in(&folder).len(), files);
            }
            // A GPU without tensors has no file.
            let placement = Placement::by(move |_| Share::On(gpus - 1));
            let loaded = checkpoint.load().placed(&placement).to_devices(&devices).unwrap();
            save_shards(&folder.join("model.safetensors"), &loaded).unwrap();
            assert_saved(&folder);
            assert_eq!(names_in(&folder), ["model.safetensors"]);
        }
    });
}

#[test]
fn shards_are_written_at_once() {
    let bed = Bed::emulated();
    let path = saved(&bed);
    for gpus in counts(&bed) {
        let (checkpoint, devices) = (open(&bed, &path, RoutePolicy::PosixOnly), devices(&bed, gpus));
        let loaded = checkpoint.load().placed(&Placement::balanced()).to_devices(&devices).unwrap();
        thread::scope(|scope| {
            let held = emulator(&bed).hold("cudaMemcpyAsync", "times=all");
            let saving = scope.spawn(|| save_shards(&bed.path("at-once.safetensors"), &loaded));
            // Each GPU has one worker, so so many copies wait only if all GPUs copy.
            held.wait_for(gpus as i64);
            held.release();
            assert_saved(&saving.join().unwrap().unwrap());
        });
    }
}

#[test]
fn failed_saves_of_several_gpus_keep_the_old_model() {
    let bed = Bed::emulated();
    let path = saved(&bed);
    for gpus in counts(&bed) {
        let (checkpoint, devices) = (open(&bed, &path, RoutePolicy::PosixOnly), devices(&bed, gpus));
        let loaded = checkpoint.load().placed(&Placement::balanced()).to_devices(&devices).unwrap();
        let before = names_in(path.parent().unwrap());
        for after in [0, 1, 3] {
            emulator(&bed).fault("cudaMemcpyAsync", &format!("after={after} err=700 times=all"));
            let error = save_shards(&bed.path("model.safetensors"), &loaded).unwrap_err();
            emulator(&bed).control("clear");
            assert!(matches!(*error, Error::Save { .. }), "{error}");
            assert!(error.to_string().contains("cudaErrorIllegalAddress"), "{error}");
            assert_eq!(names_in(path.parent().unwrap()), before);
            assert_saved(&path);
        }
        let twice = [&loaded[0], &loaded[0]]
            .map(|on_gpu| on_gpu.iter().filter_map(|part| part.to_save()).collect::<Vec<_>>());
        let shards = [twice[0].as_slice(), twice[1].as_slice()];
        let options = SaveOptions::new().sync(false);
        let error = safetensors::save_shards(&path, &shards, &options).unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{error}");
        assert_eq!(names_in(path.parent().unwrap()), before);
    }
}
