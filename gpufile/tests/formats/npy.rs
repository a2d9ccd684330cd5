//! Tests of npy files: reads, writes, and the text of each refusal.

use gpufile::formats::npy::{self, ByteOrder, NpyFile, NpyHeader, Order};
use gpufile::formats::{Dtype, Error, FormatError, SaveOptions};

/// The headers that `numpy.save` of numpy 2.4 wrote, without the spaces and the newline that fill 128 bytes.
const NUMPY: [(&str, Order, &[u64], &[u8]); 6] = [
    (
        "<f4",
        Order::C,
        &[2, 3],
        b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
    ),
    (">i2", Order::C, &[], b"\x93NUMPY\x01\0v\0{'descr': '>i2', 'fortran_order': False, 'shape': (), }"),
    (
        "<c16",
        Order::Fortran,
        &[2, 3],
        b"\x93NUMPY\x01\0v\0{'descr': '<c16', 'fortran_order': True, 'shape': (2, 3), }",
    ),
    ("|S3", Order::C, &[0], b"\x93NUMPY\x01\0v\0{'descr': '|S3', 'fortran_order': False, 'shape': (0,), }"),
    (
        "<M8[D]",
        Order::C,
        &[1],
        b"\x93NUMPY\x01\0v\0{'descr': '<M8[D]', 'fortran_order': False, 'shape': (1,), }",
    ),
    (
        "|b1",
        Order::C,
        &[1, 2, 3],
        b"\x93NUMPY\x01\0v\0{'descr': '|b1', 'fortran_order': False, 'shape': (1, 2, 3), }",
    ),
];

fn file(version: u8, dictionary: &str, data_len: usize) -> Vec<u8> {
    let mut file = b"\x93NUMPY".to_vec();
    file.extend_from_slice(&[version, 0]);
    match version {
        1 => file.extend_from_slice(&(dictionary.len() as u16).to_le_bytes()),
        _ => file.extend_from_slice(&(dictionary.len() as u32).to_le_bytes()),
    }
    file.extend_from_slice(dictionary.as_bytes());
    file.resize(file.len() + data_len, 0);
    file
}

fn parse(version: u8, dictionary: &str, data_len: usize) -> Result<NpyHeader, FormatError> {
    let file = file(version, dictionary, data_len);
    NpyHeader::parse(&file, file.len() as u64)
}

#[test]
fn numpy_headers_round_trip_byte_for_byte() {
    for (descr, order, shape, numpy) in NUMPY {
        let mut head = numpy.to_vec();
        head.resize(127, b' ');
        head.push(b'\n');
        let (built, bytes) = NpyHeader::build(descr, order, shape).unwrap();
        assert_eq!(bytes, head, "{descr}");
        let len = built.file_len_bytes();
        assert_eq!(npy::head_len(&head[..npy::PREFIX_LEN], len), Ok(128));
        let parsed = NpyHeader::parse(&head, len).unwrap();
        assert_eq!(parsed, built);
        assert_eq!((parsed.descr().to_string().as_str(), parsed.shape()), (descr, shape));
        assert_eq!(parsed.data_len_bytes(), shape.iter().product::<u64>() * parsed.descr().item_bytes());
    }
}

#[test]
fn headers_pad_for_growth_like_numpy() {
    // numpy writes each of these. 36 axes fill 192 bytes to the last, and numpy then adds 64.
    for (axes, data_start) in [(14, 128), (15, 192), (35, 192), (36, 256), (56, 256), (58, 320)] {
        let (header, _) = NpyHeader::build("<f4", Order::C, &vec![1; axes]).unwrap();
        assert_eq!(header.data_start(), data_start, "{axes} axes");
    }
}

#[test]
fn headers_too_long_for_version_1_use_version_2() {
    let (built, head) = NpyHeader::build("<f4", Order::C, &[1; 30_000]).unwrap();
    // numpy writes this.
    assert_eq!((&head[..12], head.len()), (&b"\x93NUMPY\x02\0\xf4_\x01\0"[..], 90_112));
    assert_eq!(NpyHeader::parse(&head, built.file_len_bytes()).unwrap(), built);
    assert!(matches!(
        NpyHeader::build("<f4", Order::C, &[1; 400_000]),
        Err(FormatError::HeaderTooLarge { .. })
    ));
}

