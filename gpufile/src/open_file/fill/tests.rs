use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::{io, thread};

use super::*;
use crate::error::Cause;
use crate::settings::Settings;

const MIB: usize = 1 << 20;

/// Returns a file of tmpfs, and pages of it to fill. `None` where the kernel forbids that.
fn filled(old_bytes: usize, range: Range<u64>) -> Option<(OpenFile, Fill)> {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.write_all_at(&vec![9; old_bytes], 0).unwrap();
    let open = OpenFile::for_test(file, Settings::default());
    match Fill::new(&open, range) {
        Ok(fill) => Some((open, fill)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
            eprintln!("not checked: filling new pages, which is not permitted here");
            assert_eq!(open.len_bytes().unwrap(), old_bytes as u64);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn write(open: &OpenFile, fill: &Fill, bytes: &[u8], offset: u64) -> usize {
    let span = Span { offset, len_bytes: bytes.len(), ptr: bytes.as_ptr().cast_mut() };
    // SAFETY: the bytes are borrowed.
    unsafe { fill.write(open, [span].into_iter()) }.unwrap()
}

fn contents(open: &OpenFile) -> Vec<u8> {
    let mut bytes = vec![0; open.len_bytes().unwrap() as usize];
    open.file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn pattern(len_bytes: usize, seed: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| ((at + seed) * 31 % 251) as u8).collect()
}

#[test]
fn spans_with_unaligned_ends_are_written_whole() {
    let (old_bytes, end) = (5000, 3 * MIB + 77);
    let Some((open, fill)) = filled(old_bytes, old_bytes as u64..end as u64) else { return };
    let new = pattern(end - old_bytes, 0);
    assert_eq!(open.len_bytes().unwrap(), end as u64);
    // A short one, two that share a page, a long one, and the last page, which exists.
    let mut start = 0;
    for len_bytes in [100, MIB + 3, 70_001, 4096 * 16, end] {
        let part = &new[start..(start + len_bytes).min(new.len())];
        assert_eq!(write(&open, &fill, part, (old_bytes + start) as u64), part.len());
        start += part.len();
    }
    assert!(contents(&open) == [vec![9; old_bytes], new].concat());
}

#[test]
fn spans_outside_of_the_new_range_are_refused() {
    let Some((open, fill)) = filled(8192, 8192..(8192 + MIB) as u64) else { return };
    let bytes = pattern(MIB, 1);
    assert_eq!(write(&open, &fill, &bytes, 4096), 0);
    assert_eq!(write(&open, &fill, &bytes, 8193), 0);
    assert_eq!(write(&open, &fill, &bytes, u64::MAX - 10), 0);
    assert!(contents(&open) == [vec![9; 8192], vec![0; MIB]].concat());
}

#[test]
fn pages_that_exist_are_left_to_the_caller() {
    let page = page_bytes() as usize;
    let Some((open, fill)) = filled(0, 0..MIB as u64) else { return };
    open.file.write_all_at(&[5], 20 * page as u64).unwrap();
    let bytes = pattern(MIB, 2);
    assert_eq!(write(&open, &fill, &bytes, 0), 20 * page);
    assert_eq!(write(&open, &fill, &bytes[21 * page..200 * page], 21 * page as u64), 179 * page);
    let mut expected = [&bytes[..200 * page], &vec![0; MIB - 200 * page]].concat();
    expected[20 * page..21 * page].fill(0);
    expected[20 * page] = 5;
    assert!(contents(&open) == expected);
}

#[test]
fn files_shortened_meanwhile_get_their_bytes_again() {
    let Some((open, fill)) = filled(0, 0..4 * MIB as u64) else { return };
    let bytes = pattern(4 * MIB, 3);
    open.file.set_len(MIB as u64 + 5).unwrap();
    // The kernel fills no page behind the end.
    let done = write(&open, &fill, &bytes, 0);
    assert!((MIB..MIB + 4096 + 5).contains(&done), "{done}");
    assert!(contents(&open)[..MIB] == bytes[..MIB]);
}

#[test]
fn files_made_longer_by_others_keep_their_length() {
    let Some((open, fill)) = filled(0, 0..MIB as u64) else { return };
    drop(fill);
    open.file.write_all_at(&[1], 5 * MIB as u64).unwrap();
    let fill = Fill::new(&open, MIB as u64..2 * MIB as u64).unwrap();
    assert_eq!(open.len_bytes().unwrap(), 5 * MIB as u64 + 1);
    assert_eq!(write(&open, &fill, &pattern(MIB - 4096, 4), MIB as u64), MIB - 4096);
}

#[test]
fn threads_fill_parts_that_share_pages() {
    const PART: usize = 100_003;
    let Some((open, fill)) = filled(0, 0..(16 * PART) as u64) else { return };
    let (bytes, barrier) = (pattern(16 * PART, 5), Barrier::new(8));
    let write_half = |first: usize| {
        barrier.wait();
        for part in (first..16).step_by(8) {
            let at = part * PART;
            // The last page exists.
            let done = write(&open, &fill, &bytes[at..at + PART], at as u64);
            open.file.write_all_at(&bytes[at + done..at + PART], (at + done) as u64).unwrap();
        }
    };
    thread::scope(|scope| (0..8).for_each(|first| drop(scope.spawn(move || write_half(first)))));
    assert!(contents(&open) == bytes);
}

#[test]
fn unreadable_memory_is_no_signal() {
    let Some((open, fill)) = filled(0, 0..MIB as u64) else { return };
    let span = Span { offset: 0, len_bytes: MIB - 8192, ptr: std::ptr::without_provenance_mut(4096) };
    // SAFETY: not kept: the kernel checks the addresses.
    assert_eq!(unsafe { fill.write(&open, [span].into_iter()) }.unwrap(), 0);
}

#[test]
fn failed_write_calls_are_reported() {
    // SAFETY: the name ends with a NUL.
    let fd = unsafe { libc::memfd_create(c"filled".as_ptr(), libc::MFD_ALLOW_SEALING) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    let open = OpenFile::for_test(unsafe { FromRawFd::from_raw_fd(fd) }, Settings::default());
    let Ok(fill) = Fill::new(&open, 0..4 * MIB as u64) else {
        return eprintln!("not checked: filling new pages, which is not permitted here");
    };
    // From now on write calls fail, and mappings that exist stay writable.
    // SAFETY: the call takes integers only.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) }, 0);
    let bytes = pattern(MIB, 6);
    let span = |offset, range: Range<usize>| Span {
        offset,
        len_bytes: range.len(),
        ptr: bytes[range].as_ptr().cast_mut(),
    };
    for (spans, expected) in [
        (vec![span(0, 0..MIB)], Ok(MIB)),
        (vec![span(100, 0..MIB)], Err(0)),
        (vec![span(MIB as u64, 0..MIB), span(2 * MIB as u64, 0..MIB - 5)], Err(2 * MIB - 4096)),
        (vec![span(3 * MIB as u64, 0..100)], Err(0)),
    ] {
        // SAFETY: the bytes are borrowed.
        let written = unsafe { fill.write(&open, spans.into_iter()) };
        let of_system = |stop: &Stop| matches!(&stop.cause, Some(Cause::Io(error)) if error.raw_os_error() == Some(libc::EPERM));
        assert!(written.as_ref().err().is_none_or(of_system), "{written:?}");
        assert_eq!(written.map_err(|stop| stop.done_bytes), expected);
    }
}

#[test]
fn files_on_disks_cannot_be_filled() {
    let open = OpenFile::for_test(tempfile::tempfile_in(".").unwrap(), Settings::default());
    let error: io::Error = Fill::new(&open, 0..MIB as u64).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM | libc::ENOSYS)), "{error}");
}
