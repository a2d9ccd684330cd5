//! The place of libcufile's log file.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
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

pub fn is_refused(path: &Path) -> bool {
    let may_write = |path: &Path| {
        let text = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: the path is terminated and outlives the call.
        unsafe { libc::access(text.as_ptr(), libc::W_OK) == 0 }
    };
    !may_write(path) && (path.exists() || !path.parent().is_some_and(may_write))
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
    fn missing_folders_refuse_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cufile.log");
        assert!(!is_refused(&path));
        std::fs::write(&path, "").unwrap();
        assert!(!is_refused(&path) && is_refused(Path::new("/nonexistent/cufile.log")));
    }

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
