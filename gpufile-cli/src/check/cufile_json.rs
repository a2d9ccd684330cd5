//! The configuration of libcufile: the file `cufile.json` in force, and the variables that override it.

use serde_json::{Map, Value};

use super::keys;
use super::root::Root;
use crate::files;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    /// The file, and the variable that names it, if one does.
    pub file: Option<String>,
    pub is_named_by_variable: bool,
    pub error: Option<String>,
    /// Values that differ from the defaults, or whose default is not known here.
    pub changed: Vec<Change>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The path in the file, such as `properties.force_compat_mode`.
    pub key: String,
    pub value: Value,
    pub default: Option<Value>,
    pub from: String,
}

const PATH_VARIABLE: &str = "CUFILE_ENV_PATH_JSON";
const USUAL_PATH: &str = "/etc/cufile.json";
/// The most bytes of the file. NVIDIA's has less than 20 KB.
const MOST_BYTES: u64 = 1 << 20;

const OVERRIDES: &[(&str, &str)] = &[
    ("CUFILE_FORCE_COMPAT_MODE", "properties.force_compat_mode"),
    ("CUFILE_IO_PRIORITY", "properties.io_priority"),
    ("CUFILE_LOGFILE_MAX_SIZE_MB", "logging.max_file_size_mb"),
    ("CUFILE_LOGGING_LEVEL", "logging.level"),
    ("CUFILE_MAX_DEVICE_CACHE_SIZE", "properties.max_device_cache_size_kb"),
    ("CUFILE_PER_BUFFER_CACHE_SIZE", "properties.per_buffer_cache_size_kb"),
    ("CUFILE_SKIP_TOPOLOGY_DETECTION", "miscellaneous.skip_topology_detection"),
    ("CUFILE_STATS_LEVEL", "profile.cufile_stats"),
    ("CUFILE_STREAM_MEMOPS_BYPASS", "miscellaneous.stream_memops_bypass"),
    ("CUFILE_USE_PCIP2PDMA", "properties.use_pci_p2pdma"),
];

impl Configuration {
    pub fn of(root: &Root, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let named = variable(PATH_VARIABLE).filter(|path| !path.is_empty());
        let is_named_by_variable = named.is_some();
        let path = named.unwrap_or_else(|| USUAL_PATH.to_owned());
        let mut found = Self { is_named_by_variable, ..Self::default() };
        // A relative path begins at the folder of the process.
        let place = if path.starts_with('/') { root.at(&path) } else { path.clone().into() };
        match files::read(&place, MOST_BYTES) {
            Ok(text) => {
                found.file = Some(path.clone());
                match parse(&text) {
                    Ok(values) => flatten("", &values, &mut |key, value| {
                        found.set(key, value.clone(), &path);
                    }),
                    Err(error) => found.error = Some(format!("it is not JSON: {error}")),
                }
            }
            Err(error) if is_named_by_variable || error.kind() != std::io::ErrorKind::NotFound => {
                found.error = Some(error.to_string());
                found.file = Some(path);
            }
            Err(_) => {}
        }
        for (name, key) in OVERRIDES {
            if let Some(text) = variable(name) {
                // A number or a switch as the file would have it; any other word is text.
                let value = serde_json::from_str(&text.to_lowercase()).unwrap_or(Value::String(text));
                found.changed.retain(|change| change.key != *key);
                found.set(key, value, name);
            }
        }
        found
    }

    fn set(&mut self, key: &str, value: Value, from: &str) {
        let default = keys::default(key);
        if default.as_ref() != Some(&value) {
            self.changed.push(Change { key: key.to_owned(), value, default, from: from.to_owned() });
        }
    }

    /// Returns every key that libcufile reads or the machine sets, with its value and its origin: the file, a
    /// variable, or `default`. The value is `None` for a default that is not known here.
    pub fn effective(&self) -> Vec<(String, Option<Value>, String)> {
        let default = |key: &keys::Key| (key.name.to_owned(), key.default(), "default".to_owned());
        let unchanged = keys::KEYS.iter().filter(|key| self.change(key.name).is_none()).map(default);
        let changed = self.changed.iter();
        let changed =
            changed.map(|change| (change.key.clone(), Some(change.value.clone()), change.from.clone()));
        let mut values: Vec<_> = unchanged.chain(changed).collect();
        values.sort_by(|one, other| one.0.cmp(&other.0));
        values
    }

