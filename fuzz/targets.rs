//! The bodies of the fuzz targets: they parse their input, and check what a parser promises of all that it takes.
//!
//! `cargo fuzz run NAME` runs a target. The test `formats_corpus` of `gpufile` runs all of them on
//! `corpus` and on mutations of it.

use std::fs;
use std::path::{Component, Path};
use std::sync::Arc;

use gpufile::formats::Error;
use gpufile::formats::gguf;
use gpufile::formats::npy::NpyHeader;
use gpufile::formats::safetensors::{Checkpoint, Header, ShardIndex};
use gpufile::formats::zarr::{Array, FileStore};
use gpufile::kv_blocks::{Block, BlockError, BlockStore, Region};
use tempfile::TempDir;

/// Parses a file: tensors cover the data without gaps and overlaps.
pub fn safetensors(file: &[u8]) {
    let Ok(header) = Header::parse(file, file.len() as u64) else { return };
    let mut covered = 0;
    for tensor in header.tensors() {
        assert_eq!(tensor.offsets.start, covered);
        covered = tensor.offsets.end;
        assert_eq!(header.get(tensor.name).as_ref(), Some(&tensor));
        let rows = tensor.shape.first().copied().unwrap_or(0);
        if let Ok(slice) = tensor.slice_rows(rows / 2..rows) {
            assert!(tensor.offsets.start <= slice.start && slice.end == tensor.offsets.end);
        }
    }
    assert_eq!(covered, header.data_len_bytes());
    assert_eq!(header.file_len_bytes(), file.len() as u64);
}

/// Opens a file with packed tensors. If the first byte is odd, gives right checksums to the tensors that fit. Each tensor
/// is read, or is an error.
pub fn packed(input: &[u8]) {
    packed_tensors(input);
}

/// Does what [`packed`] does. Returns the tensors that were read, if the file opens.
pub fn packed_tensors(input: &[u8]) -> Option<Vec<Vec<u8>>> {
    const MOST_BYTES: u64 = 1 << 20;
    let (first, file) = input.split_first()?;
    let mut file = file.to_vec();
    if first % 2 == 1 {
        seal(&mut file);
    }
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = folder.path().join("x");
    fs::write(&path, &file).unwrap();
    let checkpoint = match Checkpoint::open(&path) {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.contains(char::is_control) && shown.len() < 4096, "{shown:?}");
            return None;
        }
    };
    let mut tensors = Vec::new();
    for tensor in checkpoint.tensors().filter(|tensor| tensor.len_bytes() <= MOST_BYTES) {
        match checkpoint.read_tensor(tensor.name) {
            Ok(bytes) => tensors.push(bytes),
            Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
        }
    }
    Some(tensors)
}

/// Gives the blocks, heads and indexes of packed tensors right checksums, where their numbers permit.
fn seal(file: &mut [u8]) {
    let Ok(header) = Header::parse(file, file.len() as u64) else { return };
    let tensors: Vec<_> = header.tensors().map(|tensor| header.in_file(tensor.offsets)).collect();
    for tensor in tensors {
        let bytes = &mut file[tensor.start as usize..tensor.end as usize];
        let number =
            |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        if bytes.len() < 64 || !bytes.starts_with(b"gpfpack") {
            continue;
        }
        let groups = number(bytes, 16).div_ceil(8192);
        let front = 64 + 16 * groups.min(bytes.len());
        if front > bytes.len() {
            continue;
        }
        let mut start = front;
        for group in 0..groups {
            let entry = 64 + 16 * group;
            let end = front + 16 * number(bytes, entry);
            if start > end || end > bytes.len() {
                break;
            }
            let sum = checksum(&bytes[start..end]).to_le_bytes();
            bytes[entry + 8..entry + 16].copy_from_slice(&sum);
            start = end;
        }
        bytes[56..64].fill(0);
        let sum = checksum(&bytes[..front]).to_le_bytes();
        bytes[56..64].copy_from_slice(&sum);
    }
}

/// Returns the checksum of docs/packed.md.
fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    let words: Vec<u32> = words.collect();
    let mut sum = bytes.len() as u64;
    for (at, pair) in words.chunks_exact(2).enumerate() {
        let keyed = |word: u32, number: usize| {
            u64::from(word.wrapping_add((number as u32).wrapping_mul(0x9e37_79b1)))
        };
        let product = keyed(pair[0], 2 * at + 1).wrapping_mul(keyed(pair[1], 2 * at + 2));
        let plain = u64::from(pair[0]) + (u64::from(pair[1]) << 32);
        sum = sum.wrapping_add(product).wrapping_add(plain);
    }
    sum
}

