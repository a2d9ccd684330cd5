//! The emulator for one test: a separate copy, loaded with the version that the test asks for. Code here runs in the
//! program that loads the emulator; all other modules are the emulator.

use std::env;
use std::ffi::{CString, c_char, c_longlong};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cuda_rt_sys::loader::{Search, SharedLibrary};

const FILE_NAME: &str = "libcufile_emulator";
const VARIABLES: [&str; 4] = ["CUFILE_LIBRARY", "CUDART_LIBRARY", "CUDA_LIBRARY", "NCCL_LIBRARY"];

type Control = unsafe extern "C" fn(command: *const c_char) -> c_longlong;

/// A running emulator, with separate memory, faults and counters.
///
/// The dynamic loader knows a library by its file, so each emulator is a copy, which dropping removes; the library
/// itself is never unloaded.
///
/// ```no_run
/// let emulator = cufile_emulator::Emulator::start();
/// emulator.fault("cuFileRead", "errno=5");
/// let (cufile, driver, runtime) = (emulator.cufile(), emulator.driver(), emulator.runtime());
/// // Then pass these to `cufile::Library::from_sys` and `cufile::cuda::Cuda::from_sys`.
/// # let _ = (cufile, driver, runtime);
/// assert_eq!(emulator.calls("cuFileRead"), 0);
/// ```
pub struct Emulator {
    file: RemovedFile,
    library: SharedLibrary,
    control: Control,
}

impl Emulator {
    /// Every supported libcufile, oldest first, with the number that it reports.
    pub const VERSIONS: &[(&str, i32)] = cufile_sys::Functions::RELEASES;

    /// Starts the newest libcufile that the bindings know, with two GPUs and CUDA 13.
    ///
    /// # Panics
    /// If there is no emulator near this program, as [`library_path`] says, or no room for a copy.
    pub fn start() -> Self {
        let path = tempfile::Builder::new()
            .prefix("libcufile-emulator-")
            .suffix(".so")
            .tempfile()
            .expect("a file for a copy of the emulator")
            .into_temp_path()
            .keep()
            .expect("a path");
        Self::at(&path)
    }

    /// Starts an older libcufile, such as `"1.14"`, without later functions.
    ///
    /// # Panics
    /// As [`start`](Self::start), or if the version is not in [`VERSIONS`](Self::VERSIONS).
    pub fn posing_as(version: &str) -> Self {
        let known = Self::VERSIONS.iter().find(|(name, _)| *name == version);
        let (_, version) = known.unwrap_or_else(|| panic!("{version} is none of {:?}", Self::VERSIONS));
        let emulator = Self::start();
        emulator.control(&format!("version {version}"));
        emulator
    }

    /// Starts the newest libcufile, loaded from a new file at `path`, which is absolute.
    ///
    /// # Panics
    /// As [`start`](Self::start), or if the file cannot be written.
    pub fn at(path: &Path) -> Self {
        let file = RemovedFile(path.to_owned());
        fs::write(path, built()).expect("a copy of the emulator");
        let search =
            Search { library: "cufile-emulator", variable: "CUFILE_LIBRARY", names: &[], toolkit: false };
        // SAFETY: loading the emulator is always safe.
        let library =
            unsafe { SharedLibrary::load_from(&search, path) }.unwrap_or_else(|error| panic!("{error}"));
        // SAFETY: the declaration is that of the emulator.
        let control = unsafe { library.required(c"emulator_control") };
        Self { file, library, control: control.unwrap_or_else(|error| panic!("{error}")) }
    }

    /// Returns its file.
    pub fn path(&self) -> &Path {
        &self.file.0
    }

