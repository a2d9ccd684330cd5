//! `--labels`: lines for the local source of Kubernetes' node feature discovery.

use serde_json::Value;

const MOST_BYTES: usize = 63;

pub fn of(report: &Value) -> String {
    let text = |value: &Value| value.as_str().map(valid).filter(|text| !text.is_empty());
    let library = report["libraries"].as_array().into_iter().flatten();
    let library =
        library.filter(|library| library["name"] == "libcufile").find_map(|it| text(&it["version"]));
    let kernel = &report["kernel"];
    let known = [
        ("verdict", text(&report["verdict"])),
        ("gpus", report["gpus"].as_array().map(|gpus| gpus.len().to_string())),
        ("libcufile-version", library),
        ("nvidia-fs-version", text(&kernel["nvidia_fs"]["version"])),
        ("display-driver-version", text(&kernel["display_driver"])),
    ];
    let known = known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let features = report["features"].as_object().into_iter().flatten();
    let features =
        features.map(|(name, is_there)| (format!("feature-{name}"), (is_there == true).to_string()));
    known.chain(features).map(|(name, value)| format!("gpufile-{name}={value}\n")).collect()
}

/// Returns the text as the value of a label: letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn valid(text: &str) -> String {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let text: String = text.chars().map(|c| if is_inner(c) { c } else { '-' }).take(MOST_BYTES).collect();
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_have_only_what_kubernetes_accepts() {
        let report = json!({
            "verdict": "fast",
            "gpus": [{}, {}],
            "libraries": [{ "name": "libcuda", "version": "13.0" }, { "name": "libcufile", "version": "1.16 (x)" }],
            "kernel": { "nvidia_fs": null, "display_driver": format!("{}+b", "5".repeat(70)) },
            "features": { "p2pdma": true, "compat-mode": false },
        });
        let expected = format!(
            "gpufile-verdict=fast\ngpufile-gpus=2\ngpufile-libcufile-version=1.16--x\n\
             gpufile-display-driver-version={}\ngpufile-feature-p2pdma=true\ngpufile-feature-compat-mode=false\n",
            "5".repeat(63)
        );
        assert_eq!(of(&report), expected);
    }
}