    pub fn change(&self, key: &str) -> Option<&Change> {
        self.changed.iter().find(|change| change.key == key)
    }

    pub fn switched_on(&self, key: &str) -> Option<&Change> {
        self.change(key).filter(|change| is_on(&change.value))
    }

    /// Returns the list of `denylist` that holds a word.
    pub fn denies(&self, list: &str, is_denied: &dyn Fn(&str) -> bool) -> Option<&Change> {
        let change = self.change(&format!("denylist.{list}"))?;
        let entries = change.value.as_array()?;
        entries.iter().filter_map(Value::as_str).any(is_denied).then_some(change)
    }
}

fn is_on(value: &Value) -> bool {
    match value {
        Value::Bool(is) => *is,
        Value::Number(number) => number.as_u64() == Some(1),
        Value::String(text) => ["on", "yes"].contains(&text.to_lowercase().as_str()),
        _ => false,
    }
}

fn parse(text: &[u8]) -> Result<Map<String, Value>, String> {
    let text = str::from_utf8(text).map_err(|error| error.to_string())?;
    serde_json::from_str(&plain(text)).map_err(|error| error.to_string())
}

/// Calls `each` for every value that is no object, with its path. Empty objects count as values.
fn flatten(above: &str, values: &Map<String, Value>, each: &mut dyn FnMut(&str, &Value)) {
    for (name, value) in values {
        let key = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(&key, inner, each),
            value => each(&key, value),
        }
    }
}

