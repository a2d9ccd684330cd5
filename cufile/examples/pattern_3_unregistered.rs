//! I/O pattern 3 of NVIDIA's best practices: reads into an unregistered buffer.
//!
//! usage: pattern_3_unregistered FILE [GPU [SIZE]]
//!
//! FILE must have SIZE bytes (1GiB by default). Ten reads of 100/1024 of it fill a buffer of GPU memory, which is
//! then compared with the file. cuFile uses its bounce buffers, and takes no space in the GPU's BAR. That suits a
//! large buffer that is filled once, because registering it (second line) costs time. The third line shows reads with
//! an earlier registration.

mod common;

use std::process::ExitCode;

use common::measure::{Pattern, READS, Sizes, gpu, timed};
use common::{Result, all_of, open_to_read};
use cufile::{BufSliceMut, Driver, FileHandle, IoBufMut, RegisterFlags};

fn main() -> ExitCode {
    common::run("FILE [GPU [SIZE]]", |arguments| {
        let driver = Driver::open()?;
        let file = FileHandle::register(&driver, open_to_read(arguments.path(0)?)?)?;
        let sizes = Sizes::from(&arguments, 2)?;
        let read = sizes.read;
        let buffer = driver.cuda().device(gpu(&arguments, 1)?)?.alloc(sizes.buffer)?;
        let mut pattern = Pattern::new(3, &arguments, sizes, buffer)?;

        pattern.measure("unregistered", 0, 0, |buffer| timed(|| fill(&file, buffer, read)))?;

        pattern.measure("registered-once", 0, 0, |buffer| {
            timed(|| {
                driver.with_registered_mut(buffer, RegisterFlags::empty(), |mut buffer| {
                    fill(&file, &mut buffer, read)
                })?
            })
        })?;

        pattern.measure("registered-before", 0, 0, |buffer| {
            driver.with_registered_mut(buffer, RegisterFlags::empty(), |mut buffer| {
                timed(|| fill(&file, &mut buffer, read))
            })?
        })?;
        println!("contents match");
        Ok(())
    })
}

fn fill(file: &FileHandle, buffer: &mut impl IoBufMut, read: usize) -> Result {
    for offset in (0..READS).map(|index| index * read) {
        all_of(
            file.read_at(&mut BufSliceMut::new(buffer, offset..offset + read), offset as u64)?,
            read,
            "cuFileRead",
        )?;
        // Here a kernel would use the part.
    }
    Ok(())
}
