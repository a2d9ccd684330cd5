//! The values of a Lustre client that decide its speed, from sysfs and procfs.

use std::path::PathBuf;

use super::root::{self, Root};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The name as `lctl` and `modprobe` take it.
    pub name: String,
    pub value: String,
    pub wanted: String,
}

/// Values that differ from the wanted ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lustre {
    pub parameters: Vec<Judged>,
    /// Parameters of the kernel modules, which `/etc/modprobe.d/lustre.conf` sets.
    pub modules: Vec<Judged>,
}

#[derive(Clone, Copy)]
enum Wanted {
    AtLeast(u64),
    Zero,
    /// Pages of the processor that hold at least this number of MiB.
    PagesOfMib(u64),
    /// Any number of parts. 0 leaves it to Lustre, and 1 is none.
    Parts,
    /// No pattern, because a pattern would replace the number of parts.
    NoPattern,
    /// A network of InfiniBand, or none: `lnetctl` then sets the networks.
    Network,
}

/// Values of each target, with the folder that holds them.
const PARAMETERS: &[(&str, &str, Wanted)] = &[
    ("osc", "max_pages_per_rpc", Wanted::PagesOfMib(16)),
    ("osc", "max_rpcs_in_flight", Wanted::AtLeast(32)),
    ("osc", "max_dirty_mb", Wanted::AtLeast(512)),
    ("osc", "checksums", Wanted::Zero),
    ("osc", "idle_timeout", Wanted::Zero),
    ("llite", "max_read_ahead_mb", Wanted::AtLeast(2048)),
];

const MODULES: &[(&str, &str, Wanted)] = &[
    ("lnet", "networks", Wanted::Network),
    ("libcfs", "cpu_npartitions", Wanted::Parts),
    ("libcfs", "cpu_pattern", Wanted::NoPattern),
    ("ko2iblnd", "peer_credits", Wanted::AtLeast(32)),
    ("ko2iblnd", "concurrent_sends", Wanted::AtLeast(64)),
    ("ko2iblnd", "peer_credits_hiw", Wanted::AtLeast(16)),
    ("ko2iblnd", "map_on_demand", Wanted::Zero),
];

impl Wanted {
    /// Returns the wanted value, if it is another one.
    fn objection(self, value: &str, page_bytes: u64) -> Option<String> {
        // Some have a unit or more words: `512.00`, `256 (max)`.
        let digits =
            || value.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
        let below = |least| digits().is_none_or(|found: u64| found < least);
        match self {
            Wanted::AtLeast(least) => below(least).then(|| format!("at least {least}")),
            Wanted::Zero => (digits() != Some(0)).then(|| "0".to_owned()),
            Wanted::PagesOfMib(mib) => {
                let pages = (mib << 20) / page_bytes;
                below(pages).then(|| format!("at least {pages}, which are {mib} MiB"))
            }
            Wanted::Parts => (digits() == Some(1)).then(|| "0, with which Lustre chooses".to_owned()),
            Wanted::NoPattern => Some("none, so that cpu_npartitions counts".to_owned()),
            Wanted::Network => {
                let is_unset = ["", "(null)"].contains(&value.trim());
                (!is_unset && !value.contains("o2ib")).then(|| "a network of o2ib".to_owned())
            }
        }
    }

    fn setting(self) -> String {
        match self {
            Wanted::AtLeast(least) => least.to_string(),
            Wanted::Zero | Wanted::Parts => "0".to_owned(),
            Wanted::PagesOfMib(mib) => format!("{mib}M"),
            Wanted::NoPattern => "\"\"".to_owned(),
            Wanted::Network => "o2ib".to_owned(),
        }
    }
}

impl Lustre {
    pub fn of(root: &Root) -> Self {
        Self::with_pages_of(root, page_bytes())
    }

