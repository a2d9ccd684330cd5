//! Reads N entries of 128 KiB with one batch into four kinds of memory (`cudaMalloc`, `cudaMallocHost`, `malloc`,
//! `mmap`). Then it writes them after the original with the same batch, and compares.
//!
//! usage: sample_030_batch_kinds_of_memory FILE GPU N REGISTER NONDIRECT

mod common;

use std::process::ExitCode;
use std::sync::Arc;
use std::{io, ptr};

use common::{
    KIB, all_of_batch, any, make_file, open_buffered_to_write, open_to_write, pattern, require_contents,
};
use cufile::{Batch, Driver, Entry, FileHandle, IoBuf, IoBufMut, Location};

const LEN: usize = 128 * KIB;

fn main() -> ExitCode {
    common::run("FILE GPU N REGISTER NONDIRECT", |arguments| {
        let (path, count) = (arguments.path(0)?, arguments.number::<u8>(2)?.into());
        let register = arguments.flag(3)?;
        let open = if arguments.flag(4)? { open_buffered_to_write } else { open_to_write };
        make_file(path, count * LEN)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(arguments.number(1)?)?;
        let file = Arc::new(FileHandle::register(&driver, open(path)?)?);
        let mut reads = Vec::new();
        for id in 0..count {
            let buffer = match id % 4 {
                0 => any(&driver, device.alloc(LEN)?, register)?,
                1 => any(&driver, device.alloc_pinned(LEN)?, register)?,
                2 => any(&driver, vec![0u8; LEN], register)?,
                _ => any(&driver, Pages::map()?, register)?,
            };
            reads.push(Entry::read(&file, buffer, (id * LEN) as u64).id(id as u64));
        }

        let mut batch = Batch::new(&driver, count)?;
        batch.submit(reads)?;
        let buffers = all_of_batch(batch.wait_all()?, count, LEN)?;
        let write = |(id, buffer)| Entry::write(&file, buffer, ((count + id) * LEN) as u64).id(id as u64);
        batch.submit(buffers.into_iter().enumerate().map(write))?;
        let buffers = all_of_batch(batch.wait_all()?, count, LEN)?;

        drop(batch);
        drop(buffers);
        drop(file);
        driver.close()?;
        require_contents(path, (count * LEN) as u64, &pattern(count * LEN))?;
        println!("read and wrote {count} entries of {LEN} bytes in four kinds of memory");
        Ok(())
    })
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
