//! `--compare OLD.json`: what changed since an earlier report, in words.
//!
//! Keys that only one report has are of another release, and are left out. Lists of things, such as GPUs, are compared by
//! their names.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::failure::Failure;

/// Keys whose values differ from run to run, or repeat others.
const IGNORED: &[&str] = &[
    "exit_status",
    "cached",
    "try",
    "statistics",
    "changed",
    "problem",
    "remedy",
    "text",
    "registered",
    "from",
];

/// Names of elements of a list, the best first.
const NAMES: &[&str] = &["cause", "key", "ordinal", "name", "path", "address", "gpu", "route", "names"];

/// Sections whose elements say by themselves what they are, or have a better name.
const SECTIONS: &[(&str, &str)] = &[
    ("paths", ""),
    ("causes", "cause"),
    ("libraries", ""),
    ("gpus", "GPU"),
    ("network_cards", "network card"),
    ("disks", "disk"),
    ("storages", "storage"),
    ("cufile_json", "cufile.json"),
    ("effective", ""),
    ("variables", ""),
    ("read", "variable"),
    ("unknown", "unknown variable"),
    ("features", "feature"),
];

/// Reads the JSON of `--json` or `--report`.
pub fn read(path: &Path) -> Result<Value, Failure> {
    let failed =
        |problem: &dyn std::fmt::Display| Failure::Other(format!("cannot compare with {path:?}: {problem}"));
    let text = fs::read(path).map_err(|error| failed(&error))?;
    let mut report: Value = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
    if report["check"].is_object() {
        report = report["check"].take();
    }
    match report["paths"].is_array() {
        true => Ok(report),
        false => Err(failed(&"it is no report of `gpufile check --json`")),
    }
}

pub fn changes(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", old, new, &mut found);
    found
}

fn compare(name: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(before), Value::Object(now)) => {
            for (key, new) in now.iter().filter(|(key, _)| !IGNORED.contains(&key.as_str())) {
                if let Some(old) = before.get(key) {
                    compare(&joined(name, &word(key)), old, new, found);
                }
            }
        }
        (Value::Array(before), Value::Array(now)) if before.iter().chain(now).all(Value::is_object) => {
            let of = |list: &[Value], wanted: &Value| {
                let wanted = label(wanted);
                list.iter().find(|element| label(element) == wanted).cloned()
            };
            for old in before.iter().filter(|old| of(now, old).is_none()) {
                found.push(format!("{} is gone{}", joined(name, &label(old)), explained(old)));
            }
            for new in now {
                let name = joined(name, &label(new));
                match of(before, new) {
                    Some(old) => compare(&name, &old, new, found),
                    None => found.push(format!("{name} is new{}", explained(new))),
                }
            }
        }
        _ if old == new => {}
        _ => found.push(format!("{name} was {}, is {}", shown(old), shown(new))),
    }
}

fn label(element: &Value) -> String {
    let name = NAMES.iter().map(|key| &element[*key]).find(|name| !name.is_null());
    name.map(shown).unwrap_or_default()
}

fn explained(element: &Value) -> String {
    let words = ["problem", "value", "version", "route"].into_iter().map(|key| &element[key]);
    words
        .into_iter()
        .find(|words| !words.is_null())
        .map_or(String::new(), |words| format!(": {}", shown(words)))
}

fn word(key: &str) -> String {
    let section = SECTIONS.iter().find(|(section, _)| *section == key);
    section.map_or_else(|| key.replace('_', " "), |(_, word)| (*word).to_owned())
}

fn joined(name: &str, more: &str) -> String {
    match (name.is_empty(), more.is_empty()) {
        (true, _) => more.to_owned(),
        (_, true) => name.to_owned(),
        _ => format!("{name} {more}"),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(shown).collect::<Vec<_>>().join(", "),
        Value::Object(thing) => {
            let best = ["version", "name", "path"].iter().find_map(|key| thing.get(*key));
            best.filter(|best| !best.is_null()).map_or("there".to_owned(), shown)
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_named_in_words() {
        let report = |verdict: &str, version: &str, causes: &Value, gpus: &[u32]| {
            json!({
                "exit_status": 0,
                "paths": [{ "path": "/data", "verdict": verdict, "causes": causes, "cached": 0.5 }],
                "libraries": [{ "name": "libcufile", "version": version }],
                "gpus": gpus.iter().map(|ordinal| json!({ "ordinal": ordinal })).collect::<Vec<_>>(),
                "kernel": { "release": "6.8.0", "nvidia_fs": null },
                "cufile_json": { "effective": [{ "key": "logging.level", "value": "ERROR", "from": "default" }] },
            })
        };
        let old = report("fast", "1.14", &json!([]), &[0, 1]);
        let cause = json!([{ "cause": "no-udev-record", "problem": "udev does not describe it" }]);
        let mut new = report("fallback", "1.16", &cause, &[0]);
        assert_eq!(changes(&old, &old), [""; 0]);
        let expected = [
            "GPU 1 is gone",
            "libcufile version was 1.14, is 1.16",
            "/data cause no-udev-record is new: udev does not describe it",
            "/data verdict was fast, is fallback",
        ];
        let mut found = changes(&old, &new);
        found.sort();
        let mut sorted = expected;
        sorted.sort_unstable();
        assert_eq!(found, sorted);
        // A key of a newer release is no change.
        new = old.clone();
        new["kernel"]["open_module"] = json!(true);
        new["new"] = json!({ "a": 1 });
        assert_eq!(changes(&old, &new), [""; 0]);
        new["kernel"]["nvidia_fs"] = json!({ "version": "2.24" });
        new["cufile_json"]["effective"][0]["value"] = json!("TRACE");
        new["cufile_json"]["effective"][0]["from"] = json!("/etc/cufile.json");
        let expected =
            ["kernel nvidia fs was none, is 2.24", "cufile.json logging.level value was ERROR, is TRACE"];
        let mut found = changes(&old, &new);
        found.sort_by_key(|line| line.starts_with("cufile"));
        assert_eq!(found, expected);
    }

    #[test]
    fn reports_are_read_in_both_forms() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.json");
        for text in ["{\"paths\": []}", "{\"form\": 1, \"check\": {\"paths\": []}}"] {
            fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap(), json!({ "paths": [] }));
        }
        for text in ["", "[]", "{\"a\": 1}", "\"x\""] {
            fs::write(&path, text).unwrap();
            read(&path).unwrap_err();
        }
        read(&folder.path().join("none")).unwrap_err();
    }
}
