//! The settings of an engine, and the environment variables that set them.

pub(crate) mod available;
mod bytes;
pub(crate) mod table;

use std::env;
use std::ffi::OsString;

use cufile::fork::OnceCell;

use self::available::available_bytes;
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

/// Makes what follows from the rows of the table.
macro_rules! make_settings {
    ($({
        $(#[doc = $doc:literal])* $(#[doc(alias = $alias:literal)])*
        $vis:vis $name:ident: $type:ty = $default:expr, $stated:literal;
        $(#[$set_doc:meta])* set: $argument:ty;
        variable: $variable:literal; $(kvikio: $kvikio:literal [$($of_kvikio:literal),*];)?
        parse: $parse:ident, $accepted:expr;
        $(limits: $least:literal..=$most:expr;)?
        sample: $text:literal => $value:expr;
        advice: $advice:literal;
    })*) => {
        /// The configuration of an [`Engine`](crate::Engine). [`Default`] suits most machines. The process's default
        /// engine uses [`from_env`](Self::from_env).
        ///
        /// Names elsewhere: `defaults` (KvikIO); `Config` (kvik-rs).
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
            $(
                $(#[doc = $doc])* $(#[doc(alias = $alias)])*
                #[doc = concat!("\nThe default is ", $stated, ".")]
                $vis $name: $type,
            )*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Settings {
            /// Returns the settings from the environment variables that are set, and the defaults for the rest:
            ///
            /// | variable | KvikIO's | sets |
            /// |---|---|---|
            $(#[doc = concat!(
                "| `", $variable, "` | ", $($("`", $of_kvikio, "` ",)*)? "| [`Self::", stringify!($name), "`] |"
            )])*
            ///
            /// If the first name of a row is set, the others are ignored. The compatibility mode `on` excludes cuFile; `off`
            /// requires it, so opening a file fails where cuFile does not work. Sizes have the format of [`parse_bytes`].
            /// `true`, `yes` and `1` mean `on`; `false`, `no` and `0` mean `off`. Upper and lower case are the same.
            ///
            /// Names elsewhere: `getenv_or` (KvikIO); `CompatMode::parse` (kvik-rs).
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
            #[doc(alias = "getenv_or")]
            #[doc(alias = "parse")]
            pub fn from_env() -> Result<Self, SettingsError> {
                Self::from_lookup(&|name| env::var_os(name))
            }
        }

        const TABLE: &[Setting] = &[$(Setting {
            name: stringify!($name),
            variable: $variable,
            kvikio: [$(Some($kvikio),)? None][0],
            kvikio_variables: &[$($($of_kvikio),*)?],
            docs: &[$($doc),*],
            default: $stated,
            accepted: $accepted,
            advice: $advice,
            set: |settings, text| {
                settings.$name = $parse(text)?.into();
                Some(())
            },
        }),*];

        const LIMITS: &[Limit] = &[$($(Limit {
            name: stringify!($name),
            least: $least,
            most: $most,
            get: |settings| settings.$name.into(),
            set: |settings, value| settings.$name = value.into(),
        },)?)*];

        /// The names of the variables of each setting, a value other than the default, and the change that it makes.
        #[cfg(test)]
        const SAMPLES: &[(&[&str], &str, fn(&mut Settings))] =
            &[$((&[$variable, $($($of_kvikio),*)?], $text, |settings| settings.$name = $value)),*];
    };
}

crate::with_settings!(make_settings);

/// The workers for objects of far servers, which send each connection no more than a window for each round trip.
const FAR_OBJECT_THREADS: usize = 64;
/// The workers for objects of near servers, whose connections have no pause. The buffers of more would displace each other
/// from the processor's caches.
const NEAR_OBJECT_THREADS: usize = 32;
/// The part of the available memory that the bounce buffers of one GPU may have by default, as a divisor. Eight GPUs and
/// host memory together then take about a half.
const SHARES: u64 = 16;

impl Settings {
    pub(crate) fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        for variable in TABLE {
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

    /// Returns the same for a process that has `available_bytes` left.
    fn bounce_memory(&self, available_bytes: u64) -> usize {
        let pair = Bounce::bytes_for(self.bounce_buffer_bytes).saturating_mul(2);
        let for_all = pair.saturating_mul(2).saturating_mul(self.threads);
        let share = usize::try_from(available_bytes / SHARES).unwrap_or(usize::MAX);
        self.bounce_memory_bytes.unwrap_or(for_all.min(share)).max(pair)
    }

    /// Returns whether objects of servers have other workers than files: if neither the number nor the memory was chosen.
    pub(crate) fn has_others_for_objects(&self) -> bool {
        self.threads == Self::default().threads && self.bounce_memory_bytes.is_none()
    }

    /// Returns the same settings with the workers for objects of servers. They need no processor while they wait.
    pub(crate) fn for_objects(&self, are_near: bool) -> Self {
        let threads = if are_near { NEAR_OBJECT_THREADS } else { FAR_OBJECT_THREADS };
        Self { threads, ..self.clone() }
    }

    /// Returns all settings with their variables and documentation.
    pub fn table() -> &'static [Setting] {
        TABLE
    }

    /// Returns an error if a setting is beyond its limits.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        LIMITS.iter().try_for_each(|limit| match (limit.get)(self) {
            Some(value) if !limit.is_kept(self) => {
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
        /// The values of the two variables.
        values: [OsString; 2],
    },
}

/// A setting with its environment variables and its documentation, from [`Settings::table`].
///
/// ```
/// use gpufile::Settings;
///
/// let threads = Settings::table().iter().find(|setting| setting.name == "threads").unwrap();
/// assert_eq!(threads.variable, "GPUFILE_NUM_THREADS");
/// assert_eq!(threads.accepted, "a whole number from 1 to 1024");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Setting {
    /// The name of its field and of its method of [`EngineBuilder`](crate::EngineBuilder).
    pub name: &'static str,
    /// The variable that decides if it is set.
    pub variable: &'static str,
    /// The name of the setting in `kvikio.defaults`, if it has one.
    pub kvikio: Option<&'static str>,
    /// The variables that users of KvikIO already set. Their values must agree.
    pub kvikio_variables: &'static [&'static str],
    /// The lines of its documentation. The first paragraph has the unit and the limits.
    pub docs: &'static [&'static str],
    /// The default, in words or as a text in code.
    pub default: &'static str,
    /// The values that the variables accept, in words.
    pub accepted: &'static str,
    /// The reasons to change it.
    pub advice: &'static str,
    /// Sets the value. Returns `None` if the value is not accepted.
    set: fn(&mut Settings, &str) -> Option<()>,
}

