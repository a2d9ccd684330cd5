//! The report for Prometheus, made from the JSON.

use serde_json::Value;

use crate::prometheus::{Exposition, Kind};

/// Returns the report as metrics.
pub fn of(report: &Value) -> String {
    let mut page = Exposition::default();
    let help = "The exit status of the check: 0 fast, 1 failed, 3 fallback, 4 impossible.";
    page.metric("gpufile_check_exit_status", Kind::Gauge, help).sample(&[], number(&report["exit_status"]));
    let help = "The version of the program that checked.";
    page.metric("gpufile_check_info", Kind::Gauge, help).sample(&[("version", text(&report["gpufile"]))], 1);
    let help = "1 if the bytes of the path bypass host memory.";
    let mut metric = page.metric("gpufile_path_fast", Kind::Gauge, help);
    for path in list(&report["paths"]) {
        let labels = ["path", "verdict", "route"].map(|key| (key, text(&path[key])));
        metric.sample(&labels, u8::from(path["verdict"] == "fast"));
    }
    let mut metric = page.metric(
        "gpufile_path_cause",
        Kind::Gauge,
        "1 for each cause that keeps a path from the fast route.",
    );
    for path in list(&report["paths"]) {
        for cause in list(&path["causes"]) {
            let labels = [("path", &path["path"]), ("cause", &cause["cause"]), ("effect", &cause["effect"])];
            metric.sample(&labels.map(|(key, value)| (key, text(value))), 1);
        }
    }
    let tried = list(&report["paths"]).iter().filter(|path| path["try"].is_object());
    let mut metric = page.metric(
        "gpufile_path_try_succeeded",
        Kind::Gauge,
        "1 if the attempt of --try brought back equal bytes.",
    );
    for path in tried {
        metric.sample(&[("path", text(&path["path"]))], u8::from(path["try"]["error"].is_null()));
    }
    let mut metric =
        page.metric("gpufile_library_info", Kind::Gauge, "1 for each library that loads, with its version.");
    for library in list(&report["libraries"]).iter().filter(|library| library["error"].is_null()) {
        metric.sample(&["name", "version"].map(|key| (key, text(&library[key]))), 1);
    }
    let mut metric =
        page.metric("gpufile_gpu_memory_bytes", Kind::Gauge, "The memory of a GPU that CUDA shows.");
    for gpu in list(&report["gpus"]) {
        let ordinal = gpu["ordinal"].to_string();
        let labels = [("gpu", &*ordinal), ("name", text(&gpu["name"])), ("address", text(&gpu["address"]))];
        metric.sample(&labels, number(&gpu["memory_bytes"]));
    }
    let mut metric = page.metric("gpufile_feature", Kind::Gauge, "1 if this machine has the feature.");
    for (name, is_there) in report["features"].as_object().into_iter().flatten() {
        metric.sample(&[("feature", name)], u8::from(is_there == true));
    }
    page.text()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}
