//! The settings of an engine, and the environment variables that set them.

pub(crate) mod available;
mod bytes;
pub(crate) mod kvikio;

use std::ffi::OsString;
use std::{env, thread};

use cufile::fork::OnceCell;

use self::available::available_bytes;
use self::kvikio::names_of;
use crate::gpu::bounce::Bounce;
use crate::route::RoutePolicy;

pub use self::bytes::{ParseBytesError, parse_bytes};

/// The use of `O_DIRECT`, with which transfers through host memory bypass the page cache. It does not change the bytes
/// that are read or written.
///
/// ```
/// use gpufile::{DirectIo, File};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, [7; 10_000])?;
/// // A file that nothing reads again: its pages would only displace others.
/// let file = File::options().read(true).direct_read(DirectIo::Always).open(&path)?;
/// let mut bytes = vec![0; 5000];
/// file.read_exact_at(&mut bytes, 123)?; // no alignment is needed
/// assert_eq!(bytes, [7; 5000]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DirectIo {
    /// Reads bypass the page cache if it holds less than half of the range, none of it dirty, and the file is longer
    /// than half of the available memory. That memory is the lower of `MemAvailable` and the limits of the process's
    /// control groups. A shorter file fills the cache, so that the next reader, for example after a restart, gets it
    /// from memory. Reads of less than 128 KiB, reads from tmpfs, and all writes go through the page cache.
    #[default]
    Auto,
    /// All transfers go through the page cache.
    Never,
    /// Transfers bypass the page cache wherever the file system and the alignment permit it, whatever the page cache
    /// holds.
    Always,
}

/// The configuration of an [`Engine`](crate::Engine). [`Default`] suits most machines. The process's default
/// engine uses [`from_env`](Self::from_env).
///
/// ```
/// use gpufile::{DirectIo, Engine, RoutePolicy, Settings};
///
/// let settings = Settings::default();
/// assert_eq!(settings.policy, RoutePolicy::Auto);
/// assert_eq!(settings.direct_read, DirectIo::Auto);
/// let engine = Engine::builder().settings(settings.clone()).build();
/// assert_eq!(engine.settings(), &settings);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The number of workers for each GPU, and for host memory, from 1 to 1024. They share transfers of many
    /// chunks. The default is one for each processor, but at most 16, because more add little on one GPU's link. Objects of
    /// servers have 64 by default, or 32 if the server is near.
    pub threads: usize,
    /// The length in bytes of the chunks that one worker transfers at a time. With `None`, the default, the
    /// engine chooses for each transfer. In a transfer of more than 4096 chunks, short chunks grow up to 1 MiB, so
    /// that their list stays short.
    pub chunk_bytes: Option<usize>,
    /// The number of bytes that each pinned bounce buffer has room for, 1 GiB at most. The buffer itself is
    /// an eighth and 16 KiB longer, for alignment. The default is 3.5 MiB: long enough that the cost per call does not
    /// limit reads and copies, and such that a buffer takes two huge pages.
    pub bounce_buffer_bytes: usize,
    /// `None` follows the threads and the buffers, no matter how and in which order they are set.
    pub(crate) bounce_memory_bytes: Option<usize>,
    /// The length in bytes from which on transfers may use cuFile. Shorter transfers go through host memory,
    /// which is faster for them. The default is 16 KiB; with 0, all transfers may use cuFile.
    pub gds_threshold_bytes: usize,
    /// The choice whether files may or must use cuFile, unless their [`OpenOptions`](crate::OpenOptions) say otherwise.
    /// By default they may.
    pub policy: RoutePolicy,
    /// The use of `O_DIRECT` for reads. By default [`Auto`](DirectIo::Auto).
    pub direct_read: DirectIo,
    /// The use of `O_DIRECT` for writes. By default [`Auto`](DirectIo::Auto).
    pub direct_write: DirectIo,
    /// True if direct reads may read the whole blocks in which an unaligned range begins and ends. The
    /// default is true. If not, unaligned ranges are read through the page cache.
    pub overread: bool,
}

