//! The environment variables of gpufile and KvikIO: those that count, and misspelt ones.

use gpufile::Settings;

/// A variable that gpufile does not read, with a name like its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    pub name: String,
    pub nearest: Option<&'static str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// Variables that gpufile or libcufile read.
    pub read: Vec<(String, String)>,
    pub unknown: Vec<Unknown>,
    pub error: Option<String>,
}

/// Names that other parts of these projects read: the Python package, tests, and KvikIO's access to remote files.
const OTHERS: &[&str] = &[
    "GPUFILE_INSTALL",
    "GPUFILE_TEST_",
    "GPUFILE_REQUIRE_",
    "GPUFILE_SCHEDULES",
    "KVIKIO_HTTP_",
    "KVIKIO_REMOTE_",
];
/// The variables in the strings of libcufile, with the first and the last of the nine known releases that have each.
/// `cargo xtask conformance` compares them with the libraries.
const CUFILE: &str = include_str!("cufile_variables.txt");

struct OfCufile {
    name: &'static str,
    first: (u32, u32),
    last: (u32, u32),
}

/// The last release that is known. A newer one is taken to read what this one reads.
const NEWEST: (u32, u32) = (1, 20);

/// Returns each variable, with the one that decides if both are set.
fn variable_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of = |setting: &'static gpufile::Setting| setting.variables().map(|name| (name, setting.variable));
    Settings::table().iter().flat_map(of)
}

fn of_cufile() -> impl Iterator<Item = OfCufile> {
    CUFILE.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, first, last) = (words.next()?, words.next()?, words.next()?);
        Some(OfCufile { name, first: release(first)?, last: release(last)? })
    })
}

fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Names below this similarity are left unnamed. 1 means equal.
const LEAST_SIMILARITY: f64 = 0.6;

impl Variables {
    pub fn of(all: impl IntoIterator<Item = (String, String)>, error: Option<String>) -> Self {
        let mut found = Self { error, ..Self::default() };
        for (name, value) in all {
            if variable_names().any(|(known, _)| known == name) || of_cufile().any(|known| known.name == name)
            {
                found.read.push((name, value));
            } else if is_misspelt_of_cufile(&name)
                || is_ours(&name) && !OTHERS.iter().any(|other| name.starts_with(other))
            {
                found.unknown.push(Unknown { nearest: nearest(&name), name });
            }
        }
        found.read.sort();
        found.unknown.sort_by(|one, other| one.name.cmp(&other.name));
        found
    }

    pub fn is_ignored(name: &str, version: &str) -> bool {
        let Some(version) = release(version) else { return false };
        let known = of_cufile().find(|known| known.name == name);
        known.is_some_and(|known| version < known.first || version > known.last && known.last < NEWEST)
    }

    /// Returns the variable that a setting comes from, and its value: the first of `names` that is set.
    pub fn first(&self, names: &[&str]) -> Option<&(String, String)> {
        names.iter().find_map(|name| self.read.iter().find(|(read, _)| read == name))
    }
}

fn is_ours(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    upper.starts_with("GPUFILE_") || upper.starts_with("KVIKIO_")
}

/// Returns whether a name is almost one of libcufile's. Programs have other variables with this beginning.
fn is_misspelt_of_cufile(name: &str) -> bool {
    let similar = |known: OfCufile| strsim::normalized_damerau_levenshtein(name, known.name) >= 0.85;
    name.starts_with("CUFILE_") && of_cufile().any(similar)
}

/// Compares from the first `_` on, so a wrong prefix is also found. For a name that begins as gpufile's do, returns
/// one of gpufile's.
fn nearest(name: &str) -> Option<&'static str> {
    let upper = name.to_ascii_uppercase();
    let (prefix, rest) = upper.split_once('_')?;
    let similarity = |known: &str| {
        let (known_prefix, known_rest) = known.split_once('_').unwrap_or(("", known));
        // Among equal names, the one with the same prefix.
        let bonus = if known_prefix == prefix { 0.01 } else { 0.0 };
        strsim::normalized_damerau_levenshtein(rest, known_rest) + bonus
    };
    let names = variable_names().chain(of_cufile().map(|known| (known.name, known.name)));
    let (name, primary) =
        names.max_by(|(one, _), (other, _)| similarity(one).total_cmp(&similarity(other)))?;
    let best = if prefix == "GPUFILE" { primary } else { name };
    (similarity(name) >= LEAST_SIMILARITY).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_get_the_nearest() {
        for (name, expected) in [
            ("GPUFILE_NUM_THREAD", Some("GPUFILE_NUM_THREADS")),
            ("GPUFILE_THREADS", Some("GPUFILE_NUM_THREADS")),
            ("GPUFILE_NTHREADS", Some("GPUFILE_NUM_THREADS")),
            ("GPUFILE_CHUNKSIZE", Some("GPUFILE_CHUNK_SIZE")),
            ("gpufile_compat_mode", Some("GPUFILE_COMPAT_MODE")),
            ("KVIKIO_COMPAT_MODDE", Some("KVIKIO_COMPAT_MODE")),
            ("KVIKIO_GDS_TRESHOLD", Some("KVIKIO_GDS_THRESHOLD")),
            ("GPUFILE_FLAVOUR", None),
            ("GPUFILE_", None),
        ] {
            assert_eq!(nearest(name), expected, "{name}");
        }
    }

    #[test]
    fn variables_of_other_versions_are_ignored() {
        for (name, version, is_ignored) in [
            ("CUFILE_ALLOW_COMPAT_MODE", "1.16", false),
            ("CUFILE_ALLOW_COMPAT_MODE", "1.17", true),
            ("CUFILE_NVTX", "1.20", true),
            ("CUFILE_VISIBLE_DEVICES", "1.16", true),
            ("CUFILE_VISIBLE_DEVICES", "1.17.1", false),
            ("CUFILE_SKIP_BUFFER_VALIDITY_CHECK", "1.19", true),
            ("CUFILE_SKIP_BUFFER_VALIDITY_CHECK", "1.21", false),
            ("CUFILE_LOGGING_LEVEL", "2.0", false),
            ("KVIKIO_NTHREADS", "1.20", false),
            ("CUFILE_NVTX", "unknown", false),
        ] {
            assert_eq!(Variables::is_ignored(name, version), is_ignored, "{name} {version}");
        }
        assert_eq!(of_cufile().count(), CUFILE.lines().count());
        assert!(of_cufile().all(|known| known.first <= known.last && known.last <= NEWEST));
    }

    #[test]
    fn known_and_foreign_names_are_not_unknown() {
        let of = |names: &[&str]| {
            Variables::of(names.iter().map(|name| ((*name).to_owned(), "1".to_owned())), None)
        };
        let found = of(&[
            "PATH",
            "KVIKIO_NTHREADS",
            "GPUFILE_INSTALL",
            "GPUFILE_TEST_PYTHON",
            "KVIKIO_HTTP_TIMEOUT",
            "CUFILE_X",
        ]);
        assert_eq!(found.read, [("KVIKIO_NTHREADS".to_owned(), "1".to_owned())]);
        assert!(found.unknown.is_empty());
        let found = of(&["KVIKIO_X", "GPUFILE_CHUNK_SIZES"]);
        let names: Vec<_> =
            found.unknown.iter().map(|unknown| (unknown.name.as_str(), unknown.nearest)).collect();
        assert_eq!(names, [("GPUFILE_CHUNK_SIZES", Some("GPUFILE_CHUNK_SIZE")), ("KVIKIO_X", None)]);
    }
}
