//! Tests that Python's package gguf reads files of `gpufile`, and the reverse.
//!
//! Runs where `GPUFILE_TEST_PYTHON` names a Python with gguf and numpy.

use std::fs;
use std::path::Path;

use gpufile::formats::SaveOptions;
use gpufile::formats::gguf::{self, Array, GgmlType, Metadata, Model, Strings, TensorData, Value};
use testkit::python::Python;

/// Writes `theirs.gguf` with values and tensors of every kind, and the bytes of each tensor to a file of its number.
const THEIRS: &str = r"
import numpy as np, gguf
from gguf import GGMLQuantizationType as Q
w = gguf.GGUFWriter('theirs.gguf', 'llama')
w.add_custom_alignment(64)
w.add_uint8('u8', 200); w.add_int8('i8', -100)
w.add_uint16('u16', 60000); w.add_int16('i16', -30000)
w.add_uint32('u32', 4000000000); w.add_int32('i32', -2000000000)
w.add_uint64('u64', 2**64 - 1); w.add_int64('i64', -2**63)
w.add_float32('f32', 1.5); w.add_float64('f64', -2.25)
w.add_bool('bool', True); w.add_string('string', '模型')
w.add_token_list(['<s>', 'a', '模型'])
w.add_token_scores([0.5, -1.0, 2.0]); w.add_token_types([1, -3, 2])
w.add_array('bools', [True, False])
w.add_key_value('bytes', b'\x00\xff', gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8)
rng = np.random.default_rng(7)
arrays = []
for name in ['float16', 'float32', 'float64', 'int8', 'int16', 'int32', 'int64']:
    array = rng.integers(-100, 100, (3, 1, 5)).astype(name)
    w.add_tensor(name, array); arrays.append(array)
skipped = [Q.F16, Q.F32, Q.F64, Q.I8, Q.I16, Q.I32, Q.I64]
for kind in [k for k in Q if k in gguf.GGML_QUANT_SIZES and k not in skipped]:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # The package has an old size of Q8_1.
    if kind == Q.Q8_1: continue
    array = rng.integers(0, 256, (4, 3 * size), dtype=np.uint8)
    w.add_tensor(kind.name, array, raw_dtype=kind); arrays.append(array)
rows = rng.standard_normal((4, 512), dtype=np.float32)
for kind in [Q.Q4_0, Q.Q8_0, Q.BF16]:
    array = gguf.quants.quantize(rows, kind)
    w.add_tensor('quantised ' + kind.name, array, raw_dtype=kind); arrays.append(array)
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
for number, array in enumerate(arrays):
    open(str(number), 'wb').write(array.tobytes())
";

/// Defines what a file has, in the reader of the package: fields with their types and values, and tensors.
const READ: &str = r"
import gguf
def read(path):
    r = gguf.GGUFReader(path)
    fields = {k: (f.types, f.contents()) for k, f in r.fields.items()}
    tensors = [(t.name, t.tensor_type, t.shape.tolist(), t.n_bytes, t.data.tobytes()) for t in r.tensors]
    return fields, tensors, r.alignment
";

fn get<'a>(metadata: &'a Metadata, key: &str) -> &'a Value {
    metadata.get(key).unwrap_or_else(|| panic!("{key}: {metadata:?}"))
}

fn check_values(metadata: &Metadata) {
    let strings = Strings::from_iter(["<s>", "a", "模型"]);
    for (key, value) in [
        ("general.architecture", Value::from("llama")),
        ("general.alignment", 64_u32.into()),
        ("u8", 200_u8.into()),
        ("i8", (-100_i8).into()),
        ("u16", 60_000_u16.into()),
        ("i16", (-30_000_i16).into()),
        ("u32", 4_000_000_000_u32.into()),
        ("i32", (-2_000_000_000_i32).into()),
        ("u64", u64::MAX.into()),
        ("i64", i64::MIN.into()),
        ("f32", 1.5_f32.into()),
        ("f64", (-2.25_f64).into()),
        ("bool", true.into()),
        ("string", "模型".into()),
        ("tokenizer.ggml.tokens", Array::Strings(strings).into()),
        ("tokenizer.ggml.scores", Array::F32(vec![0.5, -1.0, 2.0]).into()),
        ("tokenizer.ggml.token_type", Array::I32(vec![1, -3, 2]).into()),
        ("bools", Array::Bool(vec![true, false]).into()),
        ("bytes", Array::U8(vec![0, 255]).into()),
    ] {
        assert_eq!(get(metadata, key), &value, "{key}");
    }
}

#[test]
fn files_of_python_are_read_and_written_again() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (theirs, ours) = (folder.path().join("theirs.gguf"), folder.path().join("ours.gguf"));
    python.run(folder.path(), THEIRS);
    let model = Model::open(&theirs).unwrap();
    check_values(model.metadata());

    let loaded = model.load().to_host().unwrap();
    let tensors: Vec<_> = loaded.iter().collect();
    assert!(tensors.len() >= 7 + 24 + 3, "{}", tensors.len());
    for (number, tensor) in tensors.iter().enumerate() {
        let expected = fs::read(folder.path().join(number.to_string())).unwrap();
        let name = tensor.info.name;
        assert!(loaded.bytes(name) == Some(&expected[..]), "{name}");
        assert!(model.read_tensor(name).unwrap() == expected, "{name}");
        let ggml_type = tensor.info.ggml_type;
        let (expected_type, shape) = match GgmlType::from_name(name) {
            Some(expected) => (expected, vec![4, 3 * ggml_type.block_elements()]),
            None if name.starts_with("quantised ") => {
                (GgmlType::from_name(&name["quantised ".len()..]).unwrap(), vec![4, 512])
            }
            None => {
                (GgmlType::from_name(&name.replace("float", "F").replace("int", "I")).unwrap(), vec![3, 1, 5])
            }
        };
        assert_eq!((ggml_type, tensor.info.shape), (expected_type, &shape[..]), "{name}");
    }
    let tensors: Vec<_> = tensors.into_iter().map(TensorData::from).collect();
    gguf::save(&ours, model.metadata(), &tensors, &SaveOptions::new()).unwrap();
    assert!(fs::read(&ours).unwrap() == fs::read(&theirs).unwrap());
    python.run(folder.path(), &format!("{READ}\nassert read('ours.gguf') == read('theirs.gguf')"));
}