    /// Returns environment variables, with which another process loads a further copy in place of libcufile, libcudart,
    /// libcuda and libnccl.
    pub fn variables(&self) -> [(&'static str, &Path); 4] {
        VARIABLES.map(|name| (name, self.path()))
    }

    /// Returns its libcufile.
    pub fn cufile(&self) -> cufile_sys::Library {
        // SAFETY: the emulator keeps the contract of libcufile.
        unsafe { cufile_sys::Library::load_from(self.path()) }.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns its libcudart, with the functions of the version that it reports at this moment.
    pub fn runtime(&self) -> cuda_rt_sys::runtime::Library {
        // SAFETY: the emulator keeps the contract of libcudart.
        unsafe { cuda_rt_sys::runtime::Library::load_from(self.path()) }
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns its libcuda.
    pub fn driver(&self) -> cuda_rt_sys::driver::Library {
        // SAFETY: the emulator keeps the contract of libcuda.
        unsafe { cuda_rt_sys::driver::Library::load_from(self.path()) }
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns whether the dynamic loader finds `function` in it at this moment.
    pub fn exports(&self, function: &str) -> bool {
        let name = CString::new(function).expect("a name without NUL");
        // SAFETY: the address is not used.
        unsafe { self.library.optional::<*const ()>(&name) }.is_some()
    }

    /// Runs a command of [`emulator_control`](crate::emulator_control), and returns the answer.
    ///
    /// # Panics
    /// If there is no such command.
    pub fn control(&self, command: &str) -> i64 {
        let line = CString::new(command).expect("a command without NUL");
        // SAFETY: the line outlives the call.
        let answer = unsafe { (self.control)(line.as_ptr()) };
        assert!(answer != -1, "the emulator has no command {command:?}");
        answer
    }

    /// Makes calls of `function` fail or change as in `settings`, such as `"err=2 after=1"`.
    ///
    /// # Panics
    /// If there is no such function or setting.
    pub fn fault(&self, function: &str, settings: &str) {
        self.control(&format!("fault {function} {settings}"));
    }

    /// Holds calls of `function`, or the work that they queue, as in `settings`, such as `"times=all"`.
    ///
    /// # Panics
    /// If there is no such function or setting.
    pub fn hold(&self, function: &str, settings: &str) -> Held<'_> {
        self.fault(function, &format!("hold=1 {settings}"));
        Held(self)
    }

    /// Returns the number of calls of `function`.
    ///
    /// # Panics
    /// If there is no such function.
    pub fn calls(&self, function: &str) -> i64 {
        self.control(&format!("calls {function}"))
    }

    /// Returns the number of live objects of the kind `what`, such as `"handles"`.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn live(&self, what: &str) -> i64 {
        self.control(&format!("live {what}"))
    }
}

struct RemovedFile(PathBuf);

impl Drop for RemovedFile {
    fn drop(&mut self) {
        // The test may have removed it, or its folder.
        let _ = fs::remove_file(&self.0);
    }
}

/// Keeps calls waiting until it is dropped.
#[must_use]
pub struct Held<'a>(&'a Emulator);

impl Held<'_> {
    /// Returns the number of calls, or of queued operations, that wait now.
    pub fn count(&self) -> i64 {
        self.0.control("held")
    }

    /// Waits until `count` calls wait.
    ///
    /// # Panics
    /// If they do not within a minute.
    pub fn wait_for(&self, count: i64) {
        let start = Instant::now();
        while self.count() < count {
            assert!(start.elapsed() < Duration::from_secs(60), "{} of {count} calls wait", self.count());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the calls go on, and holds no later ones.
    pub fn release(self) {}

    /// Runs `wait`, which calls `function` and waits there for the held calls, and releases them then.
    pub fn release_during<T>(self, function: &str, wait: impl FnOnce() -> T) -> T {
        let emulator = self.0;
        let before = emulator.calls(function);
        thread::scope(|scope| {
            scope.spawn(move || {
                let start = Instant::now();
                while emulator.calls(function) == before && start.elapsed() < Duration::from_secs(60) {
                    thread::sleep(Duration::from_millis(1));
                }
                // The function takes a moment until it waits.
                thread::sleep(Duration::from_millis(50));
                self.release();
            });
            wait()
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.control("release");
    }
}

/// Returns the path of the shared library: the one that `CUFILE_EMULATOR_LIBRARY` names, or else the one that cargo built
/// together with this program. That one is in this program's folder, in the folder above, or in `deps` of either, and the
/// newest if there are several. Doc tests are elsewhere, so they need the variable.
///
/// # Panics
/// If there is none.
pub fn library_path() -> PathBuf {
    env::var_os("CUFILE_EMULATOR_LIBRARY").map_or_else(near_this_program, PathBuf::from)
}

fn built() -> Vec<u8> {
    let built = library_path();
    fs::read(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()))
}

fn near_this_program() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let folder = program.parent().expect("a program in a folder");
    let above = folder.parent().unwrap_or(folder);
    let folders = [folder.to_owned(), folder.join("deps"), above.to_owned(), above.join("deps")];
    newest(&folders).unwrap_or_else(|| {
        panic!("{FILE_NAME}.so is not near {}: run `cargo build -p cufile-emulator`", program.display())
    })
}

/// Returns the newest library, whose name has a suffix if cargo took the package from a registry.
fn newest(folders: &[PathBuf]) -> Option<PathBuf> {
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let is_library = |file: &fs::DirEntry| {
        let name = file.file_name();
        let suffix = name.to_str().and_then(|name| name.strip_prefix(FILE_NAME)?.strip_suffix(".so"));
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('-'))
    };
    files
        .filter(is_library)
        .max_by_key(|file| file.metadata().and_then(|data| data.modified()).ok())
        .map(|file| file.path())
}

#[test]
fn the_newest_library_is_found_with_or_without_suffix() {
    let folder = tempfile::tempdir().unwrap();
    let deps = folder.path().join("deps");
    fs::create_dir(&deps).unwrap();
    let folders = [folder.path().to_owned(), deps.clone(), folder.path().join("absent")];
    let make = |path: PathBuf, seconds| {
        let file = fs::File::create(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        path
    };
    make(deps.join("libcufile_emulator-a1.d"), 9);
    make(deps.join("libcufile_emulator_other.so"), 9);
    assert_eq!(newest(&folders), None);
    let of_registry = make(deps.join("libcufile_emulator-a1.so"), 5);
    assert_eq!(newest(&folders), Some(of_registry.clone()));
    make(folder.path().join("libcufile_emulator.so"), 4);
    assert_eq!(newest(&folders), Some(of_registry));
    let newer = make(deps.join("libcufile_emulator.so"), 6);
    assert_eq!(newest(&folders), Some(newer));
}
