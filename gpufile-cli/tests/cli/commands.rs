//! The commands of the program `gpufile` on emulated GPUs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};
use serde_json::Value;

use crate::program::{command, file, names};

fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(arguments).output().unwrap();
    let code = status.code().unwrap_or_else(|| panic!("{status}"));
    (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn json<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Value {
    let (status, out, err) = run(arguments);
    assert_eq!(status, 0, "{out}{err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

#[test]
fn compatibility_mode_never_loads_libcufile() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 3 << 20);
    for (mode, is_loaded) in [("on", false), ("off", true)] {
        let calls = folder.path().join(format!("calls-{mode}"));
        let mut copy = command(["cp", "--gpu", "0"]);
        copy.arg(&path).arg(folder.path().join("copy")).env("GPUFILE_COMPAT_MODE", mode);
        let output = copy.env("CUFILE_EMULATOR_CALLS", &calls).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let calls = fs::read_to_string(&calls).unwrap();
        // Loading asks for the version.
        assert_eq!(calls.lines().any(|call| call == "cuFileGetVersion"), is_loaded, "{mode}");
        assert_eq!(calls.lines().any(|call| call.starts_with("cuFile")), is_loaded, "{mode}");
        assert_eq!(fs::read(folder.path().join("copy")).unwrap(), fs::read(&path).unwrap(), "{mode}");
    }
}

#[test]
fn copies_through_any_memory_equal_their_source() {
    let folder = tempfile::tempdir().unwrap();
    for len_bytes in [0, 1, 4097, 3_000_017] {
        let source = file(folder.path(), "source", len_bytes);
        let target = folder.path().join("target");
        for through in
            [&[][..], &["--gpu", "0"], &["--gpu", "1", "--verify", "--no-sync", "--buffer", "100001"]]
        {
            let paths = [source.to_str().unwrap(), target.to_str().unwrap()];
            let copied = json([&["cp", "--json"], through, &paths[..]].concat());
            assert_eq!(copied["bytes"], len_bytes, "{copied}");
            assert_eq!(copied["verified"], through.contains(&"--verify"));
            assert_eq!(fs::read(&target).unwrap(), fs::read(&source).unwrap(), "{through:?}");
        }
    }
    assert_eq!(names(folder.path()), ["source", "target"]);
}

#[test]
fn copies_keep_holes_and_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("sparse");
    let made = fs::File::create(&source).unwrap();
    made.set_len(64 << 20).unwrap();
    made.write_all_at(&[7; 100_000], 20 << 20).unwrap();
    drop(made);
    fs::set_permissions(&source, fs::Permissions::from_mode(0o4750)).unwrap();
    let into = folder.path().join("into");
    fs::create_dir(&into).unwrap();
    let (status, out, err) = run([Path::new("cp"), Path::new("--gpu=0"), &source, &into]);
    assert!(status == 0 && err.is_empty(), "{out}{err}");
    let copy = into.join("sparse");
    let (before, after) = (fs::metadata(&source).unwrap(), fs::metadata(&copy).unwrap());
    assert_eq!(after.mode() & 0o7777, 0o750, "without the bit that runs a program as its owner");
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&source).unwrap());
    // A file system without holes has the same blocks for both.
    assert!(after.blocks() <= before.blocks().max(64 << 11), "{} of {}", after.blocks(), before.blocks());
    assert!(before.blocks() > 64 << 11 || out.contains("of holes kept"), "{out}");
}

