//! Tests of the memory that Zarr arrays take. It follows from the length of the metadata and from the size of a chunk
//! that they say, whatever the files of chunks claim.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use flate2::Compression;
use flate2::read::{GzEncoder, ZlibEncoder};
use gpufile::formats::zarr::{Array, FileStore};
use testkit::alone;
use testkit::counting::peak;
use testkit::damage::{assert_both, damage};
use testkit::random::Random;

const BYTES: &str = r#"{"name":"bytes"}"#;
const GZIP: &str = r#"{"name":"gzip","configuration":{"level":1}}"#;
const ZLIB: &str = r#"{"name":"numcodecs.zlib","configuration":{"level":1}}"#;
const ZSTD: &str = r#"{"name":"zstd","configuration":{"level":1,"checksum":false}}"#;
const CRC32C: &str = r#"{"name":"crc32c"}"#;
const BLOSC: &str =
    r#"{"name":"blosc","configuration":{"cname":"lz4","clevel":1,"shuffle":"noshuffle","blocksize":0}}"#;

/// The types that threads, files and paths take.
const ROOM: usize = 256 << 10;

fn array(folder: &Path, shape: u64, chunk: u64, codecs: &str) -> Array {
    let metadata = format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":[{shape}],"data_type":"uint8","chunk_grid":{{"name":
        "regular","configuration":{{"chunk_shape":[{chunk}]}}}},"chunk_key_encoding":{{"name":"default"}},
        "fill_value":7,"codecs":[{codecs}]}}"#
    );
    fs::create_dir_all(folder.join("c")).unwrap();
    fs::write(folder.join("zarr.json"), metadata).unwrap();
    Array::open(&Arc::new(FileStore::new(folder)), "/").unwrap()
}

fn shards(inner: u64, codecs: &str) -> String {
    format!(
        r#"{{"name":"sharding_indexed","configuration":{{"chunk_shape":[{inner}],"codecs":[{codecs}],"index_codecs":
        [{{"name":"bytes","configuration":{{"endian":"little"}}}}]}}}}"#
    )
}

/// Asserts that a read of the first bytes takes no more memory than documented. Returns whether the read succeeds.
fn check(array: &Array, chunk_bytes: u64, file_bytes: u64, levels: usize, what: &str) -> bool {
    let mut bytes = vec![0; array.len_bytes().min(16) as usize];
    let region = 0..bytes.len() as u64;
    let mut is_read = false;
    let used = peak(|| is_read = array.read_region_into(&[region], &mut bytes).is_ok());
    let most = chunk_bytes.min(file_bytes.saturating_mul(1 << 15)) as usize;
    let most = most * (6 + 2 * levels) + ROOM;
    assert!(used <= most, "{what}: {used} bytes for a chunk of {chunk_bytes} and a file of {file_bytes}");
    is_read
}

// One test, because the counters are of the whole process.
#[test]
fn chunks_take_memory_by_their_size_only() {
    alone(|| {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = folder.path();
        fs::create_dir(path.join("c")).unwrap();
        fs::write(path.join("c/0"), [1; 4]).unwrap();
        // Starts the engine.
        assert_eq!(array(path, 4, 4, BYTES).read_to_host().unwrap(), [1; 4]);

        bombs_end_at_the_size_of_the_chunk(path);
        shards_take_memory_by_their_size(path);
        damaged_chunks_take_memory_by_their_size(path);
        metadata_takes_memory_by_its_length(path);
    });
}

