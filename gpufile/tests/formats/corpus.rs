//! The fuzz targets on their corpus, and on mutations of it: nothing panics, and all that a parser takes is consistent.

#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

use testkit::random::Random;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Changes one to four places: bits, bytes, numbers, parts of this and of another file.
fn mutated(random: &mut Random, file: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() + 1);
        let near = (at + random.below(9)).min(bytes.len());
        let insert = match random.below(7) {
            0 => vec![random.next_number() as u8],
            1 => random.pick(&[0_u64, 1, u64::MAX, 1 << 31, 1 << 46]).to_le_bytes().to_vec(),
            2 => random.pick(&["0", "-1", "99999999999", "18446744073709551616", "\"", "[", "}"]).into(),
            3 => {
                let start = random.below(other.len());
                other[start..(start + random.below(40)).min(other.len())].to_vec()
            }
            4 => bytes[at..near].repeat(2),
            5 => bytes[at..near].iter().map(|byte| byte ^ (1 << random.below(8))).collect(),
            _ => Vec::new(),
        };
        bytes.splice(at..near, insert);
    }
    if random.one_in(10) {
        bytes.truncate(random.below(bytes.len() + 1));
    }
    bytes
}

fn run(name: &str, target: fn(&[u8]), least_files: usize, mutations: usize) {
    let corpus = corpus(name);
    assert!(corpus.len() >= least_files, "{} files in the corpus of {name}", corpus.len());
    let mut random = Random::new(corpus.len() as u64);
    for file in &corpus {
        target(file);
        for _ in 0..mutations {
            let other = &corpus[random.below(corpus.len())];
            target(&mutated(&mut random, file, other));
        }
    }
}

#[test]
fn mutated_safetensors_files_are_refused_or_consistent() {
    run("safetensors", targets::safetensors, 5, 2000);
}

#[test]
fn mutated_indexes_name_files_of_their_folder_only() {
    run("index", targets::index, 3, 2000);
}

#[test]
fn mutated_packed_tensors_are_refused_or_read() {
    run("packed", targets::packed, 12, 150);
}

/// Every type has a file in the corpus, once with its own checksums and once with those of the target.
#[test]
fn packed_tensors_of_the_corpus_are_sound() {
    let mut lengths: Vec<_> = corpus("packed")
        .iter()
        .map(|input| {
            assert!(input.windows(16).any(|part| part == b"gpufile.packed:w"));
            let tensors = targets::packed_tensors(input).unwrap();
            assert_eq!(tensors.len(), 1);
            tensors[0].len()
        })
        .collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [1024, 1024, 1500, 1500, 2400, 2400, 2800, 2800, 4000, 4000, 16_644, 16_644]);
}

#[test]
fn mutated_npy_files_are_refused_or_consistent() {
    run("npy", targets::npy, 4, 2000);
}

#[test]
fn mutated_gguf_files_are_refused_or_consistent() {
    run("gguf", targets::gguf, 4, 2000);
}

#[test]
fn mutated_indices_of_blocks_open_or_are_refused() {
    run("kv_index", targets::kv_index, 3, 200);
    let mut blocks: Vec<_> = corpus("kv_index").iter().map(|index| targets::kv_blocks(index)).collect();
    blocks.sort_unstable();
    // An empty index says of no file of blocks that it is the store's.
    assert_eq!(blocks, [None, None, Some(1), Some(2), Some(2)]);
}

#[test]
fn mutated_zarr_metadata_is_refused_or_read() {
    run("zarr_metadata", targets::zarr_metadata, 5, 200);
}

#[test]
fn mutated_zarr_chunks_are_refused_or_read() {
    run("zarr_chunk", targets::zarr_chunk, 10, 200);
}

/// Every set of codecs has a sound chunk in the corpus.
#[test]
fn chunks_of_the_corpus_are_sound() {
    use std::sync::Arc;

    use gpufile::formats::zarr::{Array, FileStore};

    let corpus = corpus("zarr_chunk");
    for codecs in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("zarr.json"), targets::metadata(codecs).unwrap()).unwrap();
        let array = Array::open(&Arc::new(FileStore::new(folder.path())), "/").unwrap();
        let chunk_of = |input: &&Vec<u8>| usize::from(input[0]) == codecs;
        fs::create_dir_all(folder.path().join("c/0")).unwrap();
        let is_sound = |input: &Vec<u8>| {
            fs::write(folder.path().join("c/0/0"), &input[1..]).unwrap();
            let numbers: Vec<u8> =
                [0, 1, 2, 3, 7, 8, 9, 10_u16].iter().flat_map(|n| n.to_ne_bytes()).collect();
            let mut found = vec![0; 16];
            array.read_region_into(&[0..2, 0..4], &mut found).is_ok() && found == numbers
        };
        assert!(corpus.iter().filter(chunk_of).any(is_sound), "{codecs}");
    }
    assert!(targets::metadata(10).is_none());
}
