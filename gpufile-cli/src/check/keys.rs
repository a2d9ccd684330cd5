//! The keys of `cufile.json` that libcufile reads, with their types, limits and defaults.

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Switch,
    /// A number from the first to the second, in steps of the third.
    Number(u64, u64, u64),
    Text,
    /// One of these words, in upper or lower case.
    Word(&'static [&'static str]),
    List,
    /// An object, whose keys the user chooses.
    Table,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    /// The path in the file, such as `properties.force_compat_mode`.
    pub name: &'static str,
    pub kind: Kind,
    /// JSON; empty if not known here.
    default: &'static str,
}

const ANY: Kind = Kind::Number(0, u64::MAX, 1);
const PAGES: Kind = Kind::Number(0, u64::MAX, 4);

/// Levels of the log, as libcufile 1.20 names them.
const LEVELS: Kind = Kind::Word(&["ERROR", "WARN", "NOTICE", "INFO", "DEBUG", "TRACE"]);

const fn key(name: &'static str, kind: Kind, default: &'static str) -> Key {
    Key { name, kind, default }
}

/// The keys of all releases from 1.11 to 1.20.
pub const KEYS: &[Key] = &[
    key("logging.dir", Kind::Text, ""),
    key("logging.level", LEVELS, "\"ERROR\""),
    key("logging.max_file_size_mb", Kind::Number(0, u64::MAX, 1), ""),
    key("profile.nvtx", Kind::Switch, "false"),
    key("profile.cufile_stats", Kind::Number(0, 3, 1), "0"),
    key("execution.max_io_queue_depth", Kind::Number(1, 256, 1), "128"),
    key("execution.max_io_threads", Kind::Number(0, 128, 1), "4"),
    key("execution.parallel_io", Kind::Switch, "true"),
    key("execution.min_io_threshold_size_kb", ANY, "8192"),
    key("execution.max_request_parallelism", Kind::Number(0, 8, 1), "4"),
    key("properties.max_direct_io_size_kb", Kind::Number(64, 16384, 64), "16384"),
    key("properties.max_device_cache_size_kb", PAGES, "131072"),
    key("properties.per_buffer_cache_size_kb", Kind::Number(64, 16384, 4), "1024"),
    key("properties.max_device_pinned_mem_size_kb", PAGES, "33554432"),
    key("properties.use_poll_mode", Kind::Switch, "false"),
    key("properties.poll_mode_max_size_kb", PAGES, "4"),
    key("properties.use_pci_p2pdma", Kind::Switch, "false"),
    key("properties.allow_compat_mode", Kind::Switch, "true"),
    key("properties.force_compat_mode", Kind::Switch, "false"),
    key("properties.vanilla_posix_io_mode", Kind::Switch, "false"),
    key("properties.gds_fallback_io", Kind::Switch, ""),
    key("properties.gds_rdma_write_support", Kind::Switch, ""),
    key("properties.io_batchsize", Kind::Number(1, 256, 1), "128"),
    key("properties.max_batch_io_timeout_msecs", Kind::Number(1, 1000, 1), "5"),
    key("properties.io_priority", Kind::Text, ""),
    key("properties.allow_system_memory", Kind::Switch, ""),
    key("properties.force_odirect_mode", Kind::Switch, ""),
    key("properties.prefer_iouring", Kind::Switch, ""),
    key("properties.compat_odirect_unaligned_read_split", Kind::Switch, ""),
    key("properties.compat_odirect_unaligned_read_split_min_size_kb", ANY, ""),
    key("properties.posix_pool_slab_size_kb", Kind::List, ""),
    key("properties.posix_pool_slab_count", Kind::List, ""),
    key("properties.gpu_bounce_buffer_slab_config", Kind::Table, ""),
    key("properties.gpu_bounce_buffer_mode", Kind::Text, ""),
    key("properties.rdma_dev_addr_list", Kind::List, "[]"),
    key("properties.rdma_load_balancing_policy", Kind::Text, ""),
    key("properties.rdma_peer_affinity_policy", Kind::Text, ""),
    key("properties.rdma_dynamic_routing", Kind::Switch, ""),
    key("properties.rdma_dynamic_routing_order", Kind::List, ""),
    key("properties.rdma_topN_ranks", ANY, ""),
    key("properties.rdma_peer_type", Kind::Text, ""),
    key("properties.rdma_dc_key", Kind::Text, ""),
    key("properties.rdma_service_level", ANY, ""),
    key("properties.rdma_access_mask", Kind::Text, ""),
    key("properties.rdma_transport_type", Kind::Text, ""),
    key("properties.allow_rdma_token_reset", Kind::Switch, ""),
    key("properties.rdma_multipath_enabled", Kind::Switch, ""),
    key("properties.rdma_max_backup_devices", ANY, ""),
    key("properties.rdma_io_retry_count", ANY, ""),
    key("properties.rdma_io_retry_delay_ms", ANY, ""),
    key("properties.rdma_failback_enabled", Kind::Switch, ""),
    key("properties.rdma_failback_delay_ms", ANY, ""),
    key("properties.rdma_health_check_interval_ms", ANY, ""),
    key("properties.rdma_async_event_monitoring", Kind::Switch, ""),
    key("properties.rdma_unhealthy_threshold", ANY, ""),
    key("fs.generic.posix_unaligned_writes", Kind::Switch, "false"),
    key("fs.*.mount_table", Kind::Table, "{}"),
    key("fs.*.rdma_dev_addr_list", Kind::List, "[]"),
    key("fs.*.posix_gds_min_kb", PAGES, "0"),
    key("fs.*.use_pci_p2pdma", Kind::Switch, ""),
    key("fs.weka.rdma_write_support", Kind::Switch, ""),
    key("fs.gpfs.gds_write_support", Kind::Switch, ""),
    key("fs.gpfs.gds_async_support", Kind::Switch, ""),
    key("block.*.use_pci_p2pdma", Kind::Switch, ""),
    key("denylist.drivers", Kind::List, "[]"),
    key("denylist.devices", Kind::List, "[]"),
    key("denylist.mounts", Kind::List, "[]"),
    key("denylist.filesystems", Kind::List, "[]"),
    key("denylist.fsids", Kind::List, "[]"),
    key("miscellaneous.api_check_aggressive", Kind::Switch, "false"),
    key("miscellaneous.skip_topology_detection", Kind::Switch, "false"),
    key("miscellaneous.stream_memops_bypass", Kind::Switch, ""),
    key("miscellaneous.rcu_library_used", Kind::Text, ""),
    key("miscellaneous.enable_static_routing", Kind::Switch, ""),
    key("miscellaneous.static_routing_filepath", Kind::Text, ""),
    key("miscellaneous.enable_static_config", Kind::Switch, ""),
];

