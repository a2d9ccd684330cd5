//! Objects of a server in the place of files: `cp`, `load` and `ls` with URLs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use gpufile::formats::gguf::{self, GgmlType, Metadata};
use gpufile::formats::safetensors::{self, TensorData};
use gpufile::formats::{Dtype, SaveOptions, npy};
use serde_json::Value;
use testkit::bed::pattern;
use testkit::bucket::{Bucket, Step};
use testkit::google;
use testkit::web::{Fault, Server};

use crate::program::{command, names};

fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn json(command: &mut Command) -> Value {
    let (status, out, err) = run(command);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(!out.contains("secret"), "{out}");
    serde_json::from_str(&out).unwrap()
}

/// Serves the files at `/bucket/m`.
fn saved(folder: &Path) -> Server {
    let bytes = pattern(700_000);
    let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[700_000], &bytes));
    let options = SaveOptions::new().sync(false).shard_bytes(1 << 20);
    safetensors::save(folder.join("model.safetensors"), &tensors, &options).unwrap();
    npy::write(folder.join("a.npy"), "<f4", &[2, 3], &[0_u8; 24][..], &options).unwrap();
    let tensor = gguf::TensorData::new("w", GgmlType::F32, &[3], &[1_u8; 12][..]);
    gguf::save(folder.join("a.gguf"), &Metadata::new(), &[tensor], &options).unwrap();
    let server = Server::new(Vec::new());
    server.set_files(names(folder).into_iter().filter(|name| folder.join(name).is_file()).map(|name| {
        let bytes = fs::read(folder.join(&name)).unwrap();
        (format!("/bucket/m/{name}"), bytes)
    }));
    server
}

const INDEX: &str = "/bucket/m/model.safetensors.index.json";

#[test]
fn copies_have_the_bytes_of_the_object() {
    let bytes = pattern((5 << 20) + 123);
    let server = Server::new(bytes.clone());
    let folder = tempfile::tempdir().unwrap();
    let url = server.url("/some/model.bin?signature=secret");
    for more in [&[][..], &["--gpu", "1"], &["--verify", "--buffer", "1m"]] {
        let target = folder.path().join("model.bin");
        let _ = fs::remove_file(&target);
        let copied = json(command(["cp", "--json", &url]).arg(folder.path()).args(more));
        assert!(fs::read(&target).unwrap() == bytes, "{more:?}");
        assert_eq!(copied["source"], server.url("/some/model.bin"));
        assert_eq!((&copied["bytes"], &copied["data_bytes"]), (&bytes.len().into(), &bytes.len().into()));
        assert_eq!(names(folder.path()), ["model.bin"]);
    }
    let umask = fs::metadata(folder.path().join("model.bin")).unwrap().permissions().mode() & 0o777;
    fs::write(folder.path().join("other"), "").unwrap();
    assert_eq!(fs::metadata(folder.path().join("other")).unwrap().permissions().mode() & 0o777, umask);
}

