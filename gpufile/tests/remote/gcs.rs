//! Tests of objects of Google Cloud Storage, which servers on loopback have. They check the signatures of an account.

use std::env;
use std::fs;
use std::sync::Arc;

use crate::keys::{assert_literal, keys};
use crate::support::{cause, engine, options};
use gpufile::Error;
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::zarr::zarrs::array::{ArrayBuilder, DataType};
use gpufile::formats::zarr::{Array, FileStore};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::remote::{RemoteError, RemoteOptions};
use testkit::alone;
use testkit::bed::{Bed, pattern};
use testkit::bucket::{Bucket, Step};
use testkit::google;
use testkit::web::{Fault, Server};

const LONG: usize = (3 << 20) + 4321;

fn with(options: RemoteOptions, variables: [(&'static str, String); 3]) -> RemoteOptions {
    variables.into_iter().fold(options, |options, (name, value)| options.gcs_option(name, value))
}

/// Asserts that the server got requests, and that the account signed the address of each for an hour.
#[track_caller]
fn assert_signed(server: &Server) {
    let requests = server.requests();
    assert!(!requests.is_empty());
    for request in requests {
        let target = &request.target;
        assert!(google::is_signed(target) && target.contains("X-Goog-Expires=3600"), "{target}");
        assert!(!google::is_signed(&target.replace("/bucket/", "/other/")));
    }
}

#[track_caller]
fn assert_without_secrets(text: &str) {
    let line = google::PRIVATE_KEY.lines().nth(1).unwrap();
    assert!(!text.contains("X-Goog") && !text.contains(line) && !text.contains("hidden"), "{text}");
}

#[test]
fn objects_are_read_by_signed_addresses() {
    let bytes = pattern(LONG);
    let server = Server::new(Vec::new());
    server.set_files([
        ("/bucket/folder/a".to_owned(), bytes.clone()),
        ("/bucket/day%3D1/a%20b%25%23%3F%2B".to_owned(), bytes.clone()),
    ]);
    Bed::each(|bed| {
        let options = with(options().engine(&engine(bed)), google::variables(&server.url("")));
        for name in ["gs://bucket/folder/a", "gs://bucket/day=1/a b%#?+"] {
            let file = options.open(name).unwrap();
            let mut device = bed.device.alloc(LONG).unwrap();
            file.read_exact_at(&mut device, 0).unwrap();
            assert!(device.to_vec().unwrap() == bytes);
            assert_eq!(file.path().to_str(), Some(name));
            assert_signed(&server);
        }
        let file = options.open("gs://bucket/folder/a").unwrap();
        let mut host = vec![0; LONG];
        // An address that has expired is signed again, once.
        server.fail([Fault::Status(403, None)]);
        file.read_exact_at(&mut host, 0).unwrap();
        assert!(host == bytes);
        assert_signed(&server);
        server.fail_always(Some(Fault::Status(403, None)));
        let error = file.read_exact_at(&mut host, 0).unwrap_err();
        server.forget_faults();
        assert_eq!(cause(&error).status(), Some(403));
        assert_without_secrets(&format!("{error} {error:?} {file:?} {options:?}"));
    });
}

#[test]
fn models_and_arrays_are_found_in_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = pattern(700_000);
    let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[700_000], &bytes));
    let save = SaveOptions::new().sync(false).shard_bytes(1 << 20);
    safetensors::save(folder.path().join("model.safetensors"), &tensors, &save).unwrap();
    let store = Arc::new(FileStore::new(folder.path()));
    let new = ArrayBuilder::new(vec![100, 300], vec![100, 300], DataType::UInt8, 0u8);
    let new = new.build(store, "/array").unwrap();
    new.store_metadata().unwrap();
    Array::new(new).unwrap().write_from(&bytes[..30_000]).unwrap();
    let names = ["array/zarr.json", "array/c/0/0"].map(str::to_owned).into_iter();
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.chain(files.map(|name| name.into_string().unwrap()));
    let paths = names.map(|name| (folder.path().join(&name), format!("/bucket/m/{name}")));
    let server = Server::new(Vec::new());
    server.set_files(
        paths.filter(|(path, _)| path.is_file()).map(|(path, name)| (name, fs::read(path).unwrap())),
    );
    let options = with(options(), google::variables(&server.url("")));
    let url = "gs://bucket/m/model.safetensors.index.json";
    let loaded = Checkpoint::open_url_with(url, &options).unwrap().load().to_host().unwrap();
    assert!(["a", "b", "c"].iter().all(|name| loaded.bytes(name) == Some(&bytes[..])));
    let store = Arc::new(FileStore::at_url("gs://bucket/m", &options).unwrap());
    assert!(Array::open(&store, "array").unwrap().read_to_host().unwrap() == bytes[..30_000]);
    assert_signed(&server);
}

