//! Loads on the CPU and on CUDA.

mod support;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use candle_core::{DType, Storage, Tensor};
use candle_nn::var_builder::Shard;
use candle_nn::{Linear, Module, VarBuilder, linear};
use gpufile::formats::safetensors::{Checkpoint, TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile_candle::{Tensors, load, sharded_var_builder, var_builder};
use support::{CPU, computes, each_device};

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Saves a linear layer of two inputs and three outputs, and two numbers.
fn saved(folder: &tempfile::TempDir) -> PathBuf {
    let (weight, bias) = (bytes(&[1., 2., 3., 4., 5., 6.]), bytes(&[0.5, 0.25, 0.125]));
    let ids = [7_i64, -1].map(i64::to_le_bytes).concat();
    let tensors = [
        TensorData::new("layer.weight", Dtype::F32, &[3, 2], &weight),
        TensorData::new("layer.bias", Dtype::F32, &[3], &bias),
        TensorData::new("ids", Dtype::I64, &[2], &ids),
    ];
    let path = folder.path().join("model.safetensors");
    save(path, &tensors, &SaveOptions::new()).expect("a model").path
}

/// Returns all bits of a tensor that candle computes with, widened.
fn bits(tensor: &Tensor) -> Vec<u64> {
    let tensor = tensor.flatten_all().expect("elements");
    match tensor.dtype() {
        DType::U8 => tensor.to_vec1::<u8>().expect("bytes").into_iter().map(u64::from).collect(),
        DType::I16 => tensor.to_vec1::<i16>().expect("numbers").into_iter().map(|x| x as u64).collect(),
        DType::I32 => tensor.to_vec1::<i32>().expect("numbers").into_iter().map(|x| x as u64).collect(),
        DType::U32 => tensor.to_vec1::<u32>().expect("numbers").into_iter().map(u64::from).collect(),
        DType::I64 => tensor.to_vec1::<i64>().expect("numbers").into_iter().map(|x| x as u64).collect(),
        DType::BF16 => {
            tensor.to_vec1::<half::bf16>().expect("numbers").into_iter().map(|x| x.to_bits().into()).collect()
        }
        DType::F16 => {
            tensor.to_vec1::<half::f16>().expect("numbers").into_iter().map(|x| x.to_bits().into()).collect()
        }
        DType::F32 => {
            tensor.to_vec1::<f32>().expect("numbers").into_iter().map(|x| x.to_bits().into()).collect()
        }
        DType::F64 => tensor.to_vec1::<f64>().expect("numbers").into_iter().map(f64::to_bits).collect(),
        DType::F8E4M3 => tensor
            .to_vec1::<float8::F8E4M3>()
            .expect("numbers")
            .into_iter()
            .map(|x| x.to_bits().into())
            .collect(),
        other => panic!("candle does not compute with {other:?}"),
    }
}

/// Returns a layer whose tensors are on the CPU, where candle computes without kernels.
fn on_host(layer: &Linear) -> Linear {
    let moved = |tensor: &Tensor| tensor.to_device(&CPU).expect("a copy");
    Linear::new(moved(layer.weight()), layer.bias().map(moved))
}

/// Returns where the numbers of a tensor are.
fn address(tensor: &Tensor) -> u64 {
    match &*tensor.storage_and_layout().0 {
        Storage::Cpu(storage) => storage.as_slice::<f32>().expect("numbers").as_ptr().addr() as u64,
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => {
            use candle_core::cuda_backend::cudarc::driver::DevicePtr;
            let numbers = storage.as_cuda_slice::<f32>().expect("numbers");
            numbers.device_ptr(numbers.stream()).0
        }
        _ => unreachable!("no other device"),
    }
}

fn mapped(path: &Path) -> VarBuilder<'static> {
    // SAFETY: nothing changes the file.
    unsafe { VarBuilder::from_mmaped_safetensors(&[path], DType::F32, &CPU) }.expect("a model")
}

#[test]
fn layers_are_built_from_a_model() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let tensors = var_builder(&[saved(&folder)], DType::F32, device).expect("a model");
        assert!(tensors.contains_tensor("layer.bias") && !tensors.contains_tensor("layer"));
        let layer = on_host(&linear(2, 3, tensors.pp("layer")).expect("a layer"));
        let input = Tensor::new(&[[1_f32, 10.]], &CPU).expect("an input");
        let output = layer.forward(&input).expect("an output");
        assert_eq!(output.to_vec2::<f32>().expect("numbers"), [[21.5, 43.25, 65.125]]);

        let half = tensors.clone().set_dtype(DType::F16).get(3, "layer.bias");
        if computes(device) {
            assert_eq!(half.expect("a tensor").dtype(), DType::F16);
        } else {
            assert!(half.is_err());
        }
        let missing = tensors.get(3, "layer.none").expect_err("no such tensor");
        assert!(missing.to_string().contains("cannot find tensor layer.none"), "{missing}");
        let other = tensors.get(4, "layer.bias").expect_err("another shape");
        assert!(other.to_string().contains("layer.bias"), "{other}");
    });
}

