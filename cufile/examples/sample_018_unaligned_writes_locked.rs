//! Writes two unaligned ranges of a file and reads a third one, in three threads that exclude each other with locks.
//!
//! cuFile writes an unaligned range by reading whole blocks, changing them and writing them back. So each thread locks whole
//! blocks.
//!
//! Differs from C: C locks with `F_SETLKW`, which does not exclude the threads of one process. Each thread here locks an open
//! file description of its own (`F_OFD_SETLKW`). In C the read goes into the buffer that the two writes are reading; here it has
//! its own.
//!
//! usage: sample_018_unaligned_writes_locked FILE

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::{io, mem};

use common::{KIB, Result, all_of, contents, in_threads, open_to_write, require_contents, require_same};
use cufile::{Driver, FileHandle};

const BLOCK: usize = 4 * KIB;
const MARK: u8 = 0xab;

#[derive(Clone, Copy)]
enum Work {
    Write { offset: usize, len_bytes: usize },
    Read { offset: usize, len_bytes: usize },
}

const THREADS: [Work; 3] = [
    Work::Write { offset: 10, len_bytes: 100 },
    Work::Write { offset: 50, len_bytes: 200 },
    Work::Read { offset: 1000, len_bytes: 100 },
];

fn main() -> ExitCode {
    common::run("FILE", |arguments| {
        let path = arguments.path(0)?;
        let mut expected = contents(path, BLOCK)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(0)?;
        let file = FileHandle::register(&driver, open_to_write(path)?)?;
        let mut marked = device.alloc(BLOCK)?;
        marked.fill(MARK)?;
        in_threads(THREADS, |work| {
            let locks = open_to_write(path)?;
            match work {
                Work::Write { offset, len_bytes } => {
                    lock(&locks, libc::F_WRLCK, offset, len_bytes)?;
                    let written = file.write_at(&marked.slice(..len_bytes), offset as u64)?;
                    lock(&locks, libc::F_UNLCK, offset, len_bytes)?;
                    all_of(written, len_bytes, "cuFileWrite")
                }
                Work::Read { offset, len_bytes } => {
                    let mut buffer = device.alloc(BLOCK)?;
                    lock(&locks, libc::F_RDLCK, offset, len_bytes)?;
                    let read = file.read_at(&mut buffer.slice_mut(..len_bytes), offset as u64)?;
                    lock(&locks, libc::F_UNLCK, offset, len_bytes)?;
                    all_of(read, len_bytes, "cuFileRead")?;
                    let found = &buffer.to_vec()?[..len_bytes];
                    require_same(found, &expected[offset..offset + len_bytes], "what was read")
                }
            }
        })?;
        drop(file.deregister());
        driver.close()?;
        for work in THREADS {
            if let Work::Write { offset, len_bytes } = work {
                expected[offset..offset + len_bytes].fill(MARK);
            }
        }
        require_contents(path, 0, &expected)?;
        println!("two threads wrote and one read parts of one block");
        Ok(())
    })
}

/// Locks or unlocks every block that a range touches. Waits until other threads have unlocked them.
fn lock(file: &File, kind: libc::c_int, offset: usize, len_bytes: usize) -> Result {
    let (start, end) = (offset / BLOCK * BLOCK, (offset + len_bytes).next_multiple_of(BLOCK));
    // SAFETY: all-zero is a valid lock.
    let mut range: libc::flock = unsafe { mem::zeroed() };
    range.l_type = kind as i16;
    range.l_whence = libc::SEEK_SET as i16;
    (range.l_start, range.l_len) = (start as i64, (end - start) as i64);
    // SAFETY: the descriptor is open, and the call only reads the lock.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLKW, &range) } {
        -1 => Err(format!("F_OFD_SETLKW: {}", io::Error::last_os_error()).into()),
        _ => Ok(()),
    }
}
