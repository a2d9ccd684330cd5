//! Times loads of a model by this crate and by candle, and compares the tensors bit by bit.
//!
//! `speed [--device cuda] [--mib 4096] [MODEL]`. Without MODEL, it makes a model of that size in /dev/shm. First loads are
//! those of fresh processes.

mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use gpufile_candle::Tensors;

struct Model {
    path: PathBuf,
    names: Vec<String>,
    bytes: u64,
}

impl support::Loads for Model {
    const ENDING: &'static str = "safetensors";
    const LOADERS: &'static [&'static str] =
        &["gpufile_candle::load", "gpufile_candle::var_builder", "candle's mapping"];
    type Tensors = Vec<Tensor>;

    /// Makes a model with the shapes of a language model, in which no two elements nearby are equal.
    fn make(path: &Path, mib: usize) -> Result<()> {
        let (mut tensors, mut room) = (HashMap::new(), mib << 20);
        let mut add = |name: String, shape: &[usize]| -> Result<bool> {
            let len = shape.iter().product::<usize>();
            if 2 * len > room {
                return Ok(false);
            }
            room -= 2 * len;
            let salt = room as u32;
            let bits = (0..len as u32).map(|at| (at ^ salt).wrapping_mul(0x9e37_79b1) >> 16);
            let elements: Vec<_> = bits.map(|bits| half::bf16::from_bits(bits as u16)).collect();
            tensors.insert(name, Tensor::from_vec(elements, shape, &Device::Cpu)?);
            Ok(true)
        };
        let mut layer = 0;
        while add(format!("layers.{layer}.mlp.down_proj.weight"), &[2048, 8192])? {
            add(format!("layers.{layer}.self_attn.q_proj.weight"), &[2048, 2048])?;
            add(format!("layers.{layer}.self_attn.k_proj.weight"), &[512, 2048])?;
            add(format!("layers.{layer}.input_layernorm.weight"), &[2048])?;
            layer += 1;
        }
        while add(format!("rest.{layer}"), &[1 << 19])? {
            layer += 1;
        }
        gpufile_candle::save(&tensors, path)
    }

    fn open(path: &Path) -> Result<Self> {
        let tensors = Tensors::open(&[path])?;
        let names = tensors.checkpoint().tensors().map(|info| info.name.to_owned()).collect();
        Ok(Self { path: path.to_owned(), names, bytes: tensors.checkpoint().len_bytes() })
    }

    fn size(&self) -> (u64, usize) {
        (self.bytes, self.names.len())
    }

    fn load(&self, loader: usize, device: &Device) -> Result<Vec<Tensor>> {
        let paths = [&self.path];
        let builder = match loader {
            0 => {
                let mut all = gpufile_candle::load(&paths, None, device)?;
                return Ok(self.names.iter().map(|name| all.remove(name).expect("loaded")).collect());
            }
            1 => gpufile_candle::var_builder(&paths, DType::BF16, device)?,
            // SAFETY: this program is alone with the file.
            _ => unsafe { VarBuilder::from_mmaped_safetensors(&paths, DType::BF16, device)? },
        };
        self.names.iter().map(|name| builder.get_unchecked(name)).collect()
    }

    fn compare(&self, device: &Device) -> Result<()> {
        let reference = self.load(2, &Device::Cpu)?;
        for loader in [0, 1] {
            let tensors = self.load(loader, device)?;
            for (name, (ours, theirs)) in self.names.iter().zip(tensors.iter().zip(&reference)) {
                let bits = |tensor: &Tensor| -> Result<Vec<u16>> {
                    let elements = tensor.flatten_all()?.to_device(&Device::Cpu)?.to_vec1::<half::bf16>()?;
                    Ok(elements.into_iter().map(half::bf16::to_bits).collect())
                };
                assert!(ours.dims() == theirs.dims() && bits(ours)? == bits(theirs)?, "{name} differs");
            }
            println!("{}: all bits equal to candle's", Self::LOADERS[loader]);
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    support::main::<Model>()
}
