//! Tests of models and arrays in files, loaded into GPU memory and saved from it.

use std::fs;
use std::path::{Path, PathBuf};

use cufile::{RegisterFlags, RegisteredBuffer};
use gpufile::cuda::DeviceBuffer;
use gpufile::formats::npy::{self, NpyFile};
use gpufile::formats::safetensors::{self, Checkpoint, Loaded, TensorData};
use gpufile::formats::{Dtype, Error, SaveOptions};
use gpufile::{Cause, Engine, IoBuf, OpenOptions, RoutePolicy};
use testkit::Emulator;
use testkit::bed::{Bed, libraries, pattern};

const POLICIES: [RoutePolicy; 2] = [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly];

/// The name, type and shape of each tensor. The last is larger than bounce buffers.
const MODEL: [(&str, Dtype, &[u64]); 6] = [
    ("norm", Dtype::F32, &[33]),
    ("packed", Dtype::F4, &[6, 2]),
    ("none", Dtype::F64, &[0, 4]),
    ("step", Dtype::I64, &[]),
    ("mask", Dtype::Bool, &[5]),
    ("embed", Dtype::BF16, &[2999, 2003]),
];

fn options(bed: &Bed, policy: RoutePolicy) -> OpenOptions {
    OpenOptions::new().engine(&Engine::builder().driver(bed.driver.clone()).build()).policy(policy)
}

/// Returns the bytes of each tensor, which differ from all others.
fn contents() -> Vec<Vec<u8>> {
    let one = |(number, (_, dtype, shape)): (usize, &(&str, Dtype, &[u64]))| {
        let bits = shape.iter().product::<u64>() * u64::from(dtype.size_bits());
        pattern(number * 64 + (bits / 8) as usize).split_off(number * 64)
    };
    MODEL.iter().enumerate().map(one).collect()
}

fn tensors<B: IoBuf>(buffers: &[B]) -> Vec<TensorData<'_>> {
    let both = MODEL.iter().zip(buffers);
    both.map(|((name, dtype, shape), buffer)| TensorData::new(name, *dtype, shape, buffer)).collect()
}

fn saved(bed: &Bed, name: &str) -> PathBuf {
    let path = bed.path(name);
    safetensors::save(&path, &tensors(&contents()), &SaveOptions::new()).unwrap();
    path
}

