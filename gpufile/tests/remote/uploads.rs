//! Tests of objects that are written: whole or not at all.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::keys::{assert_literal, keys};
use crate::support::cause;
use gpufile::formats::gguf::{self, GgmlType, Metadata};
use gpufile::formats::safetensors::{self, ShardIndex, TensorData};
use gpufile::formats::{Dtype, Error, InPlace, SaveOptions};
use gpufile::remote::{RemoteError, RemoteFolder, RemoteOptions};
use gpufile::{Cause, Engine};
use testkit::bed::{Bed, pattern};
use testkit::bucket::{Bucket, Step};
use testkit::web::Server;
use testkit::{alone, in_a_fork};

/// The bytes of a part, if an object is not very long.
const PART: usize = 8 << 20;
const LONG: usize = 3 * PART + 4321;
const URL: &str = "s3://bucket/m/a%20b?c.safetensors";
const NAME: &str = "bucket/m/a%20b?c.safetensors";

/// Returns options for this server, for three parts at a time.
fn options(bucket: &Bucket, bed: &Bed) -> RemoteOptions {
    let engine = Engine::builder().driver(bed.driver.clone()).bounce_memory_bytes(4 * PART).build();
    let variables = bucket.variables().into_iter();
    variables.fold(crate::support::options().engine(&engine), |options, (name, value)| {
        options.s3_option(name, value)
    })
}

fn save() -> SaveOptions {
    SaveOptions::new().sync(false).metadata([("format", "pt")])
}

