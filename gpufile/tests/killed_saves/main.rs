//! Tests that saves leave the old contents or the new, even if the process is killed or the power fails.
//!
//! The long campaign kills before every system call, not only before those that change files:
//!
//! ```text
//! CUFILE_TEST_EVERY_CALL=1 cargo test --package gpufile --features zarr --test killed_saves -- --nocapture
//! ```

mod saves;
mod traced;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use saves::{Found, SAVES, Save};
use tempfile::TempDir;
use traced::{Call, Verdict};

/// The variable that asks for the long campaign.
const EVERY_CALL: &str = "CUFILE_TEST_EVERY_CALL";

/// Makes a folder where locks show living processes, except if `CUFILE_TEST_DIR` asks for another.
fn folder() -> TempDir {
    match env::var_os("CUFILE_TEST_DIR") {
        Some(folder) => tempfile::tempdir_in(folder).unwrap(),
        None => tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(),
    }
}

/// The variables that make a process save: the number of the save, and the folder.
const SAVE: &str = "CUFILE_TEST_SAVE";
const FOLDER: &str = "CUFILE_TEST_SAVE_FOLDER";

fn saving(number: usize, folder: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "a_killed_save_leaves_the_old_or_new_file", "--nocapture"]);
    command.env(SAVE, number.to_string()).env(FOLDER, folder).stdout(Stdio::null());
    command
}

/// Saves and ends, in a process that has these variables.
fn save_if_asked() {
    let Ok(number) = env::var(SAVE) else { return };
    SAVES[number.parse::<usize>().unwrap()].save(Path::new(&env::var_os(FOLDER).unwrap()));
    // Sanitizers look for leaks at the usual end, and cannot in a process that is traced.
    // SAFETY: the process leaves nothing to clean up.
    unsafe { libc::_exit(0) };
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
}

/// Returns whether this is a shard, or a file of an old split model.
fn is_shard(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    name.starts_with("model-") || name.ends_with(".gpufile-old")
}

fn files_but_shards(folder: &Path) -> Vec<PathBuf> {
    files_in(folder).into_iter().filter(|path| !is_shard(path)).collect()
}

/// Kills a process before each of its calls in turn, and returns the number of kills.
fn kill_everywhere(number: usize) -> usize {
    let save = SAVES[number];
    let every = env::var_os(EVERY_CALL).is_some();
    let mut last = Found::Old;
    for point in 0.. {
        let folder = folder();
        save.prepare(folder.path());
        let mut calls = 0;
        let ended = traced::run(saving(number, folder.path()), |call| {
            let counts = call.returned.is_none() && (every || call.changes_files());
            calls += usize::from(counts);
            if counts && calls > point { Verdict::Kill } else { Verdict::Continue }
        });
        let found = save.found(folder.path());
        if ended {
            assert_eq!((found, files_but_shards(folder.path()).len()), (Found::New, save.files_after()));
            assert_eq!(files_in(folder.path()).len() - save.files_after(), save.shards_after());
            // The order of several threads differs from process to process.
            assert!(last != Found::Old, "the new one is there before the process ends");
            return point;
        }
        last = found;
        let is_allowed = match found {
            Found::Old | Found::New => true,
            Found::Both => matches!(save, Save::Chunks { .. }),
            Found::Aside => matches!(save, Save::Split(..)),
        };
        assert!(is_allowed, "{save:?} at {point}: {found:?}");
        let kept: Vec<_> = files_in(folder.path()).into_iter().filter(|path| save.keeps(path)).collect();
        // The next save succeeds, and removes the temporary files.
        assert!(saving(number, folder.path()).status().unwrap().success());
        assert_eq!(save.found(folder.path()), Found::New, "{save:?} after {point}");
        let left = files_but_shards(folder.path());
        assert_eq!(left.len(), save.files_after(), "{save:?} after {point}: {left:?}");
        assert!(kept.iter().all(|path| path.exists()), "{save:?} after {point}: {kept:?}");
    }
    unreachable!("a process that makes calls for ever")
}

#[test]
fn a_killed_save_leaves_the_old_or_new_file() {
    save_if_asked();
    let points: Vec<_> = (0..SAVES.len()).map(|number| (SAVES[number], kill_everywhere(number))).collect();
    let sum: usize = points.iter().map(|(_, points)| points).sum();
    println!("killed at {sum} points: {points:?}");
    assert!(points.iter().all(|(_, points)| *points > 5), "{points:?}");
}

#[derive(Debug, Clone)]
enum Step {
    Create(OsString, u64),
    Rename(OsString, OsString),
    Link(OsString, OsString),
    Remove(OsString),
    SyncFolder,
    /// The storage has these contents of the file.
    SyncFile(u64, Vec<u8>),
}

type Names = BTreeMap<OsString, u64>;

impl Step {
    fn is_of_folder(&self) -> bool {
        !matches!(self, Step::SyncFolder | Step::SyncFile(..))
    }

