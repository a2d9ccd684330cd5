//! A table of failures: the source of each error, and whether it is transient.

use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gpufile::formats::zarr::{Array, FileStore};
use gpufile::formats::{self, Dtype, SaveOptions, safetensors};
use gpufile::remote::{RemoteError, RemoteFile, RemoteOptions};
use gpufile::storage::{Error as StorageError, Spans};
use gpufile::{Error, File, IoBufMut, IoRange, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::web::{Fault, Server};

use crate::support::{engine, put, storage};

const LEN: usize = 100_000;

/// A row: the failure, its error, the type of its source, and whether it is transient.
struct Row {
    name: String,
    error: Box<dyn StdError>,
    source: Source,
    is_transient: bool,
}

#[derive(Debug, PartialEq)]
enum Source {
    Io,
    Cufile,
    Remote,
    Mine,
    File,
    None,
}

fn source_of(error: &(dyn StdError + 'static)) -> Source {
    match error.source() {
        None => Source::None,
        Some(source) if source.is::<io::Error>() => Source::Io,
        Some(source) if source.is::<cufile::Error>() => Source::Cufile,
        Some(source) if source.is::<RemoteError>() => Source::Remote,
        Some(source) if source.is::<Mine>() => Source::Mine,
        Some(source) if source.is::<Error>() || source.is::<Box<Error>>() => Source::File,
        Some(other) => panic!("{other:?} is the source of {error:?}"),
    }
}

/// The error of a storage of a test, with a source.
#[derive(Debug)]
struct Mine(Option<io::Error>);

impl fmt::Display for Mine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mine")
    }
}