fn on_device(bed: &Bed, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = bed.device.alloc(bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

fn bytes(loaded: &Loaded<DeviceBuffer>, name: &str) -> Vec<u8> {
    let range = loaded.tensor(name).unwrap().range;
    let mut bytes = vec![0; range.len()];
    loaded.buffer().copy_to_host(range.start, &mut bytes).unwrap();
    bytes
}

fn assert_loaded(loaded: &Loaded<DeviceBuffer>) {
    assert_eq!(loaded.iter().len(), MODEL.len());
    for ((name, dtype, shape), expected) in MODEL.iter().zip(contents()) {
        assert!(bytes(loaded, name) == expected, "{name}");
        let tensor = loaded.tensor(name).unwrap();
        assert_eq!((tensor.info.dtype, tensor.info.shape), (*dtype, *shape));
        assert_eq!(tensor.bytes.as_ptr(), loaded.buffer().as_ptr().wrapping_add(tensor.range.start));
        let element = dtype.size_bits().div_ceil(8) as usize;
        let alignment = if expected.len() < 16 { element } else { 16 };
        assert_eq!(tensor.bytes.as_ptr().addr() % alignment, 0, "{name}");
        assert_eq!(tensor.bytes.len_bytes(), expected.len());
    }
}

#[test]
fn models_load_to_the_gpu_whole_or_by_tensor() {
    Bed::each(|bed| {
        let path = saved(bed, "model.safetensors");
        let contents = contents();
        for policy in POLICIES {
            let checkpoint = Checkpoint::open_with([&path], &options(bed, policy)).unwrap();
            assert_loaded(&checkpoint.load().to_device(&bed.device).unwrap());

            let mut steps = Vec::new();
            let load = checkpoint.load().progress(|progress| steps.push(progress.done_bytes));
            assert_loaded(&load.to_device(&bed.device).unwrap());
            assert_eq!(steps, [checkpoint.len_bytes()]);

            let some = checkpoint.load().only(["mask", "embed"]).unwrap();
            let some = some.to_device(&bed.device).unwrap();
            assert_eq!(some.iter().len(), 2);
            assert!(bytes(&some, "embed") == contents[5] && bytes(&some, "mask") == contents[4]);
            assert!(some.tensor("norm").is_none());

            let each = checkpoint.load().to_each(|info| bed.device.alloc(info.len_bytes() as usize)).unwrap();
            let names: Vec<_> = each.iter().map(|(info, _)| info.name).collect();
            assert!(checkpoint.tensors().map(|tensor| tensor.name).eq(names));
            for (info, buffer) in each {
                let number = MODEL.iter().position(|(name, ..)| *name == info.name).unwrap();
                assert!(buffer.to_vec().unwrap() == contents[number], "{}", info.name);
            }
        }
    });
}

#[test]
fn tensors_and_slices_are_read_into_gpu_buffers() {
    Bed::each(|bed| {
        let path = saved(bed, "model.safetensors");
        for policy in POLICIES {
            let checkpoint = Checkpoint::open_with([&path], &options(bed, policy)).unwrap();
            let mut norm = bed.device.alloc(132).unwrap();
            checkpoint.read_tensor_into("norm", &mut norm).unwrap();
            assert!(norm.to_vec().unwrap() == contents()[0]);
            let mut rows = bed.device.alloc(7 * 4006).unwrap();
            checkpoint.read_slice_into("embed", 0, 2000..2007, &mut rows).unwrap();
            assert!(rows.to_vec().unwrap() == contents()[5][2000 * 4006..2007 * 4006]);
            let mut columns = bed.device.alloc(2999 * 6).unwrap();
            checkpoint.read_slice_into("embed", 1, 1000..1003, &mut columns).unwrap();
            let expected: Vec<_> =
                contents()[5].chunks(4006).flat_map(|row| row[2000..2006].to_vec()).collect();
            assert!(columns.to_vec().unwrap() == expected);
            let error = checkpoint.read_slice_into("embed", 0, 0..8, &mut rows).unwrap_err();
            assert!(matches!(error, Error::BufferSize { .. }), "{error}");
        }
    });
}

#[test]
fn models_load_into_a_registered_buffer() {
    Bed::each(|bed| {
        let path = saved(bed, "model.safetensors");
        let checkpoint = Checkpoint::open_with([&path], &options(bed, RoutePolicy::RequireCufile)).unwrap();
        let memory = bed.device.alloc(checkpoint.load().len_bytes().unwrap()).unwrap();
        let mut buffer = RegisteredBuffer::register(&bed.driver, memory, RegisterFlags::empty()).unwrap();
        let loaded = checkpoint.load().to_buffer(&mut buffer).unwrap();
        let range = loaded.tensor("embed").unwrap().range;
        let memory = buffer.deregister().unwrap();
        assert!(memory.to_vec().unwrap()[range] == contents()[5]);
    });
}

/// Writes a file as no library does: only the first tensor is aligned to its elements.
fn misaligned(path: &Path) {
    let tensors = r#""a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
        "b":{"dtype":"F64","shape":[100000],"data_offsets":[3,800003]},
        "c":{"dtype":"BF16","shape":[1],"data_offsets":[800003,800005]},
        "d":{"dtype":"U64","shape":[],"data_offsets":[800005,800013]}"#;
    let json = format!("{{{tensors}}}");
    let file = [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &pattern(800_013)].concat();
    fs::write(path, file).unwrap();
}

#[test]
fn tensors_misaligned_in_the_file_are_aligned_on_gpus() {
    Bed::each(|bed| {
        let path = bed.path("odd.safetensors");
        misaligned(&path);
        for policy in POLICIES {
            let checkpoint = Checkpoint::open_with([&path], &options(bed, policy)).unwrap();
            let loaded = checkpoint.load().to_device(&bed.device).unwrap();
            for tensor in checkpoint.tensors() {
                let range = tensor.offsets.start as usize..tensor.offsets.end as usize;
                assert!(bytes(&loaded, tensor.name) == pattern(800_013)[range], "{}", tensor.name);
                let address = loaded.tensor(tensor.name).unwrap().bytes.as_ptr().addr();
                assert_eq!(address % (tensor.dtype.size_bits() / 8) as usize, 0, "{}", tensor.name);
            }
        }
    });
}

#[test]
fn sharded_models_round_trip_from_the_gpu() {
    Bed::each(|bed| {
        let buffers: Vec<_> = contents().iter().map(|bytes| on_device(bed, bytes)).collect();
        for policy in POLICIES {
            let path = bed.path(&format!("{policy:?}.safetensors"));
            let save = SaveOptions::new().files(&options(bed, policy));
            let tensors = tensors(&buffers);
            let index = safetensors::save(&path, &tensors, &save.shard_bytes(100)).unwrap().path;
            let checkpoint = Checkpoint::open_with([&index], &options(bed, policy)).unwrap();
            // The empty tensor and the next one fit beside another.
            assert_eq!(checkpoint.files().len(), 3);
            let loaded = checkpoint.load().to_device(&bed.device).unwrap();
            assert_loaded(&loaded);
            for (_, header) in checkpoint.files() {
                let first = header.tensors().find(|tensor| tensor.len_bytes() > 0).unwrap();
                assert_eq!(loaded.tensor(first.name).unwrap().bytes.as_ptr().addr() % 256, 0);
            }
        }
    });
}

#[test]
fn saves_from_gpu_and_host_are_equal() {
    Bed::each(|bed| {
        let host = saved(bed, "host.safetensors");
        let buffers: Vec<_> = contents().iter().map(|bytes| on_device(bed, bytes)).collect();
        for policy in POLICIES {
            let path = bed.path(&format!("{policy:?}.safetensors"));
            fs::write(&path, "old").unwrap();
            let save = SaveOptions::new().files(&options(bed, policy));
            safetensors::save(&path, &tensors(&buffers), &save).unwrap();
            assert!(fs::read(&path).unwrap() == fs::read(&host).unwrap());

            // These tensors lie side by side in one buffer.
            let checkpoint = Checkpoint::open_with([&path], &options(bed, policy)).unwrap();
            let loaded = checkpoint.load().to_device(&bed.device).unwrap();
            let again: Vec<TensorData<'_>> = loaded.iter().map(Into::into).collect();
            safetensors::save(&path, &again, &save).unwrap();
            assert!(fs::read(&path).unwrap() == fs::read(&host).unwrap());
        }
    });
}

#[test]
fn arrays_round_trip_from_the_gpu() {
    Bed::each(|bed| {
        let expected = pattern(3001 * 1000 * 4);
        let buffer = on_device(bed, &expected);
        for policy in POLICIES {
            let path = bed.path(&format!("{policy:?}.npy"));
            let save = SaveOptions::new().files(&options(bed, policy));
            npy::write(&path, "<f4", &[3001, 1000], &buffer, &save).unwrap();
            let array = NpyFile::open_with(&path, &options(bed, policy)).unwrap();
            assert!(array.read_to_device(&bed.device).unwrap().to_vec().unwrap() == expected);
            let mut rows = bed.device.alloc(8000).unwrap();
            array.read_rows_into(2999..3001, &mut rows).unwrap();
            assert!(rows.to_vec().unwrap() == expected[2999 * 4000..]);
            assert!(array.read_to_host().unwrap() == expected);
        }
    });
}

#[test]
fn gpu_out_of_memory_error_names_the_needed_bytes() {
    let bed = Bed::emulated();
    let path = saved(&bed, "model.safetensors");
    let checkpoint = Checkpoint::open_with([&path], &options(&bed, RoutePolicy::PosixOnly)).unwrap();
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.control("fault cudaMalloc err=2");
    let error = checkpoint.load().to_device(&bed.device).unwrap_err();
    let Error::Memory { path: named, len_bytes, cause, .. } = &error else { panic!("{error}") };
    assert_eq!(*named, path);
    assert_eq!(*len_bytes, checkpoint.load().len_bytes().unwrap() as u64);
    assert!(matches!(cause, Cause::Cufile(_)), "{cause}");
    emulator.control("fault cudaMalloc after=3 err=2");
    let error = checkpoint.load().to_each(|info| bed.device.alloc(info.len_bytes() as usize)).unwrap_err();
    assert!(matches!(&error, Error::Buffer { tensor, .. } if tensor == "packed"), "{error}");
}

#[test]
fn failed_saves_from_the_gpu_keep_the_old_file() {
    for (policy, fault) in [
        (RoutePolicy::RequireCufile, "fault cuFileHandleRegister err=5027"),
        (RoutePolicy::RequireCufile, "fault cuFileWrite ret=-1 errno=28 times=all"),
        // A copy that fails alone is repeated, as a copy of each range.
        (RoutePolicy::PosixOnly, "fault cudaMemcpyAsync after=1 err=700 times=all"),
    ] {
        let bed = Bed::emulated();
        let path = bed.path("model.safetensors");
        fs::write(&path, "old").unwrap();
        let buffers: Vec<_> = contents().iter().map(|bytes| on_device(&bed, bytes)).collect();
        bed.emulator.as_ref().unwrap().control(fault);
        let save = SaveOptions::new().files(&options(&bed, policy));
        let error = safetensors::save(&path, &tensors(&buffers), &save).unwrap_err();
        assert!(matches!(&error, Error::Save { path: named, .. } if *named == path), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "{policy:?}");
    }
}

#[test]
fn failed_loads_leave_nothing_on_the_gpu() {
    for (policy, fault) in [
        (RoutePolicy::RequireCufile, "fault cuFileRead ret=-1 errno=5 times=all"),
        (RoutePolicy::PosixOnly, "fault cudaMemcpyAsync after=1 err=700"),
    ] {
        let emulator = Emulator::start();
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("model.safetensors");
        safetensors::save(&path, &tensors(&contents()), &SaveOptions::new()).unwrap();
        {
            let (library, cuda) = libraries(&emulator);
            let driver = cufile::Driver::builder().library(library).cuda(cuda).open().unwrap();
            let device = driver.cuda().device(0).unwrap();
            let engine = Engine::builder().driver(driver).build();
            let options = OpenOptions::new().engine(&engine).policy(policy);
            let checkpoint = Checkpoint::open_with([&path], &options).unwrap();
            emulator.control(fault);
            let error = checkpoint.load().to_device(&device).unwrap_err();
            let Error::File(error) = error else { panic!("{error}") };
            assert!(error.to_string().contains("model.safetensors"), "{error}");
            assert!(
                checkpoint.load().to_each(|info| device.alloc(info.len_bytes() as usize)).is_ok()
                    == (policy == RoutePolicy::PosixOnly)
            );
        }
        for what in ["allocations", "handles", "streams", "events", "use-count"] {
            assert_eq!(emulator.live(what), 0, "{what}");
        }
    }
}
