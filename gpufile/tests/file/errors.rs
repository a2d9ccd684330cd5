use std::error::Error as _;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use gpufile::{Cause, Error, File, IoRange, Request};

/// Makes a file of 5,000 bytes. Its name has characters that must not reach a terminal.
fn hostile_file(folder: &tempfile::TempDir) -> File {
    let path = folder.path().join(OsStr::from_bytes(b"a\x1b[31m \"b\"\n\xff"));
    fs::write(&path, [7; 5000]).unwrap();
    File::open(path).unwrap()
}

/// Returns an error of each kind that a file gives on a machine without CUDA.
fn errors() -> Vec<Error> {
    let folder = tempfile::tempdir().unwrap();
    let file = hostile_file(&folder);
    let mut buffer = vec![0; 100];
    let ranges = [IoRange { file_offset: 4950, buffer_offset: 0, len_bytes: 100 }];
    let outside = [IoRange { file_offset: 0, buffer_offset: 1, len_bytes: 100 }];
    let mapped = file.map().unwrap();
    let mut another = vec![0; 100];
    let mut requests = [Request { file: &file, buffer: &mut another, offset: 4950 }];
    vec![
        file.engine().read_many(&mut requests).unwrap_err(),
        File::open(folder.path().join("not\x1bthere")).unwrap_err(),
        File::open("not\0there").unwrap_err(),
        file.read_exact_at(&mut buffer, 4950).unwrap_err(),
        file.read_many(&mut buffer, &ranges).unwrap_err(),
        file.read_many(&mut buffer, &outside).unwrap_err(),
        file.read_at(&mut buffer, u64::MAX).unwrap_err(),
        file.write_all_at(&buffer, 0).unwrap_err(),
        file.set_len(0).unwrap_err(),
        mapped.read_exact_at(&mut buffer, 4950).unwrap_err(),
        mapped.read_many(&mut buffer, &ranges).unwrap_err(),
    ]
}

#[test]
fn paths_in_errors_are_quoted_and_escaped() {
    let mut quoted = 0;
    for error in errors() {
        let text = error.to_string();
        assert!(!text.contains(char::is_control), "{text:?}");
        quoted += usize::from(text.contains(r#"a\u{1b}[31m \"b\"\n\xFF""#));
    }
    assert_eq!(quoted, 9);
}

#[test]
fn errors_include_the_text_of_their_source_once() {
    for error in errors() {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(next) = source {
            assert_eq!(text.matches(&next.to_string()).count(), 1, "{text:?} and {next}");
            text = next.to_string();
            source = next.source();
        }
        // An `io::Error` around the error changes nothing.
        let wrapped = std::io::Error::from(error);
        assert!(wrapped.source().is_none_or(|source| source.to_string() != wrapped.to_string()), "{wrapped}");
    }
}

#[test]
fn conversion_to_io_errors_keeps_errno() {
    for error in errors() {
        let (errno, kind, text) = (error.raw_os_error(), error.kind(), error.to_string());
        let converted = std::io::Error::from(error);
        assert_eq!((converted.raw_os_error(), converted.kind()), (errno, kind), "{text}");
        assert!(errno.is_some() || converted.to_string() == text, "{converted}");
    }
}

#[test]
fn reads_beyond_the_end_name_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = hostile_file(&folder);
    let mut buffer = vec![0; 100];
    for (offset, bytes_done) in [(4950, 50), (5000, 0), (1 << 40, 0)] {
        let error = file.read_exact_at(&mut buffer, offset).unwrap_err();
        assert!(matches!(error.cause(), Cause::EndOfFile { at: 5000 }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("cannot read 100 bytes at {offset} of \"/")), "{text}");
        let expected = format!(": the file ends at byte 5000; {bytes_done} bytes were transferred");
        assert!(text.ends_with(&expected), "{text}");
    }
}