/// The most workers of an engine that was given no number. More add little on one GPU's link.
const MOST_DEFAULT_THREADS: usize = 16;
/// The workers for objects of far servers, which send each connection no more than a window for each round trip.
#[cfg(feature = "remote")]
const FAR_OBJECT_THREADS: usize = 64;
/// The workers for objects of near servers, whose connections have no pause. The buffers of more would displace each other
/// from the processor's caches.
#[cfg(feature = "remote")]
const NEAR_OBJECT_THREADS: usize = 32;
/// The default length of the chunks that a bounce buffer has room for. The buffer takes two huge pages then.
const DEFAULT_BUFFER_BYTES: usize = 3584 << 10;
/// The part of the available memory that the bounce buffers of one GPU may have by default, as a divisor. Eight GPUs and
/// host memory together then take about a half.
const SHARES: u64 = 16;

impl Default for Settings {
    fn default() -> Self {
        Self {
            threads: thread::available_parallelism().map_or(1, usize::from).min(MOST_DEFAULT_THREADS),
            chunk_bytes: None,
            bounce_buffer_bytes: DEFAULT_BUFFER_BYTES,
            bounce_memory_bytes: None,
            gds_threshold_bytes: 16 << 10,
            policy: RoutePolicy::Auto,
            direct_read: DirectIo::Auto,
            direct_write: DirectIo::Auto,
            overread: true,
        }
    }
}

impl Settings {
    /// Returns the settings from the environment variables that are set, and the defaults for the rest:
    ///
    /// | variable | KvikIO's | value | sets |
    /// |---|---|---|---|
    /// | `GPUFILE_COMPAT_MODE` | `KVIKIO_COMPAT_MODE` | `on`, `off` or `auto` | [`Self::policy`] |
    /// | `GPUFILE_NUM_THREADS` | `KVIKIO_NTHREADS`, `KVIKIO_NUM_THREADS` | a number | [`Self::threads`] |
    /// | `GPUFILE_CHUNK_SIZE` | `KVIKIO_TASK_SIZE` | a size | [`Self::chunk_bytes`] |
    /// | `GPUFILE_GDS_THRESHOLD` | `KVIKIO_GDS_THRESHOLD` | a size or 0 | [`Self::gds_threshold_bytes`] |
    /// | `GPUFILE_BOUNCE_BUFFER_SIZE` | `KVIKIO_BOUNCE_BUFFER_SIZE` | a size | [`Self::bounce_buffer_bytes`] |
    /// | `GPUFILE_BOUNCE_MEMORY` | | a size | [`Self::bounce_memory_bytes`] |
    /// | `GPUFILE_DIRECT_READ` | `KVIKIO_AUTO_DIRECT_IO_READ` | `auto` or `on`, `never` or `off`, `always` | [`Self::direct_read`] |
    /// | `GPUFILE_DIRECT_WRITE` | `KVIKIO_AUTO_DIRECT_IO_WRITE` | the same | [`Self::direct_write`] |
    /// | `GPUFILE_DIRECT_READ_OVERREAD` | `KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD` | `on` or `off` | [`Self::overread`] |
    ///
    /// If the first name of a row is set, the others are ignored. The compatibility mode `on` excludes cuFile; `off`
    /// requires it, so opening a file fails where cuFile does not work. Sizes have the format of [`parse_bytes`].
    /// `true`, `yes` and `1` mean `on`; `false`, `no` and `0` mean `off`. Upper and lower case are the same.
    ///
    /// # Errors
    /// [`SettingsError`], which names the variable. Every variable that is set is checked: an empty value is an error
    /// too.
    ///
    /// ```
    /// let settings = gpufile::Settings::from_env()?;
    /// println!("{} threads, {} bytes of bounce buffers", settings.threads, settings.bounce_memory_bytes());
    /// # Ok::<(), gpufile::SettingsError>(())
    /// ```
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::from_lookup(&|name| env::var_os(name))
    }

    pub(crate) fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        for variable in VARIABLES {
            variable.apply(&mut settings, lookup)?;
        }
        Ok(settings)
    }

    /// Returns the most bytes that the bounce buffers of one GPU, or those for host memory, may have together. A
    /// transfer that needs more waits. GPUs do not share buffers. The default is two buffers for each worker and for
    /// the same number of callers, but at most a sixteenth of the memory that was available when the process first
    /// asked, within the limits of its control groups. The value is at least two buffers, which a transfer needs.
    pub fn bounce_memory_bytes(&self) -> usize {
        static AVAILABLE: OnceCell<u64> = OnceCell::new();
        self.bounce_memory(*AVAILABLE.get_or_init(available_bytes))
    }

    /// Returns the same for a process that has this many bytes left.
    fn bounce_memory(&self, available_bytes: u64) -> usize {
        let pair = Bounce::bytes_for(self.bounce_buffer_bytes).saturating_mul(2);
        let for_all = pair.saturating_mul(2).saturating_mul(self.threads);
        let share = usize::try_from(available_bytes / SHARES).unwrap_or(usize::MAX);
        self.bounce_memory_bytes.unwrap_or(for_all.min(share)).max(pair)
    }

    /// Returns whether transfers of objects of servers have other workers than those of files, because nobody chose their
    /// number or the memory that they share.
    pub(crate) fn has_others_for_objects(&self) -> bool {
        cfg!(feature = "remote")
            && self.threads == Self::default().threads
            && self.bounce_memory_bytes.is_none()
    }

    /// Returns the same settings with as many workers as objects of servers need. Workers that wait for a server need no
    /// processor.
    #[cfg(feature = "remote")]
    pub(crate) fn for_objects(&self, are_near: bool) -> Self {
        let threads = if are_near { NEAR_OBJECT_THREADS } else { FAR_OBJECT_THREADS };
        Self { threads, ..self.clone() }
    }

    /// Returns an error if a setting is beyond its limits.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        LIMITS.iter().try_for_each(|limit| match (limit.get)(self) {
            Some(value) if !limit.allows(value) => {
                let Limit { name: setting, least, most, .. } = *limit;
                Err(SettingsError::OutOfRange { setting, value, least, most })
            }
            _ => Ok(()),
        })
    }

    /// Returns these settings, each changed to the nearest value within its limits.
    pub(crate) fn clamped(mut self) -> Self {
        for limit in LIMITS {
            if let Some(value) = (limit.get)(&self) {
                (limit.set)(&mut self, value.clamp(limit.least, limit.most));
            }
        }
        self
    }
}

