//! Tests that Python reads files of `gpufile`, and the reverse.
//!
//! Runs where `GPUFILE_TEST_PYTHON` names a Python with numpy and safetensors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gpufile::formats::npy::{NpyFile, NpyHeader, Order};
use gpufile::formats::safetensors::{Checkpoint, Header, NewTensor, TensorData};
use gpufile::formats::{Dtype, SaveOptions, npy, safetensors};
use testkit::python::Python;

/// Returns the bytes of a new file: the head, then data of 0, 1, 2 and so on.
fn file_of(head: &[u8], data_len: u64) -> Vec<u8> {
    let mut file = head.to_vec();
    file.extend((0..data_len).map(|index| index as u8));
    file
}

const NPY: [(&str, &str, Order, &[u64]); 24] = [
    ("?", "|b1", Order::C, &[3]),
    ("i1", "|i1", Order::C, &[]),
    ("u1", "|u1", Order::C, &[0]),
    ("<i2", "<i2", Order::C, &[2, 3]),
    (">i2", ">i2", Order::Fortran, &[2, 3]),
    ("<u2", "<u2", Order::C, &[1]),
    ("<i4", "<i4", Order::C, &[1, 1, 1, 1, 1]),
    ("<u4", "<u4", Order::C, &[100]),
    ("<i8", "<i8", Order::Fortran, &[7, 123]),
    (">u8", ">u8", Order::C, &[2]),
    ("<f2", "<f2", Order::C, &[12345, 2]),
    ("<f4", "<f4", Order::Fortran, &[2, 12345]),
    ("<f4", "<f4", Order::C, &[0, 5]),
    (">f8", ">f8", Order::C, &[2]),
    ("<f16", "<f16", Order::C, &[2]),
    ("<c8", "<c8", Order::C, &[2]),
    (">c16", ">c16", Order::C, &[2]),
    ("<c32", "<c32", Order::C, &[2]),
    ("S5", "|S5", Order::C, &[2]),
    ("<U5", "<U5", Order::C, &[2]),
    (">U1", ">U1", Order::C, &[2]),
    ("V7", "|V7", Order::C, &[2]),
    ("<M8[25s]", "<M8[25s]", Order::C, &[2]),
    (">m8[ns]", ">m8[ns]", Order::C, &[2]),
];

#[test]
fn npy_headers_equal_numpy_byte_for_byte() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut program = String::from(
        "import numpy as np\n\
         def case(name, descr, fortran, shape):\n    \
             a = np.zeros(shape, descr, order='F' if fortran else 'C')\n    \
             np.save(name + '.numpy', a)\n    \
             b = np.load(name)\n    \
             assert b.dtype == a.dtype and b.shape == a.shape and b.flags.f_contiguous == a.flags.f_contiguous\n    \
             raw = open(name, 'rb').read()[-a.nbytes or None:]\n    \
             assert a.nbytes == 0 or b.tobytes('A') == raw\n",
    );
    for (index, (given, descr, order, shape)) in NPY.into_iter().enumerate() {
        let (header, head) = NpyHeader::build(given, order, shape).unwrap();
        assert_eq!(header.descr().to_string(), descr);
        fs::write(folder.path().join(index.to_string()), file_of(&head, header.data_len_bytes())).unwrap();
        let fortran = if order == Order::Fortran { "True" } else { "False" };
        program += &format!("case('{index}', '{given}', {fortran}, {shape:?})\n");
    }
    // numpy has at most 64 axes, but its writer of headers takes more.
    let (_, long) = NpyHeader::build("<f4", Order::C, &[1; 30_000]).unwrap();
    fs::write(folder.path().join("long"), long).unwrap();
    program += "import io, warnings\n\
        from numpy.lib._format_impl import _write_array_header\n\
        warnings.simplefilter('ignore')\n\
        f = io.BytesIO()\n\
        _write_array_header(f, {'descr': '<f4', 'fortran_order': False, 'shape': (1,) * 30000})\n\
        assert f.getvalue() == open('long', 'rb').read()\n";
    python.run(folder.path(), &program);

    for (index, (_, descr, order, shape)) in NPY.into_iter().enumerate() {
        let read = |name: String| fs::read(folder.path().join(name)).unwrap();
        let (ours, numpy) = (read(index.to_string()), read(format!("{index}.numpy.npy")));
        let len = numpy.len() as u64;
        let head_len = npy::head_len(&numpy[..npy::PREFIX_LEN], len).unwrap() as usize;
        assert_eq!(ours[..head_len], numpy[..head_len], "{descr}");
        let header = NpyHeader::parse(&numpy, len).unwrap();
        assert_eq!((header.descr().to_string().as_str(), header.shape()), (descr, shape));
        assert_eq!((header.order(), header.file_len_bytes()), (order, len));
    }
}