impl StdError for Mine {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.as_ref().map(|source| source as &(dyn StdError + 'static))
    }
}

fn stored(fail: impl Fn() -> StorageError + Send + Sync + 'static) -> Error {
    let file = File::from_storage("failing", storage(&pattern(LEN), move |_, _| Err(fail()))).unwrap();
    file.read_at(&mut vec![0; LEN], 0).unwrap_err()
}

fn row(name: impl ToString, error: Error, source: Source, is_transient: bool) -> Row {
    assert_eq!(error.is_transient(), is_transient, "{error}");
    assert_eq!(error.cause().is_transient(), is_transient, "{error}");
    Row { name: name.to_string(), error: Box::new(error), source, is_transient }
}

fn of_errnos(rows: &mut Vec<Row>) {
    for (errno, is_transient) in [
        (libc::EINTR, true),
        (libc::EAGAIN, true),
        (libc::ETIMEDOUT, true),
        (libc::EBUSY, true),
        (libc::ECONNREFUSED, true),
        (libc::ECONNRESET, true),
        (libc::ENETUNREACH, true),
        (libc::EHOSTUNREACH, true),
        (libc::EIO, false),
        (libc::EACCES, false),
        (libc::ENOENT, false),
        (libc::ESTALE, false),
        (libc::EINVAL, false),
        (libc::ENOMEM, false),
    ] {
        let error = stored(move || io::Error::from_raw_os_error(errno).into());
        assert_eq!(error.raw_os_error(), Some(errno));
        rows.push(row(format!("errno {errno}"), error, Source::Io, is_transient));
    }
}

fn of_storages(rows: &mut Vec<Row>) {
    let timed_out = || io::Error::from(ErrorKind::TimedOut);
    rows.push(row("an error of its own", stored(|| Mine(None).into()), Source::Mine, false));
    let around = stored(|| io::Error::new(ErrorKind::ConnectionReset, Mine(None)).into());
    assert_eq!(around.kind(), ErrorKind::ConnectionReset);
    rows.push(row("an error with a kind", around, Source::Mine, true));
    let with_source = stored(move || Mine(Some(timed_out())).into());
    assert_eq!(with_source.kind(), ErrorKind::TimedOut);
    rows.push(row("an error whose source has a kind", with_source, Source::Mine, true));
    let missing = || File::open("/no/such/file").unwrap_err();
    let of_file = stored(move || missing().into());
    assert_eq!(of_file.kind(), ErrorKind::NotFound);
    rows.push(row("an error of a file", of_file, Source::File, false));
    let busy = || stored(move || io::Error::from(ErrorKind::ResourceBusy).into());
    rows.push(row("a busy file", stored(move || busy().into()), Source::File, true));
    let short = File::from_storage("short", storage(&pattern(LEN), |_, _| Ok(()))).unwrap();
    rows.push(row("a short read", short.read_at(&mut vec![0; 10], 0).unwrap_err(), Source::None, false));
    let entry = File::from_storage("entries", storage(&pattern(LEN), |_, _| Err(Mine(None).into()))).unwrap();
    let ranges = [IoRange { file_offset: 0, buffer_offset: 0, len_bytes: 10 }];
    let error = entry.read_many(&mut vec![0; 10], &ranges).unwrap_err();
    rows.push(row("an entry of a list", error, Source::File, false));
}

fn of_files(bed: &Bed, rows: &mut Vec<Row>) {
    let missing = File::open(bed.path("missing")).unwrap_err();
    rows.push(row("a missing file", missing, Source::Io, false));
    bed.file("data", &pattern(LEN));
    let file = File::options().read(true).engine(&engine(bed)).open(bed.path("data")).unwrap();
    let writing = file.write_all_at(&[1; 10][..], 0).unwrap_err();
    rows.push(row("a write without access", writing, Source::Io, false));
    let end = file.read_exact_at(&mut vec![0; 20], LEN as u64 - 10).unwrap_err();
    rows.push(row("the end of a file", end, Source::None, false));
    rows.push(row("a length", file.set_len(10).unwrap_err(), Source::Io, false));
}

fn of_cufile(bed: &Bed, rows: &mut Vec<Row>) {
    let options = File::options().read(true).engine(&engine(bed)).policy(RoutePolicy::RequireCufile);
    let file = options.open(bed.path("data")).unwrap();
    // CU_FILE_NOMEM_ERROR and CU_FILE_IO_ERROR, in errno and as return values.
    for (fault, is_transient) in [("ret=-1 errno=5043", true), ("ret=-1 errno=5044", false)] {
        bed.emulator.as_ref().unwrap().fault("cuFileRead", &format!("times=all {fault}"));
        let error = file.read_at(&mut bed.device.alloc(LEN).unwrap(), 0).unwrap_err();
        bed.emulator.as_ref().unwrap().control("clear");
        rows.push(row(format!("cuFileRead {fault}: {error}"), error, Source::Cufile, is_transient));
    }
    bed.emulator.as_ref().unwrap().fault("cudaMemcpyAsync", "err=700 times=all");
    let posix = File::options().read(true).engine(&engine(bed)).policy(RoutePolicy::PosixOnly);
    let file = posix.open(bed.path("data")).unwrap();
    let error = file.read_at(&mut bed.device.alloc(LEN).unwrap(), 0).unwrap_err();
    bed.emulator.as_ref().unwrap().control("clear");
    rows.push(row("a failed copy", error, Source::Cufile, false));
}

fn of_servers(rows: &mut Vec<Row>) {
    let server = Server::new(pattern(LEN));
    let options = || -> RemoteOptions { RemoteFile::options().wait(Duration::from_millis(1)).tries(1) };
    let file = options().open(&server.url("/data")).unwrap();
    for (fault, is_transient) in [
        (Fault::Status(403, None), false),
        (Fault::Status(404, None), false),
        (Fault::Status(429, None), true),
        (Fault::Status(500, None), true),
        (Fault::Status(503, None), true),
        (Fault::Reset(1), true),
    ] {
        let name = format!("a server's {fault:?}");
        server.fail_always(Some(fault));
        let error = file.read_at(&mut vec![0; LEN], 0).unwrap_err();
        server.fail_always(None);
        rows.push(row(name, error, Source::Remote, is_transient));
    }
    let error = options().open("ftp://example.org/a").unwrap_err();
    rows.push(row("an address", error, Source::Remote, false));
}

fn of_formats(bed: &Bed, rows: &mut Vec<Row>) {
    fs::write(bed.path("model.safetensors"), b"no model").unwrap();
    let of = |error: formats::Error, source, is_transient: bool| {
        assert_eq!(error.is_transient(), is_transient, "{error}");
        Row { name: error.to_string(), error: Box::new(error), source, is_transient }
    };
    let missing = safetensors::Checkpoint::open(bed.path("missing.safetensors")).unwrap_err();
    rows.push(of(missing, Source::Io, false));
    let tensor = safetensors::TensorData::new("a", Dtype::U8, &[1], &[1_u8][..]);
    let saved = safetensors::save(bed.path("no/folder.safetensors"), &[tensor], &SaveOptions::new());
    rows.push(of(saved.unwrap_err(), Source::File, false));
    let reset = || io::Error::from(ErrorKind::ConnectionReset).into();
    let failing = storage(&pattern(LEN), move |_, _| Err(reset()));
    let failing = File::from_storage("failing.safetensors", failing).unwrap();
    rows.push(of(safetensors::Checkpoint::from_files([failing]).unwrap_err(), Source::Io, true));
}

#[test]
fn each_failure_has_its_source_and_may_be_transient() {
    let bed = Bed::emulated();
    let mut rows = Vec::new();
    of_errnos(&mut rows);
    of_storages(&mut rows);
    of_files(&bed, &mut rows);
    of_cufile(&bed, &mut rows);
    of_servers(&mut rows);
    of_formats(&bed, &mut rows);
    assert!(rows.len() >= 30, "{}", rows.len());
    assert!(rows.iter().filter(|row| row.is_transient).count() > 10);
    for Row { name, error, source, .. } in rows {
        assert_eq!(source_of(&*error), source, "{name}: {error:?}");
        if let Some(source) = error.source() {
            assert!(error.to_string().contains(&source.to_string()), "{name}: {error} and {source}");
        }
    }
}

fn chain<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

/// Tries again as a program would that knows nothing of this crate but its kinds of errors.
fn retried<T, E: StdError + 'static>(mut attempt: impl FnMut() -> Result<T, E>) -> (Result<T, E>, usize) {
    let is_worth_it = |error: &E| {
        chain(error).any(|error| match error.downcast_ref::<io::Error>() {
            Some(error) => error.kind() == ErrorKind::ConnectionReset,
            None => false,
        })
    };
    for tries in 1.. {
        match attempt() {
            Err(error) if tries < 4 && is_worth_it(&error) => {}
            done => return (done, tries),
        }
    }
    unreachable!("the fourth try returns")
}

