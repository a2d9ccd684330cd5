//! Tests of headers of safetensors files: reads, writes, and the text of each refusal.

use std::collections::BTreeMap;

use gpufile::formats::safetensors::{self, Header, NewTensor, ShardIndex};
use gpufile::formats::{Dtype, FormatError};

/// A file that `safetensors.numpy.save` of safetensors 0.8.0 wrote, with numpy 2.4 and ml_dtypes.
const PYTHON: &[u8] = b"x\x01\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"np\"},\
    \"scale\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\
    \"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},\
    \"h\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[32,38]},\
    \"b\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[38,42]},\
    \"none\":{\"dtype\":\"U8\",\"shape\":[0,4],\"data_offsets\":[42,42]},\
    \"\xc3\xa9\\\"\\n\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[42,43]}} \
    \0\0\0\0\0\0\0@\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@\0\0\0\0\0\0\x01\0\xff\xff\x01";

fn file(json: &str, data_len: usize) -> Vec<u8> {
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json.as_bytes());
    file.resize(file.len() + data_len, 0);
    file
}

fn parse(json: &str, data_len: usize) -> Result<Header, FormatError> {
    let file = file(json, data_len);
    Header::parse(&file, file.len() as u64)
}

fn tensor(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{offsets}]}}"#)
}

fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("format".to_owned(), "np".to_owned())])
}

#[test]
fn a_file_written_by_python_is_read() {
    let len = PYTHON.len() as u64;
    assert_eq!(safetensors::head_len(&PYTHON[..8], len), Ok(384));
    let header = Header::parse(&PYTHON[..384], len).unwrap();
    assert_eq!((header.data_start(), header.data_len_bytes(), header.file_len_bytes()), (384, 43, len));
    assert_eq!(header.metadata(), &metadata());
    let found: Vec<_> = header.tensors().map(|t| (t.name, t.dtype, t.shape, t.offsets)).collect();
    let expected: [(_, _, &[u64], _); 6] = [
        ("scale", Dtype::F64, &[], 0..8),
        ("w", Dtype::F32, &[2, 3], 8..32),
        ("h", Dtype::BF16, &[3], 32..38),
        ("b", Dtype::I16, &[2], 38..42),
        ("none", Dtype::U8, &[0, 4], 42..42),
        ("é\"\n", Dtype::Bool, &[1], 42..43),
    ];
    assert_eq!(found, expected);
    for tensor in header.tensors() {
        assert_eq!(header.get(tensor.name), Some(tensor));
    }
    assert_eq!(header.get("x"), None);
    let scale = header.in_file(header.get("scale").unwrap().offsets);
    assert_eq!(PYTHON[scale.start as usize..scale.end as usize], 2_f64.to_le_bytes());
}

#[test]
fn built_headers_equal_python_byte_for_byte() {
    let tensors = [
        NewTensor { name: "b", dtype: Dtype::I16, shape: &[2] },
        NewTensor { name: "h", dtype: Dtype::BF16, shape: &[3] },
        NewTensor { name: "none", dtype: Dtype::U8, shape: &[0, 4] },
        NewTensor { name: "scale", dtype: Dtype::F64, shape: &[] },
        NewTensor { name: "w", dtype: Dtype::F32, shape: &[2, 3] },
        NewTensor { name: "é\"\n", dtype: Dtype::Bool, shape: &[1] },
    ];
    let (header, head) = Header::build(&tensors, metadata()).unwrap();
    assert_eq!(head, PYTHON[..384]);
    assert_eq!(header.file_len_bytes(), PYTHON.len() as u64);
    assert_eq!(header.get("b").unwrap().offsets, 38..42);
}

#[test]
fn headers_round_trip_through_build_and_parse() {
    let (built, head) = Header::build(&[], BTreeMap::new()).unwrap();
    assert_eq!(head, b"\x08\0\0\0\0\0\0\0{}      ");
    assert!(built.tensors().next().is_none() && Header::parse(&head, 16).unwrap().tensors().next().is_none());

    let tensors = [
        NewTensor { name: "\u{0}\u{7f}\\/", dtype: Dtype::F4, shape: &[4, 6] },
        NewTensor { name: "", dtype: Dtype::C64, shape: &[1, 1, 1] },
        NewTensor { name: "f6", dtype: Dtype::F6E2M3, shape: &[8] },
    ];
    let metadata = BTreeMap::from([("\"".to_owned(), "\n".to_owned()), ("a".to_owned(), String::new())]);
    let (built, head) = Header::build(&tensors, metadata).unwrap();
    assert_eq!(head.len() % 8, 0);
    let parsed = Header::parse(&head, built.file_len_bytes()).unwrap();
    assert!(parsed.tensors().eq(built.tensors()));
    assert_eq!(parsed.metadata(), built.metadata());
}

