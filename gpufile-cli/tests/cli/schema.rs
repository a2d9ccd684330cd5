//! The schemas in docs/schema describe what each command prints with `--json`, and `--prometheus` prints metrics.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};
use serde_json::{Value, json};

use crate::program::{command, file};
use crate::schemas::Schema;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema")
}

/// Returns `None` on a host with only the test programs.
fn named(name: &str) -> Option<Schema> {
    let text = fs::read_to_string(folder().join(name).with_extension("json"));
    text.ok().map(|text| Schema::new(serde_json::from_str(&text).unwrap()))
}

fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn assert_follows(name: &str, command: &mut Command, expected_status: i32) -> Value {
    let (status, out, err) = run(command);
    assert_eq!(status, expected_status, "{name}: {out}{err}");
    let value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{name}: {error}: {out}"));
    if let Some(schema) = named(name) {
        let problems = schema.problems(&value);
        assert!(problems.is_empty(), "docs/schema/{name}.json does not describe the output: {problems:#?}");
    }
    value
}

#[test]
fn output_of_each_command_follows_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 16 << 20);
    let path = path.to_str().unwrap();
    let copy = folder.path().join("copy");
    let model = folder.path().join("model.safetensors");
    let tensor = TensorData::new("w", Dtype::F32, &[7], &[2_u8; 28][..]);
    save(&model, &[tensor], &SaveOptions::new()).unwrap();
    let model = model.to_str().unwrap();
    let cases: &[(&str, &[&str], i32)] = &[
        ("bench", &["bench", path, "--json", "-I", "read", "-i", "64k"], 0),
        ("bench", &["bench", path, "--json", "--repeats", "1", "read-default"], 0),
        ("bench", &["bench", "--list", "--json"], 0),
        ("cp", &["cp", "--json", path, copy.to_str().unwrap()], 0),
        ("cp", &["cp", "--json", "--gpu", "0", path, copy.to_str().unwrap()], 0),
        ("load", &["load", "--json", model], 0),
        ("ls", &["ls", "--json", model], 0),
        ("verify", &["verify", "--json", model], 0),
        ("verify", &["verify", "--json", "/nonexistent"], 1),
        ("cache", &["cache", "--json", "--drop", path], 0),
        ("cache", &["cache", "--json", path, "/nonexistent"], 1),
        ("top", &["top", "--json", "--count", "1"], 0),
        ("explain", &["explain", "--json", "5001"], 0),
    ];
    for (name, arguments, status) in cases {
        assert_follows(name, &mut command(*arguments), *status);
    }
}

#[test]
fn output_of_check_follows_its_schema() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file(folder.path(), "file", 5000);
    let path = path.to_str().unwrap();
    for commands in ["", "p2pdma 1", "nvidia-fs 2 17 4095"] {
        let mut check = command(["check", "--json", "--try", path]);
        let policy = if commands.is_empty() { "auto" } else { "off" };
        check.env("CUFILE_EMULATOR", commands).env("GPUFILE_COMPAT_MODE", policy);
        // The file system of the host decides whether it is a fallback.
        let (status, ..) = run(&mut check);
        assert!([0, 3].contains(&status), "{commands}: {status}");
        let report = assert_follows("check", &mut check, status);
        assert_eq!(report["exit_status"], status);
    }
    let missing = assert_follows("check", &mut command(["check", "--json", "/nonexistent"]), 1);
    assert_eq!(missing["paths"][0]["causes"][0]["cause"], "cannot-open");
    let mut without = command(["check", "--json", "--try", path]);
    for library in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        without.env(library, "/nonexistent");
    }
    without.env("GPUFILE_CHUNK_SIZ", "1").env("CUFILE_ENV_PATH_JSON", path);
    assert_follows("check", &mut without, 4);
}

fn words(folder: &Path, found: &mut Vec<String>) {
    for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            words(&path, found);
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        for body in source.split("fn key(").skip(1) {
            let body = body.split("\n    }\n").next().unwrap();
            found.extend(body.split("=> \"").skip(1).map(|word| word.split('"').next().unwrap().to_owned()));
        }
    }
}

