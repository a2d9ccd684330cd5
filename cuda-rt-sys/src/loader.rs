//! The search for a shared library and its symbols.
//!
//! Loading a library runs its code. The safe `load` of each table trusts the environment, like the dynamic loader and
//! all of CUDA. These variables choose the code that runs: `CUFILE_LIBRARY`, `CUDART_LIBRARY`, `CUDA_LIBRARY`,
//! `CUDA_HOME`, `CUDA_PATH`, `VIRTUAL_ENV`, `CONDA_PREFIX`, `PATH` and `LD_LIBRARY_PATH`. So does whoever can write
//! to the folders that they name. In a program with more rights than its user, for example with the set-user-ID bit,
//! none of them counts, as in the dynamic loader. `load_from` is `unsafe`: only the program's author can vouch for
//! the file.

use std::error::Error;
use std::ffi::{CStr, OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::{env, fs, iter};

/// The places to look for a library. If [`variable`](Search::variable) is set and not empty, only the file that it
/// names counts. Otherwise the dynamic loader's own search for each of [`names`](Search::names) comes first. With
/// [`toolkit`](Search::toolkit), the CUDA toolkits of `CUDA_HOME`, `CUDA_PATH` and `/usr/local/cuda*` follow, then
/// the `nvidia` packages of the Pythons in `VIRTUAL_ENV`, `CONDA_PREFIX` and `PATH`. Only absolute folders count, so
/// the search never uses the current folder.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// The library's name in messages.
    pub library: &'static str,
    /// The environment variable with the path of the one file to load.
    pub variable: &'static str,
    /// File names, the preferred one first.
    pub names: &'static [&'static str],
    /// True if the library comes with the CUDA toolkit rather than with the display driver.
    pub toolkit: bool,
}

/// A function of a table and the version of the library that brought it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// The name that the library exports.
    pub name: &'static str,
    /// 1000 × major + 10 × minor, as the library's version call returns it; 0 if every supported version has
    /// the function.
    pub since: i32,
}

/// The reason that a library is not usable.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file could be loaded.
    #[error("{library} could not be loaded (to choose a file, set {variable} to its path){}", List(.attempts))]
    NotFound {
        /// The library's name.
        library: &'static str,
        /// The variable that chooses the file.
        variable: &'static str,
        /// Each file tried, in order.
        attempts: Vec<Attempt>,
    },
    /// The loaded file is another library, or too old: it lacks a function that every supported version has.
    #[error("{path:?} {}", self.reason())]
    MissingSymbol {
        /// The library's name.
        library: &'static str,
        /// The loaded file.
        path: PathBuf,
        /// The missing function.
        symbol: String,
    },
    /// The loaded file needs a newer display driver than this host has.
    #[error("{path:?} {}", self.reason())]
    DriverTooOld {
        /// The library's name.
        library: &'static str,
        /// The loaded file.
        path: PathBuf,
        /// The CUDA version of the library, from `cudaRuntimeGetVersion`.
        version: i32,
        /// The newest CUDA version that the display driver supports.
        supported: i32,
    },
    /// No program of this target can load the library: NVIDIA has it for another system, or the program is linked
    /// statically with musl.
    #[error("{library} cannot be loaded {reason}")]
    Unsupported {
        /// The library's name.
        library: &'static str,
        /// The reason, as words that follow "cannot be loaded", and what to do.
        reason: &'static str,
    },
}

impl LoadError {
    /// Returns the name of the library to load, such as `libcuda`.
    pub fn library(&self) -> &'static str {
        match self {
            LoadError::NotFound { library, .. }
            | LoadError::MissingSymbol { library, .. }
            | LoadError::DriverTooOld { library, .. }
            | LoadError::Unsupported { library, .. } => library,
        }
    }

    /// Returns the files that were tried, in order.
    pub fn paths(&self) -> Vec<&Path> {
        match self {
            LoadError::NotFound { attempts, .. } => attempts.iter().map(|attempt| &*attempt.path).collect(),
            LoadError::MissingSymbol { path, .. } | LoadError::DriverTooOld { path, .. } => vec![path],
            LoadError::Unsupported { .. } => Vec::new(),
        }
    }

    fn reason(&self) -> String {
        match self {
            LoadError::NotFound { .. } | LoadError::Unsupported { .. } => "could not be loaded".to_owned(),
            LoadError::MissingSymbol { library, symbol, .. } => {
                format!(
                    "has no function {symbol}: it is not {library}, or is older than any supported version"
                )
            }
            LoadError::DriverTooOld { library, version, supported, .. } => format!(
                "is from CUDA {}, but the display driver supports only {}: update the driver, or install {library} of CUDA {}",
                Version(*version),
                Version(*supported),
                supported / 1000
            ),
        }
    }
}