fn bombs() -> Vec<(String, &'static str, Vec<u8>)> {
    let zeros = || std::io::repeat(0).take(3 << 20);
    let read = |mut encoder: Box<dyn Read>| {
        let mut bytes = Vec::new();
        encoder.read_to_end(&mut bytes).unwrap();
        bytes
    };
    let gzip = read(Box::new(GzEncoder::new(zeros(), Compression::best())));
    let zlib = read(Box::new(ZlibEncoder::new(zeros(), Compression::best())));
    let twice = zstd::bulk::compress(&gzip, 19).unwrap();
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let claim = |bytes: u64| [&MAGIC[..], &[0xe0], &bytes.to_le_bytes(), &[1, 0, 0, 0]].concat();
    // Without a length, and with a window of 128 MiB.
    let window = [&MAGIC[..], &[0, 0x88], &[3, 0, 16, 0]].concat();
    let repeats = [&MAGIC[..], &[0, 0x38], &[2, 0, 16, 0].repeat(1000), &[3, 0, 16, 0]].concat();
    let blosc = |len: u32, block: u32, offset: u32| {
        let packed = 16 + 100_u32;
        let sizes = [len, block, packed, offset].map(u32::to_le_bytes).concat();
        [&[2, 1, 0x21, 1][..], &sizes[..12], &sizes[12..], &[0; 96]].concat()
    };
    vec![
        ("gzip".to_owned(), GZIP, gzip.clone()),
        ("zlib".to_owned(), ZLIB, zlib),
        ("zstd of 64 TiB".to_owned(), ZSTD, claim(1 << 46)),
        ("zstd of 64 GiB".to_owned(), ZSTD, claim(1 << 36)),
        ("zstd of 8 EiB".to_owned(), ZSTD, claim(1 << 63)),
        ("zstd window".to_owned(), ZSTD, window),
        ("zstd repeats".to_owned(), ZSTD, repeats),
        ("blosc claim".to_owned(), BLOSC, blosc(0x7fff_ffff, 0x7fff_ffff, 16)),
        ("blosc block".to_owned(), BLOSC, blosc(4, 0x7fff_ffff, 20)),
        ("blosc small".to_owned(), BLOSC, blosc(1 << 30, 1 << 20, 20)),
        ("gzip in zstd".to_owned(), "GZIP,ZSTD", twice),
        ("gzip, many times".to_owned(), "GZIP,GZIP,GZIP,GZIP,GZIP,GZIP", gzip),
        ("checksum".to_owned(), CRC32C, vec![0; 4]),
    ]
}

fn bombs_end_at_the_size_of_the_chunk(path: &Path) {
    for (name, codecs, bomb) in bombs() {
        let codecs = format!("{BYTES},{}", codecs.replace("GZIP", GZIP).replace("ZSTD", ZSTD));
        for (shape, chunk) in [(4, 4), (1 << 20, 1 << 20), (4, 1 << 30), (4, 1 << 40)] {
            let array = array(path, shape, chunk, &codecs);
            fs::write(path.join("c/0"), &bomb).unwrap();
            // A bomb in a bomb has no limit but the chunk.
            let len = if codecs.matches("level").count() > 1 { u64::MAX } else { bomb.len() as u64 };
            check(&array, chunk, len, 0, &name);
            // A file that is longer than any chunk of this size is not read.
            if chunk <= 1 << 30 {
                let file = File::options().write(true).open(path.join("c/0")).unwrap();
                file.set_len(2 * chunk + (1 << 20)).unwrap();
                check(&array, 0, 0, 0, &name);
            }
        }
    }
}

fn shards_take_memory_by_their_size(path: &Path) {
    let entries = |entries: &[[u64; 2]]| {
        entries.as_flattened().iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>()
    };
    let levels = |count: usize| (0..count).fold(BYTES.to_owned(), |codecs, _| shards(4, &codecs));
    let turned = r#"{"name":"transpose","configuration":{"order":[0]}}"#;
    for (name, chunk, codecs, shard) in [
        ("missing", 1 << 20, shards(1 << 10, BYTES), entries(&[[u64::MAX; 2]; 1 << 10])),
        (
            "wild",
            16,
            shards(4, BYTES),
            entries(&[[0, 4], [1 << 63, 4], [u64::MAX - 1, 4], [0, u64::MAX - 2]]),
        ),
        ("the shard itself", 16, shards(4, BYTES), entries(&[[0, 1 << 40], [0, 64], [8, 4], [12, 4]])),
        ("all the same", 16, shards(4, &format!("{BYTES},{GZIP}")), entries(&[[0, 64]; 4])),
        ("an index beyond the file", 1 << 40, shards(1, BYTES), vec![0; 100]),
        ("too many chunks", 1 << 40, shards(1 << 4, BYTES), vec![0; 100]),
        ("levels", 4, levels(4), vec![0xff; 4000]),
        ("packed", 16, format!("{},{GZIP}", shards(4, BYTES)), vec![0xff; 4000]),
        ("turned", 1 << 20, format!("{turned},{}", shards(1 << 18, BYTES)), entries(&[[u64::MAX; 2]; 4])),
    ] {
        let array = array(path, 16.min(chunk), chunk, &codecs);
        fs::write(path.join("c/0"), &shard).unwrap();
        check(&array, chunk, shard.len() as u64, 4, name);
    }

    // Sparse files are as long as one likes. The longest index has 64 MiB.
    for chunk in [1 << 22, 1 << 31] {
        let array = array(path, 4, chunk, &shards(1, BYTES));
        File::create(path.join("c/0")).unwrap().set_len(16 * chunk + 4).unwrap();
        let mut bytes = [0; 4];
        let mut read = Ok(());
        let used = peak(|| read = array.read_into(bytes.as_mut_slice()));
        assert!(read.is_err(), "entries of 0 bytes: {chunk}");
        assert!(used <= (64 << 20) + ROOM, "{used} bytes for an index of {chunk} chunks");
    }
}