fn file_of(tensors: &[TensorData<'_>]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let saved = safetensors::save(folder.path().join("a"), tensors, &save()).unwrap();
    fs::read(saved.path).unwrap()
}

#[track_caller]
fn assert_without_secrets(error: &(impl std::fmt::Display + std::fmt::Debug)) {
    let text = format!("{error} {error:?}");
    for secret in ["KEY", "hidden", "signature", "uploadId"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn models_of_any_memory_appear_as_a_whole() {
    Bed::each(|bed| {
        let bucket = Bucket::new();
        let options = options(&bucket, bed);
        bucket.set(NAME, b"old".to_vec());
        let host = pattern(LONG);
        let mut device = bed.device.alloc(LONG).unwrap();
        device.copy_from_host(0, &host).unwrap();
        let shape = [LONG as u64];
        let tensors = [
            TensorData::new("device", Dtype::U8, &shape, &device),
            TensorData::new("empty", Dtype::F32, &[0], &[][..]),
            TensorData::new("host", Dtype::U8, &shape, &host),
        ];
        bucket.hold(true);
        let saved = thread::scope(|scope| {
            let saving = scope.spawn(|| safetensors::save_url_with(URL, &tensors, &save(), &options));
            bucket.wait_for_held(3);
            assert_eq!(bucket.object(NAME).as_deref(), Some(&b"old"[..]));
            bucket.hold(false);
            saving.join().unwrap().unwrap()
        });
        let on_host =
            [TensorData::new("device", Dtype::U8, &shape, &host), tensors[1].clone(), tensors[2].clone()];
        let expected = file_of(&on_host);
        assert!(bucket.object(NAME).unwrap() == expected);
        assert_eq!((saved.path.to_str(), saved.len_bytes), (Some(URL), expected.len() as u64));
        assert_eq!((bucket.unfinished(), bucket.names().len(), bucket.most_at_once()), (0, 1, 3));
    });
}

#[test]
fn short_objects_take_one_request() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let tensors = [TensorData::new("a", Dtype::U8, &[3], &[1_u8, 2, 3][..])];
    safetensors::save_url_with(URL, &tensors, &save(), &options(&bucket, &bed)).unwrap();
    assert!(bucket.object(NAME).unwrap() == file_of(&tensors));
    assert_eq!(bucket.steps(), [Step::Put]);
    bucket.fail(Step::Put, 503, 1);
    let empty: [TensorData<'_>; 0] = [];
    safetensors::save_url_with(URL, &empty, &save(), &options(&bucket, &bed)).unwrap();
    assert!(bucket.object(NAME).unwrap() == file_of(&empty));
    assert_eq!(bucket.steps(), [Step::Put, Step::Put]);
}

#[test]
fn failed_steps_keep_the_older_object() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let options = options(&bucket, &bed).tries(3);
    let bytes = pattern(LONG);
    let tensors = [TensorData::new("a", Dtype::U8, &[LONG as u64], &bytes)];
    bucket.set(NAME, b"old".to_vec());
    for (step, status) in [
        (Step::Begin, 403),
        (Step::Begin, 404),
        (Step::Part(1), 500),
        (Step::Part(3), 503),
        (Step::Part(4), 400),
        (Step::Complete, 500),
    ] {
        bucket.fail(step, status, usize::MAX);
        let error = safetensors::save_url_with(URL, &tensors, &save(), &options).unwrap_err();
        let Error::Save { error: inner, in_place, left, .. } = &error else { panic!("{error}") };
        assert_eq!(cause(inner).status(), Some(status), "{step:?}: {error}");
        // The store may have completed the object, although its last answer is a failure.
        let expected = if step == Step::Complete { InPlace::Unknown } else { InPlace::Old };
        assert_eq!((in_place, left.len()), (&expected, 0));
        let text = error.to_string();
        assert!(text.contains(URL) && text.contains(&format!("status {status}")), "{text}");
        assert_without_secrets(&error);
        let tries = bucket.steps().iter().filter(|other| **other == step).count();
        assert_eq!(tries, if status < 500 { 1 } else { 3 }, "{step:?}");
        assert_eq!((bucket.object(NAME).as_deref(), bucket.unfinished()), (Some(&b"old"[..]), 0), "{step:?}");
        bucket.fail(step, status, 0);
    }
    // What passes is tried again.
    for step in [Step::Begin, Step::Part(2), Step::Part(4), Step::Complete] {
        bucket.fail(step, 503, 2);
        bucket.set(NAME, b"old".to_vec());
        safetensors::save_url_with(URL, &tensors, &save(), &options).unwrap();
        assert!(bucket.object(NAME).unwrap() == file_of(&tensors));
    }
}

#[test]
fn redirects_of_uploads_are_not_followed() {
    let (bucket, bed, other) = (Bucket::new(), Bed::emulated(), Server::new(Vec::new()));
    let bytes = pattern(LONG);
    for step in [Step::Put, Step::Begin, Step::Part(1), Step::Complete] {
        let count = if step == Step::Put { 1 } else { LONG };
        let shape = [count as u64];
        let tensors = [TensorData::new("a", Dtype::U8, &shape, &bytes[..count])];
        for status in [301, 302, 303, 307, 308] {
            bucket.redirect(step, status, other.url("/a"));
            let saved = safetensors::save_url_with(URL, &tensors, &save(), &options(&bucket, &bed));
            let Err(Error::Save { error, in_place, .. }) = saved else { panic!("{saved:?}") };
            assert_eq!((cause(&error).status(), in_place), (Some(status), InPlace::Old), "{step:?}: {error}");
            assert_eq!((other.requests().len(), bucket.unfinished()), (0, 0), "{step:?} {status}");
        }
        bucket.fail(step, 307, 0);
    }
}

#[test]
fn dropped_uploads_leave_nothing() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let options = options(&bucket, &bed);
    let bytes = pattern(LONG);
    // Parts have arrived, are on their way, or are not full yet.
    for (count, is_held) in [(LONG, true), (2 * PART, true), (2 * PART + 1, false), (1, false), (0, false)] {
        bucket.hold(is_held);
        let mut upload = options.upload(URL, LONG as u64).unwrap();
        assert_eq!(upload.path().to_str(), Some(URL));
        upload.write(&bytes[..count]).unwrap();
        if is_held {
            bucket.wait_for_held(2);
        }
        drop(upload);
        assert_eq!(bucket.unfinished(), 0, "{count}");
        // The server may look at a part later whose connection is closed.
        assert!(bucket.steps().contains(&Step::Abort), "{count}");
        bucket.hold(false);
    }
    let mut upload = options.upload(URL, LONG as u64).unwrap();
    upload.write(&bytes[1..]).unwrap();
    let error = upload.finish().unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Upload { .. }), "{error}");
    assert_eq!((bucket.unfinished(), bucket.names().len()), (0, 0));
}