#[test]
fn refused_copies_leave_everything_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "source", 10_000);
    let link = folder.path().join("link");
    symlink(&source, &link).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let _socket = UnixListener::bind(path("socket")).unwrap();
    let cases = [
        (path("source"), path("source"), "they are the same file"),
        (path("link"), path("source"), "they are the same file"),
        (path("source"), path("."), "they are the same file"),
        (path("."), path("new"), "it is a folder; name a file"),
        (path("missing"), path("new"), "No such file or directory"),
        (path("socket"), path("new"), "it is not a regular file"),
        (path("source"), path("socket"), "it is not a regular file but a socket"),
        (path("source"), path("missing/new"), "No such file or directory"),
        (path("source"), path("missing/"), "there is no such folder"),
    ];
    for (from, to, expected) in cases {
        let (status, out, err) = run(["cp", &from, &to]);
        assert!(status == 1 && out.is_empty() && err.contains(expected), "{from} {to}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let (status, _, err) = run(["cp", "--gpu", "9", &path("source"), &path("new")]);
    assert!(status == 1 && err.contains("there is no GPU 9: this process sees 2"), "{err}");
    assert_eq!(names(folder.path()), ["link", "socket", "source"]);
    assert!(fs::metadata(path("socket")).unwrap().file_type().is_socket());
}

#[test]
fn a_failed_copy_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(folder.path(), "source", 3_000_000);
    let target = folder.path().join("target");
    fs::write(&target, "precious").unwrap();
    // Files may have a megabyte, as on a file system that is almost full.
    let program = command(["cp", source.to_str().unwrap(), target.to_str().unwrap()]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\""]).arg(program.get_program());
    limited.args(program.get_args());
    let output = limited.output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && err.contains("File too large"), "{err}");
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert_eq!(names(folder.path()), ["source", "target"]);
}

fn model(folder: &Path) {
    for number in 0..3 {
        let bytes = vec![number as u8; 5000];
        let (weight, scale) = (format!("{number}.weight"), format!("{number}.scale"));
        let tensors = [
            TensorData::new(&weight, Dtype::BF16, &[50, 48], &bytes[..4800]),
            TensorData::new(&scale, Dtype::F32, &[50], &bytes[..200]),
        ];
        save(folder.join(format!("{number}.safetensors")), &tensors, &SaveOptions::new()).unwrap();
    }
}

#[test]
fn models_are_listed_and_loaded_to_several_gpus() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let path = folder.path().to_str().unwrap();
    let listed = json(["ls", "--json", path]);
    let tensors = listed["tensors"].as_array().unwrap();
    assert_eq!((tensors.len(), &listed["total_bytes"]), (6, &15_000.into()));
    let weight = tensors.iter().find(|tensor| tensor["name"] == "1.weight").unwrap();
    assert_eq!(
        (&weight["dtype"], &weight["shape"][1], &weight["bytes"]),
        (&"BF16".into(), &48.into(), &4800.into())
    );

    for (memory, expected) in [
        (&["--gpu", "0,1"][..], ["GPU 0", "GPU 1", "GPU 0"]),
        (&["--gpu", "1", "--cold"], ["GPU 1"; 3]),
        (&["--host"], ["host"; 3]),
        (&[], ["GPU 0"; 3]),
    ] {
        let loaded = json([&["load", "--json"], memory, &[path]].concat());
        let places: Vec<_> = loaded["files"].as_array().unwrap().iter().map(|file| &file["to"]).collect();
        assert_eq!(places, expected, "{loaded}");
        assert_eq!((&loaded["bytes"], &loaded["dtypes"]["F32"]["tensors"]), (&15_000.into(), &3.into()));
        assert!(loaded["gbps"].as_f64().unwrap() > 0.0);
    }
    let (status, out, err) = run(["load", path]);
    assert!(
        status == 0
            && err.contains("loading 3, numbered from 0 to 2")
            && out.contains("2.safetensors")
            && out.contains("BF16"),
        "{out}{err}"
    );
    let (status, out, _) = run(["ls", path]);
    assert!(status == 0 && out.contains("[50, 48]") && out.contains("6 tensors, 14.65 KiB: BF16"), "{out}");
    for command in ["ls", "load"] {
        let (status, _, err) = run([command, "/nonexistent"]);
        assert!(status == 1 && err.contains("/nonexistent") && err.lines().count() == 1, "{err}");
    }
}