#[test]
fn safetensors_headers_equal_python_byte_for_byte() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let shapes: [&[u64]; 4] = [&[], &[3], &[0, 4], &[2, 3, 1]];
    let numpy = [
        ("bool", Dtype::Bool),
        ("u1", Dtype::U8),
        ("i1", Dtype::I8),
        ("u2", Dtype::U16),
        ("i2", Dtype::I16),
        ("u4", Dtype::U32),
        ("i4", Dtype::I32),
        ("u8", Dtype::U64),
        ("i8", Dtype::I64),
        ("f2", Dtype::F16),
        ("f4", Dtype::F32),
        ("f8", Dtype::F64),
        ("c8", Dtype::C64),
    ];
    let cases = numpy.iter().flat_map(|&(name, dtype)| shapes.map(|shape| (name, dtype, shape)));
    let cases: Vec<_> = cases
        .enumerate()
        .map(|(i, (name, dtype, shape))| (format!("t\"é.{i}"), name, dtype, shape))
        .collect();
    let tensors: Vec<_> =
        cases.iter().map(|(name, _, dtype, shape)| NewTensor { name, dtype: *dtype, shape }).collect();
    let metadata = BTreeMap::from([("format".to_owned(), "np\n".to_owned())]);
    let (header, head) = Header::build(&tensors, metadata).unwrap();
    let ours = file_of(&head, header.data_len_bytes());
    fs::write(folder.path().join("ours"), &ours).unwrap();

    // numpy lacks these types. Python must accept the header, and find the tensors at their places.
    let others = [
        Dtype::BF16,
        Dtype::F4,
        Dtype::F6E2M3,
        Dtype::F6E3M2,
        Dtype::F8E4M3,
        Dtype::F8E5M2,
        Dtype::F8E8M0,
        Dtype::F8E4M3Fnuz,
        Dtype::F8E5M2Fnuz,
    ];
    let all: Vec<_> = others.into_iter().chain(numpy.map(|(_, dtype)| dtype)).collect();
    let tensors: Vec<_> =
        all.iter().map(|dtype| NewTensor { name: dtype.name(), dtype: *dtype, shape: &[8, 4] }).collect();
    let (header, head) = Header::build(&tensors, BTreeMap::new()).unwrap();
    fs::write(folder.path().join("all"), file_of(&head, header.data_len_bytes())).unwrap();

    let mut program = String::from(
        "from safetensors import safe_open\n\
         from safetensors.numpy import load_file, save_file\n\
         tensors = load_file('ours')\n\
         expected = {}\n",
    );
    for (name, numpy, _, shape) in &cases {
        program += &format!("expected[{name:?}] = ('{numpy}', {shape:?})\n");
    }
    program += "assert tensors.keys() == expected.keys()\n\
        for name, (dtype, shape) in expected.items():\n    \
            assert tensors[name].dtype == dtype and list(tensors[name].shape) == shape, name\n\
        with safe_open('ours', 'np') as f:\n    \
            save_file(tensors, 'python', f.metadata())\n\
        with safe_open('all', 'np') as f:\n    \
            keys = f.offset_keys()\n    \
            shapes = [f.get_slice(key).get_shape() for key in keys]\n\
        open('keys', 'w').write(' '.join(keys))\n\
        assert shapes == [[8, 4]] * len(keys), shapes\n";
    python.run(folder.path(), &program);

    let python = fs::read(folder.path().join("python")).unwrap();
    assert!(ours == python, "Python writes the same file");
    let len = python.len() as u64;
    let head_len = safetensors::head_len(&python[..8], len).unwrap() as usize;
    assert_eq!(Header::parse(&python[..head_len], len).unwrap().tensors().len(), cases.len());
    let keys = fs::read_to_string(folder.path().join("keys")).unwrap();
    assert!(header.tensors().map(|tensor| tensor.name).eq(keys.split(' ')), "{keys}");
}

/// A type of numpy, the same type here, a shape, and the Python expression of the values.
const VALUES: [(&str, Dtype, &[u64], &str); 8] = [
    ("?", Dtype::Bool, &[5], "np.array([1, 0, 1, 1, 0], '?')"),
    ("u1", Dtype::U8, &[2, 3], "np.arange(6, dtype='u1').reshape(2, 3)"),
    ("<i2", Dtype::I16, &[40_000], "np.arange(40000, dtype='<i4').astype('<i2')"),
    ("<f2", Dtype::F16, &[2, 2], "np.array([[1, 2.5], [-3, np.inf]], '<f2')"),
    ("<f4", Dtype::F32, &[], "np.array(1.25, '<f4')"),
    ("<f8", Dtype::F64, &[0, 4], "np.zeros((0, 4), '<f8')"),
    ("<i8", Dtype::I64, &[300, 1000], "np.arange(300000, dtype='<i8').reshape(300, 1000) * -7"),
    ("<c8", Dtype::C64, &[3], "np.array([1, 2j, 3 - 4j], '<c8')"),
];

/// Returns the values that Python read, in files named by number.
fn raw_values(python: &Python, folder: &Path) -> Vec<Vec<u8>> {
    let mut program = String::from("import numpy as np\n");
    for (number, (.., value)) in VALUES.iter().enumerate() {
        program += &format!("({value}).tofile('raw.{number}')\n");
    }
    python.run(folder, &program);
    (0..VALUES.len()).map(|number| fs::read(folder.join(format!("raw.{number}"))).unwrap()).collect()
}