#[test]
fn headers_report_fortran_order() {
    let header = parse(1, "{'descr': '>f4', 'fortran_order': True, 'shape': (2, 3)}", 24).unwrap();
    assert_eq!((header.descr().byte_order(), header.order()), (ByteOrder::Big, Order::Fortran));
    assert_eq!(header.descr().dtype(), None);
    let header = parse(3, "{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", 16).unwrap();
    assert_eq!((header.descr().byte_order(), header.order()), (ByteOrder::Little, Order::C));
    assert_eq!(header.descr().dtype(), Some(Dtype::F64));
}

#[test]
fn header_parser_accepts_python_dictionary_spellings() {
    for text in [
        "{'descr':'<f4','fortran_order':False,'shape':(2,)}",
        "{\"descr\":\"<f4\",\"fortran_order\":False,\"shape\":(2,),}\n\n  ",
        "\n{ 'shape' :\t(\n2 , ) , 'descr' : '<f4' , 'fortran_order' : False , }",
        "{'descr':'<f4','fortran_order':False,'shape':(2L,)}",
        "{'descr':'f4','fortran_order':False,'shape':(1, 2)}",
        "{'descr':'<f4','fortran_order':False,'shape':(1, 2,)}",
    ] {
        let header = parse(2, text, 8).unwrap();
        assert_eq!((header.data_start(), header.data_len_bytes()), (12 + text.len() as u64, 8), "{text:?}");
    }
}

#[test]
fn parse_errors_name_the_reason_and_position() {
    for (text, reason) in [
        ("", "a '{' was expected"),
        ("[]", "a '{' was expected"),
        ("{}", "\"descr\" is missing"),
        ("{,}", "a string was expected"),
        ("{'descr':'<f4','fortran_order':False}", "\"shape\" is missing"),
        ("{'descr':'<f4','fortran_order':False,'shape':(2)}", "a ',' was expected"),
        ("{'descr':'<f4','fortran_order':False,'shape':(,)}", "digits without a sign"),
        ("{'descr':'<f4','fortran_order':False,'shape':(2 3)}", "a ',' was expected"),
        ("{'descr':'<f4','fortran_order':False,'shape':(-2,)}", "digits without a sign"),
        ("{'descr':'<f4','fortran_order':False,'shape':(02,)}", "starts with 0"),
        ("{'descr':'<f4','fortran_order':False,'shape':(18446744073709551616,)}", "more than 2^64 - 1"),
        ("{'descr':'<f4','fortran_order':False,'shape':(True,)}", "digits without a sign"),
        ("{'descr':'<f4','fortran_order':False,'shape':[2]}", "a '(' was expected"),
        ("{'descr':'<f4','fortran_order':False,'shape':(2,)", "a ',' was expected"),
        ("{'descr':'<f4','fortran_order':False,'shape':(2,)}x", "text follows"),
        ("{'descr':'<f4','fortran_order':0,'shape':(2,)}", "True or False was expected"),
        ("{'descr':'<f4','fortran_order':False,'shape':(2,),'descr':'<f8'}", "\"descr\" occurs twice"),
        ("{'descr':'<f4','fortran_order':False,'shape':(2,),'more':1}", "\"more\" is not a key"),
        ("{'descr':'<f4''fortran_order':False,'shape':(2,)}", "a ',' was expected"),
        ("{'descr':'<f4", "does not end"),
        ("{'d\\x65scr':'<f4'}", "escapes"),
        ("{'descr':'é'}", "escapes"),
        ("{'descr':'|O','fortran_order':False,'shape':(2,)}", "Python objects"),
        ("{'descr':[('a','<f4')],'fortran_order':False,'shape':(2,)}", "records"),
        ("{'descr':('<f4',(2,)),'fortran_order':False,'shape':(2,)}", "records"),
        ("{'descr':'<f3','fortran_order':False,'shape':(2,)}", "\"<f3\" is not one of numpy's"),
        ("{'descr':'float32','fortran_order':False,'shape':(2,)}", "\"float32\" is not one of numpy's"),
        ("{'descr':'<g','fortran_order':False,'shape':(2,)}", "\"<g\" is not one of numpy's"),
        ("{'descr':'<f4','fortran_order':False,'shape':(0x2,)}", "a ',' was expected"),
        ("{'descr':'<f4','fortran_order':False,'shape':(1_2,)}", "a ',' was expected"),
        ("{'descr':'<f4', # a comment\n'fortran_order':False,'shape':(2,)}", "a string was expected"),
        ("{'descr':'<f' '4','fortran_order':False,'shape':(2,)}", "\"<f\" is not one of numpy's"),
    ] {
        let error = parse(1, text, 8).unwrap_err();
        let shown = error.to_string();
        assert!(shown.contains(reason), "{text}: {shown}");
        assert!(
            error.offset().is_some_and(|at| (10..=10 + text.len() as u64).contains(&at)),
            "{text}: {error:?}"
        );
    }
}