#[test]
fn engines_limit_the_parts_at_a_time() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let engine = Engine::builder().driver(bed.driver.clone()).bounce_memory_bytes(2 * PART).build();
    let bytes = pattern(4 * PART);
    let mut upload = options(&bucket, &bed).engine(&engine).upload(URL, bytes.len() as u64).unwrap();
    bucket.hold(true);
    thread::scope(|scope| {
        let writing = scope.spawn(|| upload.write(&bytes));
        bucket.wait_for_held(1);
        // Another part would come now.
        thread::sleep(Duration::from_millis(200));
        bucket.hold(false);
        writing.join().unwrap().unwrap();
    });
    upload.finish().unwrap();
    assert_eq!(bucket.most_at_once(), 1);
    assert!(bucket.object(NAME).unwrap() == bytes);
}

#[test]
fn shards_appear_with_their_index() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let options = options(&bucket, &bed);
    let bytes = pattern(3000);
    let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[3000], &bytes));
    let save = save().shard_bytes(4000);
    let index_name = format!("{NAME}.index.json");
    let saved = safetensors::save_url_with(URL, &tensors, &save, &options).unwrap();
    assert_eq!(saved.path.to_str(), Some(format!("{URL}.index.json").as_str()));
    let index = bucket.object(&index_name).unwrap();
    let files = ShardIndex::parse(&index).unwrap().files().to_vec();
    assert_eq!((files.len(), bucket.names().len()), (3, 4));
    for (file, tensor) in files.iter().zip(&tensors) {
        let object = bucket.object(&format!("bucket/m/{file}")).unwrap();
        assert!(object == file_of(std::slice::from_ref(tensor)), "{file}");
    }
    // Without its index, no new object stays.
    bucket.set(&index_name, b"old".to_vec());
    let before = bucket.names();
    bucket.steps();
    bucket.fail(Step::Put, 400, usize::MAX);
    safetensors::save_url_with(URL, &tensors, &save, &options).unwrap_err();
    assert_eq!((bucket.names(), bucket.steps().len()), (before.clone(), 1));
    bucket.fail_after(Step::Put, 3, 400);
    let error = safetensors::save_url_with(URL, &tensors, &save, &options).unwrap_err();
    assert!(error.to_string().contains("a%20b?c.safetensors.index.json"), "{error}");
    assert_eq!((bucket.names(), bucket.object(&index_name).as_deref()), (before, Some(&b"old"[..])));
    // A shard may be there although its answer says otherwise.
    bucket.fail_after(Step::Put, 1, 503);
    let error = safetensors::save_url_with(URL, &tensors, &save, &options).unwrap_err();
    let Error::Save { in_place, left, .. } = &error else { panic!("{error}") };
    assert_eq!((in_place, left.len()), (&InPlace::Old, 1));
    assert!(left[0].to_str().unwrap().ends_with("-00002-of-00003.safetensors"), "{left:?}");
    // The index may be in place although its answer says otherwise, and needs the shards.
    bucket.fail_after(Step::Put, 3, 503);
    let error = safetensors::save_url_with(URL, &tensors, &save, &options).unwrap_err();
    let Error::Save { in_place, left, .. } = &error else { panic!("{error}") };
    assert_eq!((in_place, left.len()), (&InPlace::Unknown, 3));
    let names = bucket.names();
    let has = |shard: &PathBuf| names.contains(&shard.to_str().unwrap().replacen("s3://", "", 1));
    assert!(left.iter().all(has), "{left:?} {names:?}");
}

#[test]
fn keys_of_s3_are_written_and_read_as_they_are() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let keys = keys(&[]);
    assert_literal(&options(&bucket, &bed), "s3://bucket/", &keys);
    let names: Vec<_> = keys.iter().map(|key| format!("bucket/{key}")).collect();
    assert_eq!(bucket.names(), names);
}

#[test]
fn missing_keys_with_escapes_name_the_other_spelling() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let options = options(&bucket, &bed);
    bucket.set("bucket/a b", b"abc".to_vec());
    for (key, is_spelled) in [("a%20b", true), ("a%20c", false), ("c", false)] {
        let error = options.open(&format!("s3://bucket/{key}")).unwrap_err();
        assert_eq!((cause(&error).status(), error.kind()), (Some(404), ErrorKind::NotFound), "{error}");
        assert_eq!(error.to_string().contains("a key is written without escapes"), is_spelled, "{error}");
    }
}