#[test]
fn tensors_come_out_in_file_order() {
    let json = format!(
        "{{{},{},{}}}  \n",
        tensor("b", "U8", "4", "4,8"),
        tensor("empty", "F32", "0", "4,4"),
        tensor("a", "I8", "2,2", "0,4"),
    );
    let header = parse(&json, 8).unwrap();
    assert!(header.tensors().map(|tensor| tensor.name).eq(["a", "empty", "b"]));
}

#[test]
fn row_slices_need_whole_bytes() {
    let json = format!(
        "{{{},{},{},{}}}",
        tensor("a", "F32", "3,2", "0,24"),
        tensor("b", "F4", "4,3", "24,30"),
        tensor("c", "F32", "0,7", "30,30"),
        tensor("d", "F32", "", "30,34"),
    );
    let header = parse(&json, 34).unwrap();
    assert!(header.tensors().map(|tensor| tensor.elements()).eq([6, 12, 0, 1]));
    let rows = |name: &str, rows| header.get(name).unwrap().slice_rows(rows);
    assert_eq!(rows("a", 1..3), Ok(8..24));
    assert_eq!(rows("a", 3..3), Ok(24..24));
    assert_eq!(rows("b", 2..4), Ok(27..30));
    assert_eq!(rows("c", 0..0), Ok(30..30));
    assert!(matches!(rows("b", 0..1), Err(FormatError::PartialByte { bits, .. }) if bits == (0..12)));
    for (name, range) in [("a", 2..4), ("a", 2..u64::MAX), ("c", 0..1), ("d", 0..0)] {
        assert!(matches!(rows(name, range), Err(FormatError::NoSuchSlice { .. })), "{name}");
    }
    let backwards = std::ops::Range { start: 2, end: 1 };
    assert!(matches!(rows("a", backwards), Err(FormatError::NoSuchSlice { .. })));
}

