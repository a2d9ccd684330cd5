//! Tests that zarr-python reads arrays of `gpufile`, and the reverse.
//!
//! Runs where `GPUFILE_TEST_PYTHON` names a Python with numpy and zarr.

use std::fs;
use std::sync::Arc;

use gpufile::formats::zarr::{Array, FileStore};
use testkit::python::Python;

/// A name, true for raw chunks, and the Python expressions of the array and its storage.
const THEIRS: [(&str, bool, &str); 34] = [
    ("v3", true, "np.arange(3500, dtype='<f4').reshape(5, 700), chunks=(2, 300), compressors=None"),
    ("v3-default", false, "np.arange(3500, dtype='<i8').reshape(5, 700), chunks=(2, 300)"),
    ("v3-gzip", false, "np.arange(30, dtype='<c8'), chunks=(7,), compressors=c.GzipCodec(level=1)"),
    (
        "v3-zstd",
        false,
        "np.arange(30, dtype='<f2'), chunks=(7,), compressors=c.ZstdCodec(level=1, checksum=True)",
    ),
    (
        "v3-blosc",
        false,
        "np.arange(90, dtype='<u4').reshape(3, 30), chunks=(2, 20), compressors=c.BloscCodec(cname='lz4')",
    ),
    (
        "v3-shards",
        false,
        "np.arange(90, dtype='<u2').reshape(3, 30), chunks=(1, 10), shards=(2, 20), compressors=None",
    ),
    ("v3-crc32c", false, "np.arange(9, dtype='<u2'), chunks=(4,), compressors=c.Crc32cCodec()"),
    (
        "v3-big",
        false,
        "np.arange(9, dtype='<u2'), chunks=(4,), compressors=None, serializer=c.BytesCodec(endian='big')",
    ),
    (
        "v3-transposed",
        false,
        "np.arange(8, dtype='<u2').reshape(2, 4), chunks=(2, 3), filters=c.TransposeCodec(order=(1, 0))",
    ),
    (
        "v3-dots",
        true,
        "np.arange(6, dtype='u1').reshape(2, 3), chunks=(1, 2), compressors=None, chunk_key_encoding={'name': 'default', 'separator': '.'}",
    ),
    ("v3-scalar", true, "np.array(2.5, '<f8'), chunks=(), compressors=None"),
    (
        "v2",
        true,
        "np.arange(3500, dtype='<f4').reshape(5, 700), chunks=(2, 300), compressors=None, zarr_format=2",
    ),
    (
        "v2-slashes",
        true,
        "np.array([[1, 0], [0, 1]], '?'), chunks=(1, 2), compressors=None, zarr_format=2, chunk_key_encoding={'name': 'v2', 'separator': '/'}",
    ),
    (
        "v2-gzip",
        false,
        "np.arange(30, dtype='<i2'), chunks=(7,), compressors=numcodecs.GZip(1), zarr_format=2",
    ),
    (
        "v2-fortran",
        false,
        "np.arange(8, dtype='<u2').reshape(2, 4), chunks=(2, 3), order='F', zarr_format=2, compressors=numcodecs.Zstd(1)",
    ),
    ("v2-big", false, "np.arange(9, dtype='>u8'), chunks=(4,), compressors=None, zarr_format=2"),
    (
        "v2-zlib",
        false,
        "np.arange(9, dtype='<u8'), chunks=(4,), compressors=numcodecs.Zlib(1), zarr_format=2",
    ),
    ("v2-bool", true, "np.arange(9) % 2 == 0, chunks=(4,), compressors=None, zarr_format=2"),
    ("v2-complex", true, "np.arange(9, dtype='<c8') * 1j, chunks=(4,), compressors=None, zarr_format=2"),
    (
        "v2-big-complex",
        false,
        "(np.arange(9) * 1j).astype('>c16'), chunks=(4,), compressors=None, zarr_format=2",
    ),
    (
        "v2-no-fill",
        true,
        "np.arange(9, dtype='<f4'), fill=None, chunks=(9,), compressors=None, zarr_format=2",
    ),
    (
        "v2-blosc",
        false,
        "np.arange(90, dtype='<i4'), chunks=(70,), compressors=numcodecs.Blosc('lz4', 1, 0), zarr_format=2",
    ),
    (
        "v2-blosc-bits",
        false,
        "np.arange(90, dtype='<i4'), chunks=(70,), compressors=numcodecs.Blosc('lz4', 1, 2), zarr_format=2",
    ),
    (
        "v2-blosc-auto",
        false,
        "np.arange(90, dtype='<i4'), chunks=(70,), compressors=numcodecs.Blosc('lz4', 1, -1), zarr_format=2",
    ),
    ("v3-zlib", false, "np.arange(9, dtype='<i4'), chunks=(4,), compressors=n.Zlib(level=1)"),
    (
        "v3-blosclz",
        false,
        "np.arange(90, dtype='<i4'), chunks=(70,), compressors=c.BloscCodec(cname='blosclz', shuffle='bitshuffle')",
    ),
    (
        "v3-blosc-lz4hc",
        false,
        "np.arange(90, dtype='<i4'), chunks=(70,), compressors=c.BloscCodec(cname='lz4hc', shuffle='noshuffle')",
    ),
    (
        "v3-blosc-zlib",
        false,
        "np.arange(90, dtype='<f8'), chunks=(70,), compressors=c.BloscCodec(cname='zlib')",
    ),
    (
        "v3-blosc-zstd",
        false,
        "np.arange(9000, dtype='<f8'), chunks=(8000,), compressors=c.BloscCodec(cname='zstd', blocksize=4096)",
    ),
    (
        "v3-two",
        false,
        "np.arange(90, dtype='<i4'), chunks=(70,), compressors=[c.GzipCodec(), c.ZstdCodec(), c.Crc32cCodec()]",
    ),
    (
        "v3-complex",
        false,
        "np.arange(9, dtype='<c8') * 1j, chunks=(4,), compressors=None, serializer=c.BytesCodec(endian='big')",
    ),
    (
        "v3-shards-in-shards",
        false,
        "np.arange(128, dtype='<i4').reshape(16, 8), chunks=(8, 8), compressors=None, serializer=c.ShardingCodec(chunk_shape=(4, 4), codecs=[c.ShardingCodec(chunk_shape=(2, 2), codecs=[c.BytesCodec()])])",
    ),
    (
        "v3-transposed-shards",
        false,
        "np.arange(96, dtype='<i4').reshape(6, 16), chunks=(6, 8), compressors=c.Crc32cCodec(), filters=c.TransposeCodec(order=(1, 0)), serializer=c.ShardingCodec(chunk_shape=(2, 2), codecs=[c.TransposeCodec(order=(1, 0)), c.BytesCodec(), c.ZstdCodec()], index_location='start')",
    ),
    (
        "v3-dates",
        false,
        "np.arange(9).astype('M8[s]'), chunks=(4,), compressors=None, serializer=c.BytesCodec(endian='big')",
    ),
];

