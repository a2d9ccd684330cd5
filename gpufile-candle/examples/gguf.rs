//! Times loads of a GGUF model by this crate and by candle, and compares the blocks byte by byte.
//!
//! `gguf [--device cuda] [--mib 4096] [MODEL]`. Without MODEL, it makes a model of that size in /dev/shm. First loads are
//! those of fresh processes.

mod support;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Error, Result};
use gpufile::formats::SaveOptions;
use gpufile::formats::gguf::{self, GgmlType, Metadata, TensorData};

struct Model {
    path: PathBuf,
    bytes: u64,
    count: usize,
}

impl support::Loads for Model {
    const ENDING: &'static str = "gguf";
    const LOADERS: &'static [&'static str] = &["gpufile_candle::gguf::load", "candle's gguf_file"];
    type Tensors = HashMap<String, QTensor>;

    /// Makes a model with the shapes of a language model in Q4_K_M, in which no two blocks nearby are equal.
    fn make(path: &Path, mib: usize) -> Result<()> {
        let layer: [(&str, GgmlType, &[u64]); 5] = [
            ("ffn_down", GgmlType::Q6K, &[2048, 8192]),
            ("ffn_up", GgmlType::Q4K, &[8192, 2048]),
            ("attn_q", GgmlType::Q4K, &[2048, 2048]),
            ("attn_v", GgmlType::Q8_0, &[512, 2048]),
            ("attn_norm", GgmlType::F32, &[2048]),
        ];
        let (mut contents, mut room) = (Vec::new(), (mib as u64) << 20);
        'full: for number in 0.. {
            for (name, ggml_type, shape) in layer {
                let blocks = shape.iter().product::<u64>() / ggml_type.block_elements();
                let len_bytes = blocks * ggml_type.block_bytes();
                let Some(rest) = room.checked_sub(len_bytes) else { break 'full };
                room = rest;
                let at = |at: u64| ((at ^ rest).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
                contents.push((
                    format!("blk.{number}.{name}.weight"),
                    ggml_type,
                    shape,
                    (0..len_bytes).map(at).collect(),
                ));
            }
        }
        let tensors: Vec<_> = contents
            .iter()
            .map(|(name, ggml_type, shape, bytes): &(_, _, _, Vec<u8>)| {
                TensorData::new(name, *ggml_type, shape, bytes)
            })
            .collect();
        gguf::save(path, &Metadata::new(), &tensors, &SaveOptions::new()).map_err(Error::wrap)?;
        Ok(())
    }

    fn open(path: &Path) -> Result<Self> {
        let model = gguf::Model::open(path).map_err(Error::wrap)?;
        Ok(Self { path: path.to_owned(), bytes: model.len_bytes(), count: model.tensors().len() })
    }

    fn size(&self) -> (u64, usize) {
        (self.bytes, self.count)
    }

    fn load(&self, loader: usize, device: &Device) -> Result<HashMap<String, QTensor>> {
        if loader == 0 {
            return gpufile_candle::gguf::load(&self.path, device);
        }
        let mut file = File::open(&self.path)?;
        let content = Content::read(&mut file)?;
        let names = content.tensor_infos.keys();
        names.map(|name| Ok((name.clone(), content.tensor(&mut file, name, device)?))).collect()
    }

    fn compare(&self, device: &Device) -> Result<()> {
        let (ours, theirs) = (self.load(0, device)?, self.load(1, &Device::Cpu)?);
        assert_eq!(ours.len(), theirs.len());
        for (name, theirs) in &theirs {
            let ours = &ours[name];
            let is_same = (ours.dtype(), ours.shape()) == (theirs.dtype(), theirs.shape());
            assert!(is_same && ours.data()? == theirs.data()?, "{name} differs");
        }
        println!("{}: all blocks equal to candle's", Self::LOADERS[0]);
        Ok(())
    }
}

fn main() -> Result<()> {
    support::main::<Model>()
}
