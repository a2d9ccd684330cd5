//! The place of libcufile's log file.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::cufile_json::Configuration;

/// Returns the path of the log file of a process with these settings, in this folder.
pub fn path(
    configuration: &Configuration,
    variable: &dyn Fn(&str) -> Option<String>,
    folder: &Path,
) -> PathBuf {
    let named = variable("CUFILE_LOGFILE_PATH").filter(|path| !path.is_empty());
    let set = || configuration.change("logging.dir").and_then(|change| change.value.as_str());
    let path = named.map_or_else(|| Path::new(set().unwrap_or_default()).join("cufile.log"), PathBuf::from);
    folder.join(path)
}

/// Returns the level of the log: `ERROR` unless it is set.
pub fn level(configuration: &Configuration) -> String {
    let set = configuration.change("logging.level").map(|change| &change.value);
    set.and_then(Value::as_str).unwrap_or("ERROR").to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::cufile_json::Change;
    use super::*;

    #[test]
    fn variable_precedes_folder_and_working_directory() {
        let unset = Configuration::default();
        let change = Change {
            key: "logging.dir".to_owned(),
            value: json!("/var/log"),
            default: None,
            from: "/etc/cufile.json".to_owned(),
        };
        let set = Configuration { changed: vec![change], ..Configuration::default() };
        let of = |configuration: &Configuration, named: Option<&str>| {
            let variable = |name: &str| named.filter(|_| name == "CUFILE_LOGFILE_PATH").map(str::to_owned);
            path(configuration, &variable, Path::new("/work")).to_string_lossy().into_owned()
        };
        assert_eq!(of(&unset, None), "/work/cufile.log");
        assert_eq!(of(&set, None), "/var/log/cufile.log");
        assert_eq!(
            (of(&set, Some("/tmp/a")), of(&set, Some(""))),
            ("/tmp/a".into(), "/var/log/cufile.log".into())
        );
        assert_eq!(level(&unset), "ERROR");
    }
}
