use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::outcome::{Outcome, Stop, done_bytes};
use super::page_cache;
use super::read::{BounceRead, DIRECT_MIN_BYTES};
use super::*;
use crate::gpu::bounce::Bounce;
use crate::settings::DirectIo;

fn done(outcome: &Outcome, len_bytes: usize) -> usize {
    assert!(matches!(outcome, Ok(()) | Err(Stop { cause: None, .. })), "{outcome:?}");
    done_bytes(outcome, len_bytes)
}

/// A length in bytes that exceeds the bounce buffers of the tests.
const LEN: usize = 300_000;

/// Opens a file in the folder of the build, which is often on a disk.
fn open(direct_read: DirectIo, direct_write: DirectIo) -> OpenFile {
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    OpenFile::for_test(file, Settings { direct_read, direct_write, ..Settings::default() })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

/// Returns the next number of a repeatable sequence that looks random.
fn random(state: &mut u64, most: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % most
}

const CHOICES: [DirectIo; 3] = [DirectIo::Always, DirectIo::Never, DirectIo::Auto];

#[test]
fn host_memory_is_written_at_any_address_and_offset() {
    for direct_write in CHOICES {
        let open = open(DirectIo::Never, direct_write);
        let (mut expected, mut state) = (vec![0; LEN], 7);
        open.file.set_len(LEN as u64).unwrap();
        let mut bounce = Bounce::new(16 << 10);
        for round in 0..150 {
            let at = random(&mut state, LEN);
            let at = if round % 3 == 0 { at / 4096 * 4096 } else { at };
            let len = random(&mut state, [300, 9000, 100_000][round % 3]).min(LEN - at);
            let shift = random(&mut state, 3);
            let source: Vec<u8> = (0..shift + len).map(|byte| (byte + round) as u8).collect();
            // SAFETY: the source has as many bytes.
            let outcome = unsafe {
                let source = source[shift..].as_ptr();
                open.write_from_host(source, len, at as u64, &mut bounce)
            };
            assert!(outcome.is_ok(), "{len} bytes at {at}: {outcome:?}");
            expected[at..at + len].copy_from_slice(&source[shift..]);
        }
        let mut found = vec![0; LEN];
        open.file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected, "{direct_write:?}");
    }
}

#[test]
fn host_memory_is_read_at_any_address_and_offset() {
    let bytes = pattern(LEN);
    for direct_read in CHOICES {
        let open = open(direct_read, DirectIo::Never);
        open.file.write_all_at(&bytes, 0).unwrap();
        page_cache::evict(&open, 0..u64::MAX).unwrap();
        let (mut bounce, mut state) = (Bounce::new(16 << 10), 11);
        for round in 0..150 {
            let at = random(&mut state, LEN + 5000);
            let at = if round % 3 == 0 { at / 4096 * 4096 } else { at };
            let len = random(&mut state, [300, 9000, 200_000][round % 3]);
            let shift = random(&mut state, 3);
            let mut target = vec![0; shift + len + 1];
            // SAFETY: the target has `len` bytes behind `shift`.
            let outcome =
                unsafe { open.read_to_host(target[shift..].as_mut_ptr(), len, at as u64, &mut bounce) };
            let expected = &bytes[at.min(LEN)..(at + len).min(LEN)];
            let done = done(&outcome, len);
            assert_eq!(done, expected.len(), "{len} bytes at {at}");
            assert!(target[shift..][..done] == *expected, "{direct_read:?}: {len} bytes at {at}");
            assert!(target[..shift].iter().chain(&target[shift + len..]).all(|byte| *byte == 0));
        }
    }
}

#[test]
fn bounce_reads_keep_the_bytes_before_them() {
    let bytes = pattern(LEN);
    for direct_read in CHOICES {
        let open = open(direct_read, DirectIo::Never);
        open.file.write_all_at(&bytes, 0).unwrap();
        page_cache::evict(&open, 0..u64::MAX).unwrap();
        for (end, offset, len, behind) in [
            (0, 0, 4096, 0),
            (5, 4097, 10_000, 0),
            (5000, 777, 8000, 3000),
            (5, 777, 8000, 20_000),
            (1, LEN - 9, 50, 0),
        ] {
            let mut bounce = Bounce::new(28_000);
            let room = bounce.len_bytes();
            // SAFETY: the buffer has at least `end` bytes.
            unsafe { bounce.ptr().write_bytes(9, end) };
            let BounceRead { start, outcome } =
                open.read_to_bounce(&mut bounce, end, offset as u64, len, behind);
            let expected = &bytes[offset..(offset + len).min(LEN)];
            let done = done(&outcome, len);
            assert_eq!(done, expected.len());
            assert!(start >= end && start + len + behind <= room, "{end}, {offset}, {len}");
            // SAFETY: as above.
            let found = unsafe { std::slice::from_raw_parts(bounce.ptr(), room) };
            assert!(found[..end].iter().all(|byte| *byte == 9) && found[start..][..done] == *expected);
        }
    }
}

