//! Tests of GGUF models, loaded into the memory of GPUs and saved from it.

use std::fs;
use std::path::{Path, PathBuf};

use gpufile::cuda::DeviceBuffer;
use gpufile::formats::gguf::{self, GgmlType, Loaded, Metadata, Model, TensorData};
use gpufile::formats::{Error, SaveOptions};
use gpufile::{Engine, IoBuf, OpenOptions, RoutePolicy};
use testkit::Emulator;
use testkit::bed::{Bed, pattern};

const POLICIES: [RoutePolicy; 2] = [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly];

/// The name, type and shape of each tensor. The last is larger than bounce buffers.
const MODEL: [(&str, GgmlType, &[u64]); 5] = [
    ("norm", GgmlType::F32, &[33]),
    ("none", GgmlType::F64, &[0, 4]),
    ("step", GgmlType::I64, &[]),
    ("down", GgmlType::IQ4XS, &[3, 768]),
    ("embed", GgmlType::Q6K, &[2999, 5120]),
];

fn options(bed: &Bed, policy: RoutePolicy) -> OpenOptions {
    OpenOptions::new().engine(&Engine::builder().driver(bed.driver.clone()).build()).policy(policy)
}

/// Returns the bytes of each tensor, which differ from all others.
fn contents() -> Vec<Vec<u8>> {
    let one = |(number, (_, ggml_type, shape)): (usize, &(&str, GgmlType, &[u64]))| {
        let elements = shape.iter().product::<u64>();
        let bytes = (elements / ggml_type.block_elements() * ggml_type.block_bytes()) as usize;
        pattern(number * 64 + bytes).split_off(number * 64)
    };
    MODEL.iter().enumerate().map(one).collect()
}

fn tensors<B: IoBuf>(buffers: &[B]) -> Vec<TensorData<'_>> {
    let both = MODEL.iter().zip(buffers);
    both.map(|((name, ggml_type, shape), buffer)| TensorData::new(name, *ggml_type, shape, buffer)).collect()
}

fn metadata() -> Metadata {
    Metadata::from_iter([("general.architecture", "llama")])
}

fn saved(bed: &Bed, name: &str) -> PathBuf {
    let path = bed.path(name);
    gguf::save(&path, &metadata(), &tensors(&contents()), &SaveOptions::new()).unwrap();
    path
}

fn bytes(loaded: &Loaded<DeviceBuffer>, name: &str) -> Vec<u8> {
    let range = loaded.tensor(name).unwrap().range;
    let mut bytes = vec![0; range.len()];
    loaded.buffer().copy_to_host(range.start, &mut bytes).unwrap();
    bytes
}

fn assert_loaded(loaded: &Loaded<DeviceBuffer>) {
    assert_eq!(loaded.iter().len(), MODEL.len());
    for ((name, ggml_type, shape), expected) in MODEL.iter().zip(contents()) {
        assert!(bytes(loaded, name) == expected, "{name}");
        let tensor = loaded.tensor(name).unwrap();
        assert_eq!((tensor.info.ggml_type, tensor.info.shape), (*ggml_type, *shape));
        assert_eq!(tensor.bytes.as_ptr().addr() % if expected.is_empty() { 1 } else { 32 }, 0, "{name}");
    }
}

#[test]
fn models_load_to_the_gpu_whole_or_by_tensor() {
    Bed::each(|bed| {
        let path = saved(bed, "model.gguf");
        let contents = contents();
        for policy in POLICIES {
            let model = Model::open_with(&path, &options(bed, policy)).unwrap();
            assert_loaded(&model.load().to_device(&bed.device).unwrap());

            let mut steps = Vec::new();
            let load =
                model.load().progress(|progress| steps.push((progress.done_bytes, progress.total_bytes)));
            assert_loaded(&load.to_device(&bed.device).unwrap());
            let [(done, total)] = steps[..] else { panic!("{steps:?}") };
            assert!(done == total && (model.len_bytes()..model.len_bytes() + 96).contains(&total), "{total}");

            let some = model.load().only(["embed", "norm"]).unwrap().to_device(&bed.device).unwrap();
            assert!(bytes(&some, "embed") == contents[4] && bytes(&some, "norm") == contents[0]);
            assert!(some.tensor("down").is_none());

            let each = model.load().to_each(|info| bed.device.alloc(info.len_bytes() as usize)).unwrap();
            for ((info, buffer), expected) in each.iter().zip(&contents) {
                assert!(buffer.to_vec().unwrap() == *expected, "{}", info.name);
            }

            let mut rows = bed.device.alloc(7 * 20 * 210).unwrap();
            model.read_rows_into("embed", 2990..2997, &mut rows).unwrap();
            let end = contents[4].len() - 2 * 20 * 210;
            assert!(rows.to_vec().unwrap() == contents[4][end - 7 * 20 * 210..end]);
            let error = model.read_rows_into("embed", 0..1, &mut rows).unwrap_err();
            assert!(matches!(error, Error::BufferSize { needed_bytes: 4200, .. }), "{error}");
        }
    });
}

#[test]
fn models_saved_from_the_gpu_equal_those_of_the_host() {
    Bed::each(|bed| {
        let path = saved(bed, "host.gguf");
        for policy in POLICIES {
            let options = options(bed, policy);
            let model = Model::open_with(&path, &options).unwrap();
            let loaded = model.load().to_device(&bed.device).unwrap();
            let tensors: Vec<_> = loaded.iter().map(TensorData::from).collect();
            let copy = bed.path("gpu.gguf");
            gguf::save(&copy, model.metadata(), &tensors, &SaveOptions::new().files(&options)).unwrap();
            assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap());
        }
    });
}

#[test]
fn tensors_are_spread_over_gpus_in_one_call() {
    let emulator = Emulator::start();
    emulator.control("gpus 2");
    let bed = Bed::on(emulator);
    let path = saved(&bed, "model.gguf");
    let model = Model::open_with(&path, &options(&bed, RoutePolicy::PosixOnly)).unwrap();
    let devices = [0, 1].map(|gpu| bed.driver.cuda().device(gpu).unwrap());
    let mut next = 0;
    let each = model.load().to_each(|info| {
        next += 1;
        devices[next % 2].alloc(info.len_bytes() as usize)
    });
    let each = each.unwrap();
    let gpus: Vec<_> = each.iter().map(|(_, buffer)| buffer.device().ordinal()).collect();
    assert_eq!(gpus, [1, 0, 1, 0, 1]);
    for ((info, buffer), expected) in each.iter().zip(contents()) {
        assert!(buffer.to_vec().unwrap() == expected, "{}", info.name);
    }
}

#[test]
fn shortened_files_name_the_tensor() {
    Bed::each(|bed| {
        let path = saved(bed, "short.gguf");
        let model = Model::open_with(&path, &options(bed, RoutePolicy::PosixOnly)).unwrap();
        shorten(&path);
        let failed = |error: Error| match error {
            Error::Tensor { tensor, .. } => assert_eq!(tensor, "embed"),
            other => panic!("{other}"),
        };
        let mut embed = bed.device.alloc(contents()[4].len()).unwrap();
        failed(model.read_tensor_into("embed", &mut embed).unwrap_err());
        let alloc = |info: &gguf::TensorInfo<'_>| bed.device.alloc(info.len_bytes() as usize);
        failed(model.load().to_each(alloc).unwrap_err());
        assert!(model.load().to_device(&bed.device).is_err());
        let error = Model::open(&path).unwrap_err();
        assert!(error.to_string().contains(r#"tensor "embed": it ends at byte"#), "{error}");
    });
}

fn shorten(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
}