    fn apply(&self, names: &mut Names) {
        match self {
            Step::Create(name, inode) => drop(names.insert(name.clone(), *inode)),
            Step::Remove(name) => drop(names.remove(name)),
            Step::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Step::Link(from, to) => {
                if let Some(inode) = names.get(from).copied() {
                    names.insert(to.clone(), inode);
                }
            }
            Step::SyncFolder | Step::SyncFile(..) => {}
        }
    }

    /// Returns the step that a call made in the folder, if the call has returned.
    fn of(call: &Call, folder: &Path) -> Option<Step> {
        let returned = call.returned.filter(|returned| *returned >= 0)?;
        // Saves name files relative to the open folder.
        let name = |argument: usize| {
            let at = fs::read_link(call.open_file(call.arguments[argument - 1] as i32 as i64)).ok()?;
            (at == folder).then(|| call.path(argument).into_os_string())
        };
        match call.number {
            libc::SYS_openat if call.changes_files() => {
                let inode = fs::metadata(call.open_file(returned)).unwrap().ino();
                Some(Step::Create(name(1)?, inode))
            }
            libc::SYS_renameat | libc::SYS_renameat2 => Some(Step::Rename(name(1)?, name(3)?)),
            libc::SYS_linkat => Some(Step::Link(name(1)?, name(3)?)),
            libc::SYS_unlinkat => Some(Step::Remove(name(1)?)),
            libc::SYS_fsync => {
                let file = call.open_file(call.arguments[0] as i64);
                let metadata = fs::metadata(&file).unwrap();
                match metadata.is_dir() {
                    true => (fs::read_link(&file).unwrap() == folder).then_some(Step::SyncFolder),
                    false => Some(Step::SyncFile(metadata.ino(), fs::read(&file).unwrap())),
                }
            }
            _ => None,
        }
    }
}

/// Cuts the power after each step. Each change of the folder since its last sync may then be there or not. Files have
/// their contents of their last sync. Returns the number of different folders that result.
fn fail_everywhere(number: usize) -> usize {
    let save = SAVES[number];
    let folder = folder();
    let path = folder.path().canonicalize().unwrap();
    save.prepare(&path);
    let (mut synced, mut contents) = (Names::new(), BTreeMap::new());
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        let inode = entry.metadata().unwrap().ino();
        synced.insert(entry.file_name(), inode);
        contents.insert(inode, fs::read(entry.path()).unwrap());
    }
    let mut steps = Vec::new();
    let ended = traced::run(saving(number, &path), |call| {
        steps.extend(Step::of(call, &path));
        Verdict::Continue
    });
    assert!(ended);

    let mut seen = BTreeSet::new();
    let mut pending = Vec::new();
    for at in 0..=steps.len() {
        for chosen in 0..1_u32 << pending.len() {
            let mut names = synced.clone();
            let chosen = pending.iter().enumerate().filter(|(bit, _)| chosen & 1 << bit != 0);
            chosen.for_each(|(_, step): (_, &Step)| step.apply(&mut names));
            let held: Vec<_> = names
                .into_iter()
                .map(|(name, inode)| (name, inode, contents.get(&inode).cloned().unwrap_or_default()))
                .collect();
            let is_over = at == steps.len();
            if seen.insert((is_over, held.clone())) {
                let found = save.found(restored(&held).path());
                assert!(found == Found::New || !is_over, "{save:?}: what was synced is gone: {steps:?}");
            }
        }
        match steps.get(at) {
            Some(Step::SyncFile(inode, bytes)) => drop(contents.insert(*inode, bytes.clone())),
            Some(Step::SyncFolder) => pending.drain(..).for_each(|step: Step| step.apply(&mut synced)),
            Some(step) if step.is_of_folder() => pending.push(step.clone()),
            _ => {}
        }
    }
    seen.len()
}

/// Makes a folder with these names. Names of one inode are links to one file.
fn restored(held: &[(OsString, u64, Vec<u8>)]) -> TempDir {
    let folder = folder();
    let mut first = BTreeMap::new();
    for (name, inode, bytes) in held {
        let path = folder.path().join(name);
        match first.get(inode) {
            Some(other) => fs::hard_link(other, &path).unwrap(),
            None => fs::write(&path, bytes).unwrap(),
        }
        first.entry(*inode).or_insert(path);
    }
    folder
}

#[test]
fn a_power_failure_leaves_the_old_or_new_file() {
    let of_one_folder = (0..SAVES.len()).filter(|number| !matches!(SAVES[*number], Save::Chunks { .. }));
    let folders: Vec<_> = of_one_folder.map(|number| (SAVES[number], fail_everywhere(number))).collect();
    println!("found the old or the new in {folders:?}");
    assert!(folders.iter().all(|(_, folders)| *folders > 3), "{folders:?}");
}
