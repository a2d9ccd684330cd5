//! The causes of `gpufile check` and their remedies, as a user sees them on the emulator, and the lines for users of gdscheck.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::checked::{causes, emulated, is_reachable, report, run, without_libraries};

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
