//! The emulator for one test: a separate copy, loaded as the version that the test asks for.

use std::env;
use std::ffi::{CString, c_char, c_longlong};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cuda_rt_sys::loader::{Search, SharedLibrary};
use tempfile::TempPath;

const FILE_NAME: &str = "libcufile_emulator.so";

type Control = unsafe extern "C" fn(command: *const c_char) -> c_longlong;

/// A running emulator, with separate memory, faults and counters.
///
/// The dynamic loader knows a library by its file, so each emulator is loaded from a copy. Dropping removes the copy;
/// the library itself is never unloaded.
pub struct Emulator {
    path: TempPath,
    library: SharedLibrary,
    control: Control,
}

impl Emulator {
    /// Every supported libcufile, oldest first, with the number that it reports.
    pub const VERSIONS: [(&str, i32); 9] = [
        ("1.11", 1110),
        ("1.13", 1130),
        ("1.14", 1140),
        ("1.15", 1150),
        ("1.16", 1160),
        ("1.17", 1170),
        ("1.18", 1180),
        ("1.19", 1190),
        ("1.20", 1200),
    ];

    /// Starts the newest libcufile that the bindings know, with two GPUs and CUDA 13.
    pub fn start() -> Self {
        let path = tempfile::Builder::new()
            .prefix("libcufile-emulator-")
            .suffix(".so")
            .tempfile()
            .expect("a file for a copy of the emulator")
            .into_temp_path();
        fs::write(&path, built()).expect("a copy of the emulator");
        Self::of_file(path)
    }

    /// Starts an older libcufile, such as `"1.14"`, without later functions.
    pub fn posing_as(version: &str) -> Self {
        let known = Self::VERSIONS.into_iter().find(|(name, _)| *name == version);
        let (_, version) = known.unwrap_or_else(|| panic!("{version} is none of {:?}", Self::VERSIONS));
        let emulator = Self::start();
        emulator.control(&format!("version {version}"));
        emulator
    }

    /// Starts the newest libcufile, loaded from a new file at `path`.
    pub fn at(path: &Path) -> Self {
        fs::write(path, built()).expect("a copy of the emulator");
        Self::of_file(TempPath::try_from_path(path).expect("an absolute path"))
    }

    fn of_file(path: TempPath) -> Self {
        let search =
            Search { library: "cufile-emulator", variable: "CUFILE_LIBRARY", names: &[], toolkit: false };
        // SAFETY: loading the emulator is always safe.
        let library =
            unsafe { SharedLibrary::load_from(&search, &path) }.unwrap_or_else(|error| panic!("{error}"));
        // SAFETY: the declaration is that of the emulator.
        let control = unsafe { library.required(c"emulator_control") };
        Self { path, library, control: control.unwrap_or_else(|error| panic!("{error}")) }
    }

    /// Returns the file, for `CUFILE_LIBRARY`, `CUDART_LIBRARY` and `CUDA_LIBRARY` of a child process.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its libcufile.
    pub fn cufile(&self) -> cufile_sys::Library {
        // SAFETY: the emulator keeps the contract of libcufile.
        unsafe { cufile_sys::Library::load_from(&self.path) }.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns its libcudart, with the functions of the version that it reports at this moment.
    pub fn runtime(&self) -> cuda_rt_sys::runtime::Library {
        // SAFETY: the emulator keeps the contract of libcudart.
        unsafe { cuda_rt_sys::runtime::Library::load_from(&self.path) }
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns its libcuda.
    pub fn driver(&self) -> cuda_rt_sys::driver::Library {
        // SAFETY: the emulator keeps the contract of libcuda.
        unsafe { cuda_rt_sys::driver::Library::load_from(&self.path) }
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns whether the dynamic loader finds `function` in it at this moment.
    pub fn exports(&self, function: &str) -> bool {
        let name = CString::new(function).expect("a name without NUL");
        // SAFETY: the address is not used.
        unsafe { self.library.optional::<*const ()>(&name) }.is_some()
    }

    /// Runs a command of `cufile_emulator::emulator_control`, and returns the answer.
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
    pub fn fault(&self, function: &str, settings: &str) {
        self.control(&format!("fault {function} {settings}"));
    }

    /// Holds calls of `function`, or the work that they queue, as in `settings`, such as `"times=all"`.
    pub fn hold(&self, function: &str, settings: &str) -> Held<'_> {
        self.fault(function, &format!("hold=1 {settings}"));
        Held(self)
    }

    /// Returns the number of calls of `function`.
    pub fn calls(&self, function: &str) -> i64 {
        self.control(&format!("calls {function}"))
    }

    /// Returns the number of live objects of the kind `what`, such as `"handles"`.
    pub fn live(&self, what: &str) -> i64 {
        self.control(&format!("live {what}"))
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

/// Returns the library that `CUFILE_EMULATOR_LIBRARY` names, or else the one that cargo built. That one is in this
/// program's folder, in the folder above, or in `deps` of either.
fn built() -> Vec<u8> {
    let built = env::var_os("CUFILE_EMULATOR_LIBRARY").map_or_else(near_this_program, PathBuf::from);
    fs::read(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()))
}

fn near_this_program() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let folder = program.parent().expect("a program in a folder");
    let above = folder.parent().unwrap_or(folder);
    let candidates = [folder.to_owned(), folder.join("deps"), above.to_owned(), above.join("deps")];
    let found = candidates.iter().map(|folder| folder.join(FILE_NAME)).find(|file| file.exists());
    found.unwrap_or_else(|| {
        panic!("{FILE_NAME} was not found beside {}; run `cargo build -p cufile-emulator`", program.display())
    })
}