/// An invalid value of a setting or an environment variable, or a conflict between two variables.
///
/// ```
/// use gpufile::{Settings, SettingsError};
///
/// match Settings::from_env() {
///     Ok(settings) => println!("{} threads", settings.threads),
///     Err(SettingsError::Invalid { variable, accepted, .. }) => println!("{variable} must be {accepted}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A value is not one of those accepted.
    #[error("the environment variable {variable} is {value:?}: expected {accepted}")]
    Invalid {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: OsString,
        /// The values that are accepted.
        accepted: &'static str,
    },
    /// A setting is beyond its limits, for example in
    /// [`EngineBuilder::try_build`](crate::EngineBuilder::try_build).
    #[error("{setting} is {value}: expected {}", within(*.least, *.most))]
    OutOfRange {
        /// The setting, by the name of its field.
        setting: &'static str,
        /// Its value.
        value: usize,
        /// The least value that is accepted.
        least: usize,
        /// The largest value that is accepted.
        most: usize,
    },
    /// Two variables for the same setting differ.
    #[error(
        "the environment variables {} ({:?}) and {} ({:?}) set the same setting to different values: unset one of them",
        .variables[0], .values[0], .variables[1], .values[1]
    )]
    Conflict {
        /// Their names.
        variables: [&'static str; 2],
        /// Their values.
        values: [OsString; 2],
    },
}

/// The environment variables of one setting.
struct Variable {
    /// The variable that decides if it is set.
    name: &'static str,
    accepted: &'static str,
    /// Sets the value. Returns `None` if the value is not accepted.
    set: fn(&mut Settings, &str) -> Option<()>,
}

/// A setting that is a number, and its limits.
pub(crate) struct Limit {
    /// The name of the setting.
    name: &'static str,
    least: usize,
    most: usize,
    get: fn(&Settings) -> Option<usize>,
    set: fn(&mut Settings, usize),
}

impl Limit {
    pub const fn clamp(&self, value: usize) -> usize {
        if value < self.least {
            self.least
        } else if value > self.most {
            self.most
        } else {
            value
        }
    }

    fn allows(&self, value: usize) -> bool {
        (self.least..=self.most).contains(&value)
    }
}

/// More threads than any machine can use, and fewer than the operating system lets a process have.
const THREADS: Limit = Limit {
    name: "threads",
    least: 1,
    most: 1024,
    get: |settings| Some(settings.threads),
    set: |settings, threads| settings.threads = threads,
};