#[test]
fn refusals_name_the_tensor_and_the_reason() {
    let ok = tensor("ok", "U8", "4", "0,4");
    for (bad, reason) in [
        (tensor("bad", "F33", "1", "4,8"), "\"F33\" is not known"),
        (tensor("bad", "F32", "1", "4,9"), "shape and type say 4 bytes, but its offsets are 4 to 9"),
        (tensor("bad", "F32", "1", "8,4"), "run backwards"),
        (tensor("bad", "F32", "2", "4,12"), "only 8 bytes of data"),
        (tensor("bad", "F32", "1", "2,6"), "inside tensor \"ok\""),
        (tensor("bad", "U8", "2", "6,8"), "2 bytes at byte"),
        (tensor("bad", "U8", "0", "2,2"), "inside tensor \"ok\""),
        (tensor("bad", "F4", "3", "4,6"), "bits 0 to 12 are not whole bytes"),
        (tensor("bad", "U8", "4294967296,4294967296", "4,8"), "more than 2^64 - 1"),
        (tensor("bad", "F64", "2305843009213693952", "4,8"), "more than 2^64 - 1"),
        (tensor("bad", "U8", "0,4294967296,4294967296", "4,4"), "more than 2^64 - 1"),
        (tensor("bad", "U8", "18446744073709551616", "4,8"), "invalid type: floating point"),
        (tensor("bad", "U8", "-4", "4,8"), "invalid value: integer `-4`"),
        (tensor("bad", "U8", "4.0", "4,8"), "invalid type: floating point"),
        (tensor("bad", "U8", "4", "4,8,8"), "trailing characters"),
        (tensor("bad", "U8", "4", "4"), "invalid length 1"),
        (r#""bad":{"dtype":"U8","shape":[4]}"#.to_owned(), "\"data_offsets\" is missing"),
        (
            r#""bad":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[4,8]}"#.to_owned(),
            "\"dtype\" occurs twice",
        ),
        (r#""bad":["U8",[4],[4,8]]"#.to_owned(), "expected an object with dtype"),
        (r#""bad":{"dtype":"U8","shape":[4"#.to_owned(), "expected `,` or `]`"),
    ] {
        let json = format!("{{{ok},{bad}}}");
        let error = parse(&json, 8).unwrap_err();
        let text = error.to_string();
        assert!(
            error.tensor() == Some("bad") && text.contains("\"bad\"") && text.contains(reason),
            "{bad}: {text}"
        );
    }
}

#[test]
fn errors_after_a_tensor_do_not_name_it() {
    let error = parse(&format!("{{{},1}}", tensor("ok", "U8", "4", "0,4")), 4).unwrap_err();
    assert!(error.tensor().is_none() && error.offset().is_some(), "{error}");
}

#[test]
fn duplicate_names_are_refused() {
    let twice =
        |second| format!("{{{},{}}}", tensor("a", "U8", "4", "0,4"), tensor(r"\u0061", "U8", "4", second));
    for second in ["4,8", "0,4"] {
        let error = parse(&twice(second), 8).unwrap_err();
        assert!(matches!(error, FormatError::DuplicateTensor { tensor, .. } if tensor == "a"));
    }
    let metadata = r#"{"__metadata__":{},"__metadata__":{}}"#;
    assert!(matches!(parse(metadata, 0), Err(FormatError::Duplicate { .. })));
    let twice = NewTensor { name: "a", dtype: Dtype::U8, shape: &[] };
    assert!(matches!(Header::build(&[twice; 2], BTreeMap::new()), Err(FormatError::DuplicateTensor { .. })));
}

#[test]
fn json_errors_have_an_offset() {
    let error = parse("{\n \"a\":\n  [1]}", 0).unwrap_err();
    // The array starts at byte 18 of the file: 8 of length, 2 + 5 + 2 of text, then the bracket.
    assert!(matches!(error.offset(), Some(17..=19)), "{error:?}");
    let json = br#"{"x":{"dtype":"F3"#;
    let mut bytes = 30_u64.to_le_bytes().to_vec();
    bytes.extend_from_slice(json);
    bytes.resize(38, 0xff);
    assert_eq!(Header::parse(&bytes, 38).unwrap_err().offset(), Some(8 + json.len() as u64));
}

#[test]
fn impossible_header_lengths_are_refused_before_reading_on() {
    let head_len = |length: u64, file_len| safetensors::head_len(&length.to_le_bytes(), file_len);
    assert_eq!(head_len(100, 108), Ok(108));
    assert!(matches!(
        head_len(100, 107),
        Err(FormatError::Truncated { needed_bytes: 108, available_bytes: 107, .. })
    ));
    assert!(matches!(head_len(100_000_001, u64::MAX), Err(FormatError::HeaderTooLarge { .. })));
    assert!(matches!(head_len(u64::MAX, u64::MAX), Err(FormatError::HeaderTooLarge { .. })));
    for (start, found) in
        [(b"version ", "Git LFS"), (b"PK\x03\x04\x14\0\0\0", "zip"), (b"GGUF\x03\0\0\0", "GGUF")]
    {
        let error = safetensors::head_len(start, u64::MAX);
        let error = error.expect_err("no header is as long").to_string();
        assert!(error.contains(found), "{error}");
    }
    assert!(matches!(
        safetensors::head_len(b"\x01234567", 7),
        Err(FormatError::Truncated { needed_bytes: 8, .. })
    ));
    assert!(matches!(
        Header::parse(&PYTHON[..383], 427),
        Err(FormatError::Truncated { available_bytes: 383, .. })
    ));
}

#[test]
fn bytes_that_are_no_header_are_refused() {
    for json in ["", "[]", "{}x", "{}\0", "{", "null", "{\"__metadata__\":{\"a\":1}}"] {
        assert!(parse(json, 0).is_err(), "{json:?}");
    }
    let error = parse("{}", 3).unwrap_err();
    assert!(matches!(error, FormatError::Gap { tensor: None, offset: 10, len_bytes: 3, .. }), "{error}");
    let known = r#"{"a":{"strides":[[{}],null],"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#;
    assert!(parse(known, 1).is_ok(), "unknown keys are passed over");
}

#[test]
fn headers_that_readers_refuse_are_not_built() {
    let build = |tensors: &[_]| Header::build(tensors, BTreeMap::new()).map(drop).unwrap_err();
    let new = |name, dtype, shape| NewTensor { name, dtype, shape };
    assert!(matches!(build(&[new("__metadata__", Dtype::U8, &[])]), FormatError::ReservedName { .. }));
    assert!(matches!(build(&[new("a", Dtype::C128, &[])]), FormatError::UnsupportedDtype { .. }));
    assert!(matches!(build(&[new("a", Dtype::F4, &[3])]), FormatError::PartialByte { .. }));
    assert!(matches!(build(&[new("a", Dtype::F64, &[1 << 61])]), FormatError::SizeOverflow { .. }));
    let half = &[1 << 63][..];
    let error = build(&[new("a", Dtype::U8, half), new("b", Dtype::U8, half)]);
    assert!(matches!(error, FormatError::FileOverflow { tensor, .. } if tensor == "b"));
    assert!(matches!(build(&[new("a", Dtype::U8, &[u64::MAX])]), FormatError::FileOverflow { .. }));
}

#[test]
fn an_index_maps_tensors_to_files() {
    let json = br#"{"metadata":{"total_size":1.5e9,"x":[{}]},"weight_map":{"b":"2.safetensors","a":"d/1.safetensors","c":"./2.safetensors"}}"#;
    let index = ShardIndex::parse(json).unwrap();
    assert_eq!(index.files(), ["2.safetensors", "d/1.safetensors"]);
    assert!(index.tensors().eq([("a", "d/1.safetensors"), ("b", "2.safetensors"), ("c", "2.safetensors")]));
    assert_eq!((index.file_of("a"), index.file_of("z")), (Some("d/1.safetensors"), None));
}

#[test]
fn indexes_must_not_name_files_outside_their_folder() {
    for file in [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../x",
        "a/..",
        ".",
        "./",
        ".//x",
        "./../x",
        "a/./x",
        "a//x",
        "a/",
        r"..\\x",
        r"\u0000",
        r"\/x",
    ] {
        let json = format!(r#"{{"weight_map":{{"w":"{file}"}}}}"#);
        let error = ShardIndex::parse(json.as_bytes()).unwrap_err();
        assert!(matches!(&error, FormatError::FileName { tensor, .. } if tensor == "w"), "{file}: {error}");
    }
    for file in ["a..b", "...", ".hidden", "a b"] {
        assert!(
            ShardIndex::parse(format!(r#"{{"weight_map":{{"w":"{file}"}}}}"#).as_bytes()).is_ok(),
            "{file}"
        );
    }
}

#[test]
fn indexes_need_one_map_without_duplicates() {
    assert!(matches!(ShardIndex::parse(b"{}"), Err(FormatError::Missing { key: "weight_map", .. })));
    let parse = |json: &str| ShardIndex::parse(json.as_bytes()).map(drop).unwrap_err();
    let error = parse(r#"{"weight_map":{"a":"x","a":"y"}}"#);
    assert!(matches!(error, FormatError::DuplicateTensor { tensor, .. } if tensor == "a"));
    assert!(matches!(parse(r#"{"weight_map":{},"weight_map":{}}"#), FormatError::Duplicate { .. }));
    for json in [
        &b"\xff"[..],
        b"",
        b"[]",
        br#"{"weight_map":[]}"#,
        br#"{"weight_map":{"a":1}}"#,
        b"{\"weight_map\":{}}x",
    ] {
        assert!(matches!(ShardIndex::parse(json), Err(FormatError::Syntax { .. })), "{json:?}");
    }
}

/// Each is accepted by the library safetensors, in the versions 0.8.0 and 0.9.0rc1.
#[test]
fn headers_that_the_library_takes_are_taken() {
    let a = tensor("a", "U8", "4", "0,4");
    for (json, metadata) in [
        (format!(r#"{{"__metadata__":null,{a}}}"#), None),
        (format!(r#"{{"__metadata__":{{}},{a}}}"#), Some(vec![])),
        (format!(r#"{{"__metadata__":{{"k":"1","k":"2"}},{a}}}"#), Some(vec![("k", "2")])),
        (format!(" {{{a}}}"), None),
        (format!("\n\t\r {{{a}}}  \n"), None),
    ] {
        let header = parse(&json, 4).unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(header.get("a").unwrap().offsets, 0..4, "{json}");
        let entries = header.metadata().iter().map(|(key, value)| (key.as_str(), value.as_str()));
        assert_eq!(header.has_metadata().then(|| entries.collect()), metadata, "{json}");
    }
}