fn damaged_chunks_take_memory_by_their_size(path: &Path) {
    const CHUNK: u64 = 3000;
    let mut random = Random::new(0x510e_527f_ade6_82d1);
    let (mut taken, mut rounds) = (0, 0);
    for codecs in [GZIP, ZLIB, ZSTD, BLOSC, CRC32C, "GZIP,ZSTD,CRC32C"] {
        let codecs = codecs.replace("GZIP", GZIP).replace("ZSTD", ZSTD).replace("CRC32C", CRC32C);
        let in_shards = shards(CHUNK / 3, &format!("{BYTES},{codecs}"));
        for codecs in [format!("{BYTES},{codecs}"), in_shards] {
            let array = array(path, CHUNK, CHUNK, &codecs);
            let bytes: Vec<u8> = (0..CHUNK).map(|number| (number / 7) as u8).collect();
            array.write_from(&bytes).unwrap();
            let chunk = fs::read(path.join("c/0")).unwrap();
            for _ in 0..100 {
                let mut damaged = chunk.clone();
                damage(&mut random, &mut damaged, &["\0", "\0\0\0\0", "\x7f\x7f\x7f\x7f", "\u{10ffff}"]);
                File::create(path.join("c/0")).unwrap().write_all(&damaged).unwrap();
                taken += usize::from(check(&array, CHUNK, 2 * CHUNK, 1, &codecs));
                rounds += 1;
            }
        }
    }
    assert_both(taken, rounds);
}

fn metadata_takes_memory_by_its_length(path: &Path) {
    let with = |shape: &str, chunk: &str, more: &str, codecs: &str| {
        format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[{shape}],"data_type":"uint8","chunk_grid":{{"name":
            "regular","configuration":{{"chunk_shape":[{chunk}]}}}},"chunk_key_encoding":{{"name":"default"}},
            "fill_value":0,"codecs":[{codecs}]{more}}}"#
        )
    };
    let ones = vec!["1"; 5000].join(",");
    let deep = format!(r#","attributes":{}1{}"#, r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let many = format!(r#","attributes":{{"a":[{}]}}"#, vec!["0"; 100_000].join(","));
    let levels = (0..60).fold(BYTES.to_owned(), |codecs, _| shards(4, &codecs));
    let packings = format!("{BYTES},{}", vec![GZIP; 1000].join(","));
    for metadata in [
        with("4", "4", &deep, BYTES),
        with("4", "4", &many, BYTES),
        with(&ones, &ones, "", BYTES),
        with("4", "4", "", &levels),
        with("4", "4", "", &packings),
        with("4611686018427387904", "1099511627776", "", BYTES),
        with("1099511627776", "1", "", BYTES),
        with("4", "0", "", BYTES),
        with("4", "4", "", &format!(r#"{{"name":"transpose","configuration":{{"order":[0,0]}}}},{BYTES}"#)),
    ] {
        fs::write(path.join("zarr.json"), &metadata).unwrap();
        let store = Arc::new(FileStore::new(path));
        let used = peak(|| Array::open(&store, "/").map_err(|error| error.to_string()));
        assert!(
            used <= 128 * metadata.len() + ROOM,
            "{used} bytes for {}: {:.300}",
            metadata.len(),
            metadata
        );
    }
}