pub(crate) const CHUNK_BYTES: Limit = Limit {
    name: "chunk_bytes",
    least: 1,
    most: usize::MAX,
    get: |settings| settings.chunk_bytes,
    set: |settings, bytes| settings.chunk_bytes = Some(bytes),
};

/// Two of the longest bounce buffers for each thread need more memory than machines have.
const BOUNCE_BUFFER_BYTES: Limit = Limit {
    name: "bounce_buffer_bytes",
    least: 1,
    most: 1 << 30,
    get: |settings| Some(settings.bounce_buffer_bytes),
    set: |settings, bytes| settings.bounce_buffer_bytes = bytes,
};

const BOUNCE_MEMORY_BYTES: Limit = Limit {
    name: "bounce_memory_bytes",
    least: 1,
    most: usize::MAX,
    get: |settings| settings.bounce_memory_bytes,
    set: |settings, bytes| settings.bounce_memory_bytes = Some(bytes),
};

/// The limits of all settings that have some.
const LIMITS: [Limit; 4] = [THREADS, CHUNK_BYTES, BOUNCE_BUFFER_BYTES, BOUNCE_MEMORY_BYTES];

fn within(least: usize, most: usize) -> String {
    if most == usize::MAX { format!("at least {least}") } else { format!("{least} to {most}") }
}

const SWITCH: &str = "on, true, yes or 1, or off, false, no or 0";
const DIRECT: &str = "auto (or on, true, yes, 1), never (or off, false, no, 0), or always";
const SIZE: &str = "a size above 0 that fits 64 bits, such as 65536, 64KiB or 4M";

const VARIABLES: &[Variable] = &[
    Variable {
        name: "GPUFILE_COMPAT_MODE",
        accepted: "on (or true, yes, 1), off (or false, no, 0), or auto",
        set: |settings, text| put(&mut settings.policy, compat_mode(text)),
    },
    Variable {
        name: "GPUFILE_NUM_THREADS",
        accepted: "a whole number from 1 to 1024",
        set: |settings, text| {
            put(&mut settings.threads, text.parse().ok().filter(|threads| THREADS.allows(*threads)))
        },
    },
    Variable {
        name: "GPUFILE_CHUNK_SIZE",
        accepted: SIZE,
        set: |settings, text| {
            put(&mut settings.chunk_bytes, size(text).filter(|bytes| CHUNK_BYTES.allows(*bytes)).map(Some))
        },
    },
    Variable {
        name: "GPUFILE_GDS_THRESHOLD",
        accepted: "0, or a size that fits 64 bits, such as 65536, 64KiB or 4M",
        set: |settings, text| put(&mut settings.gds_threshold_bytes, size_or_zero(text)),
    },
    Variable {
        name: "GPUFILE_BOUNCE_BUFFER_SIZE",
        accepted: "a size above 0 and up to 1 GiB, such as 65536, 64KiB or 4M",
        set: |settings, text| {
            let bytes = size(text).filter(|bytes| BOUNCE_BUFFER_BYTES.allows(*bytes));
            put(&mut settings.bounce_buffer_bytes, bytes)
        },
    },
    Variable {
        name: "GPUFILE_BOUNCE_MEMORY",
        accepted: SIZE,
        set: |settings, text| put(&mut settings.bounce_memory_bytes, size(text).map(Some)),
    },
    Variable {
        name: "GPUFILE_DIRECT_READ",
        accepted: DIRECT,
        set: |settings, text| put(&mut settings.direct_read, direct_io(text)),
    },
    Variable {
        name: "GPUFILE_DIRECT_WRITE",
        accepted: DIRECT,
        set: |settings, text| put(&mut settings.direct_write, direct_io(text)),
    },
    Variable {
        name: "GPUFILE_DIRECT_READ_OVERREAD",
        accepted: SWITCH,
        set: |settings, text| put(&mut settings.overread, switch(text)),
    },
];

/// Returns each name that sets something, with the name that decides if both are set.
pub fn variable_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    VARIABLES.iter().flat_map(|variable| {
        std::iter::once(&variable.name).chain(names_of(variable.name)).map(|name| (*name, variable.name))
    })
}