#[test]
fn empty_objects_and_objects_without_names_are_copied() {
    let server = Server::new(Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("empty");
    json(command(["cp", "--json", &server.url("/a")]).arg(&target));
    assert_eq!(fs::read(&target).unwrap(), b"");
    let (status, _, err) = run(command(["cp", &server.url("/a/?x=secret")]).arg(folder.path()));
    assert!(status == 1 && err.contains("the source has no name") && !err.contains("secret"), "{err}");
    json(command(["cp", "--json", &server.url("/a/")]).arg(&target));
}

#[test]
fn failed_copies_leave_the_old_file() {
    let server = Server::new(pattern(3 << 20));
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("copy");
    fs::write(&target, "old").unwrap();
    let url = server.url("/model.bin?signature=secret");
    let changed = Fault::Status(412, None);
    for (faults, reason) in [
        (vec![Fault::Interim, changed.clone(), changed], "changed on the server"),
        (vec![Fault::Status(403, None)], "status 403"),
        (vec![Fault::Interim, Fault::Status(404, None)], "status 404"),
        (vec![Fault::Compressed], "encoded as \"gzip\""),
    ] {
        let count = faults.len();
        // The engine may ask for several ranges at once.
        server.fail(faults.clone().into_iter().chain(std::iter::repeat_n(faults[count - 1].clone(), 20)));
        let (status, out, err) = run(command(["cp", &url]).arg(&target));
        server.forget_faults();
        assert_eq!((status, out.as_str()), (1, ""), "{reason}: {err}");
        assert!(err.contains(reason) && err.contains(&server.url("/model.bin")), "{reason}: {err}");
        assert!(!err.contains("secret"), "{err}");
        assert_eq!(
            (fs::read(&target).unwrap(), names(folder.path())),
            (b"old".to_vec(), vec!["copy".into()])
        );
    }
}

#[test]
fn models_are_loaded_and_listed_as_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let server = saved(folder.path());
    let url = server.url(&format!("{INDEX}?signature=secret"));
    let path = folder.path().join("model.safetensors.index.json");
    let places: [&[&str]; 3] = [&["--host"], &["--gpu", "0,1"], &[]];
    for place in places {
        let [by_url, by_path] = [url.as_ref(), path.as_os_str()]
            .map(|model: &std::ffi::OsStr| json(command(["load", "--json"]).args(place).arg(model)));
        assert_eq!(by_url["dtypes"], by_path["dtypes"], "{place:?}");
        assert_eq!(by_url["bytes"], 2_100_000);
        let first = by_url["files"][0]["file"].as_str().unwrap();
        assert!(
            first.starts_with(&server.url("/bucket/m/model-")) && first.ends_with(".safetensors"),
            "{first}"
        );
    }
    let [by_url, by_path] = [url.as_ref(), path.as_os_str()]
        .map(|model: &std::ffi::OsStr| json(command(["ls", "--json"]).arg(model)));
    let shapes = |listed: &Value| {
        listed["tensors"].as_array().unwrap().iter().map(|tensor| tensor["shape"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((shapes(&by_url), &by_url["total_bytes"]), (shapes(&by_path), &by_path["total_bytes"]));
    let array = json(&mut command(["ls", "--json", &server.url("/bucket/m/a.npy?x=secret")]));
    assert_eq!(
        (&array["tensors"][0]["name"], &array["tensors"][0]["dtype"]),
        (&"a.npy".into(), &"F32".into())
    );
    let loaded = json(&mut command(["load", "--json", &server.url("/bucket/m/a.gguf?x=secret")]));
    assert_eq!((&loaded["bytes"], &loaded["dtypes"]["F32"]["tensors"]), (&12.into(), &1.into()));
    let (status, _, err) = run(&mut command(["load", "--cold", &url]));
    assert!(status == 2 && err.contains("--cold is for files"), "{err}");
}

#[test]
fn objects_of_s3_are_named_by_bucket_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = saved(folder.path());
    let mut load = command(["load", "--json", "--host", &format!("s3:/{INDEX}")]);
    load.env("AWS_ENDPOINT", server.url("")).env("AWS_ALLOW_HTTP", "true");
    load.env("AWS_ACCESS_KEY_ID", "KEY").env("AWS_SECRET_ACCESS_KEY", "secret");
    let loaded = json(&mut load);
    assert_eq!(loaded["bytes"], 2_100_000);
    assert!(loaded["files"][0]["file"].as_str().unwrap().starts_with("s3://bucket/m/model-"), "{loaded}");
    assert!(server.requests().iter().all(|request| request.target.contains("X-Amz-Signature=")));
}

#[test]
fn objects_of_google_are_named_by_their_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let server = saved(folder.path());
    let mut load = command(["load", "--json", "--host", &format!("gs:/{INDEX}")]);
    load.envs(google::variables(&server.url("")));
    assert_eq!(json(&mut load)["bytes"], 2_100_000);
    assert!(server.requests().iter().all(|request| google::is_signed(&request.target)));
    let bucket = Bucket::new();
    let path = folder.path().join("a.npy");
    let mut copy = command(["cp", path.to_str().unwrap(), "gs://bucket/a b"]);
    let (status, out, err) = run(copy.envs(bucket.google_variables()));
    assert_eq!((status, bucket.object("bucket/a b")), (0, Some(fs::read(&path).unwrap())), "{out} {err}");
}

#[test]
fn unusable_urls_are_named_without_secrets() {
    let encrypted = Server::encrypted(pattern(10));
    for (url, reason) in [
        ("http://me:secret@127.0.0.1:1/a", "the URL has a user or a password"),
        ("swift://bucket/a?x=secret", "http, https, s3, s3a, az, azure, abfs, abfss, gs, gcs"),
        ("gs://me:secret@bucket/a", "gs://BUCKET/OBJECT"),
        ("s3://bucket?x=secret", "s3://BUCKET/KEY"),
        ("az://me:secret@box/a", "az://CONTAINER/BLOB"),
        (&encrypted.url("/a?x=secret"), "certificate"),
        ("http://?secret", "no URL"),
    ] {
        for command_name in ["ls", "load", "cp"] {
            let mut command = command([command_name, url]);
            if command_name == "cp" {
                command.arg("/nonexistent/copy");
            }
            let (status, out, err) = run(&mut command);
            assert_eq!((status, out.as_str()), (1, ""), "{url}: {err}");
            assert!(err.contains(reason) && !err.contains("secret"), "{command_name} {url}: {err}");
        }
    }
}

#[test]
fn urls_are_refused_where_only_paths_can_be() {
    let url = "https://example.org/a?x=secret";
    for arguments in [&["verify", url][..], &["cache", url], &["cache", "a", url]] {
        let (status, out, err) = run(&mut command(arguments));
        assert_eq!((status, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains("only a path can be here, not a URL") && !err.contains("secret"), "{err}");
    }
}

fn with_bucket(bucket: &Bucket, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.envs(bucket.variables());
    command
}

#[test]
fn files_and_objects_are_copied_to_objects() {
    let bytes = pattern((20 << 20) + 123);
    let (bucket, server, folder) = (Bucket::new(), Server::new(bytes.clone()), tempfile::tempdir().unwrap());
    let path = folder.path().join("model.bin");
    fs::write(&path, &bytes).unwrap();
    let (path, url) = (path.to_str().unwrap(), server.url("/some/model.bin?signature=secret"));
    for (source, more) in
        [(path, &["--tries", "2"][..]), (path, &["--gpu", "1", "--buffer", "3m"]), (&url, &["-H", "a: b"])]
    {
        bucket.set("bucket/a b", b"old".to_vec());
        let target = "s3://bucket/a b";
        let copied = json(with_bucket(&bucket, &["cp", "--json", source, target]).args(more));
        assert!(bucket.object("bucket/a b").unwrap() == bytes, "{more:?}");
        assert_eq!((&copied["target"], &copied["bytes"]), (&target.into(), &bytes.len().into()));
        assert_eq!((&copied["routes"], bucket.unfinished()), (&Value::Null, 0));
    }
    let (status, out, err) = run(&mut with_bucket(&bucket, &["cp", path, "s3://bucket/some/"]));
    assert!(status == 0 && out.contains("\"s3://bucket/some/model.bin\""), "{out} {err}");
    assert!(bucket.object("bucket/some/model.bin").unwrap() == bytes);
    fs::write(path, "").unwrap();
    let (status, out, err) = run(&mut with_bucket(&bucket, &["cp", path, "s3://bucket/empty"]));
    assert!(status == 0 && out.contains("\"s3://bucket/empty\": 0 B"), "{out} {err}");
    assert_eq!(bucket.object("bucket/empty"), Some(Vec::new()));
}

#[test]
fn failed_copies_keep_the_old_object() {
    let (bucket, folder) = (Bucket::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("model.bin");
    fs::write(&path, pattern(20 << 20)).unwrap();
    let path = path.to_str().unwrap();
    bucket.set("bucket/a", b"old".to_vec());
    bucket.fail(Step::Part(2), 403, 1);
    let (status, out, err) = run(&mut with_bucket(&bucket, &["cp", path, "s3://bucket/a"]));
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("\"s3://bucket/a\"") && err.contains("status 403"), "{err}");
    assert!(!err.contains("hidden") && !err.contains("KEY"), "{err}");
    assert_eq!((bucket.object("bucket/a"), bucket.unfinished()), (Some(b"old".to_vec()), 0));
    for (arguments, reason) in [
        (&["cp", "--verify", path, "s3://bucket/a"][..], "--verify"),
        (&["cp", "--header", "a: secret", path, "s3://bucket/a"], "--header"),
    ] {
        let (status, _, err) = run(&mut with_bucket(&bucket, arguments));
        assert!(status == 2 && err.contains(reason) && !err.contains("secret"), "{err}");
    }
    let (status, _, err) = run(&mut with_bucket(&bucket, &["cp", path, "https://example.org/a?secret"]));
    let reason = "objects are written only to addresses with s3, s3a, az";
    assert!(status == 1 && err.contains(reason) && !err.contains("secret"), "{err}");
}