    fn with_pages_of(root: &Root, page_bytes: u64) -> Self {
        let mut found = Self::default();
        for (kind, name, wanted) in PARAMETERS {
            // Releases before 2.12 have them in procfs.
            let folders =
                ["/sys/fs/lustre", "/proc/fs/lustre"].map(|above| root.list(&format!("{above}/{kind}")));
            let mut values = folders.iter().flatten().filter_map(|target| root::text(&target.join(name)));
            // One target with another value is enough for an objection.
            let judged = values.find_map(|value| Some((wanted.objection(&value, page_bytes)?, value)));
            found.parameters.extend(judged.map(|(wanted, value)| Judged {
                name: format!("{kind}.*.{name}"),
                value,
                wanted,
            }));
        }
        let not_judged = number_or_pattern(root);
        for (module, name, wanted) in MODULES.iter().filter(|(_, name, _)| *name != not_judged) {
            let value = root.text(&format!("/sys/module/{module}/parameters/{name}"));
            let judged = value.and_then(|value| Some((wanted.objection(&value, page_bytes)?, value)));
            found.modules.extend(judged.map(|(wanted, value)| Judged {
                name: format!("{module} {name}"),
                value,
                wanted,
            }));
        }
        found
    }
}

/// Returns the parameter of libcfs that is not judged: the number if there is a pattern too, which replaces it, and
/// otherwise the pattern. The pattern `N` makes a part of each NUMA node, except on a machine with one node, where
/// the number counts.
fn number_or_pattern(root: &Root) -> &'static str {
    let parameter = |name| root.text(&format!("/sys/module/libcfs/parameters/{name}"));
    let has_number = parameter("cpu_npartitions").is_some_and(|number| number != "0");
    let nodes = root.list("/sys/devices/system/node");
    let is_node = |path: &&PathBuf| {
        root::name(path).strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let has_nodes = nodes.iter().filter(is_node).count() > 1;
    let has_pattern = parameter("cpu_pattern")
        .is_some_and(|pattern| pattern != "(null)" && (has_nodes || !pattern.eq_ignore_ascii_case("N")));
    if has_number && has_pattern { "cpu_npartitions" } else { "cpu_pattern" }
}

