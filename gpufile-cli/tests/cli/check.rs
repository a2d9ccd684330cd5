//! `gpufile check` as a user runs it: on the emulator, without any library, and in a bare environment.

use std::ffi::{CString, OsStr};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::{env, fs, io, process};

use serde_json::Value;

use crate::checked::{causes, emulated, is_reachable, report, run, without_libraries};

#[test]
fn report_without_libraries_begins_with_the_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let (status, out) = run(without_libraries().arg(folder.path()));
    assert_eq!(status, 4, "{out}");
    let expected = format!("{}: IMPOSSIBLE: no bytes reach a GPU", folder.path().display());
    assert!(out.starts_with(&expected), "{out}");
    for library in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        assert!(out.contains(&format!("{library} is \"/nonexistent/library.so\"")), "{out}");
        assert!(out.contains(&format!("-> set {library} to the library, or unset it")), "{out}");
    }
    let (to_do, facts) = out.split_once("\nmachine\n").unwrap();
    assert!(to_do.contains("\nwhat to do\n  1. ") && facts.contains("\nfeatures here\n"), "{out}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn report_fits_a_screen() {
    let folder = tempfile::tempdir().unwrap();
    for command in
        [&mut without_libraries(), &mut emulated("gpus 2"), &mut emulated("version 1110; p2pdma 1")]
    {
        let (_, out) = run(command.arg(folder.path()).arg("--try"));
        // A large machine has more lines of these.
        let of_machine =
            |line: &&str| ["  GPU ", "  network ", "            "].iter().any(|name| line.starts_with(name));
        assert!(out.lines().filter(|line| !of_machine(line)).count() <= 48, "{out}");
        let longest =
            out.lines().filter(|line| line.split_whitespace().count() > 2).map(|line| line.chars().count());
        assert!(longest.max() <= Some(130), "{out}");
        assert!(!out.contains('\x1b'), "{out}");
    }
}

#[test]
fn verbose_report_lists_what_was_tried() {
    let (_, short) = run(without_libraries().arg("/"));
    let (_, long) = run(without_libraries().args(["/", "--verbose"]));
    assert!(long.contains("libcuda could not be loaded (to choose a file, set CUDA_LIBRARY"), "{long}");
    assert!(!short.contains("could not be loaded (to"), "{short}");
    assert!(long.contains("not POSIX through pinned host memory: libcuda and libcudart"), "{long}");
}

#[test]
fn check_and_try_keep_files_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, "precious").unwrap();
    for command in [&mut without_libraries(), &mut emulated("")] {
        let (status, out) = run(command.arg("--try").arg(&path).arg(folder.path()));
        assert!([3, 4].contains(&status) && out.matches("with equal bytes").count() == 2, "{out}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{out}");
    }
}

#[test]
fn tmpfs_and_folder_fall_back_without_a_direct_path() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (status, found) = report(emulated("").arg(folder.path()).arg("--try"));
    let path = &found["paths"][0];
    assert_eq!(
        (status, path["verdict"].as_str(), path["route"].as_str()),
        (3, Some("fallback"), Some("posix"))
    );
    assert_eq!((path["try"]["proven"].as_bool(), path["try"]["gpu"].as_u64()), (Some(true), Some(0)));
    assert_eq!(found["gpus"].as_array().unwrap().len(), 2);
    assert_eq!(found["features"]["gpu-memory"], true);
    assert!(!causes(&found).is_empty() && !causes(&found).contains(&"other"), "{found:#}");

    let (status, found) = report(emulated("nvidia-fs 2 17 4095").arg("/dev/shm"));
    if found["paths"][0]["file_system"] == "tmpfs" {
        assert_eq!((status, causes(&found)), (3, vec!["tmpfs"]), "{found:#}");
    }
}

#[test]
fn direct_paths_are_fast_and_proven_by_counters() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    for (commands, route) in [("p2pdma 1", "p2pdma"), ("nvidia-fs 2 17 4095", "gds")] {
        let mut check = emulated(commands);
        // The emulator changes no /sys and no /proc, so the engine opens its driver only if it must.
        check.arg(folder.path()).args(["--try", "--gpu", "1"]).env("GPUFILE_COMPAT_MODE", "off");
        let (status, found) = report(&mut check);
        let path = &found["paths"][0];
        if !is_reachable(&found) {
            assert_eq!(status, 3, "{found:#}");
            assert!(env::var_os("CUFILE_REQUIRE_MOUNTS").is_none(), "no direct route: {found:#}");
            eprintln!("skipped: no direct route to this file system: {}", found["paths"][0]["file_system"]);
            continue;
        }
        assert_eq!((status, path["route"].as_str()), (0, Some(route)), "{found:#}");
        assert_eq!(path["try"]["gpu"], 1);
        // The emulator counts transfers of libcufile, and has no /proc/driver/nvidia-fs.
        let proven = if route == "p2pdma" { Value::Bool(true) } else { Value::Null };
        assert_eq!(path["try"]["proven"], proven, "{found:#}");
        assert!(path["try"]["counted"].as_str().unwrap().starts_with("libcufile counted "), "{found:#}");
    }
}

