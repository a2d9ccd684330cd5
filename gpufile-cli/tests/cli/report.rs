//! `gpufile check --report`: what an owner of a machine can send, without names.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{command, names};
use crate::schemas::Schema;
use serde_json::Value;

fn report(mut check: Command, folder: &Path) -> (i32, Value, String) {
    let file = folder.join("report.json");
    let output =
        check.arg("--report").arg(&file).arg(folder).env("HOSTNAME", "private-host").output().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), serde_json::from_str(&text).unwrap(), err)
}

fn assert_follows(name: &str, value: &Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/schema/{name}.json"));
    // A host with only the test programs has no schemas.
    let Ok(text) = fs::read_to_string(file) else { return };
    let problems = Schema::new(serde_json::from_str(&text).unwrap()).problems(value);
    assert!(problems.is_empty(), "{name}: {problems:#?}");
}

#[test]
fn report_has_a_verified_round_trip_on_each_route() {
    let folder =
        tempfile::Builder::new().prefix("private-folder").tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    for (commands, direct) in
        [("p2pdma 1", "p2pdma"), ("nvidia-fs 2 17 4095", "gds"), ("gpus 1", "cufile-compat")]
    {
        let mut check = command(["check"]);
        check.env("CUFILE_EMULATOR", commands);
        let (status, report, err) = report(check, folder.path());
        assert!([0, 3].contains(&status) && err.contains("read it before you send it"), "{status} {err}");
        assert_follows("report", &report);
        assert_follows("check", &report["check"]);
        let trips = report["round_trips"].as_array().unwrap();
        let routes: Vec<_> =
            trips.iter().map(|trip| (trip["policy"].as_str().unwrap(), &trip["route"])).collect();
        assert!(trips.iter().all(|trip| trip["error"].is_null()), "{trips:#?}");
        assert_eq!(routes[1..].iter().map(|(policy, _)| *policy).collect::<Vec<_>>(), ["cufile", "posix"]);
        assert_eq!((routes[1].1, routes[2].1), (&Value::from(direct), &Value::from("posix")), "{commands}");
        let count = |at: &Value| at["libcufile"].to_string();
        assert_ne!(count(&report["counters_before"]), count(&report["counters_after"]));
        assert!(report["properties"].to_string().contains("max_direct_io_bytes"), "{report:#}");
    }
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

#[test]
fn report_has_no_names_unless_asked() {
    let folder = tempfile::Builder::new().prefix("private-folder").tempdir().unwrap();
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let (_, without, _) = report(command(["check"]), folder.path());
    for name in ["private-folder", "private-host", hostname.trim()] {
        assert!(name.len() < 3 || !without.to_string().contains(name), "{name}: {without:#}");
    }
    let (_, with, _) = report(command(["check", "--with-names"]), folder.path());
    assert!(with.to_string().contains("private-folder"), "{with:#}");
    let status = command(["check", "--with-names"]).output().unwrap().status;
    assert_eq!(status.code(), Some(2));
}

#[test]
fn report_needs_no_library_and_replaces_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut check = command(["check", "--json"]);
    for library in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        check.env(library, "/nonexistent");
    }
    let (status, report, _) = report(check, folder.path());
    assert_eq!((status, &report["properties"]), (4, &Value::Null), "{report:#}");
    assert_follows("report", &report);
    let file = folder.path().join("mine");
    fs::write(&file, "mine").unwrap();
    let output = command(["check", "--report"]).arg(&file).output().unwrap();
    assert_eq!((output.status.code(), &*fs::read(&file).unwrap()), (Some(1), &b"mine"[..]));
}