#[test]
fn generic_retries_find_the_cause() {
    let failing = |errno| {
        let left = AtomicUsize::new(2);
        let read = move |bytes: &[u8], spans: &mut Spans<'_>| match left.fetch_sub(1, Ordering::Relaxed) {
            1.. => Err(io::Error::from_raw_os_error(errno).into()),
            0 => put(bytes, spans),
        };
        File::from_storage("failing", storage(&pattern(LEN), read)).unwrap()
    };
    let read = |errno| {
        let file = failing(errno);
        retried(|| file.read_exact_at(&mut vec![0; 10], 0))
    };
    assert!(matches!(read(libc::ECONNRESET), (Ok(()), 3)));
    assert!(matches!(read(libc::EIO), (Err(_), 1)));
}

#[test]
fn anyhow_finds_the_error_of_each_library() {
    fn read(file: &File, buffer: &mut (impl IoBufMut + ?Sized)) -> anyhow::Result<()> {
        Ok(file.read_exact_at(buffer, 0)?)
    }
    let bed = Bed::emulated();
    bed.file("data", &pattern(LEN));
    let refused = storage(&pattern(LEN), |_, _| Err(io::Error::from_raw_os_error(libc::EACCES).into()));
    let error = read(&File::from_storage("refused", refused).unwrap(), &mut vec![0; 10]).unwrap_err();
    let found = error.chain().find_map(|error| error.downcast_ref::<io::Error>()).unwrap();
    assert_eq!(found.raw_os_error(), Some(libc::EACCES));
    let required = File::options().read(true).engine(&engine(&bed)).policy(RoutePolicy::RequireCufile);
    let file = required.open(bed.path("data")).unwrap();
    let mut buffer = bed.device.alloc(LEN).unwrap();
    // A code of cuFile, and an errno of the kernel that cuFile hands on.
    for (errno, of_kernel) in [(5044, None), (libc::EREMOTEIO, Some(libc::EREMOTEIO))] {
        bed.emulator.as_ref().unwrap().fault("cuFileRead", &format!("times=all ret=-1 errno={errno}"));
        let error = read(&file, &mut buffer).unwrap_err();
        bed.emulator.as_ref().unwrap().control("clear");
        let of_cufile = error.chain().find_map(|error| error.downcast_ref::<cufile::Error>()).unwrap();
        assert_eq!(of_cufile.raw_code(), Some(errno), "{error}");
        let of_system = error.chain().find_map(|error| error.downcast_ref::<io::Error>());
        assert_eq!(of_system.and_then(io::Error::raw_os_error), of_kernel, "{error}");
    }
}

#[test]
fn failed_writes_of_chunks_have_their_source() {
    let folder = tempfile::tempdir().unwrap();
    let metadata = r#"{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"uint8",
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4]}},
        "chunk_key_encoding":{"name":"default"},"fill_value":0,
        "codecs":[{"name":"bytes"},{"name":"crc32c"}]}"#;
    fs::create_dir(folder.path().join("a")).unwrap();
    fs::write(folder.path().join("a/zarr.json"), metadata).unwrap();
    let array = Array::open(&Arc::new(FileStore::new(folder.path())), "/a").unwrap();
    // The folder of the chunks is a file.
    fs::write(folder.path().join("a/c"), "").unwrap();
    let error = array.write_from(&[1_u8; 4][..]).unwrap_err();
    assert!(matches!(error, formats::Error::Save { .. } | formats::Error::File(_)), "{error:?}");
    let errno = chain(&error).find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error());
    assert_eq!(errno, Some(libc::ENOTDIR), "{error}");
}

#[test]
fn sources_lead_to_the_first_error() {
    let file = File::from_storage(
        "a",
        storage(&pattern(LEN), |bytes, spans| match spans.len_bytes() {
            10 => Err(Mine(Some(io::Error::from_raw_os_error(libc::EIO))).into()),
            _ => put(bytes, spans),
        }),
    );
    let file = Arc::new(file.unwrap());
    let ranges = [IoRange { file_offset: 5, buffer_offset: 0, len_bytes: 10 }];
    let error = file.read_many(&mut vec![0; 10], &ranges).unwrap_err();
    let last = chain(&error).last().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(last.raw_os_error(), Some(libc::EIO));
    assert_eq!(error.raw_os_error(), None);
    file.read_exact_at(&mut vec![0; 11], 0).unwrap();
}