#[test]
fn failed_attempt_fails_the_check() {
    let folder = tempfile::tempdir().unwrap();
    let (status, out) = run(emulated("").arg(folder.path()).args(["--try", "--gpu", "7"]));
    assert!(status == 1 && out.contains("the attempt failed: ") && out.contains("no GPU 7"), "{out}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn keys_of_json_are_stable() {
    for command in [&mut without_libraries(), &mut emulated("")] {
        let (_, found) = report(command.arg("/"));
        let keys = |value: &Value| {
            let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys.join(" ")
        };
        assert_eq!(
            keys(&found),
            "cufile_driver cufile_json cufile_log disks exit_status features gpufile gpus kernel libraries lustre \
             network_cards paths storages variables verdict"
        );
        assert_eq!(
            keys(&found["paths"][0]),
            "block_devices cached causes device error file_system mount_options mount_point mount_source o_direct path \
             route try udev_record verdict why_not"
        );
        assert_eq!(keys(&found["paths"][0]["causes"][0]), "cause effect problem remedy");
        assert_eq!(
            keys(&found["kernel"]),
            "bridges container container_kind display_driver iommu libcufile_rdma mlx5_core nvidia_fs nvidia_peermem \
             open_module p2pdma platform release"
        );
        assert_eq!(keys(&found["libraries"][0]), "error name path unusable version");
        assert_eq!(keys(&found["storages"][0]), "mode module name registered");
    }
}

#[test]
fn worst_path_decides_the_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let (status, out) = run(emulated("").arg(folder.path()).arg("/nonexistent/file"));
    assert_eq!(status, 1, "{out}");
    assert!(out.contains(": FALLBACK: "), "{out}");
    assert!(
        out.contains("/nonexistent/file: FAILED: cannot open \"/nonexistent/file\": No such file"),
        "{out}"
    );
    assert!(out.contains("1. there is no such path (/nonexistent/file)\n     -> name a file"), "{out}");
    assert!(out.contains("\nmachine\n"), "{out}");
}

#[test]
fn pipes_and_devices_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name is terminated and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let (status, out) = run(emulated("").arg(&pipe).arg("--try"));
    assert!(status == 1 && out.contains("is not a file or a folder, so it has no route"), "{out}");
    assert!(out.contains("the path is neither a file nor a folder"), "{out}");
    let (status, found) = report(emulated("").arg("/dev/null"));
    assert_eq!((status, causes(&found)), (3, vec!["not-regular"]), "{found:#}");
}

#[test]
fn devices_and_old_libraries_are_causes() {
    let (status, found) = report(emulated("gpus 0").arg("/"));
    assert_eq!((status, causes(&found)[0]), (4, "no-device"));
    let (_, found) = report(emulated("version 1140").arg("/"));
    assert!(causes(&found).contains(&"old-libcufile"), "{found:#}");
    let features = &found["features"];
    let expected = [("parameters", true), ("statistics", false), ("p2p-flags", false), ("compat-mode", true)];
    assert!(expected.iter().all(|(key, is_there)| features[key] == *is_there), "{features:#}");
    let (_, found) = report(emulated("fault cuFileDriverOpen times=all err=5011").arg("/"));
    assert!(causes(&found).contains(&"driver-fails"), "{found:#}");
    let (_, found) = report(emulated("").arg("/").env("CUFILE_LIBRARY", "/nonexistent/library.so"));
    assert!(causes(&found).contains(&"no-libcufile"), "{found:#}");
}

#[test]
fn wrong_and_misspelt_variables_are_named() {
    let (status, out) = run(emulated("").arg("/").env("GPUFILE_NUM_THREADS", "many"));
    assert!(status == 1 && out.contains("GPUFILE_NUM_THREADS is \"many\""), "{out}");
    let (status, out) = run(emulated("").arg("/").env("GPUFILE_NUM_THREAD", "3").env("KVIKIO_NTHREADS", "2"));
    assert!(
        status == 3 && out.contains("the most similar one that it knows is GPUFILE_NUM_THREADS"),
        "{out}"
    );
    assert!(out.contains("KVIKIO_NTHREADS=2"), "{out}");
}

#[test]
fn compatibility_mode_is_a_cause_wherever_it_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("cufile.json");
    fs::write(&json, "{ // forced\n \"properties\": { \"force_compat_mode\": true, }, }").unwrap();
    for (variable, value, cause) in [
        ("GPUFILE_COMPAT_MODE", OsStr::new("on"), "compat-mode-by-environment"),
        ("CUFILE_FORCE_COMPAT_MODE", OsStr::new("true"), "compat-mode-by-environment"),
        ("CUFILE_ENV_PATH_JSON", json.as_os_str(), "compat-mode-by-cufile-json"),
    ] {
        for commands in ["", "p2pdma 1"] {
            let (status, found) = report(emulated(commands).arg(folder.path()).env(variable, value));
            assert_eq!((status, causes(&found)[0]), (3, cause), "{found:#}");
        }
    }
    let (_, out) = run(emulated("").arg("/").env("CUFILE_ENV_PATH_JSON", &json));
    assert!(out.contains("properties.force_compat_mode = true (default false)\n"), "{out}");
}

#[test]
fn descriptor_of_another_process_shows_its_flags() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let append = fs::File::options().append(true).custom_flags(libc::O_NONBLOCK).open(file.path()).unwrap();
    let path = format!("/proc/{}/fd/{}", process::id(), append.as_raw_fd());
    let (_, found) = report(emulated("").arg(path));
    let flags =
        found["paths"][0]["causes"].as_array().unwrap().iter().find(|cause| cause["cause"] == "open-flags");
    let problem = flags.unwrap()["problem"].as_str().unwrap();
    assert!(problem.contains("O_APPEND and O_NONBLOCK"), "{problem}");
}

#[test]
fn closed_output_keeps_the_exit_status() {
    let nobody = || -> Stdio { io::pipe().unwrap().1.into() };
    for (arguments, expected) in [(&["/"][..], 4), (&["/", "--json"], 4), (&["/nonexistent/file", "-v"], 1)] {
        let status = without_libraries().args(arguments).stdout(nobody()).stderr(nobody()).status().unwrap();
        assert_eq!(status.code(), Some(expected), "{arguments:?}");
    }
}
