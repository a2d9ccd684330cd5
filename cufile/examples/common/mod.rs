//! Code that the samples share apart from cuFile: arguments, files, checksums, and the conditions of success.

#![allow(dead_code, reason = "each sample uses a part of it")]

pub mod measure;

use std::error::Error;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use cufile::{Completion, Driver, IoBufMut, RegisterFlags, RegisteredBuffer};
use sha2::{Digest, Sha256};

pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// The bytes of a vector in the samples with mapped memory.
pub const VECTOR: usize = 110 * MIB;

/// Runs a sample. Returns exit status 0 only on success; otherwise prints the error to the standard error output.
pub fn run(usage: &'static str, sample: impl FnOnce(Arguments) -> Result) -> ExitCode {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    let result = sample(Arguments { words: words.collect(), usage });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

pub struct Arguments {
    words: Vec<String>,
    usage: &'static str,
}

impl Arguments {
    pub fn path(&self, position: usize) -> Result<&Path> {
        self.word(position).map(Path::new)
    }

    pub fn number<N: std::str::FromStr<Err: Display>>(&self, position: usize) -> Result<N> {
        let word = self.word(position)?;
        word.parse().map_err(|error| format!("{word}: {error}; arguments: {}", self.usage).into())
    }

    /// Returns the word at `position`, if there is one.
    pub fn optional(&self, position: usize) -> Option<&str> {
        self.words.get(position).map(String::as_str)
    }

    /// Returns whether the word at `position` is a number other than 0.
    pub fn flag(&self, position: usize) -> Result<bool> {
        Ok(self.number::<u32>(position)? != 0)
    }

    /// Does the same for an optional word; a missing word counts as 0.
    pub fn optional_flag(&self, position: usize) -> Result<bool> {
        Ok(self.optional(position).is_some() && self.flag(position)?)
    }

    fn word(&self, position: usize) -> Result<&str> {
        self.optional(position).ok_or_else(|| format!("arguments: {}", self.usage).into())
    }
}

/// A buffer for a batch of different kinds of memory.
pub type Any = Box<dyn IoBufMut + Send>;

pub fn any<B: IoBufMut + Send + 'static>(driver: &Driver, buffer: B, register: bool) -> Result<Any> {
    match register {
        true => Ok(Box::new(RegisteredBuffer::register(driver, buffer, RegisterFlags::empty())?)),
        false => Ok(Box::new(buffer)),
    }
}

/// Opens for reading, with `O_DIRECT` where the file system has it.
pub fn open_to_read(path: &Path) -> Result<File> {
    open(path, OpenOptions::new().read(true))
}

/// Opens for reading through the page cache.
pub fn open_buffered_to_read(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| about(path, error))
}

/// Opens an existing file for reading and writing through the page cache.
pub fn open_buffered_to_write(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| about(path, error))
}

/// Creates or empties a file for writing and reading, with `O_DIRECT` where the file system has it.
pub fn create(path: &Path) -> Result<File> {
    open(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
}

/// Opens an existing file for writing and reading, with `O_DIRECT` where the file system has it.
pub fn open_to_write(path: &Path) -> Result<File> {
    open(path, OpenOptions::new().read(true).write(true))
}

fn open(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let direct = options.clone().custom_flags(libc::O_DIRECT).open(path);
    let file = match direct {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => options.open(path),
        opened => opened,
    };
    file.map_err(|error| about(path, error))
}

/// Creates a file in the page cache, for the samples that show cuFile without `O_DIRECT`.
pub fn create_buffered(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).open(path).map_err(|error| about(path, error))
}

/// Returns the length of a file. Fails unless it has at least `len_bytes`.
pub fn require_len(path: &Path, len_bytes: usize) -> Result<usize> {
    let found = std::fs::metadata(path).map_err(|error| about(path, error))?.len();
    if found < len_bytes as u64 {
        return Err(format!("{} has {found} bytes, {len_bytes} are needed", path.display()).into());
    }
    Ok(found as usize)
}

/// Fails unless the file has these bytes at `offset`, by plain reads.
pub fn require_contents(path: &Path, offset: u64, expected: &[u8]) -> Result {
    let file = File::open(path).map_err(|error| about(path, error))?;
    let mut found = vec![0; expected.len().min(MIB)];
    for (number, expected) in expected.chunks(MIB).enumerate() {
        let (found, at) = (&mut found[..expected.len()], offset + (number * MIB) as u64);
        file.read_exact_at(found, at).map_err(|error| about(path, error))?;
        if found != expected {
            return Err(format!("{}: bytes {at} and on are not those of the buffer", path.display()).into());
        }
    }
    Ok(())
}

