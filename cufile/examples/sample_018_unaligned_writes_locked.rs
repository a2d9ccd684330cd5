//! Writes unaligned pieces of one file, which share 4 KiB blocks, in three threads that exclude each other with locks.
//!
//! cuFile writes an unaligned range by reading whole blocks, changing them and writing them back. So each thread
//! locks whole blocks. A lock belongs to an open file description (`F_OFD_SETLKW`), and each thread opens the file
//! again. Locks of a process (`F_SETLKW`) never exclude its threads.
//!
//! usage: sample_018_unaligned_writes_locked FILE

mod common;

use std::process::ExitCode;

use std::os::fd::AsRawFd;
use std::{io, mem};

use common::{Result, all_of, create, in_threads, open_to_write, require_contents};
use cufile::{Driver, FileHandle};

const THREADS: usize = 3;
const PIECES: usize = 96;
const PIECE: usize = 10_007;
const BLOCK: usize = 4096;

fn main() -> ExitCode {
    common::run("FILE", |arguments| {
        let path = arguments.path(0)?;
        create(path)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(0)?;
        in_threads(0..THREADS, |number| {
            let file = FileHandle::register(&driver, open_to_write(path)?)?;
            let mut buffer = device.alloc(PIECE)?;
            buffer.fill(mark(number))?;
            for piece in (number..PIECES).step_by(THREADS) {
                let offset = piece * PIECE;
                lock(&file, libc::F_WRLCK, offset)?;
                let written = file.write_at(&buffer, offset as u64)?;
                lock(&file, libc::F_UNLCK, offset)?;
                all_of(written, PIECE, "cuFileWrite")?;
            }
            drop(buffer);
            drop(file.deregister());
            Ok(())
        })?;
        driver.close()?;
        let expected: Vec<u8> = (0..PIECES).flat_map(|piece| [mark(piece); PIECE]).collect();
        require_contents(path, 0, &expected)?;
        println!("{THREADS} threads wrote {PIECES} pieces of {PIECE} bytes, and all of them are there");
        Ok(())
    })
}

/// Returns the byte with which a thread fills a piece.
fn mark(piece: usize) -> u8 {
    (piece % THREADS) as u8 + 1
}

/// Locks or unlocks every block that a piece at `offset` touches. Waits until other threads have unlocked them.
fn lock(file: &FileHandle, kind: libc::c_int, offset: usize) -> Result {
    let (start, end) = (offset / BLOCK * BLOCK, (offset + PIECE).next_multiple_of(BLOCK));
    // SAFETY: all-zero is a valid lock.
    let mut range: libc::flock = unsafe { mem::zeroed() };
    range.l_type = kind as i16;
    range.l_whence = libc::SEEK_SET as i16;
    (range.l_start, range.l_len) = (start as i64, (end - start) as i64);
    let descriptor = file.descriptor().ok_or("a file has a descriptor")?;
    // SAFETY: the descriptor is open, and the call only reads the lock.
    match unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_OFD_SETLKW, &range) } {
        -1 => Err(format!("F_OFD_SETLKW: {}", io::Error::last_os_error()).into()),
        _ => Ok(()),
    }
}
