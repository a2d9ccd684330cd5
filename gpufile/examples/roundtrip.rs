//! Writes random bytes from GPU memory to a file, reads them back, and compares checksums.
//!
//! usage: roundtrip [--size 256MiB] [--cufile | --posix] [PATH]
//!
//! PATH is a file to create, or a folder to create one in (the system's folder for temporary files by default). The
//! example removes the file at the end. With `--cufile`, it uses cuFile even in its compatibility mode; with
//! `--posix`, it never uses cuFile. Without a GPU, it uses host memory. The exit status is 0 only if the checksums
//! match.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use gpufile::cuda::DeviceBuffer;
use gpufile::{Engine, File, IoBufMut, OpenOptions, RoutePolicy};
use sha2::{Digest, Sha256};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("roundtrip: the bytes read back differ from those written");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("roundtrip: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Arguments {
    len_bytes: usize,
    policy: RoutePolicy,
    path: PathBuf,
}

fn run() -> Result<bool> {
    let Arguments { len_bytes, policy, path } = arguments()?;
    let file = OpenOptions::new().read(true).write(true).create_new(true).policy(policy).open(&path)?;
    let _removed = RemoveAtEnd(&path);
    let source = random_bytes(len_bytes)?;
    let written = Sha256::digest(&source);

    let read = match Engine::global().cuda().and_then(|cuda| Ok(cuda.device(0)?)) {
        Ok(device) => {
            println!("{len_bytes} bytes of GPU memory ({}), file {}", device.name()?, path.display());
            let mut buffer = device.alloc(len_bytes)?;
            buffer.copy_from_host(0, &source)?;
            let clear = |buffer: &mut DeviceBuffer| buffer.fill(0);
            there_and_back(&file, &mut buffer, clear)?;
            println!("route: {}", file.route());
            Sha256::digest(buffer.to_vec()?)
        }
        Err(reason) => {
            println!(
                "{len_bytes} bytes of host memory, because there is no GPU ({reason}), file {}",
                path.display()
            );
            let mut buffer = source;
            let clear = |buffer: &mut Vec<u8>| {
                buffer.fill(0);
                Ok(())
            };
            there_and_back(&file, &mut buffer, clear)?;
            println!("route: plain reads and writes of host memory");
            Sha256::digest(buffer)
        }
    };
    println!("SHA-256 written {written:x}\nSHA-256 read    {read:x}");
    Ok(written == read)
}

/// Writes the buffer, clears it, and reads it back, both timed.
fn there_and_back<B: IoBufMut>(
    file: &File,
    buffer: &mut B,
    clear: impl FnOnce(&mut B) -> cufile::Result<()>,
) -> Result<()> {
    // Work that happens once, for example opening the cuFile driver, is not part of the transfer.
    file.route();
    let len_bytes = buffer.len_bytes();
    let gigabytes_per_second = |start: Instant| len_bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
    let start = Instant::now();
    file.write_all_at(buffer, 0)?;
    println!("write: {:.2} GB/s", gigabytes_per_second(start));
    clear(buffer)?;
    let start = Instant::now();
    file.read_exact_at(buffer, 0)?;
    println!("read:  {:.2} GB/s", gigabytes_per_second(start));
    Ok(())
}

fn arguments() -> Result<Arguments> {
    let (mut len_bytes, mut policy, mut path) = (256 << 20, RoutePolicy::Auto, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--size" => len_bytes = size(&arguments.next().ok_or("--size needs a value, such as 256MiB")?)?,
            "--cufile" => policy = RoutePolicy::RequireCufile,
            "--posix" => policy = RoutePolicy::PosixOnly,
            option if option.starts_with('-') => {
                return Err(format!(
                    "{option}: no such option; usage: roundtrip [--size 256MiB] [--cufile | --posix] [PATH]"
                )
                .into());
            }
            _ if path.is_some() => return Err("more than one PATH".into()),
            _ => path = Some(PathBuf::from(argument)),
        }
    }
    let path = path.unwrap_or_else(std::env::temp_dir);
    let name = format!("roundtrip-{}.bin", std::process::id());
    Ok(Arguments { len_bytes, policy, path: if path.is_dir() { path.join(name) } else { path } })
}

/// Returns a size such as `4096`, `64KiB`, `256MiB` or `1GiB` in bytes.
fn size(text: &str) -> Result<usize> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(format!("--size {text}: expected bytes, or a number with KiB, MiB or GiB").into()),
    };
    let number: usize = digits.parse().map_err(|error| format!("--size {text}: {error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("--size {text}: too large").into())
}

/// Returns random bytes, different in each run and at each place of the file.
fn random_bytes(len_bytes: usize) -> Result<Vec<u8>> {
    let mut seed = [0; 8];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut seed)?;
    let mut state = u64::from_le_bytes(seed) | 1;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len_bytes.next_multiple_of(8))?;
    while bytes.len() < len_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    Ok(bytes)
}

struct RemoveAtEnd<'a>(&'a Path);

impl Drop for RemoveAtEnd<'_> {
    fn drop(&mut self) {
        // The report is right even if the file cannot be removed.
        let _ = fs::remove_file(self.0);
    }
}
