//! Loads on the CPU.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_nn::var_builder::Shard;
use candle_nn::{Module, VarBuilder, linear};
use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile_candle::{Tensors, load, sharded_var_builder, var_builder};

const CPU: Device = Device::Cpu;

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

fn mapped(path: &Path) -> VarBuilder<'static> {
    // SAFETY: nothing changes the file.
    unsafe { VarBuilder::from_mmaped_safetensors(&[path], DType::F32, &CPU) }.expect("a model")
}

#[test]
fn layers_are_built_from_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = var_builder(&[saved(&folder)], DType::F32, &CPU).expect("a model");
    assert!(tensors.contains_tensor("layer.bias") && !tensors.contains_tensor("layer"));
    let layer = linear(2, 3, tensors.pp("layer")).expect("a layer");
    let input = Tensor::new(&[[1_f32, 10.]], &CPU).expect("an input");
    let output = layer.forward(&input).expect("an output");
    assert_eq!(output.to_vec2::<f32>().expect("numbers"), [[21.5, 43.25, 65.125]]);

    let half = tensors.clone().set_dtype(DType::F16);
    assert_eq!(half.get(3, "layer.bias").expect("a tensor").dtype(), DType::F16);
    let missing = tensors.get(3, "layer.none").expect_err("no such tensor");
    assert!(missing.to_string().contains("cannot find tensor layer.none"), "{missing}");
    let other = tensors.get(4, "layer.bias").expect_err("another shape");
    assert!(other.to_string().contains("layer.bias"), "{other}");
}

#[test]
fn every_type_is_loaded_as_candle_loads_it() {
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
    let ours = load(&[&path], None, &CPU).expect("tensors");
    let theirs = candle_core::safetensors::load(&path, &CPU).expect("tensors");
    assert_eq!(ours.len(), types.len());
    for dtype in types {
        let (ours, theirs) = (&ours[dtype.name()], &theirs[dtype.name()]);
        assert_eq!((ours.dtype(), ours.dims()), (theirs.dtype(), theirs.dims()));
        if dtype != Dtype::F8E8M0 {
            assert_eq!(bits(ours), bits(theirs), "{dtype}");
        }
    }
}

#[test]
fn loads_convert_tensors_of_other_types() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder);
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let all = load(&[&path], dtype, &CPU).expect("tensors");
        assert_eq!(all.len(), 3);
        for (name, tensor) in &all {
            let theirs = mapped(&path).get_unchecked_dtype(name, dtype).expect("a tensor");
            assert_eq!((tensor.dtype(), tensor.dims()), (dtype, theirs.dims()), "{name}");
            assert_eq!(bits(tensor), bits(&theirs), "{name}");
        }
    }
}

#[test]
fn a_type_that_candle_lacks_fails_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let (mask, number) = ([1_u8], bytes(&[2.]));
    let tensors = [
        TensorData::new("mask", Dtype::Bool, &[1], &mask[..]),
        TensorData::new("number", Dtype::F32, &[1], &number),
    ];
    save(&path, &tensors, &SaveOptions::new()).expect("a model");
    let error = load(&[&path], None, &CPU).expect_err("a type that candle lacks");
    assert!(error.to_string().contains("candle has no type for BOOL"), "{error}");
    let tensors = var_builder(&[&path], DType::F32, &CPU).expect("a model");
    assert_eq!(tensors.get(1, "number").expect("a tensor").to_vec1::<f32>().expect("numbers"), [2.]);
    assert!(tensors.get(1, "mask").is_err());
}

#[test]
fn parts_along_each_axis_equal_narrowed_tensors() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let whole =
        Tensor::arange(0_f32, 4. * 6. * 10., &CPU).and_then(|all| all.reshape((4, 6, 10))).expect("numbers");
    gpufile_candle::save(&HashMap::from([("x.w", whole.clone())]), &path).expect("a model");
    let tensors = sharded_var_builder(&[&path], DType::F32, &CPU).expect("a model");
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
}

#[test]
fn slices_have_their_elements_or_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = Tensors::open(&[saved(&folder)]).expect("a model");
    let column = tensors.slice("layer.weight", 1, 1..2, &CPU).expect("a column");
    assert_eq!(column.to_vec2::<f32>().expect("numbers"), [[2.], [4.], [6.]]);
    assert_eq!(tensors.slice("layer.weight", 0, 2..2, &CPU).expect("no row").dims(), [0, 2]);
    for (axis, range) in [(0, 2..4), (2, 0..1), (1, std::ops::Range { start: 2, end: 1 })] {
        assert!(tensors.slice("layer.weight", axis, range, &CPU).is_err());
    }
}

#[test]
fn tied_names_share_the_memory_of_one_tensor() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let weight = bytes(&[1., 2.]);
    let tensors = [TensorData::new("embed.weight", Dtype::F32, &[2], &weight)];
    let metadata = [("lm_head.weight", "embed.weight"), ("format", "pt")];
    save(&path, &tensors, &SaveOptions::new().metadata(metadata)).expect("a model");
    let tensors = var_builder(&[&path], DType::F32, &CPU).expect("a model");
    assert!(tensors.contains_tensor("lm_head.weight") && !tensors.contains_tensor("format"));
    let one = tensors.get(2, "embed.weight").expect("a tensor");
    let other = tensors.get(2, "lm_head.weight").expect("a tensor");
    let address = |tensor: &Tensor| match &*tensor.storage_and_layout().0 {
        candle_core::Storage::Cpu(storage) => storage.as_slice::<f32>().expect("numbers").as_ptr(),
        _ => unreachable!("on the CPU"),
    };
    assert_eq!(address(&one), address(&other));
    let all = load(&[&path], None, &CPU).expect("tensors");
    assert_eq!(address(&all["embed.weight"]), address(&all["lm_head.weight"]));
    assert_eq!(all.len(), 2);
}

#[test]
fn a_tensor_can_be_asked_for_twice_and_from_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = var_builder(&[saved(&folder)], DType::F32, &CPU).expect("a model");
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
}

#[test]
fn a_shortened_file_fails_without_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = saved(&folder);
    let tensors = var_builder(&[&path], DType::F32, &CPU).expect("a model");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.set_len(file.metadata().expect("its length").len() - 4).expect("a shorter file");
    let error = tensors.get((3, 2), "layer.weight").expect_err("a read beyond the end");
    assert!(error.to_string().contains("layer.weight"), "{error}");
    // The others are whole, though a request for one reads ahead.
    assert!(tensors.get(2, "ids").is_ok());
}

#[test]
fn models_of_several_files_load_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["a", "b", "c"];
    let paths = names.map(|name| folder.path().join(format!("model-{name}.safetensors")));
    for (number, (name, path)) in names.iter().zip(&paths).enumerate() {
        let tensor = Tensor::full(number as f32, number, &CPU).expect("numbers");
        gpufile_candle::save(&HashMap::from([(*name, tensor)]), path).expect("a model");
    }
    let all = load(&paths, None, &CPU).expect("tensors");
    let lens: Vec<_> = names.iter().map(|name| all[*name].elem_count()).collect();
    assert_eq!(lens, [0, 1, 2]);
    let copy = folder.path().join("copy.safetensors");
    std::fs::copy(&paths[1], &copy).expect("a copy");
    let error = load(&[&paths[1], &copy], None, &CPU).expect_err("two tensors of one name");
    assert!(error.to_string().contains(r#""b""#), "{error}");
    assert!(load::<PathBuf>(&[], None, &CPU).expect("no tensors").is_empty());
}
