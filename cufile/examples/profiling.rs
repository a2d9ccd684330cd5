//! Measures reads of three sizes, and prints libcufile's statistics next to the measurements.
//!
//! usage: profiling FILE [GPU [SIZE]]
//!
//! The example reads SIZE bytes (64MiB by default), a quarter and a 64th of it, five times each, into a registered
//! buffer. FILE must have five times SIZE bytes. The example compares the bytes of each read with the file.
//!
//! Use the host's clock, because `cuFileRead` returns when the bytes are there. It is not ordered with any stream, so
//! events recorded in a stream around it measure something else.

mod common;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::measure::{gpu, report, size};
use common::{MIB, Result, all_of, contents, open_to_read, require_same};
use cufile::cuda::{Device, DeviceBuffer};
use cufile::stats::Level;
use cufile::{Driver, ErrorKind, FileHandle, IoBuf, RegisterFlags, RegisteredBuffer};

const READS: usize = 5;

fn main() -> ExitCode {
    common::run("FILE [GPU [SIZE]]", |arguments| {
        let largest = size(&arguments, 2, 64 * MIB)?;
        let driver = Driver::open()?;
        let device = driver.cuda().device(gpu(&arguments, 1)?)?;
        let file = FileHandle::register(&driver, open_to_read(arguments.path(0)?)?)?;
        let contents = contents(arguments.path(0)?, READS * largest)?;

        let statistics = driver.statistics();
        let counting = statistics.set_level(Level::Basic).and_then(|()| statistics.start());
        let mut profile = Profile::default();
        for len in [largest / 64, largest / 4, largest].into_iter().filter(|len| *len > 0) {
            let buffer = buffer(&driver, &device, len)?;
            profile.read(&file, buffer, &contents)?;
        }
        report("profiling", "summary", profile.bytes, profile.elapsed);
        println!("{} reads, {:?} each", profile.reads, profile.elapsed / profile.reads);

        match counting {
            Ok(()) => {
                let read = statistics.basic()?.read;
                println!(
                    "libcufile counted {} reads of {} bytes, {:?} each",
                    read.operations.ok, read.bytes, read.average_latency
                );
                statistics.stop()?;
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                println!("libcufile counts nothing: {error}")
            }
            Err(error) => return Err(error.into()),
        }
        println!("contents match");
        Ok(())
    })
}

#[derive(Default)]
struct Profile {
    reads: u32,
    bytes: usize,
    elapsed: Duration,
}

impl Profile {
    fn read(&mut self, file: &FileHandle, mut buffer: Buffer, contents: &[u8]) -> Result {
        let cuda = file.driver().cuda();
        let mut found = vec![0; buffer.get().len_bytes()];
        let mut sum = Duration::ZERO;
        for (index, expected) in contents.chunks_exact(found.len()).take(READS).enumerate() {
            cuda.fill(&mut buffer, 0x5a)?;
            let start = Instant::now();
            let bytes = file.read_at(&mut buffer, (index * expected.len()) as u64)?;
            sum += start.elapsed();
            all_of(bytes, expected.len(), "cuFileRead")?;
            cuda.copy(&buffer, &mut found)?;
            require_same(&found, expected, "the buffer")?;
        }
        report("profiling", &format!("{READS}-reads-of-{}", found.len()), READS * found.len(), sum);
        self.reads += READS as u32;
        self.bytes += READS * found.len();
        self.elapsed += sum;
        Ok(())
    }
}

type Buffer = RegisteredBuffer<DeviceBuffer>;

fn buffer(driver: &Driver, device: &Device, len: usize) -> Result<Buffer> {
    Ok(RegisteredBuffer::register(driver, device.alloc(len)?, RegisterFlags::empty())?)
}