#[test]
fn schema_of_check_has_exactly_the_words() {
    let Some(schema) = named("check") else { return eprintln!("skipped: there are no schemas") };
    let mut found = Vec::new();
    words(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/check"), &mut found);
    let text = schema.text();
    let missing: Vec<_> = found.iter().filter(|word| !text.contains(&format!("\"{word}\""))).collect();
    assert!(missing.is_empty(), "docs/schema/check.json lacks {missing:?}");
    let causes = schema.words("cause");
    let gone: Vec<_> = causes.iter().filter(|word| !found.contains(word)).collect();
    assert!(
        causes.len() > 60 && gone.is_empty(),
        "docs/schema/check.json has {gone:?}, which check never says"
    );
}

#[test]
fn messages_are_json_too() {
    let missing = ["check", "bench", "cp", "load", "ls", "verify", "cache", "top", "explain"];
    for name in missing {
        let (status, out, err) = run(&mut command([name, "--json", "--frobnicate"]));
        // `explain` takes any text.
        let expected = if name == "explain" { 1 } else { 2 };
        assert_eq!(status, expected, "{name}: {out}{err}");
        let [line] = err.lines().collect::<Vec<_>>()[..] else { panic!("{name}: {err}") };
        let message: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
        assert_eq!(message["exit_status"], expected, "{line}");
        assert!(message["error"].as_str().unwrap().contains("frobnicate"), "{line}");
        if let Some(schema) = named("message") {
            assert_eq!(schema.problems(&message), Vec::<String>::new());
        }
    }
    let (_, out, err) = run(&mut command(["cache", "--json", "/nonexistent"]));
    let message: Value = serde_json::from_str(&err).unwrap();
    assert_eq!((&*out, &message["exit_status"]), ("[]\n", &json!(1)), "{err}");
    let (_, _, err) = run(&mut command(["cache", "/nonexistent"]));
    assert!(err.starts_with("gpufile: \"/nonexistent\": "), "{err}");
}

/// Returns names with labels, and values. Fails if a sample is there twice, because a collector refuses that.
fn samples(text: &str) -> Vec<(String, f64)> {
    let mut last = "";
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let name = rest.split(' ').nth(1).unwrap();
            assert!(["HELP", "TYPE"].contains(&rest.split(' ').next().unwrap()), "{line}");
            last = name;
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(
            name == last
                || name
                    .strip_prefix(last)
                    .is_some_and(|labels| labels.starts_with('{') && labels.ends_with('}')),
            "{line}"
        );
        assert!(!found.iter().any(|(known, _)| known == name), "twice: {line}");
        found.push((name.to_owned(), value.parse().unwrap()));
    }
    found
}