/// A file that was tried, and the reason for its refusal.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The path, or the bare name that the dynamic loader searched for.
    pub path: PathBuf,
    /// The dynamic loader's message without the path at its beginning, or the fault of the file.
    pub reason: String,
}

/// A version of CUDA, in C's form 1000 × major + 10 × minor.
struct Version(i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

struct List<'a>(&'a [Attempt]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|Attempt { path, reason }| {
            write!(f, "; {path:?}: ")?;
            // The dynamic loader repeats names from files.
            reason.chars().try_for_each(|c| match c.is_control() {
                true => write!(f, "{}", c.escape_default()),
                false => write!(f, "{c}"),
            })
        })
    }
}

/// A loaded library. It stays loaded for the life of the process, so its functions are always callable.
#[derive(Debug)]
pub struct SharedLibrary {
    name: &'static str,
    path: PathBuf,
    handle: &'static libloading::Library,
}

impl SharedLibrary {
    /// Loads the first file of [`Search`] that `accept` takes, and returns the result of `accept`.
    ///
    /// ```compile_fail,E0133
    /// use cuda_rt_sys::loader::{Search, SharedLibrary};
    ///
    /// let search = Search { library: "any", variable: "ANY", names: &["/tmp/any.so"], toolkit: false };
    /// let library = SharedLibrary::load(&search, Ok);
    /// ```
    ///
    /// # Errors
    /// [`LoadError::NotFound`] with every file tried. If the environment names the file, the error of `accept`.
    /// [`LoadError::Unsupported`] on other systems than Linux, and in a program that is linked statically with musl.
    ///
    /// # Safety
    /// Each file that the search may lead to must be safe to load: its initialisers run.
    pub unsafe fn load<T>(
        search: &Search,
        accept: impl Fn(Self) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        check_target(search.library)?;
        if let Some(path) = variable(search.variable).filter(|path| !path.is_empty()) {
            // SAFETY: the caller's promise.
            return accept(unsafe { Self::load_from(search, Path::new(&path)) }?);
        }
        let mut attempts = Vec::new();
        for path in candidates(search) {
            // SAFETY: the caller's promise.
            let reason = match unsafe { open(&path) } {
                Ok(handle) => match accept(Self { name: search.library, path: path.clone(), handle }) {
                    Ok(accepted) => return Ok(accepted),
                    Err(error) => error.reason(),
                },
                Err(reason) => reason,
            };
            attempts.push(Attempt { path, reason });
        }
        Err(LoadError::NotFound { library: search.library, variable: search.variable, attempts })
    }

    /// Loads the file at `path`, or the dynamic loader's file for a bare name.
    ///
    /// # Errors
    /// [`LoadError::NotFound`] with that one file, or [`LoadError::Unsupported`].
    ///
    /// # Safety
    /// The file must be safe to load: its initialisers run.
    pub unsafe fn load_from(search: &Search, path: &Path) -> Result<Self, LoadError> {
        check_target(search.library)?;
        // SAFETY: the caller's promise.
        match unsafe { open(path) } {
            Ok(handle) => Ok(Self { name: search.library, path: path.to_owned(), handle }),
            Err(reason) => Err(LoadError::NotFound {
                library: search.library,
                variable: search.variable,
                attempts: vec![Attempt { path: path.to_owned(), reason }],
            }),
        }
    }