#[test]
fn sizes_are_checked_against_the_file() {
    let text = |shape: &str| format!("{{'descr':'<f8','fortran_order':False,'shape':({shape})}}");
    assert!(parse(1, &text("2,"), 16).is_ok());
    assert!(parse(1, &text("2,"), 17).is_ok(), "numpy allows bytes behind the array");
    assert!(matches!(parse(1, &text("2,"), 15), Err(FormatError::Truncated { .. })));
    assert!(matches!(parse(1, &text("2305843009213693951,"), 16), Err(FormatError::Truncated { .. })));
    for shape in ["2305843009213693952,", "4294967296, 4294967296", "0, 4294967296, 4294967296"] {
        assert!(matches!(parse(1, &text(shape), 16), Err(FormatError::SizeOverflow { .. })), "{shape}");
    }
    assert_eq!(parse(1, &text("0, 9"), 0).unwrap().data_len_bytes(), 0);
    assert!(NpyHeader::build("<f8", Order::C, &[1 << 61]).is_err());
    assert!(NpyHeader::build("|u1", Order::C, &[u64::MAX]).is_err());
}

#[test]
fn impossible_prefixes_are_refused_before_reading_on() {
    let head_len = |bytes: &[u8], file_len| npy::head_len(bytes, file_len);
    assert_eq!(head_len(b"\x93NUMPY\x01\0\x10\0{}", 26), Ok(26));
    assert!(matches!(
        head_len(b"\x93NUMPY\x01\0\x10\0{}", 25),
        Err(FormatError::Truncated { needed_bytes: 26, .. })
    ));
    assert!(matches!(head_len(b"\x93NUMPY\x01\0", 8), Err(FormatError::Truncated { needed_bytes: 12, .. })));
    assert!(matches!(head_len(b"PK\x03\x04", 4), Err(FormatError::OtherFormat { .. })));
    assert!(matches!(head_len(b"\x93NUMPX\x01\0\x10\0{}", 26), Err(FormatError::OtherFormat { .. })));
    for version in [[0, 0], [1, 1], [4, 0]] {
        let bytes = [&b"\x93NUMPY"[..], &version, b"\x10\0\0\0"].concat();
        assert!(matches!(head_len(&bytes, 100), Err(FormatError::UnknownVersion { .. })), "{version:?}");
    }
    let huge = b"\x93NUMPY\x02\0\xff\xff\xff\xff";
    assert!(matches!(
        head_len(huge, u64::MAX),
        Err(FormatError::HeaderTooLarge { len_bytes: 0xffff_ffff, .. })
    ));
    assert!(matches!(NpyHeader::parse(b"\x93NUMPY\x01\0\x10\0{}", 26), Err(FormatError::Truncated { .. })));
}

