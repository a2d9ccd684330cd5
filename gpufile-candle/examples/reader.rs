//! Times the reads of a quantised model in the order of candle's `from_gguf`: by `gguf::Reader`, and by the readers of the
//! standard library. Compares the blocks byte by byte. `gguf::load` shows what candle's copy of each tensor costs.
//!
//! `reader [--device cuda] [--mib 4096] [--cold] [MODEL]`. Without MODEL, it makes a model of that size in /dev/shm, with a
//! vocabulary of at most 150,000 words. `--cold` empties the page cache before each load, for a MODEL on a disk.

mod support;

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Error, Result};
use gpufile::formats::SaveOptions;
use gpufile::formats::gguf::{self, Array, GgmlType, Metadata, TensorData, Value};
use gpufile_candle::gguf::Reader;

/// The words of the vocabulary, for each MiB and at most.
const WORDS: (u64, u64) = (300, 150_000);
const WIDTH: u64 = 896;
/// The tensors of a layer, in the order of `from_gguf`, which is not that of the file.
const LAYER: [(&str, GgmlType, &[u64]); 9] = [
    ("attn_q", GgmlType::Q8_0, &[WIDTH, WIDTH]),
    ("attn_k", GgmlType::Q8_0, &[128, WIDTH]),
    ("attn_v", GgmlType::Q8_0, &[128, WIDTH]),
    ("attn_output", GgmlType::Q8_0, &[WIDTH, WIDTH]),
    ("ffn_gate", GgmlType::Q8_0, &[4864, WIDTH]),
    ("ffn_down", GgmlType::Q8_0, &[WIDTH, 4864]),
    ("ffn_up", GgmlType::Q8_0, &[4864, WIDTH]),
    ("attn_norm", GgmlType::F32, &[WIDTH]),
    ("ffn_norm", GgmlType::F32, &[WIDTH]),
];

struct Model {
    path: PathBuf,
    bytes: u64,
    count: usize,
}

/// Returns the bytes of a tensor, of which no two neighbours are equal.
fn blocks(ggml_type: GgmlType, shape: &[u64], seed: u64) -> Vec<u8> {
    let len_bytes = shape.iter().product::<u64>() / ggml_type.block_elements() * ggml_type.block_bytes();
    let at = |at: u64| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..len_bytes).map(at).collect()
}

fn read<R: Read + Seek>(content: &Content, reader: &mut R, device: &Device) -> Result<Vec<QTensor>> {
    let layers = content.tensor_infos.keys().filter(|name| name.ends_with("attn_q.weight")).count();
    let first = ["token_embd.weight", "output_norm.weight"].map(str::to_owned);
    let of_layer = |layer| LAYER.map(|(name, ..)| format!("blk.{layer}.{name}.weight"));
    let names = first.into_iter().chain((0..layers).flat_map(of_layer));
    names.map(|name| content.tensor(reader, &name, device)).collect()
}

impl support::Loads for Model {
    const ENDING: &'static str = "gguf";
    const LOADERS: &'static [&'static str] =
        &["gguf::Reader", "std::fs::File", "std::io::BufReader", "gguf::load"];
    type Tensors = Vec<QTensor>;

    fn make(path: &Path, mib: usize) -> Result<()> {
        let words = WORDS.1.min(WORDS.0 * mib as u64);
        let embeddings = ("token_embd.weight".to_owned(), GgmlType::Q8_0, &[words, WIDTH][..]);
        let norm = ("output_norm.weight".to_owned(), GgmlType::F32, &[WIDTH][..]);
        let mut all = vec![embeddings, norm];
        let bytes_of = |shape: &[u64]| shape.iter().product::<u64>() / 32 * 34;
        let layer_bytes: u64 = LAYER.iter().map(|(_, _, shape)| bytes_of(shape)).sum();
        let layers = ((mib as u64) << 20).saturating_sub(bytes_of(all[0].2)) / layer_bytes;
        for layer in 0..layers.max(1) {
            let mut tensors = LAYER
                .map(|(name, ggml_type, shape)| (format!("blk.{layer}.{name}.weight"), ggml_type, shape));
            tensors.sort_by(|(one, ..), (other, ..)| one.cmp(other));
            all.extend(tensors);
        }
        let contents: Vec<_> = all
            .iter()
            .zip(0..)
            .map(|((_, ggml_type, shape), seed)| blocks(*ggml_type, shape, seed))
            .collect();
        let data = all.iter().zip(&contents);
        let data: Vec<_> = data
            .map(|((name, ggml_type, shape), bytes)| TensorData::new(name, *ggml_type, shape, bytes))
            .collect();
        let strings = |before: &str| {
            Value::Array(Array::Strings((0..words).map(|word| format!("{before}{word}")).collect()))
        };
        let metadata = Metadata::from_iter([
            ("general.architecture", Value::from("qwen2")),
            ("tokenizer.ggml.tokens", strings("w")),
            ("tokenizer.ggml.merges", strings("w ")),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1; words as usize]))),
        ]);
        gguf::save(path, &metadata, &data, &SaveOptions::new()).map_err(Error::wrap)?;
        Ok(())
    }

    fn open(path: &Path) -> Result<Self> {
        let model = gguf::Model::open(path).map_err(Error::wrap)?;
        Ok(Self { path: path.to_owned(), bytes: model.len_bytes(), count: model.tensors().len() })
    }

    fn size(&self) -> (u64, usize) {
        (self.bytes, self.count)
    }

    fn load(&self, loader: usize, device: &Device) -> Result<Vec<QTensor>> {
        fn by_candle<R: Read + Seek>(mut reader: R, device: &Device) -> Result<Vec<QTensor>> {
            read(&Content::read(&mut reader)?, &mut reader, device)
        }
        match loader {
            0 => {
                let mut reader = Reader::open(&self.path)?;
                read(&reader.content(), &mut reader, device)
            }
            1 => by_candle(File::open(&self.path)?, device),
            2 => by_candle(BufReader::new(File::open(&self.path)?), device),
            _ => Ok(gpufile_candle::gguf::load(&self.path, device)?.into_values().collect()),
        }
    }

    fn compare(&self, device: &Device) -> Result<()> {
        let (ours, theirs) = (self.load(0, device)?, self.load(1, &Device::Cpu)?);
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let is_same = (ours.dtype(), ours.shape()) == (theirs.dtype(), theirs.shape());
            assert!(is_same && ours.data()? == theirs.data()?, "a tensor differs");
        }
        println!("all blocks equal to candle's");
        Ok(())
    }
}

fn main() -> Result<()> {
    support::main::<Model>()
}