impl Key {
    pub fn default(&self) -> Option<Value> {
        serde_json::from_str(self.default).ok()
    }

    fn is(&self, name: &str) -> bool {
        match self.name.split_once('*') {
            None => name == self.name,
            Some((before, after)) => {
                let middle = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                middle.is_some_and(|middle| !middle.is_empty() && !middle.contains('.'))
            }
        }
    }
}

impl Kind {
    pub fn fits(self, value: &Value) -> bool {
        match self {
            Kind::Switch => value.is_boolean(),
            Kind::Number(..) => value.is_u64(),
            Kind::Text | Kind::Word(_) => value.is_string(),
            Kind::List => value.is_array(),
            Kind::Table => value.is_object(),
        }
    }

    pub fn accepts(self, value: &Value) -> bool {
        match (self, value.as_u64()) {
            (Kind::Number(least, most, step), Some(value)) => {
                (least..=most).contains(&value) && value % step == 0
            }
            (Kind::Word(words), _) => {
                let set = value.as_str().unwrap_or_default();
                words.iter().any(|word| word.eq_ignore_ascii_case(set))
            }
            _ => true,
        }
    }

    pub fn words(self) -> String {
        match self {
            Kind::Switch => "true or false".to_owned(),
            Kind::Number(0, u64::MAX, 1) => "a whole number".to_owned(),
            Kind::Number(0, u64::MAX, step) => format!("a multiple of {step}"),
            Kind::Number(least, most, 1) => format!("a whole number from {least} to {most}"),
            Kind::Number(least, most, step) => format!("a multiple of {step} from {least} to {most}"),
            Kind::Text => "text".to_owned(),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::List => "a list".to_owned(),
            Kind::Table => "an object".to_owned(),
        }
    }
}

/// Returns the key of this name. A name below a table belongs to the table.
pub fn find(name: &str) -> Option<&'static Key> {
    let is_below = |key: &Key| {
        let mut ends = name.match_indices('.').map(|(at, _)| &name[..at]);
        key.kind == Kind::Table && ends.any(|above| key.is(above))
    };
    KEYS.iter().find(|key| key.is(name) || is_below(key))
}

pub fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

pub fn default(name: &str) -> Option<Value> {
    find(name).filter(|key| key.is(name))?.default()
}

pub fn nearest(name: &str) -> Option<&'static str> {
    let similarity = |key: &&Key| strsim::normalized_damerau_levenshtein(name, key.name);
    let best = KEYS.iter().max_by(|one, other| similarity(one).total_cmp(&similarity(other)))?;
    (similarity(&best) >= 0.7).then_some(best.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_values_that_libcufile_accepts() {
        for key in KEYS {
            let default = key.default();
            assert_eq!(default.is_none(), key.default.is_empty(), "{}", key.name);
            assert!(
                default.is_none_or(|value| key.kind.fits(&value) && key.kind.accepts(&value)),
                "{}",
                key.name
            );
        }
        assert!(KEYS.len() > 70, "{}", KEYS.len());
    }

    #[test]
    fn keys_of_file_systems_and_tables_are_found() {
        for (name, is_known) in [
            ("fs.lustre.posix_gds_min_kb", true),
            ("fs.nfs.mount_table./data.rdma_dev_addr_list", true),
            ("block.raid1.use_pci_p2pdma", true),
            ("fs.posix_gds_min_kb", false),
            ("fs.a.b.posix_gds_min_kb", false),
            ("properties.force_compat_mode.x", false),
            ("force_compat_mode", false),
        ] {
            assert_eq!(find(name).is_some(), is_known, "{name}");
        }
        assert_eq!(nearest("property.force_compat_mode"), Some("properties.force_compat_mode"));
        assert_eq!(nearest("properties.max_direct_io_size"), Some("properties.max_direct_io_size_kb"));
        assert_eq!(nearest("colour"), None);
    }

    #[test]
    fn sizes_follow_their_grid() {
        let kind = find("properties.max_direct_io_size_kb").unwrap().kind;
        for (value, expected) in
            [(64, true), (1024, true), (16384, true), (0, false), (100, false), (16448, false)]
        {
            assert_eq!(kind.accepts(&json!(value)), expected, "{value}");
        }
        assert_eq!(kind.words(), "a multiple of 64 from 64 to 16384");
        assert!(!kind.fits(&json!("16384")) && !kind.fits(&json!(-64)) && !Kind::Switch.fits(&json!("true")));
    }
}