#[test]
fn arrays_are_written_and_read_whole_or_by_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("array.npy");
    let bytes: Vec<u8> = (0..120).collect();
    let len_bytes = npy::write(&path, "<f4", &[5, 2, 3], &bytes, &SaveOptions::new()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), len_bytes);
    let array = NpyFile::open(&path).unwrap();
    assert_eq!((array.header().shape(), array.header().order()), (&[5, 2, 3][..], Order::C));
    assert_eq!(array.file().path(), path);
    assert_eq!(array.read_to_host().unwrap(), bytes);
    for (start, end) in [(0, 5), (0, 1), (4, 5), (2, 4), (5, 5)] {
        let mut rows = vec![0; (end - start) * 24];
        array.read_rows_into(start as u64..end as u64, &mut rows).unwrap();
        assert_eq!(rows, bytes[start * 24..end * 24]);
    }

    let mut wrong = vec![0; 119];
    let error = array.read_into(&mut wrong).unwrap_err();
    assert!(
        error.to_string().ends_with(r#"array.npy": the buffer for the array has 119 bytes instead of 120"#),
        "{error}"
    );
    let error = array.read_rows_into(1..3, &mut wrong).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with(r#"array.npy": the buffer for rows 1 to 3 of the array has 119 bytes instead of 48"#),
        "{error}"
    );
    let error = array.read_rows_into(4..6, &mut wrong).unwrap_err();
    assert!(
        error.to_string().ends_with(r#"array.npy": cannot read 4 to 6 of axis 0, which has 5 indices"#),
        "{error}"
    );
}

#[test]
fn fortran_arrays_are_read_unchanged_and_have_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("array.npy");
    let bytes: Vec<u8> = (0..12).collect();
    let options = SaveOptions::new().sync(false);
    npy::write(&path, "<u2", &[3, 2], &bytes, &options.clone().order(Order::Fortran)).unwrap();
    let array = NpyFile::open(&path).unwrap();
    assert_eq!(array.header().order(), Order::Fortran);
    assert_eq!(array.read_to_host().unwrap(), bytes);
    let error = array.read_rows_into(0..1, &mut vec![0; 4]).unwrap_err();
    assert!(matches!(error, Error::Format { error: FormatError::FortranRows, .. }), "{error}");
    assert!(error.to_string().contains("Fortran order"), "{error}");

    // One axis is the same in either order.
    npy::write(&path, "<u2", &[6], &bytes, &options.clone().order(Order::Fortran)).unwrap();
    let mut rows = vec![0; 4];
    NpyFile::open(&path).unwrap().read_rows_into(1..3, &mut rows).unwrap();
    assert_eq!(rows, [2, 3, 4, 5]);
}

#[test]
fn empty_arrays_and_scalars_are_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("array.npy");
    for (descr, shape, bytes) in
        [("<f8", &[][..], vec![1; 8]), ("<f4", &[0, 5], vec![]), ("S0", &[3], vec![])]
    {
        npy::write(&path, descr, shape, &bytes, &SaveOptions::new()).unwrap();
        let array = NpyFile::open(&path).unwrap();
        assert_eq!(array.read_to_host().unwrap(), bytes);
        let rows = array.read_rows_into(0..0, &mut vec![]);
        assert_eq!(rows.is_err(), shape.is_empty(), "a scalar has no rows");
    }
}

#[test]
fn bytes_after_the_array_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.npy");
    let (_, mut file) = NpyHeader::build("|u1", Order::C, &[4]).unwrap();
    file.extend_from_slice(b"1234567");
    std::fs::write(&path, file).unwrap();
    assert_eq!(NpyFile::open(&path).unwrap().read_to_host().unwrap(), b"1234");
}

#[test]
fn errors_name_files_that_are_no_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("array.npy");
    let error = NpyFile::open(&path).unwrap_err();
    assert!(matches!(error, Error::File(_)) && error.to_string().contains("array.npy"), "{error}");
    for contents in [&b""[..], b"\x93NUMPY", b"not an array"] {
        std::fs::write(&path, contents).unwrap();
        let error = NpyFile::open(&path).unwrap_err();
        assert!(matches!(error, Error::Format { .. }) && error.to_string().contains("array.npy"), "{error}");
    }
}
