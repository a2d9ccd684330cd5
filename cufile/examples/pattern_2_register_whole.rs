//! I/O pattern 2 of NVIDIA's best practices: registers the whole buffer once, and fills it with reads at buffer
//! offsets.
//!
//! usage: pattern_2_register_whole FILE [GPU [SIZE]]
//!
//! FILE must have SIZE bytes (1GiB by default). Ten reads of 100/1024 of it fill a buffer of GPU memory, which is
//! then compared with the file. Use this pattern for a buffer that is filled again and again. The first line includes
//! the time of the registration. The second line shows later fills, the third a registration for each read (pattern
//! 1).

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
        let mut pattern = Pattern::new(2, &arguments, sizes, buffer)?;

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

        pattern.measure("registered-for-each-read", 0, 0, |buffer| {
            timed(|| {
                for (index, mut part) in buffer.slice_mut(..).chunks(read).take(READS).enumerate() {
                    driver.with_registered_mut(
                        &mut part,
                        RegisterFlags::empty(),
                        |mut part| -> Result {
                            all_of(file.read_at(&mut part, (index * read) as u64)?, read, "cuFileRead")
                        },
                    )??;
                }
                Ok(())
            })
        })?;
        println!("contents match");
        Ok(())
    })
}

/// Passes the registered address and an offset to cuFile, never an address inside of the registration.
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