#[test]
fn types_have_the_numbers_and_sizes_of_python() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut program = String::from("import gguf\nours = {\n");
    for one in GgmlType::all().filter(|one| *one != GgmlType::Q8_1) {
        let (name, number, elements) = (one.name(), one.number(), one.block_elements());
        program += &format!("  '{name}': ({number}, ({elements}, {})),\n", one.block_bytes());
    }
    program += "}\ntypes = [k for k in gguf.GGML_QUANT_SIZES if k.name != 'Q8_1']\nassert len(types) > 30\n\
        for k in types:\n    assert ours[k.name] == (k.value, gguf.GGML_QUANT_SIZES[k]), k\n";
    python.run(folder.path(), &program);
}

#[test]
fn our_files_are_read_by_python() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut metadata = Metadata::from_iter([("general.architecture", Value::from("llama"))]);
    metadata.insert("tokens", Array::Strings(Strings::from_iter(["", "é"])));
    metadata.insert("heads", Array::U32(vec![8, 4]));
    metadata.insert("none", Array::F64(vec![]));
    metadata.insert("scale", -0.5_f32);
    metadata.insert("truth", false);
    let bytes: Vec<u8> = (0..=255).collect();
    let save = |path: &Path, alignment: Option<u32>| {
        let mut metadata = metadata.clone();
        alignment.map(|alignment| metadata.insert("general.alignment", alignment));
        let tensors = [
            TensorData::new("w", GgmlType::Q4_0, &[2, 1, 64], &bytes[..72]),
            TensorData::new("norm", GgmlType::F32, &[3], &bytes[..12]),
            TensorData::new("step", GgmlType::I64, &[1], &bytes[..8]),
        ];
        gguf::save(path, &metadata, &tensors, &SaveOptions::new()).unwrap();
    };
    save(&folder.path().join("plain.gguf"), None);
    save(&folder.path().join("wide.gguf"), Some(256));
    let check = "
for path, alignment in [('plain.gguf', 32), ('wide.gguf', 256)]:
    fields, tensors, found = read(path)
    assert found == alignment
    values = {k: v for k, (_, v) in fields.items() if not k.startswith(('GGUF.', 'general.alignment'))}
    assert values == {'general.architecture': 'llama', 'tokens': ['', 'é'], 'heads': [8, 4], 'none': [],
        'scale': -0.5, 'truth': False}, values
    data = bytes(range(256))
    Q = gguf.GGMLQuantizationType
    assert tensors == [('w', Q.Q4_0, [64, 1, 2], 72, data[:72]), ('norm', Q.F32, [3], 12, data[:12]),
        ('step', Q.I64, [1], 8, data[:8])], tensors
";
    python.run(folder.path(), &format!("{READ}{check}"));
}

#[test]
fn our_split_files_are_read_by_python() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut metadata = Metadata::from_iter([("general.architecture", Value::from("llama"))]);
    metadata.insert("general.alignment", 64_u32);
    let contents = ["a", "b", "c"].map(|name| (name, name.repeat(8).into_bytes()));
    let tensors = contents.each_ref().map(|(name, bytes)| TensorData::new(name, GgmlType::F32, &[2], bytes));
    let options = SaveOptions::new().shard_bytes(16);
    let saved = gguf::save_split(folder.path().join("m.gguf"), &metadata, &tensors, &options).unwrap();
    assert!(saved.path.ends_with("m-00001-of-00002.gguf"));
    let check = "
for number, names in [(0, 'ab'), (1, 'c')]:
    fields, tensors, alignment = read(f'm-{number + 1:05}-of-00002.gguf')
    assert alignment == 64
    T = gguf.GGUFValueType
    assert fields['split.no'] == ([T.UINT16], number), fields
    assert fields['split.count'] == ([T.UINT16], 2) and fields['split.tensors.count'] == ([T.INT32], 3), fields
    assert ('general.architecture' in fields) == (number == 0)
    F32 = gguf.GGMLQuantizationType.F32
    assert tensors == [(name, F32, [2], 8, name.encode() * 8) for name in names], tensors
";
    python.run(folder.path(), &format!("{READ}{check}"));
}

#[test]
fn split_files_of_python_open_as_one_model() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = r"
import numpy as np, gguf
w = gguf.GGUFWriter('m.gguf', 'llama', split_max_tensors=2)
for i in range(5):
    w.add_tensor(f'blk.{i}.w', np.full((2, 3), i, np.float32))
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
";
    python.run(folder.path(), program);
    let model = Model::open(folder.path().join("m-00001-of-00003.gguf")).unwrap();
    assert_eq!((model.files().len(), model.len_bytes()), (3, 5 * 24));
    let loaded = model.load().to_host().unwrap();
    for number in 0..5 {
        let expected = (number as f32).to_le_bytes().repeat(6);
        assert_eq!(loaded.bytes(&format!("blk.{number}.w")), Some(&expected[..]));
    }
    assert_eq!(get(model.metadata(), "general.architecture").as_str(), Some("llama"));
}