impl Variable {
    fn apply(
        &self,
        settings: &mut Settings,
        lookup: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<(), SettingsError> {
        if let Some(value) = lookup(self.name) {
            return self.set_to(settings, self.name, &value);
        }
        let mut first: Option<(&'static str, OsString)> = None;
        for &variable in names_of(self.name) {
            let Some(value) = lookup(variable) else { continue };
            let before = settings.clone();
            self.set_to(settings, variable, &value)?;
            match first.take() {
                Some((other, earlier)) if *settings != before => {
                    let (variables, values) = ([other, variable], [earlier, value]);
                    return Err(SettingsError::Conflict { variables, values });
                }
                _ => first = Some((variable, value)),
            }
        }
        Ok(())
    }

    fn set_to(
        &self,
        settings: &mut Settings,
        variable: &'static str,
        value: &OsString,
    ) -> Result<(), SettingsError> {
        let text = value.to_str().map(|text| text.trim().to_ascii_lowercase());
        text.and_then(|text| (self.set)(settings, &text)).ok_or_else(|| SettingsError::Invalid {
            variable,
            value: value.clone(),
            accepted: self.accepted,
        })
    }
}

fn put<T>(field: &mut T, value: Option<T>) -> Option<()> {
    *field = value?;
    Some(())
}

fn compat_mode(text: &str) -> Option<RoutePolicy> {
    match text {
        "auto" => Some(RoutePolicy::Auto),
        _ => Some(if switch(text)? { RoutePolicy::PosixOnly } else { RoutePolicy::RequireCufile }),
    }
}

/// Parses a use of `O_DIRECT`. KvikIO's `on` means direct I/O as far as the alignment allows; here the engine
/// decides when it pays.
fn direct_io(text: &str) -> Option<DirectIo> {
    match text {
        "auto" => Some(DirectIo::Auto),
        "never" => Some(DirectIo::Never),
        "always" => Some(DirectIo::Always),
        _ => Some(if switch(text)? { DirectIo::Auto } else { DirectIo::Never }),
    }
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "yes" | "1" => Some(true),
        "off" | "false" | "no" | "0" => Some(false),
        _ => None,
    }
}

fn size(text: &str) -> Option<usize> {
    size_or_zero(text).filter(|&bytes| bytes > 0)
}

fn size_or_zero(text: &str) -> Option<usize> {
    parse_bytes(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::fs;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_lookup(&|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.into())
        })
    }

    /// Returns the defaults, changed.
    fn with(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    }

    /// The variables of a setting, an accepted value other than the default, and the change that it makes.
    type Sample = (&'static [&'static str], &'static str, fn(&mut Settings));
    const SAMPLES: &[Sample] = &[
        (&["GPUFILE_COMPAT_MODE", "KVIKIO_COMPAT_MODE"], "ON", |s| s.policy = RoutePolicy::PosixOnly),
        (&["GPUFILE_NUM_THREADS", "KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"], "77", |s| s.threads = 77),
        (&["GPUFILE_CHUNK_SIZE", "KVIKIO_TASK_SIZE"], "1MiB", |s| s.chunk_bytes = Some(1 << 20)),
        (&["GPUFILE_GDS_THRESHOLD", "KVIKIO_GDS_THRESHOLD"], "0", |s| s.gds_threshold_bytes = 0),
        (&["GPUFILE_BOUNCE_BUFFER_SIZE", "KVIKIO_BOUNCE_BUFFER_SIZE"], "16777216", |s| {
            s.bounce_buffer_bytes = 16 << 20;
        }),
        (&["GPUFILE_BOUNCE_MEMORY"], "1 GiB", |s| s.bounce_memory_bytes = Some(1 << 30)),
        (&["GPUFILE_DIRECT_READ", "KVIKIO_AUTO_DIRECT_IO_READ"], "0", |s| s.direct_read = DirectIo::Never),
        (&["GPUFILE_DIRECT_WRITE", "KVIKIO_AUTO_DIRECT_IO_WRITE"], "always", |s| {
            s.direct_write = DirectIo::Always;
        }),
        (&["GPUFILE_DIRECT_READ_OVERREAD", "KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD"], "no", |s| {
            s.overread = false;
        }),
    ];

    fn names() -> impl Iterator<Item = (&'static str, &'static Variable)> {
        VARIABLES.iter().flat_map(|variable| {
            std::iter::once(&variable.name).chain(names_of(variable.name)).map(move |name| (*name, variable))
        })
    }

    #[test]
    fn each_variable_changes_only_its_setting() {
        for (names, value, change) in SAMPLES {
            let expected = with(change);
            assert_ne!(expected, Settings::default(), "{names:?}: the sample must differ from the default");
            for name in *names {
                assert_eq!(from(&[(name, value)]), Ok(expected.clone()), "{name}");
            }
        }
        let sampled: HashSet<_> = SAMPLES.iter().flat_map(|(names, ..)| *names).copied().collect();
        assert_eq!(sampled, names().map(|(name, _)| name).collect(), "every variable has a sample");
        assert_eq!(sampled.len(), names().count(), "no variable sets two settings");
    }

    #[test]
    fn docs_list_each_variable_beside_its_setting() {
        let rows = || include_str!("mod.rs").lines().filter(|line| line.trim_start().starts_with("/// | `"));
        for variable in VARIABLES {
            let row = rows().find(|row| row.contains(&format!("| `{}` |", variable.name)));
            let row = row.unwrap_or_else(|| panic!("{} has no row", variable.name));
            assert!(names_of(variable.name).iter().all(|name| row.contains(&format!("`{name}`"))), "{row}");
        }
        assert_eq!(rows().count(), VARIABLES.len());
    }

    /// Returns the names and the values of all settings.
    fn fields(settings: &Settings) -> HashMap<String, String> {
        let text = format!("{settings:#?}").replace("(\n        ", "(").replace(",\n    )", ")");
        let lines = text.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(": "));
        lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn the_page_of_settings_agrees_with_the_code() {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/settings.md"));
        // A host with only the test programs, and the published crate, have no pages.
        let Ok(page) = page else { return };
        let default = Settings::default();
        let mut undocumented = fields(&default);
        for (names, value, _) in SAMPLES {
            let of_variable = format!("| `{}` |", names[0]);
            let row = page.lines().find(|row| row.starts_with("| `") && row.contains(&of_variable));
            let row = row.unwrap_or_else(|| panic!("docs/settings.md has no row for {}", names[0]));
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [setting, variable, kvikio, stated, values, advice] = cells[..] else { panic!("{row}") };
            let setting = setting.trim_matches('`');

            let changed = fields(&from(&[(variable.trim_matches('`'), value)]).unwrap());
            assert_ne!(changed[setting], fields(&default)[setting], "{variable} must change {setting}");
            let listed: Vec<_> = kvikio.split(", ").map(|name| name.trim_matches('`')).collect();
            assert_eq!(listed.join(" "), names[1..].join(" "), "{row}");
            match stated.strip_prefix('`') {
                Some(code) => {
                    let stated = from(&[(names[0], code.trim_end_matches('`'))]);
                    assert_eq!(stated.as_ref(), Ok(&default), "the default in {row}");
                }
                None if setting == "threads" => {
                    assert_eq!(stated, format!("one for each processor, at most {MOST_DEFAULT_THREADS}"));
                }
                None => assert_eq!(fields(&default)[setting], "None", "the default in {row}"),
            }
            assert!(!values.is_empty() && !advice.is_empty(), "{row}");
            undocumented.remove(setting);
        }
        assert!(undocumented.is_empty(), "docs/settings.md has no row for {undocumented:?}");
        assert!(page.contains(&format!("at most 1/{SHARES} of the available memory")));
        let limits = format!("| {} workers", within(THREADS.least, THREADS.most));
        assert!(page.contains(&limits), "{limits}");
    }

    #[test]
    fn defaults_apply_without_variables() {
        let settings = from(&[]).unwrap();
        assert_eq!(settings, Settings::default());
        assert!((1..=MOST_DEFAULT_THREADS).contains(&settings.threads));
        assert_eq!(settings.chunk_bytes, None);
        assert_eq!(settings.bounce_buffer_bytes, 3584 << 10);
        let for_all = 2 * settings.threads * 2 * (4048 << 10);
        assert_eq!(settings.bounce_memory(u64::MAX), for_all);
        assert!(settings.bounce_memory_bytes() <= for_all);
        assert_eq!(settings.gds_threshold_bytes, 16 << 10);
        assert_eq!(settings.policy, RoutePolicy::Auto);
        assert_eq!((settings.direct_read, settings.direct_write), (DirectIo::Auto, DirectIo::Auto));
        assert!(settings.overread);
    }

    #[test]
    fn bounce_memory_scales_and_holds_at_least_two_buffers() {
        let some = [("KVIKIO_NTHREADS", "3"), ("KVIKIO_BOUNCE_BUFFER_SIZE", "1M")];
        let pair = 2 * ((9 << 17) + (16 << 10));
        assert_eq!(from(&some).unwrap().bounce_memory(u64::MAX), 6 * pair);
        let given = |value| from(&[some[0], some[1], ("GPUFILE_BOUNCE_MEMORY", value)]).unwrap();
        assert_eq!(given("5M").bounce_memory_bytes(), 5 << 20);
        assert_eq!(given("1").bounce_memory_bytes(), pair);
        let most = [("GPUFILE_NUM_THREADS", "1024"), ("GPUFILE_BOUNCE_BUFFER_SIZE", "1GiB")];
        assert_eq!(from(&most).unwrap().bounce_memory(u64::MAX), 4 * 1024 * ((9 << 27) + (16 << 10)));
        for (name, more) in [("GPUFILE_NUM_THREADS", "1025"), ("GPUFILE_BOUNCE_BUFFER_SIZE", "1073741825")] {
            assert!(from(&[(name, more)]).is_err(), "{name}");
        }
    }

    #[test]
    fn default_bounce_memory_is_a_share_of_available_memory() {
        const MB: u64 = 1_000_000;
        let settings = with(|settings| settings.threads = 64);
        let pair = 2 * Bounce::bytes_for(DEFAULT_BUFFER_BYTES);
        for (available, expected) in
            [(0, pair), (200 * MB, 12_500_000), (1000 * MB, 62_500_000), (u64::MAX, 128 * pair)]
        {
            assert_eq!(settings.bounce_memory(available), expected, "{available}");
        }
        let asked = with(|settings| settings.bounce_memory_bytes = Some(500_000_000));
        assert_eq!(asked.bounce_memory(200 * MB), 500_000_000);
    }

    #[test]
    fn values_beyond_a_limit_are_named() {
        assert_eq!(Settings::default().check(), Ok(()));
        for limit in LIMITS {
            for (value, nearest) in [
                (limit.least, limit.least),
                (limit.most, limit.most),
                (limit.least.wrapping_sub(1), limit.least),
                (limit.most.saturating_add(1), limit.most),
            ] {
                let settings = with(|settings| (limit.set)(settings, value));
                assert_eq!(settings.check().is_ok(), value == nearest, "{} = {value}", limit.name);
                if let Err(error) = settings.check() {
                    let text = error.to_string();
                    assert!(text.starts_with(&format!("{} is {value}: expected ", limit.name)), "{text}");
                    assert!(text.contains(&limit.least.to_string()), "{text}");
                }
                let clamped = settings.clamped();
                assert_eq!(((limit.get)(&clamped), limit.clamp(value)), (Some(nearest), nearest));
            }
        }
        let accepted = |name| VARIABLES.iter().find(|variable| variable.name == name).unwrap().accepted;
        assert!(accepted("GPUFILE_NUM_THREADS").ends_with(&format!("from 1 to {}", THREADS.most)));
        assert!(accepted("GPUFILE_BOUNCE_BUFFER_SIZE").contains("up to 1 GiB"));
    }

    #[test]
    fn sizes_accept_plain_bytes_and_units() {
        let mut sizes = 0;
        for (name, variable) in names().filter(|(_, variable)| variable.accepted.contains("64KiB")) {
            let in_bytes = from(&[(name, "2097152")]).unwrap();
            assert_ne!(in_bytes, Settings::default(), "{name}");
            for text in ["2MiB", "2M", "2 mib", "2048k", " 2097152 "] {
                assert_eq!(from(&[(name, text)]).unwrap(), in_bytes, "{name}={text}");
            }
            sizes += usize::from(variable.name == name);
        }
        assert_eq!(sizes, 4, "task, threshold, bounce buffer, bounce memory");
    }

    #[test]
    fn words_ignore_case_and_surrounding_spaces() {
        let policy = |value| from(&[("KVIKIO_COMPAT_MODE", value)]).map(|settings| settings.policy);
        for value in ["ON", "on", "On", "TRUE", "true", "YES", "yes", "1", " on "] {
            assert_eq!(policy(value), Ok(RoutePolicy::PosixOnly), "{value}");
        }
        for value in ["OFF", "off", "FALSE", "False", "NO", "no", "0"] {
            assert_eq!(policy(value), Ok(RoutePolicy::RequireCufile), "{value}");
        }
        for value in ["AUTO", "auto", "Auto"] {
            assert_eq!(policy(value), Ok(RoutePolicy::Auto), "{value}");
        }
        for name in ["GPUFILE_DIRECT_READ", "KVIKIO_AUTO_DIRECT_IO_READ"] {
            let direct = |value| from(&[(name, value)]).map(|settings| settings.direct_read);
            for value in ["auto", "AUTO", "on", "true", "yes", "1"] {
                assert_eq!(direct(value), Ok(DirectIo::Auto), "{name}={value}");
            }
            for value in ["never", "off", "FALSE", "no", "0"] {
                assert_eq!(direct(value), Ok(DirectIo::Never), "{name}={value}");
            }
            assert_eq!(direct("Always"), Ok(DirectIo::Always), "{name}");
        }
        for (value, expected) in [("on", true), ("True", true), ("no", false), ("0", false)] {
            let settings = from(&[("KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD", value)]).unwrap();
            assert_eq!(settings.overread, expected, "{value}");
        }
    }

    #[test]
    fn gpufile_variables_override_kvikio_variables() {
        for (names, value, change) in SAMPLES {
            for other in &names[1..] {
                let settings = from(&[(names[0], value), (other, "nonsense")]);
                assert_eq!(settings, Ok(with(change)), "{} over {other}", names[0]);
            }
        }
        let threads = [("GPUFILE_NUM_THREADS", "3"), ("KVIKIO_NTHREADS", "4"), ("KVIKIO_NUM_THREADS", "5")];
        assert_eq!(from(&threads).unwrap().threads, 3);
    }

    #[test]
    fn two_kvikio_names_must_agree() {
        let both = |one, two| from(&[("KVIKIO_NTHREADS", one), ("KVIKIO_NUM_THREADS", two)]);
        assert_eq!(both("8", " 8").unwrap().threads, 8);
        let default = Settings::default().threads.to_string();
        // The first differs from the default, and then the second.
        for (one, two) in [("77", "78"), ("77", &default), (&default, "77")] {
            let error = both(one, two).unwrap_err();
            assert_eq!(
                error,
                SettingsError::Conflict {
                    variables: ["KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"],
                    values: [one.into(), two.into()],
                }
            );
            let text = error.to_string();
            assert!(text.contains(&format!("KVIKIO_NTHREADS ({one:?})")), "{text}");
            assert!(text.contains(&format!("KVIKIO_NUM_THREADS ({two:?})")), "{text}");
        }
        assert!(matches!(both("8", "x"), Err(SettingsError::Invalid { variable: "KVIKIO_NUM_THREADS", .. })));
    }

    #[test]
    fn bad_value_errors_name_variable_and_accepted_values() {
        for (name, variable) in names() {
            let mut values = vec!["", "nonsense", "-1", "1.5", "2 2", "99999999999999999999999"];
            match variable.accepted {
                SWITCH | DIRECT => values.push("2"),
                SIZE => values.extend(["0", "0k", "4MB", "16777216T", "on"]),
                _ => {}
            }
            if variable.name == "GPUFILE_NUM_THREADS" {
                values.extend(["0", "4k", "auto"]);
            }
            for value in values {
                let error = from(&[(name, value)]).unwrap_err();
                let accepted = variable.accepted;
                assert_eq!(error, SettingsError::Invalid { variable: name, value: value.into(), accepted });
                let text = error.to_string();
                assert!(text.contains(&format!("{name} is {value:?}: expected {accepted}")), "{text}");
            }
        }
    }

    #[test]
    fn values_must_be_unicode() {
        for (name, variable) in names() {
            let value = OsString::from_vec(b"4\xff".to_vec());
            let error = Settings::from_lookup(&|asked| (asked == name).then(|| value.clone())).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(r"4\xFF"), "{text}");
            let accepted = variable.accepted;
            assert_eq!(error, SettingsError::Invalid { variable: name, value, accepted });
        }
    }

    #[test]
    fn values_suggested_by_errors_are_accepted() {
        assert!(
            SWITCH
                .split([',', ' '])
                .filter(|word| !["", "or"].contains(word))
                .all(|word| switch(word).is_some())
        );
        assert!(["65536", "64KiB", "4M"].iter().all(|text| SIZE.contains(text) && size(text).is_some()));
    }
}