#[test]
fn split_gguf_models_are_listed_and_loaded() {
    use gpufile::formats::gguf::{self, GgmlType, Metadata, TensorData};

    let folder = tempfile::tempdir().unwrap();
    let paths = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| folder.path().join(name));
    for (number, path) in (0_u16..).zip(&paths) {
        let metadata = Metadata::from_iter([("split.no", number), ("split.count", 2)]);
        let (name, bytes) = (format!("blk.{number}.weight"), [3_u8; 5 * 144]);
        let tensors = [TensorData::new(&name, GgmlType::Q4K, &[5, 256], &bytes[..])];
        gguf::save(path, &metadata, &tensors, &SaveOptions::new()).unwrap();
    }
    let path = paths[1].to_str().unwrap();
    let listed = json(["ls", "--json", path]);
    let tensors = listed["tensors"].as_array().unwrap();
    let names: Vec<_> = tensors.iter().map(|tensor| (&tensor["name"], &tensor["dtype"])).collect();
    let wanted = ["blk.0.weight", "blk.1.weight"].map(Value::from);
    assert_eq!(names, [(&wanted[0], &"Q4_K".into()), (&wanted[1], &"Q4_K".into())]);
    let (status, out, _) = run(["ls", path]);
    assert!(status == 0 && out.contains("[5, 256]") && out.contains("2 tensors, 1.41 KiB: Q4_K"), "{out}");

    for (memory, places) in [(&["--gpu", "0,1"][..], ["GPU 0", "GPU 1"]), (&["--host"], ["host"; 2])] {
        let loaded = json([&["load", "--json"], memory, &[path]].concat());
        let to: Vec<_> = loaded["files"].as_array().unwrap().iter().map(|file| &file["to"]).collect();
        assert_eq!(to, places, "{loaded}");
        assert_eq!((&loaded["bytes"], &loaded["dtypes"]["Q4_K"]["tensors"]), (&1440.into(), &2.into()));
    }
    std::fs::remove_file(&paths[0]).unwrap();
    for command in ["ls", "load"] {
        let (status, _, err) = run([command, path]);
        assert!(status == 1 && err.contains("1 of 2 files are missing") && err.lines().count() == 1, "{err}");
    }
}

#[test]
fn zarr_groups_are_listed_or_named_as_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    let array = r#"{"zarr_format":2,"shape":[6,4],"chunks":[2,2],"dtype":"<f4","compressor":null,"fill_value":0,"order":"C","filters":null}"#;
    let group = r#"{"zarr_format":2}"#;
    for (path, name, text) in [
        (".", ".zgroup", group),
        ("inner", ".zgroup", group),
        ("inner/b", ".zarray", array),
        ("a", ".zarray", array),
    ] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
        fs::write(folder.path().join(path).join(name), text).unwrap();
    }
    // No chunk and no other folder counts.
    fs::create_dir_all(folder.path().join("notes")).unwrap();
    let path = folder.path().to_str().unwrap();
    if cfg!(feature = "zarr") {
        let listed = json(["ls", "--json", path]);
        let names: Vec<_> =
            listed["tensors"].as_array().unwrap().iter().map(|array| &array["name"]).collect();
        assert_eq!(names, ["/a", "/inner/b"]);
        assert_eq!(
            (&listed["tensors"][1]["shape"], &listed["total_bytes"]),
            (&serde_json::json!([6, 4]), &192.into())
        );
    } else {
        let (status, _, err) = run(["ls", path]);
        assert!(status == 1 && err.contains("--features zarr"), "{err}");
    }
}

#[test]
fn copies_never_open_a_target_to_more_users() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (file(folder.path(), "source", 5000), folder.path().join("target"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (of_source, of_target, expected) in [
        (0o644, None, 0o644),
        (0o644, Some(0o600), 0o600),
        (0o600, Some(0o644), 0o600),
        (0o664, Some(0o640), 0o640),
    ] {
        let _ = fs::remove_file(&target);
        set(&source, of_source);
        if let Some(mode) = of_target {
            fs::write(&target, "private").unwrap();
            set(&target, mode);
        }
        let (status, _, err) = run([OsStr::new("cp"), source.as_os_str(), target.as_os_str()]);
        assert_eq!((status, mode(&target)), (0, expected), "{of_source:o} {of_target:?}: {err}");
        assert_eq!(fs::read(&target).unwrap(), fs::read(&source).unwrap());
    }
}

#[test]
fn bench_of_a_file_is_a_workload() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 32 << 20);
    let before = fs::read(&path).unwrap();
    let found = json(["bench", path.to_str().unwrap(), "--json"]);
    let runs = found["runs"].as_array().unwrap();
    assert!(runs.len() >= 2 && runs.iter().all(|run| run["io"] == "read"), "{found:#}");
    assert!(fs::read(&path).unwrap() == before);
    let (status, _, err) = run(["bench", path.to_str().unwrap(), "--cases", "-i", "4k"]);
    assert!(status == 2 && err.contains("--cases runs named cases"), "{err}");
}