/// A name, the Python expressions of an array that is refused, and what the error says.
const REFUSED: [(&str, &str, &str); 13] = [
    (
        "v2-offset",
        "np.arange(9.0), chunks=(4,), compressors=None, filters=[numcodecs.FixedScaleOffset(0, 1, '<f8', '<f8')], zarr_format=2",
        r#""filters" has "fixedscaleoffset""#,
    ),
    (
        "v2-delta",
        "np.arange(9), chunks=(4,), compressors=None, filters=[numcodecs.Delta('<i8')], zarr_format=2",
        r#""filters" has "delta""#,
    ),
    (
        "v2-lz4",
        "np.arange(9), chunks=(4,), compressors=numcodecs.LZ4(1), zarr_format=2",
        r#""compressor" "lz4""#,
    ),
    (
        "v2-bz2",
        "np.arange(9), chunks=(4,), compressors=numcodecs.BZ2(1), zarr_format=2",
        r#""compressor" "bz2""#,
    ),
    ("v2-text", "np.array(['a']), fill='', chunks=(4,), compressors=None, zarr_format=2", r#""dtype" "<U1""#),
    (
        "v2-bytes",
        "np.array([b'a']), fill=b'', chunks=(4,), compressors=None, zarr_format=2",
        r#""dtype" "|S1""#,
    ),
    (
        "v2-date",
        "np.arange(9).astype('M8[s]'), chunks=(4,), compressors=None, zarr_format=2",
        r#""dtype" "<M8[s]""#,
    ),
    (
        "v2-void",
        "np.zeros(3, 'V3'), fill=bytes(3), chunks=(4,), compressors=None, zarr_format=2",
        r#""dtype" "|V3""#,
    ),
    ("v3-lz4", "np.arange(9), chunks=(4,), compressors=n.LZ4(acceleration=1)", r#"codec "numcodecs.lz4""#),
    ("v3-bz2", "np.arange(9), chunks=(4,), compressors=n.BZ2(level=1)", r#"codec "numcodecs.bz2""#),
    (
        "v3-offset",
        "np.arange(9.0), chunks=(4,), filters=n.FixedScaleOffset(offset=0, scale=1, dtype='<f8', astype='<f8')",
        r#"codec "numcodecs.fixedscaleoffset""#,
    ),
    ("v3-bits", "np.arange(9) % 2 == 0, chunks=(4,), filters=n.PackBits()", r#"codec "numcodecs.packbits""#),
    (
        "v3-offset-in-shards",
        "np.arange(8.0), chunks=(8,), compressors=None, serializer=c.ShardingCodec(chunk_shape=(4,), codecs=[n.FixedScaleOffset(offset=0, scale=1, dtype='<f8', astype='<f8'), c.BytesCodec()])",
        r#"codec "numcodecs.fixedscaleoffset""#,
    ),
];

#[test]
fn arrays_written_by_zarr_python_are_read() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut program = String::from(
        "import warnings; warnings.simplefilter('ignore')\n\
         import numcodecs, numpy as np, zarr, zarr.codecs as c, zarr.codecs.numcodecs as n\n\
         root = zarr.open_group('theirs.zarr', mode='w', zarr_format=3)\n\
         def case(name, a, fill=1, **more):\n    \
             z = zarr.create_array('theirs.zarr/' + name, shape=a.shape, dtype=a.dtype, fill_value=fill, **more)\n    \
             z[...] = a\n    \
             if a.shape and not name.startswith('v2-slashes'):\n        \
                 a[-1:] = 1\n        \
                 z[-1:] = 1\n    \
             a.astype(a.dtype.newbyteorder('<')).tofile(name + '.raw')\n",
    );
    for (name, _, array) in THEIRS {
        program += &format!("case('{name}', {array})\n");
    }
    program += "def refused(name, a, fill=1, **more):\n    \
        zarr.create_array('theirs.zarr/' + name, shape=a.shape, dtype=a.dtype, fill_value=fill, **more)\n";
    for (name, array, _) in REFUSED {
        program += &format!("refused('{name}', {array})\n");
    }
    // An array that lacks some of its chunks.
    program += "z = zarr.create_array('theirs.zarr/partial', shape=(4, 6), chunks=(2, 3), dtype='<u2', fill_value=5)\n\
        z[1:2, 2:5] = 9\n\
        z[:].tofile('partial.raw')\n";
    python.run(folder.path(), &program);

    let store = Arc::new(FileStore::new(folder.path().join("theirs.zarr")));
    for (name, is_raw) in
        THEIRS.map(|(name, is_raw, _)| (name, is_raw)).into_iter().chain([("partial", false)])
    {
        let array = Array::open(&store, name).unwrap();
        assert_eq!(array.has_raw_chunks(), is_raw, "{name}");
        let raw = fs::read(folder.path().join(format!("{name}.raw"))).unwrap();
        assert!(array.read_to_host().unwrap() == raw, "{name}");
    }
    for (name, _, text) in REFUSED {
        let error = Array::open(&store, name).unwrap_err().to_string();
        assert!(error.contains(text) && error.contains("not supported"), "{name}: {error}");
    }
}

/// Codecs of version 3; compressors and byte order of version 2.
const V3: [&str; 6] = [
    r#"{"name":"bytes","configuration":{"endian":"little"}}"#,
    r#"{"name":"bytes","configuration":{"endian":"big"}},{"name":"gzip","configuration":{"level":1}}"#,
    r#"{"name":"bytes","configuration":{"endian":"little"}},
        {"name":"zstd","configuration":{"level":1,"checksum":true}},{"name":"crc32c"}"#,
    r#"{"name":"transpose","configuration":{"order":[1,0]}},
        {"name":"bytes","configuration":{"endian":"little"}},{"name":"blosc","configuration":
        {"cname":"zstd","clevel":1,"shuffle":"shuffle","typesize":4,"blocksize":0}}"#,
    r#"{"name":"sharding_indexed","configuration":{"chunk_shape":[1,100],"codecs":[{"name":"bytes","configuration":
        {"endian":"little"}},{"name":"zstd","configuration":{"level":1,"checksum":false}}],"index_codecs":
        [{"name":"bytes","configuration":{"endian":"little"}},{"name":"crc32c"}],"index_location":"end"}}"#,
    r#"{"name":"bytes","configuration":{"endian":"little"}},{"name":"numcodecs.zlib","configuration":{"level":1}}"#,
];
const V2: [(&str, &str, &str); 5] = [
    ("<f4", "C", "null"),
    (">f4", "F", "null"),
    ("<f4", "C", r#"{"id":"gzip","level":1}"#),
    ("<f4", "C", r#"{"id":"zlib","level":1}"#),
    ("<f4", "C", r#"{"id":"blosc","cname":"lz4","clevel":1,"shuffle":1,"blocksize":0}"#),
];

#[test]
fn arrays_written_here_are_read_by_zarr_python() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let v3 = V3.map(|codecs| {
        let metadata = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[5,700],"data_type":"float32","chunk_grid":{{"name":
            "regular","configuration":{{"chunk_shape":[2,300]}}}},"chunk_key_encoding":{{"name":"default",
            "configuration":{{"separator":"/"}}}},"fill_value":0.0,"codecs":[{codecs}],"attributes":{{}}}}"#
        );
        ("zarr.json", metadata)
    });
    let v2 = V2.into_iter().zip([".", "/", ".", "/", "."]).map(|((dtype, order, compressor), separator)| {
        let metadata = format!(
            r#"{{"zarr_format":2,"shape":[5,700],"chunks":[2,300],"dtype":"{dtype}","order":"{order}","compressor":
            {compressor},"filters":null,"fill_value":0.0,"dimension_separator":"{separator}"}}"#
        );
        (".zarray", metadata)
    });
    let numbers: Vec<u8> = (0..3500).flat_map(|number| (number as f32 / 8.0).to_le_bytes()).collect();
    let store = Arc::new(FileStore::new(folder.path().join("ours.zarr")));
    let mut program =
        String::from("import warnings; warnings.simplefilter('ignore')\nimport numpy as np, zarr\n");
    for (number, (name, metadata)) in v3.into_iter().chain(v2).enumerate() {
        let path = store.folder().join(number.to_string());
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(name), metadata).unwrap();
        Array::open(&store, &number.to_string()).unwrap().write_from(&numbers).unwrap();
        program += &format!(
            "a = zarr.open_array('ours.zarr/{number}', mode='r')[:]\n\
             assert np.array_equal(a, np.arange(3500, dtype='f4').reshape(5, 700) / 8), {number}\n"
        );
    }
    python.run(folder.path(), &program);
}