    /// Returns the path or bare name that was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the function `name`.
    ///
    /// # Errors
    /// [`LoadError::MissingSymbol`] if the library does not export it.
    ///
    /// # Safety
    /// `F` must be a function pointer type with the C signature of `name`.
    pub unsafe fn required<F: Copy>(&self, name: &CStr) -> Result<F, LoadError> {
        // SAFETY: the caller's promise.
        unsafe { self.optional(name) }.ok_or_else(|| LoadError::MissingSymbol {
            library: self.name,
            path: self.path.clone(),
            symbol: name.to_string_lossy().into_owned(),
        })
    }

    /// Returns the function `name`, or `None` if the library does not export it.
    ///
    /// # Safety
    /// `F` must be a function pointer type with the C signature of `name`.
    pub unsafe fn optional<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: the caller's promise; the library is never unloaded, so the pointer may leave the `Symbol`.
        unsafe { self.handle.get::<F>(name) }.ok().map(|symbol| *symbol)
    }
}

fn check_target(library: &'static str) -> Result<(), LoadError> {
    const IS_STATIC: bool = cfg!(all(target_env = "musl", target_feature = "crt-static"));
    match why_not(env::consts::OS, IS_STATIC) {
        None => Ok(()),
        Some(reason) => Err(LoadError::Unsupported { library, reason }),
    }
}

fn why_not(system: &str, is_static: bool) -> Option<&'static str> {
    match system {
        "linux" if is_static => Some(
            "by a program that is linked statically with musl: build it for a target of glibc, or with \
             RUSTFLAGS=-Ctarget-feature=-crt-static for a system of musl",
        ),
        "linux" => None,
        _ => Some("on this system: cuFile and these bindings of CUDA are for Linux alone"),
    }
}

/// # Safety
/// The file must be safe to load: its initialisers run.
unsafe fn open(path: &Path) -> Result<&'static libloading::Library, String> {
    // SAFETY: the caller's promise.
    match unsafe { libloading::Library::new(path) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => {
            // The dynamic loader's message is the source. It begins with the name from this call.
            let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let name = format!("{}: ", path.display());
            Err(words.strip_prefix(&name).map_or(words.clone(), ToOwned::to_owned))
        }
    }
}

/// Returns none in a program with more rights than its caller, who could load code into it.
fn variable(name: &str) -> Option<OsString> {
    if has_more_rights() { None } else { env::var_os(name) }
}

#[cfg(target_os = "linux")]
fn has_more_rights() -> bool {
    use std::ffi::c_ulong;

    unsafe extern "C" {
        safe fn getauxval(kind: c_ulong) -> c_ulong;
    }
    const AT_SECURE: c_ulong = 23;
    getauxval(AT_SECURE) != 0
}

/// Returns true, so that no variable counts.
#[cfg(not(target_os = "linux"))]
fn has_more_rights() -> bool {
    true
}

/// Returns bare names first, then existing files, for which it reads folders only when needed.
fn candidates(search: &Search) -> impl Iterator<Item = PathBuf> {
    let in_folders = move || {
        let folders =
            if search.toolkit { [toolkit_folders(), python_folders()].concat() } else { Vec::new() };
        let files =
            folders.into_iter().flat_map(|folder| search.names.iter().map(move |name| folder.join(name)));
        files.filter(|file| file.is_absolute() && file.exists())
    };
    search.names.iter().map(PathBuf::from).chain(iter::once_with(in_folders).flatten())
}

fn toolkit_folders() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> =
        ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| variable(name)).map(PathBuf::from).collect();
    let mut installed = entries(Path::new("/usr/local"));
    installed.retain(|path| name_of(path).starts_with("cuda"));
    // `/usr/local/cuda` is the administrator's choice; after it the newest.
    installed.sort_by_key(|path| (name_of(path) != "cuda", std::cmp::Reverse(version_of(&name_of(path)))));
    roots.extend(installed);
    roots
        .iter()
        .flat_map(|root| {
            let target = format!("targets/{}-linux/lib", env::consts::ARCH);
            [root.join("lib64"), root.join(target), root.join("lib")]
        })
        .collect()
}

