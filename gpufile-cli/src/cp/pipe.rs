//! Moving and comparing ranges of two files.

use std::io;
use std::ops::Range;
use std::sync::mpsc;
use std::thread;

use gpufile::{Cause, Error, File, Result};

use crate::progress::Bar;
use crate::target::{Memory, zeros};

fn parts(ranges: &[Range<u64>], part_bytes: usize) -> impl Iterator<Item = (u64, usize)> {
    ranges.iter().flat_map(move |range| {
        let end = range.end;
        let part = move |at: u64| (at, (end - at).min(part_bytes as u64) as usize);
        range.clone().step_by(part_bytes).map(part)
    })
}

/// Gives a new file its length. Returns false if the mount cannot, so that writes must lengthen the file.
///
/// # Errors
/// The error of `ftruncate`.
pub fn set_len(file: &File, len_bytes: u64) -> Result<bool> {
    match file.set_len(len_bytes) {
        Err(Error::File { cause: Cause::Io(error), .. })
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL)) =>
        {
            Ok(false)
        }
        set => set.map(|()| true),
    }
}

/// Copies ranges to the same places of another file. A part is written while the next one is read.
///
/// The first failure; some parts may have been written.
pub fn copy<'b>(
    source: &File,
    target: &File,
    ranges: &[Range<u64>],
    buffers: &'b mut [Memory; 2],
    bar: &Bar,
) -> Result<()> {
    let part_bytes = buffers[0].len_bytes();
    let (give_back, empty) = mpsc::channel();
    let (hand_over, full) = mpsc::channel();
    for buffer in buffers {
        give_back.send(buffer).expect("the receiver is in this function");
    }
    thread::scope(|scope| {
        let reader = move || {
            for (at, len_bytes) in parts(ranges, part_bytes) {
                // A writer that failed keeps the buffers, and has the error.
                let Ok(buffer): Result<&'b mut Memory, _> = empty.recv() else { return Ok(()) };
                source.read_exact_at(&mut buffer.first_mut(len_bytes), at)?;
                if hand_over.send((buffer, at, len_bytes)).is_err() {
                    return Ok(());
                }
            }
            Ok(())
        };
        let reader = thread::Builder::new().spawn_scoped(scope, reader);
        let reader = reader.map_err(|error| source.failed("start a thread that reads", error))?;
        let write = |(buffer, at, len_bytes): (&'b mut Memory, u64, usize)| {
            target.write_all_at(&buffer.first(len_bytes), at)?;
            bar.add(len_bytes as u64);
            // The reader may have ended.
            let _ = give_back.send(buffer);
            Ok(())
        };
        let written = full.into_iter().try_for_each(write);
        drop(give_back);
        let read = reader.join().expect("the reader does not panic");
        written.and(read)
    })
}

/// Copies through host memory, and returns the end.
///
/// A file can have more bytes than its length says: others write to it, or the kernel makes its bytes when it is read, as
/// in `/proc`.
pub fn copy_rest(source: &File, target: &File, mut at: u64, bar: &Bar) -> Result<u64> {
    let mut part = zeros(1 << 20).map_err(|error| target.failed("copy to", error))?;
    loop {
        let len_bytes = source.read_at(&mut part[..], at)?;
        if len_bytes == 0 {
            return Ok(at);
        }
        target.write_all_at(&part[..len_bytes], at)?;
        at += len_bytes as u64;
        bar.add(len_bytes as u64);
    }
}

/// Compares ranges of two files, through host memory.
///
/// # Errors
/// A read failed, or a byte differs.
pub fn compare(source: &File, target: &File, ranges: &[Range<u64>], bar: &Bar) -> Result<()> {
    const PART: usize = 16 << 20;
    let longest = parts(ranges, PART).map(|(_, len_bytes)| len_bytes).max().unwrap_or(0);
    let allocate = || zeros(longest).map_err(|error| target.failed("verify", error));
    let (mut expected, mut found) = (allocate()?, allocate()?);
    for (at, len_bytes) in parts(ranges, PART) {
        let (expected, found) = (&mut expected[..len_bytes], &mut found[..len_bytes]);
        source.read_exact_at(&mut *expected, at)?;
        target.read_exact_at(&mut *found, at)?;
        if let Some(place) = expected.iter().zip(&*found).position(|(expected, found)| expected != found) {
            let problem = format!(
                "byte {} is {:#04x} instead of {:#04x}",
                at + place as u64,
                found[place],
                expected[place]
            );
            let cause = io::Error::other(problem);
            return Err(target.failed("verify", cause));
        }
        bar.add(len_bytes as u64);
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range of a file is meant")]
mod tests {
    use std::fs;

    use super::*;
    use crate::target::Place;

    #[test]
    fn ranges_are_cut_without_gaps() {
        let cut: Vec<_> = parts(&[3..10, 20..20, 100..104], 4).collect();
        assert_eq!(cut, [(3, 4), (7, 3), (100, 4)]);
    }

    fn two_files(folder: &tempfile::TempDir, len_bytes: usize) -> [File; 2] {
        let path = folder.path().join("source");
        fs::write(&path, (0..len_bytes).map(|at| (at / 3) as u8 ^ (at >> 10) as u8).collect::<Vec<_>>())
            .unwrap();
        let options = File::options().read(true).write(true);
        [
            options.clone().open(path).unwrap(),
            options.create(true).open(folder.path().join("target")).unwrap(),
        ]
    }

    #[test]
    fn copies_equal_their_sources_and_differences_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let [source, target] = two_files(&folder, 100_003);
        let mut buffers = [Place::Host.alloc(7001).unwrap(), Place::Host.alloc(7001).unwrap()];
        let bar = Bar::of_bytes(100_003, "copying");
        copy(&source, &target, &[0..100_003], &mut buffers, &bar).unwrap();
        compare(&source, &target, &[0..100_003], &bar).unwrap();
        target.write_all_at(&[!fs::read(source.path()).unwrap()[99_999]][..], 99_999).unwrap();
        compare(&source, &target, &[0..99_999, 100_000..100_003], &bar).unwrap();
        let error = compare(&source, &target, &[0..100_003], &bar).unwrap_err().to_string();
        assert!(error.contains("byte 99999 is "), "{error}");
    }

    #[test]
    fn failures_of_either_file_end_the_copy() {
        let folder = tempfile::tempdir().unwrap();
        let [source, target] = two_files(&folder, 50_000);
        let buffers = || [Place::Host.alloc(4096).unwrap(), Place::Host.alloc(4096).unwrap()];
        let bar = Bar::of_bytes(1, "copying");
        // The source ends early.
        let error = copy(&source, &target, &[0..60_000], &mut buffers(), &bar).unwrap_err();
        assert!(error.to_string().contains("ends at byte 50000"), "{error}");
        // The target is open for reading alone.
        let target = File::open(target.path()).unwrap();
        assert!(copy(&source, &target, &[0..50_000], &mut buffers(), &bar).is_err());
    }
}
