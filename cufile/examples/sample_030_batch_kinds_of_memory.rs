//! Writes N entries of 4 KiB from four kinds of memory (`cudaMalloc`, `cudaMallocHost`, `malloc`, `mmap`) with one batch. Then it
//! opens the driver anew, reads them with another batch, and compares. Each entry has its own handle. With NONDIRECT every other
//! handle has no `O_DIRECT`.
//!
//! usage: sample_030_batch_kinds_of_memory FILE GPU N REGISTER NONDIRECT

mod common;

use std::process::ExitCode;
use std::sync::Arc;
use std::{io, ptr};

use common::{KIB, Result, all_of_batch, any, create, open_buffered_to_write, open_to_write, require_same};
use cufile::{Batch, Driver, Entry, FileHandle, IoBuf, IoBufMut, Location};

const LEN: usize = 4 * KIB;
const MARK: u8 = 0xab;

fn main() -> ExitCode {
    common::run("FILE GPU N REGISTER NONDIRECT", |arguments| {
        create(arguments.path(0)?)?;
        session(&arguments, true)?;
        session(&arguments, false)?;
        let count: u8 = arguments.number(2)?;
        println!("wrote and read {count} entries of {LEN} bytes in four kinds of memory");
        Ok(())
    })
}

fn session(arguments: &common::Arguments, writes: bool) -> Result {
    let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
    let (register, nondirect) = (arguments.flag(3)?, arguments.flag(4)?);
    let driver = Driver::open()?;
    let device = driver.cuda().device(arguments.number(1)?)?;
    let files: Vec<_> = (0..count)
        .map(|id| {
            let file =
                if nondirect && id % 2 == 1 { open_buffered_to_write(path) } else { open_to_write(path) };
            Ok(Arc::new(FileHandle::register(&driver, file?)?))
        })
        .collect::<Result<_>>()?;
    let mut entries = Vec::new();
    for (id, file) in files.iter().enumerate() {
        let mut buffer = match id % 4 {
            0 => any(&driver, device.alloc(LEN)?, register)?,
            1 => any(&driver, device.alloc_pinned(LEN)?, register)?,
            2 => any(&driver, vec![0u8; LEN], register)?,
            _ => any(&driver, Pages::map()?, register)?,
        };
        driver.cuda().fill(&mut buffer, if writes { MARK } else { 0 })?;
        let (offset, id) = ((id * LEN) as u64, id as u64);
        let new = if writes { Entry::write } else { Entry::read };
        entries.push(new(file, buffer, offset).id(id));
    }

    let mut batch = Batch::new(&driver, count)?;
    batch.submit(entries)?;
    let buffers = all_of_batch(batch.wait_all()?, count, LEN)?;
    for (id, buffer) in buffers.iter().enumerate() {
        let mut found = vec![0; LEN];
        driver.cuda().copy(buffer, &mut found)?;
        require_same(&found, &[MARK; LEN], &format!("entry {id}"))?;
    }

    drop(batch);
    drop(buffers);
    drop(files);
    driver.close()?;
    Ok(())
}

/// Anonymous memory of `LEN` bytes.
struct Pages(*mut u8);

// SAFETY: owns memory that any thread may use.
unsafe impl Send for Pages {}

impl Pages {
    fn map() -> io::Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let pages = unsafe { libc::mmap(ptr::null_mut(), LEN, access, flags, -1, 0) };
        if pages == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(pages.cast())) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped once.
        unsafe { libc::munmap(self.0.cast(), LEN) };
    }
}

// SAFETY: stays mapped at its address until dropped.
unsafe impl IoBuf for Pages {
    fn as_ptr(&self) -> *const u8 {
        self.0
    }

    fn len_bytes(&self) -> usize {
        LEN
    }

    fn location(&self) -> Location {
        Location::HOST
    }
}

// SAFETY: `&mut self` is the only access to the memory.
unsafe impl IoBufMut for Pages {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0
    }
}