/// Parses an index: no file lies outside of its folder.
pub fn index(json: &[u8]) {
    let Ok(index) = ShardIndex::parse(json) else { return };
    for (tensor, file) in index.tensors() {
        assert_eq!(index.file_of(tensor), Some(file));
        assert!(index.files().iter().any(|other| other == file));
        assert!(Path::new(file).components().all(|part| matches!(part, Component::Normal(_))), "{file}");
    }
}

/// Parses a file: the array lies in it, and the same header can be built.
pub fn npy(file: &[u8]) {
    let Ok(header) = NpyHeader::parse(file, file.len() as u64) else { return };
    assert!(header.file_len_bytes() <= file.len() as u64);
    let descr = header.descr().to_string();
    let (again, _) = NpyHeader::build(&descr, header.order(), header.shape()).unwrap();
    assert_eq!((again.descr(), again.data_len_bytes()), (header.descr(), header.data_len_bytes()));
    let rows = header.shape().first().copied().unwrap_or(0);
    if let Ok(range) = header.slice_rows(rows / 2..rows) {
        assert!(header.data_start() <= range.start && range.end == header.file_len_bytes());
    }
}

/// Parses a file: tensors lie in it without overlaps, and the same metadata can be written.
pub fn gguf(file: &[u8]) {
    let Ok(header) = gguf::Header::parse(file, file.len() as u64) else { return };
    let mut covered = header.data_start();
    for tensor in header.tensors() {
        assert!(covered <= tensor.range.start && tensor.range.end <= covered.max(file.len() as u64));
        covered = tensor.range.end;
        assert_eq!(header.get(tensor.name).as_ref(), Some(&tensor));
        let rows = tensor.shape.first().copied().unwrap_or(0);
        if let Ok(slice) = tensor.slice_rows(rows / 2..rows) {
            assert!(tensor.range.start <= slice.start && slice.end == tensor.range.end);
        }
    }
    // The padding of a file may be longer than memory.
    if header.alignment() <= 1 << 20 {
        let (again, bytes) = gguf::Header::build(header.metadata().clone(), &[]).unwrap();
        let parsed = gguf::Header::parse(&bytes, bytes.len() as u64).unwrap();
        // No number equals NaN.
        assert_eq!(format!("{:?}", parsed.metadata()), format!("{:?}", header.metadata()));
        assert_eq!(again.data_start(), bytes.len() as u64);
    }
}

/// Opens a block store with this index. If the first byte is odd, the header and the entries get right checksums. The store has
/// no more blocks than slots, reads none from beyond its files, and works.
pub fn kv_index(input: &[u8]) {
    kv_blocks(input);
}

/// Does what [`kv_index`] does. Returns the number of blocks, if the store opens.
pub fn kv_blocks(input: &[u8]) -> Option<usize> {
    const ENTRY: usize = 64;
    let (first, index) = input.split_first()?;
    let mut index = index.to_vec();
    if first % 2 == 1 {
        let header = index.len().min(4096);
        let (header, entries) = index.split_at_mut(header);
        for sealed in header.chunks_exact_mut(ENTRY).take(1).chain(entries.chunks_exact_mut(ENTRY)) {
            let checksum = crc32fast::hash(&sealed[..ENTRY - 4]);
            sealed[ENTRY - 4..].copy_from_slice(&checksum.to_le_bytes());
        }
    }
    let store = Store::new();
    let folder = store.folder.path();
    fs::write(folder.join("index"), index).unwrap();
    fs::write(folder.join("blocks-00000"), [7; 3 * 4096]).unwrap();
    let builder = BlockStore::builder(100).limit_bytes(6 * 4096).blocks_per_file(4).checksums(true);
    let store = builder.open(folder).ok()?;
    assert!(store.len() == store.recovery().whole && store.len() <= 6);
    let region = Region::new(vec![0_u8; 100]);
    let pieces = [region.piece(0, 1, 0)];
    for key in store.keys() {
        match &store.fetch(&[Block::new(key, &pieces)]).wait()[0] {
            Ok(()) => assert_eq!(region.access(|bytes| bytes[0]), Some(7)),
            Err(BlockError::Corrupt) => assert!(!store.contains(key)),
            Err(error) => panic!("block {key}: {error}"),
        }
    }
    let pieces = [region.piece(0, 100, 0)];
    let block = Block::new(9, &pieces);
    assert!(matches!(store.store(&[block]).wait()[..], [Ok(())]));
    assert!(matches!(store.fetch(&[block]).wait()[..], [Ok(())]));
    let whole = store.recovery().whole;
    // A thread that is ending when the process does would look like a leak.
    store.close().unwrap();
    Some(whole)
}