#[test]
fn cache_command_drops_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 1_000_001);
    let path = path.to_str().unwrap();
    let dropped = json(["cache", "--json", "--drop", path]);
    assert_eq!((&dropped[0]["bytes"], &dropped[0]["before"]["fraction"]), (&1_000_001.into(), &1.0.into()));
    let (status, out, err) = run(["cache", path, "/nonexistent", "/dev/null"]);
    assert!(status == 1 && out.contains("976.56 KiB"), "{out}");
    assert!(err.contains("/nonexistent") && err.contains("only regular files"), "{err}");
}

#[test]
fn workloads_verify_every_pattern_on_every_route() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let common = ["bench", path, "--json", "--verify", "-s", "1m", "--gpu", "0,1", "-w", "3"];
    let mut runs = Vec::new();
    for rest in [
        ["-i", "64k", "--depth", "1", "-I", "write,read,randwrite,randread", "-x", "0,1,2"],
        ["-i", "50001", "--depth", "3", "-I", "1,0,mix,randmix", "-x", "auto,cufile,host"],
    ] {
        let outcome = json([&common[..], &rest].concat());
        assert_eq!(outcome["failures"], serde_json::json!([]), "{outcome}");
        runs.extend(outcome["runs"].as_array().unwrap().iter().cloned());
    }
    assert_eq!(runs.len(), 2 * 4 * 3);
    for run in runs {
        let is_host = run["via"] == "host";
        let places = run["places"].as_array().unwrap();
        assert_eq!(places.len(), if is_host { 1 } else { 2 }, "{run}");
        let (size, count) = (run["io_bytes"].as_u64().unwrap(), places.len() as u64);
        let moved = run["read_bytes"].as_u64().unwrap() + run["written_bytes"].as_u64().unwrap();
        assert_eq!(moved, (1 << 20) / size * size * count, "{run}");
        assert_eq!(run["ops"].as_u64().unwrap(), moved / size, "{run}");
        let [p50, p99, max] = ["p50", "p99", "max"].map(|name| run["latency_ns"][name].as_u64().unwrap());
        assert!(0 < p50 && p50 <= p99 && p99 <= max, "{run}");
        let expected = match run["via"].as_str().unwrap() {
            "host" => "host memory",
            "cufile" => "cuFile in its compatibility mode",
            _ => "POSIX through pinned host memory",
        };
        let route = run["route"].as_str().unwrap();
        // Where the test's folder has a disk that the emulator knows, the routes are better.
        assert!(
            route == expected || route.contains("GPUDirect Storage") || route.contains("P2PDMA"),
            "{run}"
        );
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn workloads_run_for_a_time_and_print_csv() {
    let folder = tempfile::tempdir().unwrap();
    let (status, out, err) = run([
        "bench",
        "-D",
        folder.path().to_str().unwrap(),
        "-s",
        "1m",
        "-i",
        "4k,64k",
        "-w",
        "1,2",
        "-I",
        "randread",
        "-T",
        "50ms",
        "--csv",
        "--threads",
        "2",
    ]);
    assert_eq!(status, 0, "{out}{err}");
    let mut lines = out.lines();
    let titles: Vec<_> = lines.next().unwrap().split(',').collect();
    let column = |name: &str| titles.iter().position(|title| *title == name).unwrap();
    let rows: Vec<Vec<_>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 4, "{out}");
    for row in rows {
        let seconds: f64 = row[column("seconds")].parse().unwrap();
        assert!((0.04..5.0).contains(&seconds) && row.len() == titles.len(), "{row:?}");
    }
    assert_eq!(names(folder.path()), [""; 0], "the file that was made is removed");
}