/// Returns each `nvidia/*/lib` in the site-packages, as PyPI's packages are laid out.
fn python_folders() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| variable(name)).map(PathBuf::from).collect();
    let path = variable("PATH").unwrap_or_default();
    for folder in env::split_paths(&path).filter(|folder| folder.is_absolute()) {
        let python = folder.join("python3");
        if python.is_file() {
            prefixes.extend(folder.parent().map(Path::to_owned));
            // In a virtual environment the file is a link to the interpreter that it was made from.
            let real = fs::canonicalize(python).ok();
            prefixes.extend(real.as_deref().and_then(|file| file.parent()?.parent()).map(Path::to_owned));
        }
    }
    let mut folders = Vec::new();
    for prefix in prefixes {
        for lib in entries(&prefix.join("lib")) {
            if name_of(&lib).starts_with("python3") {
                for packages in ["site-packages", "dist-packages"] {
                    folders.extend(
                        entries(&lib.join(packages).join("nvidia")).iter().map(|dir| dir.join("lib")),
                    );
                }
            }
        }
    }
    folders
}

/// Returns sorted paths; none if the folder cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).map(|dir| dir.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

/// Parses a name such as `cuda-12.8`.
fn version_of(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    const ABSENT: Search = Search {
        library: "libabsent",
        variable: "LIBABSENT_PATH_FOR_TESTS",
        names: &["libabsent.so.7", "libabsent.so"],
        toolkit: true,
    };

    #[test]
    fn missing_library_error_lists_names_and_variable() {
        // SAFETY: there is no such library.
        let error = unsafe { SharedLibrary::load(&ABSENT, Ok) }.unwrap_err();
        assert_eq!(error.library(), "libabsent");
        assert_eq!(error.paths(), [Path::new("libabsent.so.7"), Path::new("libabsent.so")]);
        let text = error.to_string();
        for part in ["; \"libabsent.so.7\": ", "; \"libabsent.so\": ", "LIBABSENT_PATH_FOR_TESTS"] {
            assert!(text.contains(part), "{text}");
        }
        // The dynamic loader begins with the name, too.
        assert_eq!(text.matches("libabsent.so.7").count(), 1, "{text}");
    }

    #[test]
    fn errors_show_the_path_once_quoted_and_escaped() {
        let path = Path::new("/nowhere/\u{1b}[31mlib\n.so");
        // SAFETY: there is no such library.
        let error = unsafe { SharedLibrary::load_from(&ABSENT, path) }.unwrap_err();
        let text = error.to_string();
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert_eq!(text.matches("nowhere").count(), 1, "{text}");
        assert!(text.contains(r#""/nowhere/\u{1b}[31mlib\n.so": cannot open"#), "{text}");
        assert!(text.contains("LIBABSENT_PATH_FOR_TESTS"), "{text}");
    }

    #[test]
    fn errors_escape_control_characters_of_the_dynamic_loader() {
        let attempts = [Attempt { path: "a".into(), reason: "bad \u{1b}[0m in /b".into() }];
        assert_eq!(List(&attempts).to_string(), r#"; "a": bad \u{1b}[0m in /b"#);
    }

    #[test]
    fn search_continues_after_a_refused_library() {
        let search = Search { names: &["libc.so.6", "libm.so.6", "libabsent.so"], toolkit: false, ..ABSENT };
        let with = |symbol: &'static CStr| {
            move |library: SharedLibrary| {
                // SAFETY: never called.
                unsafe { library.required::<unsafe extern "C" fn()>(symbol) }.map(|_| library)
            }
        };
        // SAFETY: libraries of the system.
        let found = unsafe { SharedLibrary::load(&search, with(c"cbrt")) }.unwrap();
        assert_eq!(found.path(), Path::new("libm.so.6"));
        // SAFETY: as above.
        let error = unsafe { SharedLibrary::load(&search, with(c"cuFileNoSuchCall")) }.unwrap_err();
        assert_eq!(error.paths(), search.names.iter().map(Path::new).collect::<Vec<_>>());
        assert!(error.to_string().contains("\"libc.so.6\": has no function cuFileNoSuchCall"), "{error}");
    }

    #[test]
    fn errors_name_the_library_that_lacks_a_function() {
        let search = Search { names: &["libc.so.6"], ..ABSENT };
        // SAFETY: this program already uses it.
        let libc = unsafe { SharedLibrary::load(&search, Ok) }.unwrap();
        // SAFETY: the symbol does not exist, so this returns no pointer of the wrong type.
        let error = unsafe { libc.required::<unsafe extern "C" fn()>(c"cuFileNoSuchCall") }.unwrap_err();
        assert!(matches!(&error, LoadError::MissingSymbol { symbol, .. } if symbol == "cuFileNoSuchCall"));
        assert!(
            error
                .to_string()
                .starts_with("\"libc.so.6\" has no function cuFileNoSuchCall: it is not libabsent"),
            "{error}"
        );
    }

    #[test]
    fn only_programs_with_a_loader_on_linux_load_libraries() {
        assert_eq!((why_not("linux", false), check_target("libabsent").is_ok()), (None, true));
        for (system, is_static, words) in [
            ("linux", true, "libany cannot be loaded by a program that is linked statically with musl: "),
            ("macos", false, "libany cannot be loaded on this system: "),
            ("windows", false, "libany cannot be loaded on this system: "),
        ] {
            let reason = why_not(system, is_static).unwrap();
            let error = LoadError::Unsupported { library: "libany", reason };
            assert!(error.to_string().starts_with(words), "{error}");
            assert_eq!((error.library(), error.paths()), ("libany", vec![]));
        }
    }

    #[test]
    fn newer_toolkits_are_searched_first() {
        assert!(version_of("cuda-12.8") > version_of("cuda-12.4"));
        assert!(version_of("cuda-13.0") > version_of("cuda-12.10"));
        assert_eq!(version_of("cuda"), Vec::<u32>::new());
    }

    const CHILD: &str = "LOADER_TEST_IS_CHILD";

    fn run_again(program: &Path, test: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["--exact", &format!("loader::tests::{test}")]).env(CHILD, "1");
        command
    }

    fn passes(command: &mut Command) -> bool {
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success() && text.contains("1 passed")
    }

    #[test]
    fn the_current_folder_is_not_searched() {
        const NAME: &str = "the_current_folder_is_not_searched";
        const LIBRARIES: [&str; 3] = ["lib64", "lib/python3.12/site-packages/nvidia/absent/lib", "lib"];
        if env::var_os(CHILD).is_some() {
            let found = candidates(&ABSENT).collect::<Vec<_>>();
            assert_eq!(found, [Path::new("libabsent.so.7"), Path::new("libabsent.so")]);
            return;
        }
        let folder = env::temp_dir().join(format!("loader-{}", std::process::id()));
        for library in LIBRARIES {
            fs::create_dir_all(folder.join(library)).unwrap();
            fs::write(folder.join(library).join("libabsent.so"), "").unwrap();
        }
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/python3"), "").unwrap();
        let mut command = run_again(&env::current_exe().unwrap(), NAME);
        command.current_dir(&folder).env("PATH", "bin:");
        command.env("CUDA_HOME", "").env("CUDA_PATH", ".").env("VIRTUAL_ENV", "").env("CONDA_PREFIX", ".");
        let passed = passes(&mut command);
        // The same folders by an absolute path are searched.
        command.env("CUDA_PATH", &folder);
        let passed_with_absolute = passes(&mut command);
        fs::remove_dir_all(&folder).unwrap();
        assert!(passed && !passed_with_absolute);
    }

    #[test]
    fn setuid_programs_ignore_the_variables() {
        const NAME: &str = "setuid_programs_ignore_the_variables";
        if env::var_os(CHILD).is_some() {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
            let users: Vec<_> = users.split_whitespace().collect();
            return assert_eq!(variable(CHILD).is_none(), users[0] != users[1]);
        }
        let program = env::current_exe().unwrap();
        assert!(passes(&mut run_again(&program, NAME)));
        let with_rights = env::temp_dir().join(format!("loader-rights-{}", std::process::id()));
        fs::copy(&program, &with_rights).unwrap();
        fs::set_permissions(&with_rights, Permissions::from_mode(0o4755)).unwrap();
        // Only root may become another user.
        let outcome = run_again(&with_rights, NAME).uid(65_534).output();
        fs::remove_file(&with_rights).unwrap();
        match outcome {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}