#[test]
fn every_type_is_loaded_as_candle_loads_it() {
    each_device(|device| {
        let types = [
            Dtype::U8,
            Dtype::U16,
            Dtype::U32,
            Dtype::I16,
            Dtype::I32,
            Dtype::I64,
            Dtype::BF16,
            Dtype::F16,
            Dtype::F32,
            Dtype::F64,
            Dtype::F8E4M3,
            Dtype::F8E8M0,
        ];
        let contents: Vec<_> = (0..6 * 8_u8).map(|at| at.wrapping_mul(37) ^ 0x5a).collect();
        let tensors = types.map(|dtype| {
            TensorData::new(dtype.name(), dtype, &[2, 3], &contents[..6 * dtype.size_bits() as usize / 8])
        });
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        save(&path, &tensors, &SaveOptions::new()).expect("a model");
        let ours = load(&[&path], None, device).expect("tensors");
        let theirs = candle_core::safetensors::load(&path, &CPU).expect("tensors");
        assert_eq!(ours.len(), types.len());
        for dtype in types {
            let (ours, theirs) = (&ours[dtype.name()], &theirs[dtype.name()]);
            assert!(ours.device().same_device(device), "{dtype}");
            assert_eq!((ours.dtype(), ours.dims()), (theirs.dtype(), theirs.dims()));
            if dtype != Dtype::F8E8M0 {
                assert_eq!(bits(ours), bits(theirs), "{dtype}");
            }
        }
    });
}

#[test]
fn loads_convert_tensors_of_other_types() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = saved(&folder);
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            let all = load(&[&path], dtype, device);
            if !computes(device) {
                assert!(all.is_err());
                continue;
            }
            let all = all.expect("tensors");
            assert_eq!(all.len(), 3);
            for (name, tensor) in &all {
                let theirs = mapped(&path).get_unchecked_dtype(name, dtype).expect("a tensor");
                assert_eq!((tensor.dtype(), tensor.dims()), (dtype, theirs.dims()), "{name}");
                assert_eq!(bits(tensor), bits(&theirs), "{name}");
            }
        }
    });
}

#[test]
fn a_type_that_candle_lacks_fails_alone() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let (mask, number) = ([1_u8], bytes(&[2.]));
        let tensors = [
            TensorData::new("mask", Dtype::Bool, &[1], &mask[..]),
            TensorData::new("number", Dtype::F32, &[1], &number),
        ];
        save(&path, &tensors, &SaveOptions::new()).expect("a model");
        let error = load(&[&path], None, device).expect_err("a type that candle lacks");
        let error = error.to_string();
        assert!(error.contains("mask") && error.contains("candle has no type for BOOL"), "{error}");
        let tensors = var_builder(&[&path], DType::F32, device).expect("a model");
        assert_eq!(tensors.get(1, "number").expect("a tensor").to_vec1::<f32>().expect("numbers"), [2.]);
        assert!(tensors.get(1, "mask").is_err());
    });
}

#[test]
fn parts_along_each_axis_equal_narrowed_tensors() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let whole = Tensor::arange(0_f32, 4. * 6. * 10., &CPU)
            .and_then(|all| all.reshape((4, 6, 10)))
            .expect("numbers");
        gpufile_candle::save(&HashMap::from([("x.w", whole.clone())]), &path).expect("a model");
        let tensors = sharded_var_builder(&[&path], DType::F32, device).expect("a model");
        assert!(tensors.contains_tensor("x.w") && !tensors.contains_tensor("x"));
        for (dim, size) in [4, 6, 10].into_iter().enumerate() {
            for rank in 0..2 {
                let shard = Shard { dim, rank, world_size: 2 };
                let part = tensors.pp("x").get_with_hints((), "w", shard).expect("a part");
                let expected = whole.narrow(dim, rank * size / 2, size / 2).expect("a part");
                assert_eq!((part.dims(), bits(&part)), (expected.dims(), bits(&expected)), "{dim} {rank}");
            }
        }
        for shard in [(0, 0, 3), (3, 0, 2), (0, 2, 2), (0, 0, 0)] {
            let (dim, rank, world_size) = shard;
            let shard = Shard { dim, rank, world_size };
            assert!(tensors.get_with_hints((), "x.w", shard).is_err(), "{shard:?}");
        }
        assert!(tensors.get((4, 6, 11), "x.w").is_err() && tensors.get((4, 6, 10), "x.w").is_ok());
    });
}