#[test]
fn check_and_top_print_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    // A path twice, and a file with wrong keys: the causes repeat.
    let broken = folder.path().join("cufile.json");
    let keys: Vec<_> = (0..30).map(|key| format!("\"wrong{key}\": 1")).collect();
    fs::write(&broken, format!("{{ {}, \"properties\": null }}", keys.join(", "))).unwrap();
    let mut check = command(["check", "--prometheus", "--try", path, path, "/nonexistent"]);
    let (status, out, err) = run(check.env("CUFILE_ENV_PATH_JSON", &broken));
    let found = samples(&out);
    assert!(found.contains(&("gpufile_check_exit_status".to_owned(), f64::from(status))), "{out}{err}");
    for (name, value) in [
        (format!("gpufile_path_fast{{path=\"{path}\"}}"), 0.0),
        (format!("gpufile_path_verdict{{path=\"{path}\",verdict=\"fallback\"}}"), 1.0),
        (format!("gpufile_path_verdict{{path=\"{path}\",verdict=\"fast\"}}"), 0.0),
        ("gpufile_path_verdict{path=\"/nonexistent\",verdict=\"failed\"}".to_owned(), 1.0),
        (format!("gpufile_path_cause{{path=\"{path}\",cause=\"no-nvidia-fs\"}}"), 1.0),
        (format!("gpufile_path_cause{{path=\"{path}\",cause=\"unknown-key\"}}"), 1.0),
        (format!("gpufile_path_cause{{path=\"{path}\",cause=\"wrong-type\"}}"), 1.0),
        (format!("gpufile_path_try_succeeded{{path=\"{path}\"}}"), 1.0),
        ("gpufile_feature{feature=\"compat-mode\"}".to_owned(), 1.0),
    ] {
        assert!(found.contains(&(name.clone(), value)), "{name}: {out}");
    }
    let routes = format!("gpufile_path_route{{path=\"{path}\",route=");
    let routes: Vec<f64> =
        found.iter().filter(|(name, _)| name.starts_with(&routes)).map(|(_, value)| *value).collect();
    assert_eq!((routes.len(), routes.iter().sum::<f64>()), (5, 1.0), "{out}");
    for start in ["gpufile_library_info{name=\"libcufile\",version=", "gpufile_gpu_info{gpu=\"1\",name="] {
        assert!(found.iter().any(|(name, _)| name.starts_with(start)), "{start}: {out}");
    }
    let (status, out, err) = run(&mut command(["top", "--prometheus"]));
    assert!(status == 0 && samples(&out)[0].0 == "gpufile_nvidia_fs_loaded", "{out}{err}");
    // Files for a collector are whole, and nothing stays beside them.
    let metrics = folder.path().join("metrics.prom");
    let (status, out, err) = run(command(["check", path, "--textfile"]).arg(&metrics));
    assert!(status == 3 && out.is_empty() && err.is_empty(), "{out}{err}");
    samples(&fs::read_to_string(&metrics).unwrap());
    assert_eq!(run(command(["top", "--textfile"]).arg(&metrics)).0, 0);
    assert_eq!(samples(&fs::read_to_string(&metrics).unwrap())[0].0, "gpufile_nvidia_fs_loaded");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn check_answers_what_machines_ask() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = folder.path().to_str().unwrap();
    for (route, policy, expected) in
        [("gpu", "on", 0), ("cufile", "on", 1), ("fast", "on", 1), ("gpu", "auto", 0), ("fast", "auto", 1)]
    {
        let mut check = command(["check", "--require", route, "--json", path]);
        let (status, out, err) = run(check.env("GPUFILE_COMPAT_MODE", policy));
        assert_eq!(status, expected, "{route} {policy}: {out}{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["exit_status"], expected);
    }
    let missing = ["check", "--require", "gpu", path, "/nonexistent"];
    assert_eq!(run(&mut command(missing)).0, 1);
    let mut without = command(["check", "--require", "gpu", path]);
    assert_eq!(run(without.env("CUDA_LIBRARY", "/nonexistent")).0, 1);

    let (_, out, _) = run(&mut command(["check", "--labels", path]));
    assert!(out.contains("gpufile-verdict=fallback\ngpufile-gpus=2\n"), "{out}");
    assert!(out.lines().all(|line| line.starts_with("gpufile-") && !line.contains(' ')), "{out}");

    // The same machine, then one with another setting and without a library.
    let old = folder.path().join("old.json");
    fs::write(&old, run(&mut command(["check", "--json", path])).1).unwrap();
    let compare = || {
        let mut check = command(["check", path, "--compare"]);
        check.arg(&old);
        check
    };
    let (status, out, _) = run(&mut compare());
    assert!(status == 3 && out.starts_with("nothing has changed since "), "{out}");
    let (_, out, _) =
        run(compare().env("CUFILE_LOGGING_LEVEL", "TRACE").env("CUFILE_LIBRARY", "/nonexistent"));
    for line in [
        "cufile.json logging.level value was ERROR, is TRACE",
        "variable CUFILE_LOGGING_LEVEL is new: TRACE",
        &format!("{path} cause no-libcufile is new: "),
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    let (_, out, _) = run(compare().arg("--json").env("CUFILE_LOGGING_LEVEL", "TRACE"));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(report["changes"].as_array().unwrap().len() >= 2, "{out}");
    assert_eq!(run(command(["check", path, "--compare"]).arg("/dev/null")).0, 1);

    let (_, out, err) = run(&mut command(["check", "--all-mounts", "--json", "--timeout", "5"]));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let paths: Vec<_> =
        report["paths"].as_array().unwrap().iter().map(|path| path["path"].as_str().unwrap()).collect();
    assert!(paths.contains(&"/") && !paths.iter().any(|path| path.starts_with("/proc")), "{paths:?}");
}

#[test]
fn logs_are_explained_with_counts() {
    use std::io::Write;
    use std::process::Stdio;

    let mut child =
        command(["explain", "--json", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"\xffnothing\nERROR cufio-fs:199 NVMe Driver not registered with nvidia-fs!!!\nerr=5030\nerr=5030\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    if let Some(schema) = named("explain") {
        assert_eq!(schema.problems(&value), Vec::<String>::new());
    }
    let found: Vec<_> =
        value.as_array().unwrap().iter().map(|it| (it["count"].as_u64(), it["line"].as_u64())).collect();
    assert_eq!(found, [(Some(1), Some(2)), (Some(2), Some(3))], "{value:#}");
}
