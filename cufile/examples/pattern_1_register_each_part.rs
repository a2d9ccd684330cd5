//! I/O pattern 1 of NVIDIA's best practices: registers each part of a buffer only for the read that fills it.
//!
//! usage: pattern_1_register_each_part FILE [GPU [SIZE]]
//!
//! FILE must have SIZE bytes (1GiB by default). Ten reads of 100/1024 of it fill a buffer of GPU memory, which is
//! then compared with the file. Avoid this pattern, because each registration costs time. The second line shows the
//! speed with one registration, whose time counts too.

mod common;

use std::process::ExitCode;

use common::measure::{Pattern, READS, Sizes, gpu, timed};
use common::{Result, all_of, open_to_read};
use cufile::{Driver, FileHandle, RegisterFlags};

fn main() -> ExitCode {
    common::run("FILE [GPU [SIZE]]", |arguments| {
        let driver = Driver::open()?;
        let file = FileHandle::register(&driver, open_to_read(arguments.path(0)?)?)?;
        let sizes = Sizes::from(&arguments, 2)?;
        let read = sizes.read;
        let buffer = driver.cuda().device(gpu(&arguments, 1)?)?.alloc(sizes.buffer)?;
        let mut pattern = Pattern::new(1, &arguments, sizes, buffer)?;

        pattern.measure("registered-for-each-read", 0, 0, |buffer| {
            timed(|| {
                for (index, mut part) in buffer.slice_mut(..).chunks(read).take(READS).enumerate() {
                    driver.with_registered_mut(
                        &mut part,
                        RegisterFlags::empty(),
                        |mut part| -> Result {
                            all_of(file.read_at(&mut part, (index * read) as u64)?, read, "cuFileRead")
                            // Here a kernel would use the part.
                        },
                    )??;
                }
                Ok(())
            })
        })?;

        pattern.measure("registered-once", 0, 0, |buffer| {
            timed(|| {
                driver.with_registered_mut(buffer, RegisterFlags::empty(), |buffer| {
                    for (index, mut part) in buffer.chunks(read).take(READS).enumerate() {
                        all_of(file.read_at(&mut part, (index * read) as u64)?, read, "cuFileRead")?;
                    }
                    Ok(())
                })?
            })
        })?;
        println!("contents match");
        Ok(())
    })
}