#[test]
fn tensors_beyond_the_first_group_load_too() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        // The first group on CUDA has 64 MiB.
        let contents = [1_u8, 2, 3].map(|seed| {
            let period: Vec<_> =
                (0..1_000_003_u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8 ^ seed).collect();
            period.repeat(42)
        });
        let names = ["a", "b", "c"];
        let data = [0, 1, 2].map(|at| TensorData::new(names[at], Dtype::U8, &[42_000_126], &contents[at]));
        save(&path, &data, &SaveOptions::new()).expect("a model");
        let all = load(&[&path], None, device).expect("tensors");
        for (name, expected) in names.iter().zip(&contents) {
            assert!(all[*name].to_vec1::<u8>().expect("bytes") == *expected, "{name}");
        }
    });
}

#[test]
fn tensors_larger_than_the_memory_of_a_gpu_fail() {
    each_device(|device| {
        if device.is_cpu() {
            return; // Linux promises more memory than there is.
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, 1_u64 << 40);
        let start = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        std::fs::write(&path, &start).expect("a header");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.set_len(start.len() as u64 + (1 << 40)).expect("a hole");
        let error = load(&[&path], None, device).expect_err("no room");
        assert!(error.to_string().contains("tensor x of 1099511627776 bytes"), "{error}");
    });
}

#[test]
fn tensors_go_to_the_device_of_each_request() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = saved(&folder);
        // A request reads ahead on its own device.
        for names in [["layer.weight", "layer.bias"], ["layer.bias", "layer.weight"]] {
            let tensors = var_builder(&[&path], DType::F32, device).expect("a model");
            for (name, wanted) in [(names[0], device), (names[1], &CPU), (names[1], device), (names[0], &CPU)]
            {
                let tensor =
                    tensors.clone().set_device(wanted.clone()).get_unchecked(name).expect("a tensor");
                assert!(tensor.device().same_device(wanted), "{name}");
                assert_eq!(
                    bits(&tensor),
                    bits(&mapped(&path).get_unchecked(name).expect("a tensor")),
                    "{name}"
                );
            }
        }
    });
}

#[test]
fn slices_have_their_elements_or_fail() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let tensors = Tensors::open(&[saved(&folder)]).expect("a model");
        let column = tensors.slice("layer.weight", 1, 1..2, device).expect("a column");
        assert_eq!(column.to_vec2::<f32>().expect("numbers"), [[2.], [4.], [6.]]);
        assert_eq!(tensors.slice("layer.weight", 0, 2..2, device).expect("no row").dims(), [0, 2]);
        for (axis, range) in [(0, 2..4), (2, 0..1), (1, std::ops::Range { start: 2, end: 1 })] {
            assert!(tensors.slice("layer.weight", axis, range, device).is_err());
        }
    });
}

#[test]
fn tied_names_share_the_memory_of_one_tensor() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let weight = bytes(&[1., 2.]);
        // The framework in the metadata has the name of a tensor.
        let tensors = ["embed.weight", "pt"].map(|name| TensorData::new(name, Dtype::F32, &[2], &weight));
        let metadata = [("lm_head.weight", "embed.weight"), ("format", "pt")];
        save(&path, &tensors, &SaveOptions::new().metadata(metadata)).expect("a model");
        let tensors = var_builder(&[&path], DType::F32, device).expect("a model");
        assert!(tensors.contains_tensor("lm_head.weight"));
        let one = tensors.get(2, "embed.weight").expect("a tensor");
        let other = tensors.get(2, "lm_head.weight").expect("a tensor");
        assert_eq!(address(&one), address(&other));
        let all = load(&[&path], None, device).expect("tensors");
        assert_eq!(address(&all["embed.weight"]), address(&all["lm_head.weight"]));
        assert_eq!(
            all.keys().map(String::as_str).collect::<BTreeSet<_>>(),
            ["embed.weight", "lm_head.weight", "pt"].into()
        );
    });
}