pub(crate) struct Limit {
    name: &'static str,
    least: usize,
    most: usize,
    get: fn(&Settings) -> Option<usize>,
    set: fn(&mut Settings, usize),
}

impl Limit {
    fn is_kept(&self, settings: &Settings) -> bool {
        (self.get)(settings).is_none_or(|value| (self.least..=self.most).contains(&value))
    }
}

fn within(least: usize, most: usize) -> String {
    if most == usize::MAX { format!("at least {least}") } else { format!("{least} to {most}") }
}

const SWITCH: &str = "on, true, yes or 1, or off, false, no or 0";
const DIRECT: &str = "auto (or on, true, yes, 1), never (or off, false, no, 0), or always";
const SIZE: &str = "a size above 0 that fits 64 bits, such as 65536, 64KiB or 4M";

impl Setting {
    /// Returns the names of all its variables. The first decides if several are set.
    pub fn variables(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.variable).chain(self.kvikio_variables.iter().copied())
    }

    fn apply(
        &self,
        settings: &mut Settings,
        lookup: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<(), SettingsError> {
        if let Some(value) = lookup(self.variable) {
            return self.set_to(settings, self.variable, &value);
        }
        let mut first: Option<(&'static str, OsString)> = None;
        for &variable in self.kvikio_variables {
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
        let is_set = text.and_then(|text| (self.set)(settings, &text)).is_some();
        let is_allowed = || LIMITS.iter().all(|limit| limit.name != self.name || limit.is_kept(settings));
        if is_set && is_allowed() {
            return Ok(());
        }
        Err(SettingsError::Invalid { variable, value: value.clone(), accepted: self.accepted })
    }
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

fn number(text: &str) -> Option<usize> {
    text.parse().ok()
}

fn size(text: &str) -> Option<usize> {
    size_or_zero(text).filter(|&bytes| bytes > 0)
}

fn size_or_zero(text: &str) -> Option<usize> {
    parse_bytes(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests;
