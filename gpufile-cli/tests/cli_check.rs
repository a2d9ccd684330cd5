//! `gpufile check` as a user runs it: on the emulator, without any library, and in a bare environment.

use std::ffi::{CString, OsStr};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs, io, process};

use serde_json::Value;

/// Returns the program where cargo built it. On a host with only the test programs, it is above their folder.
fn program() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_gpufile"));
    let above = || env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("gpufile");
    if built.exists() { built } else { above() }
}

/// Returns `gpufile check` in a bare environment. Each library is this file.
fn check(library: &Path) -> Command {
    let mut command = Command::new(program());
    command.env_clear().arg("check");
    // Where qemu runs the program, it finds the C library by this.
    command.envs(env::var_os("QEMU_LD_PREFIX").map(|folder| ("QEMU_LD_PREFIX", folder)));
    for variable in ["CUDA_LIBRARY", "CUDART_LIBRARY", "CUFILE_LIBRARY"] {
        command.env(variable, library);
    }
    command
}

fn without_libraries() -> Command {
    check(Path::new("/nonexistent/library.so"))
}

/// Returns `gpufile check` with the emulator, after commands for it.
fn emulated(commands: &str) -> Command {
    let mut command = check(&cufile_emulator::library_path());
    command.env("CUFILE_EMULATOR", commands);
    command
}

/// Returns the exit status and the standard output. Nothing may be on the standard error output.
fn run(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let out = String::from_utf8(stdout).unwrap();
    assert_eq!(String::from_utf8_lossy(&stderr), "", "{out}");
    (status.code().unwrap(), out)
}

/// Returns the exit status and the report in JSON.
fn report(command: &mut Command) -> (i32, Value) {
    let (status, out) = run(command.arg("--json"));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(report["exit_status"], status);
    (status, report)
}

/// Returns the words for the causes of the first path.
fn causes(report: &Value) -> Vec<&str> {
    report["paths"][0]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["cause"].as_str().unwrap())
        .collect()
}

/// Returns whether the direct routes of the emulator reach the first path.
fn is_reachable(report: &Value) -> bool {
    let path = &report["paths"][0];
    ["ext4", "xfs"].contains(&path["file_system"].as_str().unwrap()) && !path["o_direct"].is_null()
}

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
fn storages_are_listed_by_mode() {
    for (commands, expected) in [
        ("", "storages compat: 13, all"),
        ("p2pdma 1", "storages p2pdma: NVMe; compat: 12 others"),
        ("nvidia-fs 2 17 18", "storages nvfs: NVMe, WekaFS; compat: 11 others"),
    ] {
        let (_, out) = run(emulated(commands).arg("/"));
        let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(expected), "{expected}: {out}");
        let (_, out) = run(emulated(commands).args(["/", "--verbose"]));
        assert!(out.contains("storages, as libcufile reaches them\n  NVMe  "), "{out}");
        let (_, found) = report(emulated(commands).arg("/"));
        let mode = |name: &str| {
            let storages = found["storages"].as_array().unwrap();
            storages.iter().find(|storage| storage["name"] == name).unwrap()["mode"].clone()
        };
        assert_eq!(mode("nvme"), expected.split([' ', ':']).nth(1).unwrap(), "{commands}");
        assert_eq!(mode("nfs"), "compat");
    }
    let (_, out) = run(without_libraries().arg("/"));
    assert!(out.contains("storages      unknown: the cuFile driver does not open"), "{out}");
}

/// Returns the remedy for the first cause with this word.
fn remedy(report: &Value, cause: &str) -> String {
    let causes = report["paths"][0]["causes"].as_array().unwrap();
    let found = causes.iter().find(|found| found["cause"] == cause);
    found.unwrap_or_else(|| panic!("{cause}: {report:#}"))["remedy"].as_str().unwrap().to_owned()
}

#[test]
fn codes_of_cuinit_choose_the_remedy() {
    for (code, word) in [
        (34, "stub"),
        (46, "nvidia-smi -c 0"),
        (802, "fabricmanager"),
        (803, "restart the machine"),
        (804, "cuda-compat"),
        (999, "nvidia-uvm"),
    ] {
        let (status, found) = report(emulated(&format!("fault cuInit times=all err={code}")).arg("/"));
        assert_eq!((status, causes(&found)[0]), (4, "cuda-fails"), "{code}");
        assert!(remedy(&found, "cuda-fails").contains(word), "{code}: {found:#}");
    }
}

#[test]
fn codes_of_the_driver_choose_the_remedy() {
    for (fault, word) in [
        ("err=5001", "modprobe nvidia_fs"),
        ("err=5004", "nvidia-gds of the release"),
        ("err=5030", "/run/udev"),
        ("err=5033", "load nvidia-fs"),
        ("err=5011 cu=802", "fabricmanager"),
    ] {
        let (_, found) = report(emulated(&format!("fault cuFileDriverOpen times=all {fault}")).arg("/"));
        assert!(remedy(&found, "driver-fails").contains(word), "{fault}: {found:#}");
    }
}