#[test]
fn folders_are_listed_written_and_emptied() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let google = bucket
        .google_variables()
        .into_iter()
        .fold(crate::support::options(), |options, (name, value)| options.gcs_option(name, value));
    for (scheme, options) in [("s3", options(&bucket, &bed)), ("gs", google)] {
        for name in ["c/a", "other/a", "a"] {
            bucket.set(&format!("bucket/a b/{name}"), Vec::new());
        }
        let folder = RemoteFolder::new(&format!("{scheme}://bucket/a b"), &options).unwrap();
        for name in ["b", "%20", "d", "e"] {
            let mut upload = folder.upload(name, 3).unwrap();
            upload.write(&name.repeat(3).as_bytes()[..3]).unwrap();
            upload.finish().unwrap();
        }
        assert_eq!(bucket.object("bucket/a b/b").as_deref(), Some(&b"bbb"[..]));
        assert_eq!(folder.names().unwrap(), ["%20", "a", "b", "d", "e"]);
        for name in ["%20", "b", "b", "none"] {
            folder.remove(name).unwrap();
        }
        assert_eq!(folder.names().unwrap(), ["a", "d", "e"]);
        let root = RemoteFolder::new(&format!("{scheme}://bucket"), &options).unwrap();
        assert!(root.names().unwrap().is_empty());
        let none = RemoteFolder::new(&format!("{scheme}://bucket/none/"), &options).unwrap();
        assert!(none.names().unwrap().is_empty());
    }
    assert_eq!(bucket.names(), ["a", "c/a", "d", "e", "other/a"].map(|name| format!("bucket/a b/{name}")));
}

#[test]
fn folders_that_no_store_lists_are_refused() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let [(_, endpoint), ..] = bucket.variables();
    for address in ["s3://bucket/a//b", "s3://bucket/../a", &format!("{endpoint}/bucket/a")] {
        let folder = RemoteFolder::new(address, &options(&bucket, &bed)).unwrap();
        let error = folder.names().unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("no empty parts"), "{error}");
    }
    let folder = RemoteFolder::new("https://example.org/a?secret", &RemoteOptions::new()).unwrap();
    for failed in [folder.names().map(drop), folder.remove("a"), folder.upload("a", 3).map(drop)] {
        let error = failed.unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Invalid { .. }), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn authorities_of_the_machine_are_read_once() {
    alone(|| {
        const LONG: u64 = 8 << 20;
        let (bucket, bed) = (Bucket::new(), Bed::emulated());
        let folder = tempfile::tempdir().unwrap();
        let authorities = folder.path().join("authorities.pem");
        fs::write(&authorities, vec![b'\n'; LONG as usize]).unwrap();
        // SAFETY: the other threads of this process read no variables.
        unsafe { std::env::set_var("SSL_CERT_FILE", &authorities) };
        bucket.set("bucket/a", b"abc".to_vec());
        let read_bytes = || -> u64 {
            let counts = fs::read_to_string("/proc/self/io").unwrap();
            counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
        };
        let before = read_bytes();
        options(&bucket, &bed).open("s3://bucket/a").unwrap();
        assert!(read_bytes() - before >= LONG, "they are read");
        let before = read_bytes();
        for _ in 0..3 {
            options(&bucket, &bed).open("s3://bucket/a").unwrap();
            options(&bucket, &bed).upload("s3://bucket/b", 0).unwrap().finish().unwrap();
        }
        assert!(read_bytes() - before < LONG, "they are read again");
    });
}