/// Replaces comments, and commas before a closing bracket, by spaces. Lines keep their numbers.
fn plain(text: &str) -> String {
    let mut plain: Vec<char> = Vec::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    // The place of a comma after which only spaces and comments came.
    let mut comma = None;
    let mut is_string = false;
    while let Some(next) = rest.next() {
        match (is_string, next) {
            (true, '\\') => {
                plain.push(next);
                plain.extend(rest.next());
                continue;
            }
            (_, '"') => is_string = !is_string,
            (false, '/') if rest.peek() == Some(&'/') => {
                while rest.next_if(|next| *next != '\n').is_some() {}
                continue;
            }
            (false, '/') if rest.peek() == Some(&'*') => {
                rest.next();
                let mut before = ' ';
                for inside in rest.by_ref() {
                    if inside == '\n' {
                        plain.push(inside);
                    }
                    if (before, inside) == ('*', '/') {
                        break;
                    }
                    before = inside;
                }
                continue;
            }
            _ => {}
        }
        if let (false, '}' | ']', Some(comma)) = (is_string, next, comma) {
            plain[comma] = ' ';
        }
        if is_string || !next.is_whitespace() {
            comma = (next == ',' && !is_string).then_some(plain.len());
        }
        plain.push(next);
    }
    plain.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::root::tests::Fake;
    use super::*;

    const FILE: &str = r#"{
    // a comment with "quotes" and a brace }
    "logging": { "level": "INFO", /* two
        lines */ "dir": "/var/log/a//b" },
    "properties": {
        "max_direct_io_size_kb": 16384, // the default
        "force_compat_mode": true,
        "rdma_dev_addr_list": [ "10.0.0.1", "10.0.0.2", ],
    },
    "denylist": { "filesystems": [ "ext4" ], "mounts": [], },
    "fs": { "lustre": { "posix_gds_min_kb": 0, "mount_table": {} } },
}"#;

    fn of(file: Option<&str>, variables: &[(&str, &str)]) -> Configuration {
        let fake = Fake::new();
        if let Some(text) = file {
            fake.file("/etc/cufile.json", text);
        }
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Configuration::of(&fake.root(), &variable)
    }

    fn keys(found: &Configuration) -> Vec<&str> {
        found.changed.iter().map(|change| change.key.as_str()).collect()
    }

    #[test]
    fn only_changed_values_are_listed() {
        let found = of(Some(FILE), &[]);
        assert_eq!(found.error, None);
        let mut keys = keys(&found);
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "denylist.filesystems",
                "logging.dir",
                "logging.level",
                "properties.force_compat_mode",
                "properties.rdma_dev_addr_list"
            ]
        );
        assert_eq!(found.change("logging.dir").unwrap().value, "/var/log/a//b");
        let level = found.change("logging.level").unwrap();
        assert_eq!(
            (level.default.clone().unwrap(), level.from.as_str()),
            (json!("ERROR"), "/etc/cufile.json")
        );
        assert!(found.switched_on("properties.force_compat_mode").is_some());
        assert!(found.switched_on("properties.rdma_dev_addr_list").is_none());
        assert!(found.denies("filesystems", &|name| name == "ext4").is_some());
        assert!(found.denies("filesystems", &|name| name == "xfs").is_none());
        assert!(found.denies("mounts", &|_| true).is_none());
    }

    #[test]
    fn effective_values_have_their_origin() {
        let values = of(Some(FILE), &[("CUFILE_LOGGING_LEVEL", "TRACE")]).effective();
        let of = |key: &str| {
            let found: Vec<_> = values.iter().filter(|(name, ..)| name == key).collect();
            let [(_, value, from)] = found[..] else { panic!("{key}: {found:?}") };
            (value.clone(), from.clone())
        };
        assert_eq!(of("properties.force_compat_mode"), (Some(json!(true)), "/etc/cufile.json".to_owned()));
        assert_eq!(of("properties.allow_compat_mode"), (Some(json!(true)), "default".to_owned()));
        assert_eq!(of("properties.io_priority"), (None, "default".to_owned()));
        assert_eq!(of("logging.level"), (Some(json!("TRACE")), "CUFILE_LOGGING_LEVEL".to_owned()));
        assert!(values.is_sorted_by_key(|(key, ..)| key.clone()));
    }

    #[test]
    fn variables_override_the_file() {
        let found =
            of(Some(FILE), &[("CUFILE_FORCE_COMPAT_MODE", "FALSE"), ("CUFILE_LOGGING_LEVEL", "TRACE")]);
        assert_eq!(found.change("properties.force_compat_mode"), None);
        let level = found.change("logging.level").unwrap();
        assert_eq!((level.value.as_str(), level.from.as_str()), (Some("TRACE"), "CUFILE_LOGGING_LEVEL"));
        for value in ["true", "TRUE", "1", "on", "Yes"] {
            let found = of(None, &[("CUFILE_FORCE_COMPAT_MODE", value)]);
            assert!(found.switched_on("properties.force_compat_mode").is_some(), "{value}");
            assert_eq!(found.file, None);
        }
    }

    #[test]
    fn variable_names_another_file() {
        let fake = Fake::new();
        fake.file("/etc/cufile.json", FILE).file("/opt/my.json", "{\"profile\": {\"cufile_stats\": 3}}");
        let at = |path: &'static str| {
            Configuration::of(&fake.root(), &move |name| (name == PATH_VARIABLE).then(|| path.to_owned()))
        };
        let found = at("/opt/my.json");
        assert_eq!(
            (keys(&found), found.file.as_deref()),
            (vec!["profile.cufile_stats"], Some("/opt/my.json"))
        );
        let found = at("/opt/none.json");
        assert!(found.error.as_ref().is_some_and(|error| error.contains("No such file")), "{found:?}");
        assert_eq!(at("").file.as_deref(), Some("/etc/cufile.json"));
    }

    #[test]
    fn broken_files_name_the_line() {
        let found = of(Some("{\n // fine\n \"a\": nope\n}"), &[]);
        assert!(found.error.as_ref().is_some_and(|error| error.contains("line 3")), "{found:?}");
        assert!(found.changed.is_empty());
        for text in ["", "[]", "{ \"a\": \"unfinished", "{ /* unfinished", "{\"a\": 1,,}"] {
            assert!(of(Some(text), &[]).error.is_some(), "{text}");
        }
        assert_eq!(of(None, &[]), Configuration::default());
    }

    #[test]
    fn strings_keep_slashes_commas_and_escapes() {
        let text = r#"{"a": "x, } // /* \" ,]", "b": ["\\",]}"#;
        let values = parse(text.as_bytes()).unwrap();
        assert_eq!(values["a"], "x, } // /* \" ,]");
        assert_eq!(values["b"], json!(["\\"]));
    }
}