/// Opens an array with this metadata, of version 2 if it starts with a space, and reads its ends.
pub fn zarr_metadata(json: &[u8]) {
    let store = Store::new();
    let name = if json.first() == Some(&b' ') { ".zarray" } else { "zarr.json" };
    fs::write(store.folder.path().join(name), json).unwrap();
    read(&store, None);
}

/// The codecs of arrays of 16-bit numbers with 5 rows of 7, in chunks of 4 rows of 4.
const CODECS: [&str; 10] = [
    r#"{"name":"bytes","configuration":{"endian":"big"}}"#,
    r#"BYTES,{"name":"gzip","configuration":{"level":1}}"#,
    r#"BYTES,{"name":"numcodecs.zlib","configuration":{"level":1}}"#,
    r#"BYTES,{"name":"zstd","configuration":{"level":1,"checksum":false}}"#,
    r#"BYTES,{"name":"blosc","configuration":{"cname":"lz4","clevel":1,"shuffle":"bitshuffle","typesize":2,"blocksize":0}}"#,
    r#"BYTES,{"name":"zstd","configuration":{"level":1,"checksum":true}},{"name":"gzip","configuration":{"level":1}}"#,
    r#"BYTES,{"name":"crc32c"}"#,
    r#"{"name":"sharding_indexed","configuration":{"chunk_shape":[2,1],"codecs":[BYTES],"index_codecs":[BYTES]}}"#,
    r#"{"name":"sharding_indexed","configuration":{"chunk_shape":[2,2],"codecs":[{"name":"transpose","configuration":
        {"order":[1,0]}},BYTES,{"name":"gzip","configuration":{"level":1}}],"index_codecs":[BYTES],"index_location":"start"}}"#,
    r#"{"name":"transpose","configuration":{"order":[1,0]}},{"name":"sharding_indexed","configuration":{"chunk_shape":
        [2,2],"codecs":[{"name":"sharding_indexed","configuration":{"chunk_shape":[1,2],"codecs":[BYTES],"index_codecs":
        [BYTES]}}],"index_codecs":[BYTES]}},{"name":"zstd","configuration":{"level":1,"checksum":false}}"#,
];

/// Returns the metadata of an array with these codecs.
pub fn metadata(codecs: usize) -> Option<String> {
    let codecs =
        CODECS.get(codecs)?.replace("BYTES", r#"{"name":"bytes","configuration":{"endian":"little"}}"#);
    Some(format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":[5,7],"data_type":"uint16","chunk_grid":{{"name":"regular",
        "configuration":{{"chunk_shape":[4,4]}}}},"chunk_key_encoding":{{"name":"default"}},"fill_value":3,
        "codecs":[{codecs}]}}"#
    ))
}

/// Reads a chunk with the codecs that the first byte names.
pub fn zarr_chunk(input: &[u8]) {
    let Some((codecs, chunk)) = input.split_first() else { return };
    let Some(metadata) = metadata(usize::from(*codecs)) else { return };
    let store = Store::new();
    fs::write(store.folder.path().join("zarr.json"), metadata).unwrap();
    read(&store, Some(chunk));
}

struct Store {
    folder: TempDir,
}

impl Store {
    /// Makes a folder, in memory where that is possible.
    fn new() -> Self {
        Self { folder: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap() }
    }
}

/// Opens the array of a store, and reads all of it if it is small. Otherwise reads its ends.
fn read(store: &Store, chunk: Option<&[u8]>) {
    const SMALL_BYTES: u64 = 1 << 16;
    let array = match Array::open(&Arc::new(FileStore::new(store.folder.path())), "/") {
        Ok(array) => array,
        Err(error) => return explained(&error),
    };
    if let Some(chunk) = chunk {
        fs::create_dir_all(store.folder.path().join("c/0")).unwrap();
        fs::write(store.folder.path().join("c/0/0"), chunk).unwrap();
    }
    if array.len_bytes() <= SMALL_BYTES {
        match array.read_to_host() {
            Ok(bytes) => assert_eq!(bytes.len() as u64, array.len_bytes()),
            Err(error) => explained(&error),
        }
    }
    if array.len_bytes() > 0 && array.element_bytes() as u64 <= SMALL_BYTES {
        for last in [false, true] {
            let at = |&axis: &u64| if last { axis - 1..axis } else { 0..1 };
            let region: Vec<_> = array.shape().iter().map(at).collect();
            if let Err(error) = array.read_region_into(&region, &mut vec![0; array.element_bytes()]) {
                explained(&error);
            }
        }
    }
}

fn explained(error: &Error) {
    assert!(matches!(error, Error::Zarr { .. } | Error::Memory { .. } | Error::File(_)), "{error:?}");
    let shown = error.to_string();
    assert!(!shown.contains(char::is_control) && shown.len() < 4096, "{shown:?}");
}