#[test]
fn models_in_gguf_have_the_bytes_of_their_file() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let options = options(&bucket, &bed);
    let metadata = Metadata::from_iter([("general.architecture", "llama")]);
    let mut device = bed.device.alloc(PART + 4).unwrap();
    let host = pattern(PART + 4);
    device.copy_from_host(0, &host).unwrap();
    let shape = [PART as u64 / 4 + 1];
    let tensors = |bytes| {
        let first = gguf::TensorData { name: "a", ggml_type: GgmlType::F32, shape: &shape, bytes };
        [first, gguf::TensorData::new("b", GgmlType::F32, &[3], &[1_u8; 12][..])]
    };
    let folder = tempfile::tempdir().unwrap();
    gguf::save(folder.path().join("a"), &metadata, &tensors((&host).into()), &save()).unwrap();
    let expected = fs::read(folder.path().join("a")).unwrap();
    let saved = gguf::save_url_with(URL, &metadata, &tensors((&device).into()), &options).unwrap();
    assert!(bucket.object(NAME).unwrap() == expected);
    assert_eq!((saved, bucket.unfinished()), (expected.len() as u64, 0));
    bucket.fail(Step::Complete, 403, 1);
    let error = gguf::save_url_with(URL, &metadata, &tensors((&host).into()), &options).unwrap_err();
    assert!(matches!(error, Error::Save { in_place: InPlace::Old, .. }), "{error}");
    assert_without_secrets(&error);
}

#[test]
fn forked_children_leave_uploads_to_their_parent() {
    alone(|| {
        let (bucket, bed) = (Bucket::new(), Bed::emulated());
        let bytes = pattern(LONG);
        let mut upload = options(&bucket, &bed).upload(URL, LONG as u64).unwrap();
        upload.write(&bytes[..PART]).unwrap();
        let mut upload = Some(upload);
        let ended = in_a_fork(|| {
            let mut upload = upload.take().unwrap();
            let error = upload.write(&bytes[PART..]).unwrap_err();
            assert!(matches!(cause(&error), RemoteError::Upload { .. }), "{error}");
            let error = upload.finish().unwrap_err();
            assert!(matches!(cause(&error), RemoteError::Upload { .. }), "{error}");
        });
        assert_eq!((ended, bucket.unfinished()), (Ok(()), 1));
        let mut upload = upload.unwrap();
        upload.write(&bytes[PART..]).unwrap();
        upload.finish().unwrap();
        assert!(bucket.object(NAME).unwrap() == bytes);
    });
}

#[test]
fn servers_that_are_no_stores_take_nothing() {
    let bed = Bed::emulated();
    let bucket = Bucket::new();
    for url in [
        "http://example.org/a?hidden",
        "https://example.org/a",
        "ftp://a/b",
        "swift://bucket/a",
        "s3://bucket",
    ] {
        let error = crate::support::options().upload(url, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_without_secrets(&error);
    }
    let with_header = options(&bucket, &bed).header("Authorization", "hidden");
    let error = with_header.upload(URL, 1).unwrap_err();
    assert!(matches!(error.cause(), Cause::Remote(_)), "{error}");
    assert_without_secrets(&error);
    // No server answers there.
    let nowhere = options(&bucket, &bed).s3_option("AWS_ENDPOINT", "http://127.0.0.1:1").tries(2);
    let error = nowhere.timeout(Duration::from_secs(5)).upload(URL, LONG as u64).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Upload { .. }), "{error}");
    assert!(error.to_string().contains(URL) && error.to_string().contains("refused"), "{error}");
    assert_without_secrets(&error);
}

#[test]
fn panics_of_the_client_are_errors() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let mut options = crate::support::options().engine(&Engine::builder().driver(bed.driver.clone()).build());
    for (name, value) in bucket.variables().into_iter().filter(|(name, _)| *name != "AWS_ENDPOINT") {
        options = options.s3_option(name, value);
    }
    // It is a part of the address of the server.
    let error = options.s3_option("AWS_REGION", "no region").upload(URL, LONG as u64).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Upload { .. }), "{error}");
    assert!(error.to_string().contains("check the endpoint, the region"), "{error}");
    assert_without_secrets(&error);
}

#[test]
fn uploads_trust_the_authorities_of_the_options() {
    // This server is no store, and closes the connection after it was made.
    let (bucket, bed, server) = (Bucket::new(), Bed::emulated(), Server::encrypted(Vec::new()));
    let options = options(&bucket, &bed).s3_option("AWS_ENDPOINT", server.url("")).tries(1);
    let refusal = |options: &RemoteOptions| options.upload(URL, LONG as u64).unwrap_err().to_string();
    let untrusted = refusal(&options);
    assert!(untrusted.contains("certificate"), "{untrusted}");
    let trusted = refusal(&options.trust(server.certificate().as_bytes()).unwrap());
    assert!(trusted.contains("could not be written") && !trusted.contains("certificate"), "{trusted}");
}
