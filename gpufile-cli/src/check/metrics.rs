//! The report for Prometheus, made from the JSON.

use serde_json::Value;

use crate::prometheus::{Exposition, Kind};

const VERDICTS: &[&str] = &["fast", "fallback", "impossible", "failed"];
const ROUTES: &[&str] = &["gds", "p2pdma", "cufile-compat", "posix", "unavailable"];
const EFFECTS: &[&str] = &["fails", "stops", "stages", "limits", "slows"];

/// Returns metrics whose labels never change for the same thing: a state is a series of its own, with 0 or 1.
pub fn of(report: &Value) -> String {
    let mut page = Exposition::default();
    let help = "The exit status of the check: 0 fast, 1 failed, 3 fallback, 4 impossible.";
    page.metric("gpufile_check_exit_status", Kind::Gauge, help).sample(&[], number(&report["exit_status"]));
    let help = "The version of the program that checked.";
    page.metric("gpufile_check_info", Kind::Gauge, help).sample(&[("version", text(&report["gpufile"]))], 1);
    let paths = list(&report["paths"]);
    let help = "1 if the bytes of the path bypass host memory.";
    let mut metric = page.metric("gpufile_path_fast", Kind::Gauge, help);
    for path in paths {
        metric.sample(&[("path", text(&path["path"]))], u8::from(path["verdict"] == "fast"));
    }
    let mut metric = page.metric("gpufile_path_verdict", Kind::Gauge, "1 for the verdict on the path.");
    for path in paths {
        metric.state(&[("path", text(&path["path"]))], "verdict", VERDICTS, text(&path["verdict"]));
    }
    let mut metric = page.metric("gpufile_path_route", Kind::Gauge, "1 for the route of the path.");
    for path in paths {
        metric.state(&[("path", text(&path["path"]))], "route", ROUTES, text(&path["route"]));
    }
    let help = "Causes that keep a path from the fast route or slow it, by their effect.";
    let mut metric = page.metric("gpufile_path_causes", Kind::Gauge, help);
    for path in paths {
        for effect in EFFECTS {
            let causes = list(&path["causes"]).iter().filter(|cause| cause["effect"] == *effect);
            metric.sample(&[("path", text(&path["path"])), ("effect", effect)], causes.count());
        }
    }
    let help = "1 for each cause that keeps a path from the fast route or slows it.";
    let mut metric = page.metric("gpufile_path_cause", Kind::Gauge, help);
    for path in paths {
        for cause in list(&path["causes"]) {
            let labels = [("path", text(&path["path"])), ("cause", text(&cause["cause"]))];
            metric.sample(&labels, 1);
        }
    }
    let tried = paths.iter().filter(|path| path["try"].is_object());
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
    let ordinal = |gpu: &Value| gpu["ordinal"].to_string();
    let help = "1 for each GPU that CUDA shows, with its name and PCI address.";
    let mut metric = page.metric("gpufile_gpu_info", Kind::Gauge, help);
    for gpu in list(&report["gpus"]) {
        let labels = ["name", "address"].map(|key| (key, text(&gpu[key])));
        metric.sample(&[[("gpu", &*ordinal(gpu))].as_slice(), &labels].concat(), 1);
    }
    let mut metric =
        page.metric("gpufile_gpu_memory_bytes", Kind::Gauge, "The memory of a GPU that CUDA shows.");
    for gpu in list(&report["gpus"]) {
        metric.sample(&[("gpu", &ordinal(gpu))], number(&gpu["memory_bytes"]));
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