#[test]
fn required_and_refused_files_get_the_remedy_of_the_code() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    for (fault, word) in [
        ("cuFileHandleRegister times=all err=5030", "/run/udev"),
        ("cuFileHandleRegister times=all err=5027", "/run/udev"),
        ("cuFileHandleRegister times=all err=5034", "remove the entry"),
        ("cuFileDriverOpen times=all err=5001", "modprobe nvidia_fs"),
        ("cuInit times=all err=802", "fabricmanager"),
        ("cuInit times=all err=803", "restart the machine"),
        ("cuInit times=all err=100", "remedy the causes below"),
    ] {
        let mut check = emulated(&format!("fault {fault}"));
        let (status, found) = report(check.arg(folder.path()).env("GPUFILE_COMPAT_MODE", "off"));
        assert_eq!((status, causes(&found)[0]), (1, "cannot-open"), "{fault}: {found:#}");
        assert!(remedy(&found, "cannot-open").contains(word), "{fault}: {found:#}");
    }
}

#[test]
fn libraries_that_cannot_be_used_are_told_from_missing_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("empty.so"), "").unwrap();
    fs::write(path("text.so"), "x".repeat(5000)).unwrap();
    for (name, problem, word) in
        [("empty.so", "file too short", "cut off"), ("text.so", "invalid ELF header", "processor")]
    {
        let (_, found) = report(emulated("").arg("/").env("CUFILE_LIBRARY", path(name)));
        assert!(remedy(&found, "unusable-library").contains(word), "{found:#}");
        assert_eq!(found["libraries"][2]["unusable"]["reason"], problem);
    }
}

#[test]
fn old_nvidia_fs_is_a_cause() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (_, found) =
        report(emulated("nvidia-fs 2 11 0").arg(folder.path()).env("GPUFILE_COMPAT_MODE", "off"));
    if !is_reachable(&found) {
        return eprintln!("skipped: no file system for direct routes: {found:#}");
    }
    assert!(remedy(&found, "old-nvidia-fs").contains("CUDA release"), "{found:#}");
}

#[test]
fn settings_of_cufile_json_are_judged() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("cufile.json");
    let text = r#"{ "properties": { "max_direct_io_size_kb": 1000, "alow_compat_mode": true, "use_poll_mode": "yes" } }"#;
    fs::write(&json, text).unwrap();
    let (_, found) = report(emulated("").arg("/").env("CUFILE_ENV_PATH_JSON", &json));
    for cause in ["out-of-range", "unknown-key", "wrong-type"] {
        assert!(causes(&found).contains(&cause), "{cause}: {found:#}");
    }
    let effective = found["cufile_json"]["effective"].as_array().unwrap();
    let of = |key: &str| effective.iter().find(|found| found["key"] == key).unwrap()["from"].clone();
    assert_eq!(of("properties.max_direct_io_size_kb"), json.to_str().unwrap());
    assert_eq!(of("properties.allow_compat_mode"), "default");
    let (_, out) = run(emulated("").args(["/", "--verbose"]).env("CUFILE_ENV_PATH_JSON", &json));
    assert!(out.contains("properties.allow_compat_mode = true (default)"), "{out}");
    assert!(out.contains("properties.max_direct_io_size_kb = 1000 (the file)"), "{out}");
}

/// The lines that `gdscheck -p` prints, by their beginnings.
const GDSCHECK: &[&str] = &[
    "GDS release version",
    "nvidia_fs version",
    "nvidia_fs minimum version",
    "ENVIRONMENT",
    "NVMe P2PDMA",
    "NVMe",
    "NVMeOF",
    "SCSI",
    "ScaleFlux CSD",
    "NVMesh",
    "DDN EXAScaler",
    "IBM Spectrum Scale",
    "NFS",
    "BeeGFS",
    "ScaTeFS",
    "VIRTIOFS",
    "PanFS",
    "WekaFS",
    "Userspace RDMA",
    "--Mellanox PeerDirect",
    "--rdma library",
    "--rdma devices",
    "--rdma_device_status",
    "CUFILE CONFIGURATION",
    "GPU index",
    "bar:1 bar size",
    "supports GDS",
    "IOMMU State",
    "PLATFORM INFO",
    "IOMMU",
    "Nvidia Driver Info Status",
    "Cuda Driver Version Installed",
    "Found ACS enabled for switch",
    "Platform verification",
];

#[test]
fn every_line_of_gdscheck_has_its_line_here() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/check.md");
    let Ok(page) = fs::read_to_string(&page) else { return eprintln!("skipped: no documents at {page:?}") };
    let (_, table) = page.split_once("| gdscheck | gpufile check |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> =
        rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let theirs: Vec<&str> = rows.iter().flat_map(|row| row[0].split(", ")).collect();
    for line in GDSCHECK {
        assert!(theirs.contains(line), "docs/check.md lacks {line}");
    }
    let mut check = emulated("p2pdma 1");
    let (_, out) = run(check.args(["/", "--verbose"]));
    let (_, found) = report(emulated("").arg("/"));
    let ours = rows.iter().flat_map(|row| row[1].split('`').skip(1).step_by(2));
    for name in ours {
        // A machine may have no network card.
        let may_lack = name == "network" && found["network_cards"].as_array().unwrap().is_empty();
        let has = |line: &str| {
            let rest = line.trim_start().strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ':']))
                || line.trim_end().ends_with(name)
        };
        assert!(may_lack || out.lines().any(has), "{name}: {out}");
    }
}

#[test]
fn log_file_follows_the_variable() {
    let (_, found) = report(emulated("").arg("/").env("CUFILE_LOGFILE_PATH", "/tmp/my.log"));
    assert_eq!(found["cufile_log"]["file"], "/tmp/my.log");
    let (_, out) = run(emulated("").args(["/", "--verbose"]).env("CUFILE_LOGGING_LEVEL", "TRACE"));
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("/cufile.log, level TRACE"), "{out}");
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