#[test]
fn models_are_exchanged_with_python() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let values = raw_values(&python, folder.path());
    let names: Vec<String> = (0..VALUES.len()).map(|number| format!("layers.{number}")).collect();
    let mut program =
        String::from("import numpy as np\nfrom safetensors.numpy import load_file, save_file\nv = {}\n");
    for (name, (.., value)) in names.iter().zip(VALUES) {
        program += &format!("v['{name}'] = {value}\n");
    }
    let check = "assert found.keys() == v.keys()\n\
        for name, value in v.items():\n    \
            assert found[name].dtype == value.dtype and np.array_equal(found[name], value), name\n";
    python.run(folder.path(), &format!("{program}save_file(v, 'theirs.safetensors', {{'format': 'np'}})\n"));

    let theirs = folder.path().join("theirs.safetensors");
    let checkpoint = Checkpoint::open(&theirs).unwrap();
    let loaded = checkpoint.load().to_host().unwrap();
    assert_eq!(loaded.iter().len(), names.len());
    let mut tensors = Vec::new();
    for ((name, (_, dtype, shape, _)), value) in names.iter().zip(VALUES).zip(&values) {
        let tensor = loaded.tensor(name).unwrap();
        assert_eq!((tensor.info.dtype, tensor.info.shape), (dtype, shape));
        assert_eq!(loaded.bytes(name), Some(&value[..]));
        tensors.push(TensorData::new(name, dtype, shape, value));
    }

    let ours = folder.path().join("ours.safetensors");
    let metadata = BTreeMap::from([("format".to_owned(), "np".to_owned())]);
    safetensors::save(&ours, &tensors, &SaveOptions::new().metadata(metadata.clone())).unwrap();
    assert!(fs::read(&ours).unwrap() == fs::read(&theirs).unwrap(), "the same file, byte for byte");
    python.run(folder.path(), &format!("{program}found = load_file('ours.safetensors')\n{check}"));

    let sharded = folder.path().join("sharded.safetensors");
    safetensors::save(&sharded, &tensors, &SaveOptions::new().metadata(metadata).shard_bytes(100_000))
        .unwrap();
    let load = "import json\n\
        files = set(json.load(open('sharded.safetensors.index.json'))['weight_map'].values())\n\
        assert len(files) > 1\n\
        found = {k: t for f in files for k, t in load_file(f).items()}\n";
    python.run(folder.path(), &format!("{program}{load}{check}"));
}

#[test]
fn arrays_are_exchanged_with_numpy() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let values = raw_values(&python, folder.path());
    let mut program = String::from("import numpy as np\n");
    for (number, (.., value)) in VALUES.iter().enumerate() {
        program += &format!("np.save('theirs.{number}.npy', {value})\n");
    }
    program += "np.save('fortran.npy', np.asfortranarray(np.arange(6, dtype='<u2').reshape(2, 3)))\n";
    python.run(folder.path(), &program);

    let mut program = String::from("import numpy as np\n");
    for (number, ((descr, _, shape, value), bytes)) in VALUES.iter().zip(&values).enumerate() {
        let theirs = folder.path().join(format!("theirs.{number}.npy"));
        let array = NpyFile::open(&theirs).unwrap();
        assert_eq!(array.header().shape(), *shape);
        assert!(array.read_to_host().unwrap() == *bytes, "{descr}");
        if let Some(rows) = shape.first().filter(|rows| **rows > 0) {
            let row_bytes = bytes.len() / *rows as usize;
            let mut last = vec![0; row_bytes];
            array.read_rows_into(rows - 1..*rows, &mut last).unwrap();
            assert!(last == bytes[bytes.len() - row_bytes..], "{descr}");
        }

        let ours = folder.path().join(format!("ours.{number}.npy"));
        npy::write(&ours, descr, shape, bytes, &SaveOptions::new()).unwrap();
        assert!(fs::read(&ours).unwrap() == fs::read(&theirs).unwrap(), "{descr}");
        program += &format!("a, b = np.load('ours.{number}.npy'), {value}\n");
        program += "assert a.dtype == b.dtype and np.array_equal(a, b)\n";
    }
    let fortran = NpyFile::open(folder.path().join("fortran.npy")).unwrap();
    assert_eq!(fortran.header().order(), Order::Fortran);
    let transposed: Vec<u8> = [0_u16, 3, 1, 4, 2, 5].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(fortran.read_to_host().unwrap(), transposed);
    let ours = folder.path().join("ours.fortran.npy");
    npy::write(&ours, "<u2", &[2, 3], &transposed, &SaveOptions::new().order(Order::Fortran)).unwrap();
    program += "a = np.load('ours.fortran.npy')\n\
        assert a.flags.f_contiguous and np.array_equal(a, np.arange(6).reshape(2, 3))\n";
    python.run(folder.path(), &program);
}
