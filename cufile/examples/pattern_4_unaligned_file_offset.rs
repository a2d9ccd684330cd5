//! I/O pattern 4 of NVIDIA's best practices: reads whose file offset is not aligned to 4 KiB.
//!
//! usage: pattern_4_unaligned_file_offset FILE [GPU [SIZE]]
//!
//! FILE must have SIZE bytes (1GiB by default). Ten reads of 100/1024 of it, from byte 3 of the file on, fill a
//! buffer of GPU memory, which is then compared with the file. The registration (first line) does not help such
//! reads, because cuFile passes them through its bounce buffers. The second line has no registration. Aligned reads
//! (third line) go straight into the buffer where the machine has a direct path. So use multiples of 4 KiB. In the
//! compatibility mode the host copies all bytes, and the lines differ little.

mod common;

use std::process::ExitCode;

use common::measure::{Pattern, READS, Sizes, gpu, timed};
use common::{Result, all_of, open_to_read};
use cufile::{BufSliceMut, Driver, FileHandle, IoBufMut, RegisterFlags};

/// Not a multiple of 4096 bytes, as after a short header of some file format.
const SHIFT: usize = 3;

fn main() -> ExitCode {
    common::run("FILE [GPU [SIZE]]", |arguments| {
        let driver = Driver::open()?;
        let file = FileHandle::register(&driver, open_to_read(arguments.path(0)?)?)?;
        let sizes = Sizes::from(&arguments, 2)?;
        let read = sizes.read;
        let buffer = driver.cuda().device(gpu(&arguments, 1)?)?.alloc(sizes.buffer)?;
        let mut pattern = Pattern::new(4, &arguments, sizes, buffer)?;

        pattern.measure("unaligned-file-offset-registered", SHIFT, 0, |buffer| {
            timed(|| {
                driver.with_registered_mut(buffer, RegisterFlags::empty(), |mut buffer| {
                    fill(&file, &mut buffer, read, SHIFT)
                })?
            })
        })?;

        pattern.measure("unaligned-file-offset-unregistered", SHIFT, 0, |buffer| {
            timed(|| fill(&file, buffer, read, SHIFT))
        })?;

        pattern.measure("aligned-registered", 0, 0, |buffer| {
            timed(|| {
                driver.with_registered_mut(buffer, RegisterFlags::empty(), |mut buffer| {
                    fill(&file, &mut buffer, read, 0)
                })?
            })
        })?;
        println!("contents match");
        Ok(())
    })
}

fn fill(file: &FileHandle, buffer: &mut impl IoBufMut, read: usize, file_offset: usize) -> Result {
    for offset in (0..READS).map(|index| index * read) {
        let bytes = file
            .read_at(&mut BufSliceMut::new(buffer, offset..offset + read), (file_offset + offset) as u64)?;
        all_of(bytes, read, "cuFileRead")?;
        // Here a kernel would use the part.
    }
    Ok(())
}