#[test]
fn existing_files_are_written_only_if_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "precious", 300_000);
    let before = fs::read(&path).unwrap();
    let path = path.to_str().unwrap();
    for arguments in [&["-I", "write"][..], &["-I", "read,randmix"], &["-I", "3", "-x", "1"]] {
        let (status, out, err) = run([&["bench", path, "-i", "4k"], arguments].concat());
        assert!(status == 2 && out.is_empty() && err.contains("add --overwrite"), "{out}{err}");
    }
    let (status, out, err) = run(["bench", path, "-i", "4k", "-V"]);
    assert!(status == 0 && out.lines().nth(1).unwrap().starts_with("read "), "{out}{err}");
    assert_eq!(fs::read(path).unwrap(), before);
    let (status, out, err) = run(["bench", path, "-i", "4k", "-I", "write", "--overwrite", "-V"]);
    assert_eq!(status, 0, "{out}{err}");
    let after = fs::read(path).unwrap();
    assert!(after.len() == before.len() && after != before);

    for (arguments, expected) in [
        (&["-i", "64k", "-w", "9"][..], "name a longer file"),
        (&["-s", "100k", "-i", "64k"], "raise --size"),
        (&["-i", "64k", "-s", "1m"], "the file has 292.97 KiB, but the runs need 1 MiB"),
        (&["-i", "64k", "read"], "read is a named case"),
        (&["-x", "6"], "--depth"),
        (&["-i", "4MB"], "KiB"),
        (&["--host", "-x", "posix"], "--host allows only --via host"),
        (&["-T", "1", "--repeats", "2"], "--repeats is for named cases"),
    ] {
        let (status, out, err) = run([&["bench", path], arguments].concat());
        assert!(matches!(status, 1 | 2) && out.is_empty() && err.contains(expected), "{arguments:?}: {err}");
        assert!(err.lines().count() <= 2, "{err}");
    }
    assert_eq!(names(folder.path()), ["precious"]);
}

#[test]
fn named_cases_print_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 16 << 20);
    let lines =
        json(["bench", path.to_str().unwrap(), "--json", "--repeats", "1", "read-default", "latency"]);
    let cases: Vec<_> = lines.as_array().unwrap().iter().map(|line| line["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["read-default", "latency-4k"]);
    assert!(lines[0]["gbps"].as_f64().unwrap() > 0.0 && lines[0]["size"] == 16 << 20, "{lines}");
}

#[test]
fn first_loads_are_measured_in_fresh_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "file", 16 << 20);
    let path = path.to_str().unwrap();
    let cases = ["first-load", "first-load-again", "first-load-and-start"];
    let lines = json([&["bench", path, "--json", "--repeats", "2", "--gpu", "1"][..], &cases].concat());
    let found: Vec<_> = lines.as_array().unwrap().iter().map(|line| line["case"].as_str().unwrap()).collect();
    assert_eq!(found, cases);
    let of = |line: usize, field: &str| lines[line][field].as_f64().unwrap();
    for line in 0..3 {
        assert!(lines[line]["size"] == 16 << 20 && of(line, "seconds") > 0.0, "{lines}");
    }
    assert!(of(2, "cpu") > 0.0, "{lines}");

    // Only the fresh process copies to the GPU.
    let mut failing = command(["bench", path, "--repeats", "1", "first-load"]);
    failing.env("CUFILE_EMULATOR", "fault cudaMemcpy times=all err=1; fault cudaMemcpyAsync times=all err=1");
    let output = failing.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.code() == Some(1) && text.contains("error=the process of a first load failed"),
        "{text}"
    );
    assert!(text.contains("exit status: 1") && text.contains("cudaErrorInvalidValue"), "{text}");
}

#[test]
fn top_looks_as_often_as_told() {
    let (status, out, err) = run(["top", "--count", "1", "--json"]);
    assert!(status == 0 && err.is_empty() && out.lines().count() == 1, "{out}{err}");
    let look: Value = serde_json::from_str(&out).unwrap();
    let nvidia_fs = &look["nvidia_fs"];
    assert!(nvidia_fs["reads"].is_u64() || nvidia_fs["missing"].is_string(), "{look}");
}
