//! Causes that lie in single values of `cufile.json`.

use serde_json::Value;

use crate::check::cufile_json::{Change, Configuration};
use crate::check::effect::Effect;
use crate::check::keys;

#[derive(Debug, Clone, PartialEq)]
pub enum SettingCause {
    /// libcufile does not read the key. The most similar one that it reads.
    UnknownKey(Change, Option<&'static str>),
    /// The value has another type than this.
    WrongType(Change, String),
    /// libcufile accepts only these values.
    OutOfRange(Change, String),
    NoCompatMode(Change),
    /// Direct transfers are cut to this number of KiB, less than libcufile can do.
    SmallTransfers(Change, u64),
}

const LARGEST_KIB: u64 = 16384;

impl SettingCause {
    pub fn all(configuration: &Configuration) -> Vec<Self> {
        let file = configuration.file.as_ref();
        let judged = configuration.changed.iter().filter_map(|change| {
            // Names with such a beginning are comments.
            if change.key.split('.').any(|part| part.starts_with(['_', '#', '/'])) {
                return None;
            }
            // Variables have no types, and switches many words.
            let found = Self::judge(change)?;
            (Some(&change.from) == file || matches!(found, Self::OutOfRange(..))).then_some(found)
        });
        let forbidden = configuration.change("properties.allow_compat_mode");
        let forbidden = forbidden.filter(|change| change.value == Value::Bool(false));
        judged.chain(forbidden.cloned().map(Self::NoCompatMode)).collect()
    }

    fn judge(change: &Change) -> Option<Self> {
        let own = || change.clone();
        if keys::is_section(&change.key) {
            return (!change.value.is_object()).then(|| Self::WrongType(own(), "an object".to_owned()));
        }
        let Some(key) = keys::find(&change.key) else {
            return Some(Self::UnknownKey(own(), keys::nearest(&change.key)));
        };
        // A value within a table belongs to the table, whose keys are the user's.
        let is_within = key.kind == keys::Kind::Table && !change.value.is_object();
        if is_within && change.key.matches('.').count() > key.name.matches('.').count() {
            None
        } else if !key.kind.fits(&change.value) {
            Some(Self::WrongType(own(), key.kind.words()))
        } else if !key.kind.accepts(&change.value) {
            Some(Self::OutOfRange(own(), key.kind.words()))
        } else {
            let kib = change.value.as_u64().filter(|_| change.key == "properties.max_direct_io_size_kb");
            kib.filter(|kib| *kib < LARGEST_KIB).map(|kib| Self::SmallTransfers(own(), kib))
        }
    }

    pub fn effect(&self) -> Effect {
        match self {
            Self::SmallTransfers(..) => Effect::Slows,
            _ => Effect::Limits,
        }
    }

    pub fn key(&self) -> &'static str {
        match self {
            Self::UnknownKey(..) => "unknown-key",
            Self::WrongType(..) => "wrong-type",
            Self::OutOfRange(..) => "out-of-range",
            Self::NoCompatMode(_) => "compat-mode-forbidden",
            Self::SmallTransfers(..) => "small-direct-transfers",
        }
    }

    pub fn problem(&self) -> String {
        match self {
            Self::UnknownKey(Change { key, from, .. }, _) => {
                format!("libcufile does not read {key} of {from}")
            }
            Self::WrongType(change, wanted) | Self::OutOfRange(change, wanted) => {
                let Change { key, value, from, .. } = change;
                format!("{key} is {value} in {from}, but must be {wanted}")
            }
            Self::NoCompatMode(Change { from, .. }) => format!(
                "properties.allow_compat_mode is false in {from}: what has no direct path fails, such as unaligned \
                 transfers for which the bounce buffers of the GPU cannot be allocated"
            ),
            Self::SmallTransfers(Change { key, from, .. }, kib) => {
                format!(
                    "{key} is {kib} in {from}, so 16 MiB take {} direct transfers",
                    LARGEST_KIB.div_ceil(*kib)
                )
            }
        }
    }

    pub fn remedy(&self) -> String {
        match self {
            Self::UnknownKey(_, Some(nearest)) => format!("the most similar one that it reads is {nearest}"),
            Self::UnknownKey(_, None) => {
                "remove it; `gpufile check --verbose` lists those that it reads".to_owned()
            }
            Self::WrongType(..) | Self::OutOfRange(..) => {
                "correct it; libcufile uses its default, or fails to open".to_owned()
            }
            Self::NoCompatMode(_) => {
                "set it to true, unless a failure is better than a slow transfer".to_owned()
            }
            Self::SmallTransfers(..) => format!(
                "{LARGEST_KIB} makes the fewest calls; less saves host memory, of which each registered buffer takes up to \
                 this size (line nvidia-fs, shadow buffers)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::check::right_facts::{good, machine, only, with};

    #[track_caller]
    fn is(key: &str, value: Value, cause: &str, problem: &str, remedy: &str) {
        let machine = with(machine(), |machine| {
            machine.configuration.file = Some("/etc/cufile.json".to_owned());
            let from = "/etc/cufile.json".to_owned();
            machine.configuration.changed = vec![Change { key: key.to_owned(), value, default: None, from }];
        });
        only(&machine, &good(), cause, problem, remedy);
    }

    #[test]
    fn unknown_keys_get_the_nearest() {
        let problem = "libcufile does not read properties.allow_compat of /etc/cufile.json";
        is("properties.allow_compat", json!(true), "unknown-key", problem, "properties.allow_compat_mode");
        is("colour", json!("red"), "unknown-key", "colour", "remove it");
    }

    #[test]
    fn wrong_types_and_sizes_name_the_right_ones() {
        is("properties.use_poll_mode", json!("yes"), "wrong-type", "is \"yes\" in", "correct it");
        is("denylist.mounts", json!("/data"), "wrong-type", "must be a list", "");
        is("fs.lustre.mount_table", json!([]), "wrong-type", "an object", "");
        let key = "properties.max_direct_io_size_kb";
        is(key, json!(1000), "out-of-range", "is 1000 in /etc/cufile.json, but must be a multiple of 64", "");
        is(key, json!(32768), "out-of-range", "from 64 to 16384", "");
        is("profile.cufile_stats", json!(4), "out-of-range", "from 0 to 3", "");
    }

    #[test]
    fn small_transfers_name_both_sides_of_the_trade() {
        let key = "properties.max_direct_io_size_kb";
        let (problem, remedy) = ("so 16 MiB take 16 direct transfers", "each registered buffer takes up to");
        is(key, json!(1024), "small-direct-transfers", problem, remedy);
    }

    #[test]
    fn forbidden_compatibility_names_the_transfers_that_fail() {
        let (problem, remedy) = ("unaligned transfers for which the bounce buffers", "set it to true");
        is("properties.allow_compat_mode", json!(false), "compat-mode-forbidden", problem, remedy);
    }

    #[test]
    fn right_values_tables_and_comments_are_no_cause() {
        let changes = [
            ("fs.lustre.mount_table./data.rdma_dev_addr_list", json!(["10.0.0.1"])),
            ("fs.lustre.mount_table", json!({})),
            ("properties._comment", json!(1)),
            ("logging.dir", json!("/var/log")),
        ];
        let change = |(key, value): &(&str, Value)| {
            let (key, from) = ((*key).to_owned(), "/x".to_owned());
            Change { key, value: value.clone(), default: None, from }
        };
        let file = Some("/x".to_owned());
        let changed = changes.iter().map(change).collect();
        let configuration = Configuration { file, changed, ..Configuration::default() };
        assert_eq!(SettingCause::all(&configuration), []);
    }
}