#[test]
fn keys_of_google_are_written_and_read_as_they_are() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let keys = keys(&[]);
    let options = with(options().engine(&engine(&bed)), bucket.google_variables());
    assert_literal(&options, "gs://bucket/", &keys);
    let names: Vec<_> = keys.iter().map(|key| format!("bucket/{key}")).collect();
    assert_eq!(bucket.names(), names);
}

#[test]
fn folders_with_escapes_name_the_other_spelling() {
    let (bucket, bed) = (Bucket::new(), Bed::emulated());
    let options = with(options().engine(&engine(&bed)), bucket.google_variables());
    bucket.set("bucket/a b/zarr.json", b"{}".to_vec());
    bucket.set("bucket/c d/in/.zarray", b"{}".to_vec());
    for (folder, path, is_spelled) in [
        ("a%20b", "/", true),
        ("c%20d/", "in", true),
        ("c%20d", "/", false),
        ("a%20c", "/", false),
        ("a", "b", false),
    ] {
        let store = Arc::new(FileStore::at_url(&format!("gcs://bucket/{folder}"), &options).unwrap());
        let error = Array::open(&store, path).unwrap_err().to_string();
        assert!(error.contains("neither zarr.json nor .zarray"), "{error}");
        assert_eq!(error.contains("a key is written without escapes"), is_spelled, "{error}");
    }
}

#[test]
fn models_of_any_memory_are_saved() {
    const LONG: usize = (20 << 20) + 4321;
    const URL: &str = "gs://bucket/m/a b%.safetensors";
    const NAME: &str = "bucket/m/a b%.safetensors";
    Bed::each(|bed| {
        let bucket = Bucket::new();
        let options = with(options().engine(&engine(bed)), bucket.google_variables());
        let host = pattern(LONG);
        let mut device = bed.device.alloc(LONG).unwrap();
        device.copy_from_host(0, &host).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let save = SaveOptions::new().sync(false);
        for len in [LONG, 3] {
            let shape = [len as u64];
            let of_host = [TensorData::new("a", Dtype::U8, &shape, &host[..len])];
            let saved = safetensors::save(folder.path().join("a"), &of_host, &save).unwrap();
            let expected = fs::read(saved.path).unwrap();
            let of_device = [TensorData::new("a", Dtype::U8, &shape, device.slice(0..len))];
            safetensors::save_url_with(URL, &of_device, &save, &options).unwrap();
            assert!(bucket.object(NAME).unwrap() == expected);
        }
        // Failed and dropped uploads keep the object.
        let expected = bucket.object(NAME);
        for (step, status) in [(Step::Begin, 403), (Step::Part(2), 400), (Step::Complete, 404)] {
            bucket.fail(step, status, usize::MAX);
            let upload = options.upload(URL, LONG as u64).and_then(|mut upload| {
                upload.write(&host)?;
                upload.finish()
            });
            let error = upload.unwrap_err();
            assert_eq!(cause(&error).status(), Some(status), "{error}");
            assert_without_secrets(&format!("{error} {error:?}"));
            bucket.fail(step, status, 0);
        }
        let mut upload = options.upload(URL, LONG as u64).unwrap();
        upload.write(&host[1..]).unwrap();
        drop(upload);
        assert_eq!((bucket.object(NAME), bucket.unfinished()), (expected, 0));
        // Without its index, no shard stays.
        let shards = ["a", "b"].map(|name| TensorData::new(name, Dtype::U8, &[3], &host[..3]));
        bucket.fail_after(Step::Put, 2, 400);
        let error = safetensors::save_url_with(URL, &shards, &save.shard_bytes(4), &options).unwrap_err();
        assert!(error.to_string().contains("status 400"), "{error}");
        assert_eq!(bucket.names(), [NAME]);
    });
}