#[test]
fn direct_writes_keep_their_alignment_in_buffers() {
    let plain = open(DirectIo::Never, DirectIo::Auto);
    assert_eq!(plain.place_for_write(77, 5, 10_000, usize::MAX), 77);
    let open = open(DirectIo::Never, DirectIo::Always);
    assert_eq!(open.place_for_write(77, 5, 4095, usize::MAX), 77, "too short");
    let Some(direct) = open.direct_for_write(4096) else { return eprintln!("skipped: no O_DIRECT here") };
    let block = direct.alignment.up(1);
    for (end, offset) in [(0, 0), (0, 5), (77, 5), (block, 5), (block + 1, block as u64 + 5)] {
        let start = open.place_for_write(end, offset, 4096, usize::MAX);
        assert!((end..end + 2 * block).contains(&start));
        assert_eq!(start as u64 % block as u64, offset % block as u64);
        assert_eq!(open.place_for_write(end, offset, 4096, start + 4096), start);
        assert_eq!(open.place_for_write(end, offset, 4096, start + 4095), end);
    }
}

#[test]
fn long_uncached_reads_are_direct() {
    const MIB: usize = 1 << 20;
    let open = open(DirectIo::Auto, DirectIo::Never);
    // The page cache has room for only a part of the file.
    open.most_cached_bytes.store(4 * MIB as u64 - 1, Ordering::Relaxed);
    open.file.write_all_at(&pattern(4 * MIB), 0).unwrap();
    if open.direct().is_none() {
        return eprintln!("skipped: no O_DIRECT here");
    }
    let is_direct = |offset, len| open.direct_for_read(offset, len).is_some();
    assert!(!is_direct(0, 4 * MIB), "it was written just now");
    page_cache::evict(&open, 0..u64::MAX).unwrap();
    if page_cache::residency(&open, 0..u64::MAX).unwrap().cached > 0 {
        return eprintln!("skipped: pages stay cached here");
    }
    assert!(is_direct(0, DIRECT_MIN_BYTES) && !is_direct(0, DIRECT_MIN_BYTES - 1));
    // SAFETY: the call takes integers only. From now on, the kernel does not read ahead.
    assert_eq!(unsafe { libc::posix_fadvise(open.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) }, 0);
    // First a quarter of the pages is cached, and then more than half.
    open.file.read_exact_at(&mut vec![0; MIB], 0).unwrap();
    assert!(!is_direct(0, MIB) && is_direct(0, 4 * MIB));
    open.file.read_exact_at(&mut vec![0; 3 * MIB], 0).unwrap();
    assert!(!is_direct(0, 4 * MIB));
}

#[test]
fn settings_and_storage_decide_whether_reads_are_buffered() {
    for (direct_read, file_system, expected) in [
        (DirectIo::Always, FileSystem::Tmpfs, [false, false]),
        (DirectIo::Always, FileSystem::LocalDisk, [false, false]),
        (DirectIo::Never, FileSystem::LocalDisk, [true, true]),
        (DirectIo::Auto, FileSystem::LocalDisk, [true, false]),
        (DirectIo::Auto, FileSystem::Other, [true, false]),
        (DirectIo::Auto, FileSystem::Tmpfs, [true, true]),
    ] {
        let mut open = open(direct_read, DirectIo::Never);
        open.file_system = file_system;
        let found = [DIRECT_MIN_BYTES - 1, DIRECT_MIN_BYTES].map(|len| open.is_buffered_read(len));
        assert_eq!(found, expected, "{direct_read:?} on {file_system:?}");
    }
}

#[test]
fn mappings_are_kept_while_they_are_long_enough() {
    let open = open(DirectIo::Never, DirectIo::Never);
    assert!(open.mapping_for_overwriting(0..1).is_none(), "the file has no bytes");
    open.file.set_len(10_000).unwrap();
    let first = open.mapping_for_overwriting(10..5000).unwrap();
    assert_eq!(first.len_bytes(), 10_000);
    assert!(Arc::ptr_eq(&first, &open.mapping_for_overwriting(0..10_000).unwrap()));
    assert!(open.mapping_for_overwriting(0..10_001).is_none());
    open.file.set_len(20_000).unwrap();
    let second = open.mapping_for_overwriting(0..10_001).unwrap();
    assert_eq!(second.len_bytes(), 20_000);
    assert!(!Arc::ptr_eq(&first, &second));
}

#[test]
fn blocks_are_allocated_inside_and_behind_the_file() {
    let open = open(DirectIo::Never, DirectIo::Never);
    let stored = || open.file.metadata().unwrap().blocks() * 512;
    if !open.preallocate(0, 100_000) {
        return eprintln!("skipped: no fallocate here");
    }
    assert_eq!(open.len_bytes().unwrap(), 0);
    assert!(stored() >= 100_000);
    assert!(open.allocate(50_000, 100_000));
    assert_eq!(open.len_bytes().unwrap(), 150_000);
    assert!(!open.allocate(u64::MAX, 1) && !open.allocate(0, u64::MAX));
}

#[test]
fn empty_files_of_other_storage_may_be_generated() {
    for (file_system, len, expected) in
        [(FileSystem::Other, 0, true), (FileSystem::Other, 5, false), (FileSystem::LocalDisk, 0, false)]
    {
        let mut open = open(DirectIo::Never, DirectIo::Never);
        open.file_system = file_system;
        open.file.set_len(len).unwrap();
        assert_eq!(open.is_generated(), expected, "{file_system:?}, {len} bytes");
    }
}

#[test]
fn files_fit_the_cache_up_to_half_the_memory() {
    let available = crate::settings::available::available_bytes();
    for (len_bytes, fits) in [(available / 4, true), (available / 4 * 3, false)] {
        let open = open(DirectIo::Auto, DirectIo::Never);
        open.file.set_len(len_bytes).unwrap();
        assert_eq!(open.fits_page_cache(), fits, "{len_bytes} bytes");
    }
}
