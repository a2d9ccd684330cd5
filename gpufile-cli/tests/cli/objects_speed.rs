//! Objects of a server, measured by `bench` and `check`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::bed::pattern;
use testkit::web::{Fault, Server};

use crate::program::command;
use crate::schemas::Schema;

fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn json(command: &mut Command) -> (i32, Value) {
    let (status, out, err) = run(command);
    assert!(err.is_empty() && !out.contains("secret"), "{out}{err}");
    let value: Value = serde_json::from_str(&out).unwrap();
    let name = if value.is_array() { "bench" } else { "check-url" };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema").join(name).with_extension("json");
    // There are no schemas on a host with only the test programs.
    if let Ok(schema) = fs::read_to_string(path) {
        let problems = Schema::new(serde_json::from_str(&schema).unwrap()).problems(&value);
        assert!(problems.is_empty(), "{problems:?}");
    }
    (status, value)
}

/// Counts connections that sent requests since the last call.
fn connections(server: &Server) -> usize {
    server.requests().iter().map(|request| request.connection).collect::<BTreeSet<_>>().len()
}

#[test]
fn bench_measures_an_object_on_host_and_gpu() {
    let server = Server::new(pattern(3 << 20));
    let url = server.url("/a?x=secret");
    let (status, lines) =
        json(&mut command(["bench", &url, "--json", "--repeats", "2", "--threads", "2", "--gpu", "1"]));
    assert_eq!(status, 0, "{lines}");
    let lines = lines.as_array().unwrap();
    let cases: Vec<_> = lines.iter().map(|line| (line["case"].as_str().unwrap(), &line["threads"])).collect();
    assert_eq!(cases, [("gpu1-url-latency-4k", &1.into()), ("gpu1-url-read", &2.into())]);
    assert_eq!((&lines[0]["size"], &lines[1]["size"]), (&4096.into(), &(3 << 20).into()));
    assert!(lines.iter().all(|line| line["gbps"].as_f64().unwrap() > 0.0), "{lines:?}");
    let seen = connections(&server);
    assert!((1..=3).contains(&seen), "{seen}");
    let (status, out, _) = run(&mut command(["bench", &url, "--repeats", "1", "--threads", "1"]));
    let cases: Vec<_> = out.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(status, 0, "{out}");
    assert_eq!(
        cases,
        ["case=host-url-latency-4k", "case=host-url-read", "case=gpu0-url-latency-4k", "case=gpu0-url-read"]
    );
    assert_eq!(connections(&server), 1);
}

#[test]
fn bench_refuses_what_it_cannot_measure() {
    let server = Server::new(Vec::new());
    let url = server.url("/a?x=secret");
    for (arguments, status, reason) in [
        (&["bench", &url][..], 1, "is empty"),
        (&["bench", &url, "read"], 2, "a URL takes only"),
        (&["bench", &url, "-I", "read"], 2, "a URL takes only"),
        (&["bench", &url, "--overwrite"], 2, "a URL takes only"),
        (&["bench", &url, "--file", "b"], 2, "give a URL, or --file"),
    ] {
        let (found, out, err) = run(&mut command(arguments));
        assert_eq!((found, out.as_str()), (status, ""), "{arguments:?}: {err}");
        assert!(err.contains(reason) && !err.contains("secret"), "{err}");
    }
    server.set(pattern(5000), Some("\"1\""));
    // The server fails after the object was opened.
    server.fail([Fault::Interim]);
    server.fail_always(Some(Fault::Status(404, None)));
    let (status, out, _) = run(&mut command(["bench", &url, "--host", "--repeats", "1", "--threads", "1"]));
    assert!(status == 1 && out.lines().all(|line| line.contains("error=") && line.contains("404")), "{out}");
}

#[test]
fn check_reports_version_steps_and_speeds() {
    let server = Server::new(pattern(17 << 20));
    let url = server.url("/a?x=secret");
    let (status, report) = json(&mut command(["check", "--json", &url]));
    let object = &report["objects"][0];
    assert_eq!((status, &report["exit_status"]), (0, &0.into()), "{report}");
    assert_eq!((&object["url"], &object["bytes"]), (&server.url("/a").into(), &(17 << 20).into()));
    assert_eq!((&object["etag"], &object["encrypt_seconds"]), (&"\"1\"".into(), &Value::Null));
    assert_eq!(object["server"], server.url(""));
    let counts: Vec<_> =
        object["runs"].as_array().unwrap().iter().map(|run| run["connections"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 4, 16, 64]);
    assert!(object["latency_seconds"].as_f64().unwrap() > 0.0 && object["limit"].is_string(), "{object}");
    assert!(connections(&server) > 4);
}

#[test]
fn check_measures_encryption_and_names_missing_versions() {
    let server = Server::encrypted(pattern(5000));
    server.set(pattern(5000), None);
    let folder = tempfile::tempdir().unwrap();
    let certificate = folder.path().join("certificate.pem");
    fs::write(&certificate, server.certificate()).unwrap();
    let url = server.url("/a?x=secret");
    let mut check = command(["check", &url]);
    let (status, out, err) = run(check.env("SSL_CERT_FILE", &certificate));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    for text in [
        &format!("{}: READABLE: 4.88 KiB in ranges from {}\n", server.url("/a"), server.url("")),
        "none: only a change of the length",
        ", TLS ",
        "for 4 KiB on an open connection",
        " GB/s with 64 connections, ",
        "the object is too short to tell",
    ] {
        assert!(out.contains(text), "{text:?}: {out}");
    }
    let (status, report) = json(check.arg("--json"));
    assert!(status == 0 && report["objects"][0]["encrypt_seconds"].as_f64().unwrap() > 0.0, "{report}");
    let (status, out, _) = run(&mut command(["check", &url]));
    assert!(status == 1 && out.contains(": FAILED: ") && out.contains("certificate"), "{out}");
    assert!(!out.contains("secret"), "{out}");
}

#[test]
fn check_fails_without_ranges_and_takes_no_paths_beside() {
    let server = Server::new(pattern(9 << 20));
    server.fail_always(Some(Fault::Whole));
    let url = server.url("/a");
    let (status, report) = json(&mut command(["check", "--json", &url]));
    assert!(status == 1 && report["exit_status"] == 1, "{report}");
    assert!(report["objects"][0]["error"].as_str().unwrap().contains("sends no ranges"), "{report}");
    for arguments in [["check", &url, "/tmp"], ["check", &url, "--try"], ["check", &url, "--prometheus"]] {
        assert_eq!(run(&mut command(arguments)).0, 2, "{arguments:?}");
    }
}