fn page_bytes() -> u64 {
    // SAFETY: takes an integer.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

pub fn setting(name: &str) -> String {
    let find = |(above, key, wanted): &(&str, &str, Wanted)| {
        [format!("{above}.*.{key}"), format!("{above} {key}")]
            .contains(&name.to_owned())
            .then(|| wanted.setting())
    };
    PARAMETERS.iter().chain(MODULES).find_map(find).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::root::tests::Fake;
    use super::*;

    fn names(judged: &[Judged]) -> Vec<&str> {
        judged.iter().map(|judged| judged.name.as_str()).collect()
    }

    fn tuned() -> Fake {
        let fake = Fake::new();
        for target in ["ost0", "ost1"] {
            let folder = format!("/sys/fs/lustre/osc/{target}");
            for (name, value) in [
                ("max_pages_per_rpc", "4096"),
                ("max_rpcs_in_flight", "32"),
                ("max_dirty_mb", "512.00"),
                ("checksums", "0"),
                ("idle_timeout", "0"),
            ] {
                fake.file(&format!("{folder}/{name}"), value);
            }
        }
        fake.file("/sys/fs/lustre/llite/fs-1/max_read_ahead_mb", "2048");
        for (name, value) in [
            ("lnet/parameters/networks", "o2ib0(ib1,ib2)"),
            ("libcfs/parameters/cpu_npartitions", "24"),
            ("ko2iblnd/parameters/peer_credits", "32"),
            ("ko2iblnd/parameters/concurrent_sends", "64"),
            ("ko2iblnd/parameters/peer_credits_hiw", "16"),
            ("ko2iblnd/parameters/map_on_demand", "0"),
        ] {
            fake.file(&format!("/sys/module/{name}"), value);
        }
        fake
    }

    #[test]
    fn tuned_and_missing_clients_have_no_objection() {
        assert_eq!(Lustre::with_pages_of(&tuned().root(), 4096), Lustre::default());
        assert_eq!(Lustre::of(&Fake::new().root()), Lustre::default());
    }

    #[test]
    fn values_that_leave_the_choice_to_lustre_are_right() {
        let fake = tuned();
        fake.file("/sys/module/libcfs/parameters/cpu_npartitions", "0");
        for networks in ["", "\n", "(null)"] {
            fake.file("/sys/module/lnet/parameters/networks", networks);
            assert_eq!(Lustre::with_pages_of(&fake.root(), 4096), Lustre::default(), "{networks:?}");
        }
    }

    #[test]
    fn patterns_that_replace_the_number_are_named() {
        for (number, pattern, nodes, expected) in [
            ("24", "N", 2, Some("libcfs cpu_pattern")),
            ("24", "N", 1, None),
            ("24", "0[0-7] 1[8-15]", 1, Some("libcfs cpu_pattern")),
            ("24", "(null)", 2, None),
            ("24", "\n", 2, None),
            ("0", "N", 2, None),
            ("1", "N", 2, Some("libcfs cpu_pattern")),
            ("1", "N", 1, Some("libcfs cpu_npartitions")),
        ] {
            let fake = tuned();
            fake.file("/sys/module/libcfs/parameters/cpu_npartitions", number);
            fake.file("/sys/module/libcfs/parameters/cpu_pattern", pattern);
            fake.file("/sys/devices/system/node/online", "0");
            for node in 0..nodes {
                fake.file(&format!("/sys/devices/system/node/node{node}/cpulist"), "0");
            }
            let found = Lustre::with_pages_of(&fake.root(), 4096);
            let expected: Vec<_> = expected.into_iter().collect();
            assert_eq!(names(&found.modules), expected, "{number} {pattern:?} {nodes}");
        }
        assert_eq!(setting("libcfs cpu_pattern"), "\"\"");
    }

    #[test]
    fn pages_per_call_follow_the_size_of_a_page() {
        let fake = tuned();
        let path = "/sys/fs/lustre/osc/ost0/max_pages_per_rpc";
        for (page_bytes, right, wrong) in [(4096, "4096", "4095"), (65536, "256", "255")] {
            fake.file(path, right);
            fake.file("/sys/fs/lustre/osc/ost1/max_pages_per_rpc", right);
            assert_eq!(Lustre::with_pages_of(&fake.root(), page_bytes), Lustre::default());
            fake.file(path, wrong);
            let found = Lustre::with_pages_of(&fake.root(), page_bytes);
            assert_eq!(names(&found.parameters), ["osc.*.max_pages_per_rpc"]);
            assert_eq!(found.parameters[0].wanted, format!("at least {right}, which are 16 MiB"));
        }
        assert_eq!(setting("osc.*.max_pages_per_rpc"), "16M");
    }

    #[test]
    fn each_value_is_judged_with_the_wanted_one() {
        for (path, value, name, wanted) in [
            ("fs/lustre/osc/ost1/max_rpcs_in_flight", "8", "osc.*.max_rpcs_in_flight", "at least 32"),
            ("fs/lustre/osc/ost1/max_dirty_mb", "32.00", "osc.*.max_dirty_mb", "at least 512"),
            ("fs/lustre/osc/ost1/checksums", "1", "osc.*.checksums", "0"),
            ("fs/lustre/osc/ost1/idle_timeout", "20", "osc.*.idle_timeout", "0"),
            ("fs/lustre/llite/fs-1/max_read_ahead_mb", "64", "llite.*.max_read_ahead_mb", "at least 2048"),
        ] {
            let fake = tuned();
            fake.file(&format!("/sys/{path}"), value);
            let found = Lustre::with_pages_of(&fake.root(), 4096);
            assert_eq!((names(&found.parameters), found.modules.len()), (vec![name], 0), "{path}");
            assert_eq!((found.parameters[0].value.as_str(), &*found.parameters[0].wanted), (value, wanted));
            assert!(wanted.contains(&setting(name)), "{name}");
        }
        for (path, value, name) in [
            ("lnet/parameters/networks", "tcp(eth0)", "lnet networks"),
            ("libcfs/parameters/cpu_npartitions", "1", "libcfs cpu_npartitions"),
            ("ko2iblnd/parameters/peer_credits", "8", "ko2iblnd peer_credits"),
            ("ko2iblnd/parameters/concurrent_sends", "8", "ko2iblnd concurrent_sends"),
            ("ko2iblnd/parameters/peer_credits_hiw", "0", "ko2iblnd peer_credits_hiw"),
            ("ko2iblnd/parameters/map_on_demand", "1", "ko2iblnd map_on_demand"),
        ] {
            let fake = tuned();
            fake.file(&format!("/sys/module/{path}"), value);
            let found = Lustre::with_pages_of(&fake.root(), 4096);
            assert_eq!((names(&found.modules), found.parameters.len()), (vec![name], 0), "{path}");
        }
    }

    #[test]
    fn old_releases_have_their_values_in_procfs() {
        let fake = Fake::new();
        fake.file("/proc/fs/lustre/osc/ost0/checksums", "1");
        assert_eq!(names(&Lustre::of(&fake.root()).parameters), ["osc.*.checksums"]);
    }
}
