//! Reads into pinned memory, on the emulator that the environment names, or on a GPU.

use burn_store::ModuleStore;
use gpufile::Engine;
use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile_burn::GpufileStore;

#[test]
fn pinned_bytes_equal_those_of_the_file() {
    let Ok(cuda) = Engine::global().cuda() else {
        assert!(std::env::var_os("CUDA_LIBRARY").is_none(), "no CUDA, though the environment names it");
        return;
    };
    let device = cuda.device(0).expect("a GPU");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let bytes: Vec<_> = (0..100_003_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
    let tensors = [
        TensorData::new("bytes", Dtype::U8, &[100_003], &bytes),
        TensorData::new("none", Dtype::U8, &[0, 2], &bytes[..0]),
    ];
    save(&path, &tensors, &SaveOptions::new()).expect("a model");
    let mut store = GpufileStore::open(&path).expect("a model").pinned(&device);
    for (name, expected) in [("none", &bytes[..0]), ("bytes", &bytes[..])] {
        let mut read =
            store.get_tensor(name).expect("tensors").expect("a tensor").to_bytes().expect("its bytes");
        assert_eq!(read.property(), burn_std::AllocationProperty::Pinned);
        assert!(&read[..] == expected, "{name}");
        read.iter_mut().for_each(|byte| *byte = !*byte);
        assert!(read.iter().zip(expected).all(|(byte, old)| *byte == !*old), "{name}");
    }
}