/// Runs `work` on each item in another thread. Waits for all of them, then returns the first failure.
pub fn in_threads<T: Send>(items: impl IntoIterator<Item = T>, work: impl Fn(T) -> Result + Sync) -> Result {
    thread::scope(|threads| {
        let work = &work;
        let running: Vec<_> = items.into_iter().map(|item| threads.spawn(move || work(item))).collect();
        let results: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        results.into_iter().try_for_each(|result| result.unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

/// Makes a file of `len_bytes` by plain writes, with bytes that differ from place to place.
pub fn make_file(path: &Path, len_bytes: usize) -> Result {
    let mut file = File::create(path).map_err(|error| about(path, error))?;
    file.write_all(&pattern(len_bytes)).map_err(|error| about(path, error))?;
    Ok(file.sync_all()?)
}

pub fn write_file(path: &Path, bytes: &[u8]) -> Result {
    std::fs::write(path, bytes).map_err(|error| about(path, error))
}

/// Reads the first `len_bytes` of a file by plain reads. Fails if the file is shorter.
pub fn contents(path: &Path, len_bytes: usize) -> Result<Vec<u8>> {
    require_len(path, len_bytes)?;
    let mut bytes = vec![0; len_bytes];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| about(path, error))?;
    Ok(bytes)
}

pub fn require_same(found: &[u8], expected: &[u8], what: &str) -> Result {
    if found == expected {
        return Ok(());
    }
    let place = found.iter().zip(expected).position(|(found, expected)| found != expected);
    Err(format!("{what}: the contents differ at byte {}", place.unwrap_or(found.len().min(expected.len())))
        .into())
}

/// Returns the sums of two vectors of 64-bit numbers, in place of a kernel.
pub fn add(one: &[u8], other: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
    let mut sums = one.to_vec();
    for (sum, other) in sums.chunks_exact_mut(8).zip(other.chunks_exact(8)) {
        let added = number(sum).wrapping_add(number(other));
        sum.copy_from_slice(&added.to_ne_bytes());
    }
    sums
}

/// Returns bytes that differ from place to place, so that a test notices a shifted or repeated range.
pub fn pattern(len_bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// Fails unless a transfer moved all of its bytes.
pub fn all_of(moved: usize, expected: usize, what: &str) -> Result {
    if moved == expected {
        return Ok(());
    }
    Err(format!("{what}: {moved} of {expected} bytes").into())
}

/// Returns the buffers of a batch in the order of their entries' numbers. Fails unless the entries 0 to `count`
/// came back, each once and with all of its `len_bytes`.
pub fn all_of_batch<B>(
    mut completions: Vec<Completion<B>>,
    count: usize,
    len_bytes: usize,
) -> Result<Vec<B>> {
    completions.sort_by_key(|completion| completion.id);
    if !completions.iter().map(|completion| completion.id).eq(0..count as u64) {
        return Err(format!("{} of {count} entries came back, or one twice", completions.len()).into());
    }
    let whole = |Completion { id, result, buffer, .. }: Completion<B>| {
        all_of(result?, len_bytes, &format!("entry {id}"))?;
        buffer.ok_or_else(|| format!("entry {id} came back without its buffer").into())
    };
    completions.into_iter().map(whole).collect()
}

/// Compares the first `len_bytes` of two files by SHA-256, and prints the success line of the samples.
pub fn compare_sha(one: &Path, other: &Path, len_bytes: usize) -> Result {
    if sha256(one, len_bytes)? != sha256(other, len_bytes)? {
        return Err(format!("SHA SUM Mismatch: {} and {} differ", one.display(), other.display()).into());
    }
    println!("SHA SUM Match");
    Ok(())
}

/// Returns the place of the first 64-bit number equal to `number`, in numbers.
pub fn find(numbers: &[u8], number: &[u8]) -> Option<usize> {
    numbers.chunks_exact(8).position(|candidate| candidate == number)
}

/// Prints the success line of the samples that calculate, if the result is as expected.
pub fn pass_if_same(found: &[u8], expected: &[u8]) -> Result {
    require_same(found, expected, "the result")?;
    println!("Result = PASS");
    Ok(())
}

fn sha256(path: &Path, len_bytes: usize) -> Result<[u8; 32]> {
    let file = File::open(path).map_err(|error| about(path, error))?;
    let (mut hash, mut left) = (Sha256::new(), file.take(len_bytes as u64));
    let read = io::copy(&mut left, &mut hash).map_err(|error| about(path, error))?;
    all_of(read as usize, len_bytes, &path.display().to_string())?;
    Ok(hash.finalize().into())
}

fn about(path: &Path, error: io::Error) -> Box<dyn Error + Send + Sync> {
    format!("{}: {error}", path.display()).into()
}
