//! Removes what identifies people, companies and their machines from a report: paths, names of volumes, servers, hosts and
//! users, addresses of the network, and serial numbers of GPUs. PCI addresses and the models of devices stay.

use std::env;
use std::net::IpAddr;

use serde_json::Value;

use super::super::block::Kind;
use super::super::machine::Machine;
use super::super::outcome::Outcome;

const COMMON_FOLDERS: [&str; 11] = [
    "/proc",
    "/sys",
    "/run/udev",
    "/etc/cufile.json",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/cuda",
    "/lib",
    "/lib64",
    "/boot",
    "/opt/nvidia",
];
const COMMON_DEVICES: [&str; 4] = ["/dev/nvme", "/dev/nvidia", "/dev/md", "/dev/dm-"];

pub struct Names(Vec<String>);

impl Names {
    pub fn of(machine: &Machine, outcomes: &[Outcome]) -> Self {
        let mut names: Vec<String> =
            outcomes.iter().map(|outcome| outcome.path.to_string_lossy().into_owned()).collect();
        for target in outcomes.iter().filter_map(|outcome| outcome.target.as_ref().ok()) {
            names.push(target.path.to_string_lossy().into_owned());
            if let Some(mount) = &target.mount {
                names.extend([mount.point.to_string_lossy().into_owned(), mount.source.clone()]);
            }
            for layer in &target.layers {
                if let Kind::Lvm(name) | Kind::Mapper(name, _) = &layer.kind {
                    names.push(name.clone());
                }
            }
        }
        names.extend(
            machine.variables.read.iter().map(|(_, value)| value.clone()).filter(|value| value.contains('/')),
        );
        let real = outcomes.iter().filter_map(|outcome| outcome.path.canonicalize().ok());
        names.extend(real.map(|path| path.to_string_lossy().into_owned()));
        names.extend(["HOME", "USER", "LOGNAME", "HOSTNAME"].iter().filter_map(|name| env::var(name).ok()));
        names.extend(super::super::root::text("/proc/sys/kernel/hostname".as_ref()));
        Self::new(names)
    }

    fn new(mut names: Vec<String>) -> Self {
        // Short names are also parts of other words, and the root of all paths says nothing.
        names.retain(|name| name.len() > 2 && !is_common(name));
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        names.dedup();
        Self(names)
    }

    pub fn removed_from(&self, report: &Value) -> Value {
        match report {
            Value::String(text) => Value::String(self.removed_from_text(text)),
            Value::Array(items) => items.iter().map(|item| self.removed_from(item)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| (key.clone(), self.removed_from(value))).collect()
            }
            other => other.clone(),
        }
    }

    fn removed_from_text(&self, text: &str) -> String {
        let is_path = text.starts_with('/') && !is_common(text);
        if is_path && text != "/" {
            return "PATH".to_owned();
        }
        let mut text = text.to_owned();
        for name in &self.0 {
            text = without(&text, name);
        }
        let mut shown = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(|c: char| !is_end(c)) {
            let (before, word) = rest.split_at(at);
            let end = if before.ends_with('"') { word.find('"') } else { word.find(is_end) };
            let (word, behind) = word.split_at(end.unwrap_or(word.len()));
            shown += before;
            shown += &shown_word(word, &text);
            rest = behind;
        }
        shown + rest
    }
}

fn is_end(c: char) -> bool {
    c.is_whitespace() || "\"'(),;=[]{}<>".contains(c)
}

fn shown_word(word: &str, text: &str) -> String {
    let bare = word.trim_end_matches(':');
    let is_version = || text.to_lowercase().contains("version");
    let shown_path = |path: &str| {
        let is_private = path.len() > 1 && path.starts_with('/') && !is_common(path);
        if is_private { "PATH".to_owned() } else { path.to_owned() }
    };
    match () {
        () if bare.starts_with("uuid:") => "uuid".to_owned(),
        () if bare.parse::<IpAddr>().is_ok() && !is_version() => "ADDRESS".to_owned(),
        // Paths with colons between them. Others are a server and its export.
        () if bare.starts_with('/') => word.split(':').map(shown_path).collect::<Vec<_>>().join(":"),
        () if bare.contains(":/") => "PATH".to_owned(),
        () => word.to_owned(),
    }
}

fn is_common(path: &str) -> bool {
    let is_in = |folder: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':', ' ', ',']))
    };
    COMMON_FOLDERS.iter().any(|folder| is_in(folder))
        || COMMON_DEVICES.iter().any(|start| path.starts_with(start))
}

/// Replaces a name wherever it is a word of its own or the beginning of a path.
fn without(text: &str, name: &str) -> String {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    // What follows a folder is found as a path afterwards.
    let marker = if name.starts_with('/') { "/NAME" } else { "NAME" };
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, behind) = (&rest[..at], &rest[at + name.len()..]);
        let whole = !is_part(before.chars().next_back().or(shown.chars().next_back()))
            && !is_part(behind.chars().next());
        shown += before;
        shown += if whole { marker } else { name };
        rest = behind;
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_names_and_addresses_are_removed() {
        let names = ["/data/acme", "vg_acme-lv", "server:/export", "host7", "me", "/"].map(str::to_owned);
        let names = Names::new(names.to_vec());
        for (text, expected) in [
            ("/data/acme", "PATH"),
            ("/", "/"),
            ("cannot open \"/data/acme/my file\": denied", "cannot open \"PATH\": denied"),
            ("the file system is on the LVM volume vg_acme-lv", "the file system is on the LVM volume NAME"),
            ("server:/export on /mnt/x", "NAME on PATH"),
            ("other:/export", "PATH"),
            ("vers=4.2,addr=10.1.2.3,mountaddr=fe80::1", "vers=4.2,addr=ADDRESS,mountaddr=ADDRESS"),
            ("GDS Version: 1.10.0.4", "GDS Version: 1.10.0.4"),
            (
                "GPU 0000:be:00.0  uuid:1-2-3 : Registered_MiB=64",
                "GPU 0000:be:00.0  uuid : Registered_MiB=64",
            ),
            ("/run/udev/data/b259:1 names no file system", "/run/udev/data/b259:1 names no file system"),
            ("host7 and host77 on NVIDIA H100, /home/me/x", "NAME and host77 on NVIDIA H100, PATH"),
            ("docker run -v /run/udev:/run/udev:ro; /opt/x", "docker run -v /run/udev:/run/udev:ro; PATH"),
            ("in /system/acme, /sys/class, /dev/nvme0n1", "in PATH, /sys/class, /dev/nvme0n1"),
            ("/usr/lib:/home/x:/lib", "/usr/lib:PATH:/lib"),
            ("yes/no, 5 GB/s", "yes/no, 5 GB/s"),
        ] {
            assert_eq!(names.removed_from_text(text), expected, "{text}");
        }
        let report = json!({ "a": ["/data/acme", 7, null], "b": { "c": "x host7" } });
        assert_eq!(names.removed_from(&report), json!({ "a": ["PATH", 7, null], "b": { "c": "x NAME" } }));
    }
}