#[test]
fn tokens_of_other_accounts_write_nothing() {
    let bucket = Bucket::new();
    let other = google::key().replace(google::EMAIL, "other@example.org");
    let options = with(options(), bucket.google_variables()).gcs_option("GOOGLE_SERVICE_ACCOUNT_KEY", other);
    let error = options.upload("gs://bucket/a", 20 << 20).unwrap_err();
    assert_eq!(cause(&error).status(), Some(401), "{error}");
    assert_without_secrets(&format!("{error} {error:?}"));
}

/// Sets a variable of a process that has no other thread that reads variables.
fn set(name: &str, value: &str) {
    // SAFETY: the threads of servers read no variables.
    unsafe { env::set_var(name, value) };
}

#[test]
fn the_environment_names_an_identity() {
    alone(|| {
        let server = Server::new(pattern(100));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.json");
        fs::write(&path, google::key()).unwrap();
        set("GOOGLE_BASE_URL", &server.url(""));
        set("GOOGLE_ALLOW_HTTP", "true");
        for name in ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"] {
            set(name, path.to_str().unwrap());
            options().open("gs://bucket/a").unwrap();
            assert_signed(&server);
            // SAFETY: as in `set`.
            unsafe { env::remove_var(name) };
        }
        set("GOOGLE_SERVICE_ACCOUNT_KEY", &google::key());
        options().open("gs://bucket/a").unwrap();
        assert_signed(&server);
        // An option comes before all of them.
        let missing = options().gcs_option("google_application_credentials", "/missing/hidden");
        let refused = refusal(missing.open("gs://bucket/a"));
        assert!(refused.contains("No such file"), "{refused}");
        set("GOOGLE_SERVICE_ACCOUNT_KEY", "hidden");
        set("GOOGLE_SERVICE_ACCOUNT", "/missing/hidden");
        assert!(refusal(options().open("gs://bucket/a")).contains("service account"));
        let key = options().gcs_option("GOOGLE_SERVICE_ACCOUNT_KEY", google::key());
        key.open("gs://bucket/a").unwrap();
        assert_signed(&server);
    });
}

#[track_caller]
fn refusal<T: std::fmt::Debug>(opened: Result<T, Error>) -> String {
    let error = opened.unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Invalid { .. }), "{error}");
    let text = format!("{error} {error:?}");
    assert_without_secrets(&text);
    text
}

#[test]
fn missing_credentials_are_an_error_within_seconds() {
    alone(|| {
        let (server, home) = (Server::new(Vec::new()), tempfile::tempdir().unwrap());
        // No key is in this home, and the server of the machine's identity knows none.
        set("HOME", home.path().to_str().unwrap());
        for name in ["GCE_METADATA_HOST", "GCE_METADATA_IP"] {
            set(name, server.url("").trim_start_matches("http://"));
        }
        server.fail_always(Some(Fault::Status(404, None)));
        let error = options().open("gs://bucket/object").unwrap_err();
        assert!(matches!(cause(&error), RemoteError::Signature { .. }), "{error}");
        assert!(error.to_string().contains("\"gs://bucket/object\""), "{error}");
        assert!(server.requests().iter().all(|request| request.target.starts_with("/computeMetadata/")));
    });
}

#[test]
fn missing_credentials_are_named() {
    alone(|| {
        let (server, home) = (Server::new(Vec::new()), tempfile::tempdir().unwrap());
        server.fail_always(Some(Fault::Status(404, None)));
        // SAFETY: no other thread reads variables.
        unsafe {
            env::set_var("HOME", home.path());
            env::set_var("GCE_METADATA_HOST", server.address().to_string());
            env::set_var("GCE_METADATA_IP", server.address().to_string());
        }
        let of_read = options().open("gs://bucket/a").unwrap_err();
        let of_upload = options().tries(1).upload("gs://bucket/a", 20 << 20).unwrap_err();
        for error in [of_read, of_upload] {
            assert!(matches!(cause(&error), RemoteError::Signature { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("GOOGLE_SERVICE_ACCOUNT") && text.contains("gcloud"), "{text}");
        }
    });
}
