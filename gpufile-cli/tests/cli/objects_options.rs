//! Options for objects of a server: headers, tries, timeouts and the cache.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use gpufile::formats::gguf::{self, GgmlType, Metadata};
use gpufile::formats::safetensors::{self, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use testkit::bed::pattern;
use testkit::web::{Fault, Server};

use crate::program::{command, names};

/// Outputs must not have a secret.
#[track_caller]
fn run(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let output = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert!(!output.contains("secret"), "{output}");
    (status.code().unwrap(), output)
}

#[track_caller]
fn succeed(command: &mut Command) {
    let (status, output) = run(command);
    assert_eq!(status, 0, "{output}");
}

fn saved(folder: &Path) -> Server {
    let bytes = pattern(700_000);
    let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[700_000], &bytes));
    let options = SaveOptions::new().sync(false).shard_bytes(1 << 20);
    safetensors::save(folder.join("model.safetensors"), &tensors, &options).unwrap();
    let tensor = gguf::TensorData::new("w", GgmlType::F32, &[3], &[1_u8; 12][..]);
    gguf::save(folder.join("a.gguf"), &Metadata::new(), &[tensor], &options).unwrap();
    let server = Server::new(Vec::new());
    server.set_files(
        names(folder).into_iter().map(|name| (format!("/{name}"), fs::read(folder.join(&name)).unwrap())),
    );
    server
}

#[test]
fn headers_reach_the_server_and_no_output() {
    let folder = tempfile::tempdir().unwrap();
    let server = saved(folder.path());
    let headers = folder.path().join("headers");
    fs::write(&headers, "X-Token: secret\r\n\nx-other:  1 \n").unwrap();
    let from_file = format!("@{}", headers.display());
    let options = ["-H", "Authorization: Bearer secret", "--header", &from_file];
    let target = folder.path().join("copy");
    let url = server.url("/model.safetensors.index.json");
    for arguments in [
        &["load", "--json", &url][..],
        &["load", &server.url("/a.gguf")],
        &["ls", &url],
        &["cp", &url, target.to_str().unwrap()],
        &["check", "--json", &url],
        &["bench", &url, "--repeats", "1", "--threads", "1", "--host"],
    ] {
        succeed(command(arguments).args(options));
        let requests = server.requests();
        assert!(!requests.is_empty());
        for request in requests {
            let values = ["authorization", "x-token", "x-other"].map(|name| request.header(name));
            assert_eq!(values, [Some("Bearer secret"), Some("secret"), Some("1")], "{arguments:?}");
        }
        server.fail_always(Some(Fault::Status(401, None)));
        let (status, output) = run(command(arguments).args(options));
        assert!(status == 1 && output.contains("401"), "{arguments:?}: {output}");
        server.fail_always(None);
        server.requests();
    }
}

#[test]
fn wrong_options_are_refused_without_their_values() {
    let server = Server::new(pattern(5000));
    let url = server.url("/a.safetensors?x=secret");
    for (options, status, reason) in [
        (&["-H", "Bearer secret"][..], 2, "expected NAME: VALUE"),
        (&["-H", "secret secret: a"], 2, "expected NAME: VALUE"),
        (&["-H", "Range: secret"], 1, "the header \"Range\" cannot be sent"),
        (&["-H", "A: secret\u{1}"], 1, "the header \"A\" cannot be sent"),
        (&["-H", "@/nonexistent"], 1, "cannot read the headers in \"/nonexistent\""),
        (&["--tries", "0"], 2, "--tries"),
        (&["--timeout", "0"], 2, "--timeout"),
    ] {
        for name in ["ls", "load", "check", "bench"] {
            let (found, output) = run(command([name, &url]).args(options));
            assert!(found == status && output.contains(reason), "{name} {options:?}: {found} {output}");
        }
    }
    for cache in ["a", ":1g", "a:", "a:much"] {
        let (status, output) = run(&mut command(["ls", &url, "--cache", cache]));
        assert!(status == 2 && output.contains("--cache"), "{output}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn paths_take_no_options_of_objects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy");
    for arguments in [
        &["ls", ".", "--tries", "2"][..],
        &["load", ".", "-H", "A: secret"],
        &["cp", ".", path.to_str().unwrap(), "--cache", "a:1g"],
        &["check", ".", "--tries", "1"],
        &["bench", ".", "-H", "A:"],
    ] {
        let (status, output) = run(&mut command(arguments));
        assert!(status == 2 && output.contains("are for URLs"), "{arguments:?}: {output}");
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn tries_and_timeouts_limit_requests() {
    let server = Server::new(pattern(5000));
    let url = server.url("/a.safetensors");
    server.fail_always(Some(Fault::Status(503, Some(0))));
    for tries in [1, 3] {
        let (status, output) = run(&mut command(["ls", &url, "--tries", &tries.to_string()]));
        assert!(status == 1 && output.contains("status 503"), "{output}");
        assert_eq!(server.requests().len(), tries);
    }
    server.fail_always(Some(Fault::Stall(0, Duration::from_secs(60))));
    let (status, output) = run(&mut command(["ls", &url, "--tries", "1", "--timeout", "200ms"]));
    assert!(status == 1 && output.contains("too little within 0.2 seconds"), "{output}");
}

#[test]
fn cached_objects_are_not_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = saved(folder.path());
    let keeps = tempfile::tempdir().unwrap();
    let cache = format!("{}:1g", keeps.path().join("new").display());
    let index = server.url("/model.safetensors.index.json");
    let target = folder.path().join("copy");
    for arguments in [
        &["load", "--gpu", "0,1", &index][..],
        &["load", &server.url("/a.gguf")],
        &["cp", &server.url("/a.gguf"), target.to_str().unwrap()],
    ] {
        for is_first in [true, false] {
            succeed(command(arguments).args(["--cache", &cache]));
            let requests = server.requests();
            // Opening an object asks for its first byte.
            let is_kept = requests.iter().all(|request| request.range == Some(0..1));
            assert!(!requests.is_empty() && is_kept != (is_first && arguments[0] == "load"), "{requests:?}");
        }
    }
    assert!(fs::read(&target).unwrap() == fs::read(folder.path().join("a.gguf")).unwrap());
    // The index, its shards and the GGUF file.
    assert_eq!(names(&keeps.path().join("new")).len(), names(folder.path()).len() - 1);
    // Broken copies are impossible: what does not fit is read from the server.
    let cache = format!("{}:1k", keeps.path().join("small").display());
    succeed(&mut command(["load", &index, "--cache", &cache]));
    assert!(server.requests().iter().any(|request| request.range != Some(0..1)));
}