#[test]
fn slices_have_whole_bytes_where_an_index_has_less() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let tensor = TensorData::new("w", Dtype::F4, &[4, 2], &[0x21, 0x43, 0x65, 0x07][..]);
        save(&path, &[tensor], &SaveOptions::new()).expect("a model");
        let tensors = Tensors::open(&[path]).expect("a model");
        assert_eq!(tensors.slice("w", 1, 0..2, device).expect("a slice").dims(), [4, 2]);
        assert!(tensors.slice("w", 1, 0..1, device).is_err());
    });
}

#[test]
fn a_tensor_can_be_asked_for_twice_and_from_threads() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let tensors = var_builder(&[saved(&folder)], DType::F32, device).expect("a model");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let bias = tensors.get(3, "layer.bias").expect("a tensor");
                        assert_eq!(bias.to_vec1::<f32>().expect("numbers"), [0.5, 0.25, 0.125]);
                        assert_eq!(tensors.get((3, 2), "layer.weight").expect("a tensor").dims(), [3, 2]);
                    }
                });
            }
        });
    });
}

#[test]
fn a_shortened_file_fails_without_a_signal() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = saved(&folder);
        let tensors = var_builder(&[&path], DType::F32, device).expect("a model");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.set_len(file.metadata().expect("its length").len() - 4).expect("a shorter file");
        let error = tensors.get((3, 2), "layer.weight").expect_err("a read beyond the end");
        assert!(error.to_string().contains("layer.weight"), "{error}");
        let error = load(&[&path], None, device).expect_err("a read beyond the end");
        assert!(error.to_string().contains("layer.weight"), "{error}");
        // The others are whole, though a request for one reads ahead.
        assert!(tensors.get_unchecked_dtype("ids", DType::I64).is_ok());
    });
}

#[test]
fn models_of_several_files_load_together() {
    each_device(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["a", "b", "c"];
        let paths = names.map(|name| folder.path().join(format!("model-{name}.safetensors")));
        for (number, (name, path)) in names.iter().zip(&paths).enumerate() {
            let tensor = Tensor::full(number as f32, number, &CPU).expect("numbers");
            gpufile_candle::save(&HashMap::from([(*name, tensor)]), path).expect("a model");
        }
        let all = load(&paths, None, device).expect("tensors");
        let lens: Vec<_> = names.iter().map(|name| all[*name].elem_count()).collect();
        assert_eq!(lens, [0, 1, 2]);
        let copy = folder.path().join("copy.safetensors");
        std::fs::copy(&paths[1], &copy).expect("a copy");
        let error = load(&[&paths[1], &copy], None, device).expect_err("two tensors of one name");
        assert!(error.to_string().contains(r#""b""#), "{error}");
        assert!(load::<PathBuf>(&[], None, device).expect("no tensors").is_empty());
    });
}

/// Names of files. The library's rule takes each folder as a model, or refuses it.
const FOLDERS: [&[&str]; 9] = [
    &["model"],
    &["model-00001-of-00002", "model-00002-of-00002"],
    &["model-00001-of-00002"],
    &["model-00000-of-00002", "model-00002-of-00002"],
    &["model-00001-of-00002", "model-001-of-002", "model-00002-of-00002"],
    &["model.fp16-00001-of-00002", "model-00001-of-00002.fp16", "model.fp16-00002-of-00002"],
    &["model", "model.fp16"],
    &["weights", "adapters"],
    &[],
];

#[test]
fn folders_are_the_models_that_the_library_finds() {
    for names in FOLDERS {
        let folder = tempfile::tempdir().expect("a folder");
        for name in names {
            let tensor = TensorData::new(name, Dtype::F32, &[1], [0_u8; 4].as_slice());
            let path = folder.path().join(format!("{name}.safetensors"));
            save(path, &[tensor], &SaveOptions::new()).expect("a file");
        }
        let wanted = Checkpoint::open(folder.path());
        match (wanted, Tensors::open(&[folder.path()])) {
            (Ok(wanted), Ok(found)) => {
                let mut wanted: Vec<_> = wanted.tensors().map(|tensor| tensor.name.to_owned()).collect();
                wanted.sort();
                let found = found.load(None, &CPU).expect("tensors");
                let found: Vec<_> = found.into_keys().collect::<BTreeSet<_>>().into_iter().collect();
                assert_eq!(found, wanted, "{names:?}");
            }
            (Err(wanted), Err(found)) => {
                assert!(found.to_string().contains(&wanted.to_string()), "{names:?}: {found} and {wanted}");
            }
            (wanted, found) => panic!("{names:?}: {wanted:?}, but found is {:?}", found.err()),
        }
    }
}
