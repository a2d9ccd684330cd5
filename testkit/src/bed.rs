//! The libraries for a test of cufile or gpufile: the emulator, and the real ones if the host has them.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cufile::cuda::sys::runtime::cudaError_t;
use cufile::cuda::{Cuda, Device};
use cufile::{Driver, Library};
use cufile_emulator::Emulator;
use cufile_sys::Functions;
use tempfile::TempDir;

/// An open driver, a device and a folder for files.
pub struct Bed {
    // Dropped in this order: users of the driver, the driver, the turn with the real library.
    /// GPU 0.
    pub device: Device,
    /// The open driver.
    pub driver: Driver,
    /// `None` for the real library.
    pub emulator: Option<Emulator>,
    folder: TempDir,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Bed {
    /// Runs `test` on the emulator, and on the real library if this host has one and a GPU.
    ///
    /// With `CUFILE_REQUIRE_GPU=1` a host without them fails the test.
    pub fn each(test: impl Fn(&Bed)) {
        test(&Bed::emulated());
        if let Some(bed) = Bed::real() {
            test(&bed);
        }
    }

    /// Returns the emulator of the newest version.
    pub fn emulated() -> Bed {
        Bed::on(Emulator::start())
    }

    /// Returns the emulator posing as an older version, such as `1.14`.
    pub fn emulated_as(version: &str) -> Bed {
        Bed::on(Emulator::posing_as(version))
    }

    /// Opens the driver on this emulator.
    pub fn on(emulator: Emulator) -> Bed {
        let (library, cuda) = libraries(&emulator);
        let driver = Driver::builder().library(library).cuda(cuda).open().expect("the emulated driver opens");
        Bed::new(driver, Some(emulator), None)
    }

    /// Returns the real library, or `None` where it does not open. Only one test at a time gets it.
    pub fn real() -> Option<Bed> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        match Driver::open() {
            Ok(driver) => Some(Bed::new(driver, None, Some(turn))),
            Err(error) if env::var_os("CUFILE_REQUIRE_GPU").is_some_and(|value| value == "1") => {
                panic!("CUFILE_REQUIRE_GPU=1, but the real cuFile does not open: {error}")
            }
            Err(_) => None,
        }
    }

    /// Resets the GPU, as a program may do beside this one's engine.
    ///
    /// # Safety
    /// Nothing may be in flight there.
    pub unsafe fn reset(&self) {
        let _entered = self.device.enter().expect("the GPU's context");
        // SAFETY: the caller's promise.
        let reset = unsafe { (self.driver.cuda().runtime().functions().cudaDeviceReset)() };
        assert_eq!(reset, cudaError_t::cudaSuccess);
    }

    fn new(driver: Driver, emulator: Option<Emulator>, turn: Option<MutexGuard<'static, ()>>) -> Bed {
        let device = driver.cuda().device(0).expect("GPU 0");
        // CUFILE_TEST_DIR chooses the file system; cuFile accepts tmpfs from 1.16 on, and /tmp may be anything.
        let root = env::var_os("CUFILE_TEST_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
        let folder = if root.is_dir() { TempDir::new_in(root) } else { TempDir::new() };
        Bed { device, driver, emulator, folder: folder.expect("a folder for test files"), _turn: turn }
    }

    /// Returns whether this is the real library.
    pub fn is_real(&self) -> bool {
        self.emulator.is_none()
    }

    /// Returns the path of a file that does not exist yet.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates a file with these contents, open for reading and writing.
    pub fn file(&self, name: &str, contents: &[u8]) -> File {
        let path = self.path(name);
        let mut file =
            OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("a new file");
        file.write_all(contents).expect("contents written");
        file
    }
}

/// Creates folders in `CUFILE_TEST_DIR`, in memory, among temporary files, and beside the test program.
pub fn folders() -> Vec<TempDir> {
    let program = env::current_exe().expect("the path of this program");
    let roots = [
        env::var_os("CUFILE_TEST_DIR").map(PathBuf::from),
        Some(PathBuf::from("/dev/shm")),
        Some(env::temp_dir()),
        program.parent().map(PathBuf::from),
    ];
    let mut devices = Vec::new();
    let mut folders = Vec::new();
    for root in roots.into_iter().flatten() {
        let Ok(device) = fs::metadata(&root).map(|metadata| metadata.dev()) else { continue };
        if !devices.contains(&device)
            && let Ok(folder) = TempDir::new_in(&root)
        {
            devices.push(device);
            folders.push(folder);
        }
    }
    assert!(!folders.is_empty(), "a folder for test files");
    folders
}

/// Returns the emulator as libraries of the crate `cufile`.
pub fn libraries(emulator: &Emulator) -> (Library, Cuda) {
    let library = Library::from_sys(emulator.cufile()).expect("the emulator has a version");
    let cuda = Cuda::from_sys(emulator.driver(), emulator.runtime()).expect("the emulator has a GPU");
    (library, cuda)
}

/// Opens the driver on the emulator, with some functions replaced.
///
/// # Safety
/// The replacements must keep the contract of libcufile's functions.
pub unsafe fn open_with(emulator: &Emulator, replace: impl FnOnce(&mut Functions)) -> Driver {
    let (library, cuda) = libraries(emulator);
    let mut functions = *library.functions();
    replace(&mut functions);
    // SAFETY: the emulator's functions, except those that the caller answers for.
    let library = unsafe { cufile_sys::Library::from_functions(functions) };
    let library = Library::from_sys(library).expect("the emulator has a version");
    Driver::builder().library(library).cuda(cuda).open().expect("the emulated driver opens")
}

/// Returns the files below a folder by their paths in it.
pub fn files_below(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read(&path).unwrap());
        }
    }
    files
}

/// Returns bytes that differ from place to place, so that a test notices a shifted or repeated range.
pub fn pattern(len_bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bytes.extend_from_slice(&(state >> 11).to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}
