//! Tests of random reads and writes of every kind, compared byte for byte with a model of files and memory.
//!
//! The cases share engines, open files, mappings and bounce buffers, so that leftovers of one case meet the next.
//! `CUFILE_TEST_CASES` is the number of cases. `CUFILE_TEST_SEED` repeats those that failed.

use std::borrow::Cow;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{io, thread};

use cufile::cuda::{Device, DeviceBuffer, ManagedBuffer, PinnedBuffer};
use cufile::{BufSlice, BufSliceMut, FileSystems, IoBuf};
use gpufile::{
    Cause, DirectIo, Engine, Error, File, IoRange, OpenOptions, Request, RouteKind, RoutePolicy, page_cache,
};
use testkit::Emulator;
use testkit::bed::{Bed, folders, pattern};
use testkit::random::{Random, cases, seed};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const LONGEST: usize = 12 * MIB;
const FILE_BYTES: usize = LONGEST + MIB;
/// The number of bytes around a range that are compared after each case.
const MARGIN: usize = 64 * KIB;
const BUFFER_BYTES: usize = LONGEST + 2 * MARGIN;
/// The greatest number of chunks. More take long and show nothing new.
const MOST_CHUNKS: usize = 300;

#[test]
fn random_transfers_match_the_model() {
    let cases = cases(2000);
    let seed = seed();
    // This goes past the test harness, which prints nothing if a worker aborts the process.
    writeln!(io::stderr(), "CUFILE_TEST_SEED={seed} CUFILE_TEST_CASES={cases}").unwrap();
    let noise = pattern(2 * LONGEST);
    let run = |bed: &Bed, cases: u64, seed: u64| {
        for folder in folders() {
            let mut world = World::new(bed, folder.path(), &noise, seed);
            for case in 0..cases {
                world.case = case;
                world.one_case();
            }
            world.check_all();
        }
    };
    let share = cases / folders().len() as u64;
    Bed::each(|bed| run(bed, share - share / 4, seed));
    // Before CUDA 13, each of many copies is a call.
    let old = Emulator::start();
    old.control("runtime-version 12080");
    run(&Bed::on(old), share / 4, seed.wrapping_add(1));
}

enum Memory {
    Device(DeviceBuffer),
    Pinned(PinnedBuffer),
    Managed(ManagedBuffer),
    Host(Vec<u8>),
}

struct Buffer {
    memory: Memory,
    model: Vec<u8>,
}

impl Buffer {
    fn new(memory: Memory) -> Self {
        let mut buffer = Self { memory, model: Vec::new() };
        buffer.model = buffer.get(0..BUFFER_BYTES).into_owned();
        buffer
    }

    fn is_device(&self) -> bool {
        matches!(self.memory, Memory::Device(_))
    }

    fn address(&self) -> usize {
        match &self.memory {
            Memory::Device(memory) => memory.as_ptr().addr(),
            Memory::Pinned(memory) => memory.as_ptr().addr(),
            Memory::Managed(memory) => memory.as_ptr().addr(),
            Memory::Host(memory) => memory.as_ptr().addr(),
        }
    }

    fn slice(&self, range: Range<usize>) -> BufSlice<'_> {
        match &self.memory {
            Memory::Device(memory) => memory.slice(range),
            Memory::Pinned(memory) => BufSlice::new(memory, range),
            Memory::Managed(memory) => BufSlice::new(memory, range),
            Memory::Host(memory) => BufSlice::new(memory, range),
        }
    }

    fn slice_mut(&mut self, range: Range<usize>) -> BufSliceMut<'_> {
        match &mut self.memory {
            Memory::Device(memory) => memory.slice_mut(range),
            Memory::Pinned(memory) => BufSliceMut::new(memory, range),
            Memory::Managed(memory) => BufSliceMut::new(memory, range),
            Memory::Host(memory) => BufSliceMut::new(memory, range),
        }
    }

    fn get(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        match &self.memory {
            Memory::Device(memory) => {
                let mut bytes = vec![0; range.len()];
                memory.copy_to_host(range.start, &mut bytes).unwrap();
                bytes.into()
            }
            Memory::Pinned(memory) => memory[range].into(),
            Memory::Managed(memory) => memory.as_slice().unwrap()[range].into(),
            Memory::Host(memory) => memory[range].into(),
        }
    }

    fn put(&mut self, start: usize, bytes: &[u8]) {
        let range = start..start + bytes.len();
        match &mut self.memory {
            Memory::Device(memory) => memory.copy_from_host(start, bytes).unwrap(),
            Memory::Pinned(memory) => memory[range.clone()].copy_from_slice(bytes),
            Memory::Managed(memory) => memory.copy_from_host(start, bytes).unwrap(),
            Memory::Host(memory) => memory[range.clone()].copy_from_slice(bytes),
        }
        self.model[range].copy_from_slice(bytes);
    }

    fn check(&self, range: Range<usize>) {
        let range = range.start.saturating_sub(MARGIN)..(range.end + MARGIN).min(BUFFER_BYTES);
        assert_same(&self.get(range.clone()), &self.model[range.clone()], "memory", range.start);
    }
}

fn assert_same(found: &[u8], expected: &[u8], what: &str, base: usize) {
    assert_eq!(found.len(), expected.len(), "length of {what}");
    if found != expected {
        let differs = |at: &usize| found[*at] != expected[*at];
        let first = (0..found.len()).find(differs).unwrap();
        let last = (0..found.len()).rfind(differs).unwrap();
        let bytes = (found[first], expected[first]);
        panic!("{what} differs from {} to {}: {} instead of {}", base + first, base + last, bytes.0, bytes.1);
    }
}

struct Contents {
    path: PathBuf,
    file: fs::File,
    model: Vec<u8>,
}

impl Contents {
    fn check(&self, scratch: &mut [u8]) {
        let len = self.file.metadata().unwrap().len() as usize;
        assert_eq!(len, self.model.len(), "length of {}", self.path.display());
        self.file.read_exact_at(&mut scratch[..len], 0).unwrap();
        assert_same(&scratch[..len], &self.model, &self.path.display().to_string(), 0);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.set_len(end.max(self.model.len()));
        self.model[offset..end].copy_from_slice(bytes);
    }

    fn set_len(&mut self, len: usize) {
        self.model.truncate(len);
        // `resize` would take long without optimisation.
        self.model.extend_from_slice(&vec![0; len - self.model.len()]);
    }

    fn replace(&mut self, bytes: &[u8]) {
        self.file.set_len(0).unwrap();
        self.file.write_all_at(bytes, 0).unwrap();
        self.model = bytes.to_vec();
    }
}

struct Open {
    contents: usize,
    file: File,
    reads: bool,
    writes: bool,
    /// The least length in bytes of its chunks, nearly.
    chunk_bytes: usize,
    text: String,
}

fn chunk_bytes(engine: &Engine) -> usize {
    let settings = engine.settings();
    settings.bounce_buffer_bytes.min(settings.chunk_bytes.unwrap_or(usize::MAX)).min(512 * KIB)
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    open: usize,
    offset: usize,
    buffer: usize,
    start: usize,
    len: usize,
}

struct World<'a> {
    bed: &'a Bed,
    folder: &'a Path,
    noise: &'a [u8],
    random: Random,
    seed: u64,
    case: u64,
    doing: String,
    engines: Vec<Engine>,
    /// The engine that transfers over several files use.
    engine: usize,
    contents: Vec<Contents>,
    opens: Vec<Open>,
    buffers: Vec<Buffer>,
    scratch: Vec<u8>,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "CUFILE_TEST_SEED={} in {}, case {}: {}",
                self.seed,
                self.folder.display(),
                self.case,
                self.doing
            );
        }
    }
}

impl<'a> World<'a> {
    fn new(bed: &'a Bed, folder: &'a Path, noise: &'a [u8], seed: u64) -> Self {
        let cuda = bed.device.cuda();
        let devices: Vec<Device> =
            (0..cuda.device_count().unwrap().min(2)).map(|ordinal| cuda.device(ordinal).unwrap()).collect();
        let mut buffers = vec![
            Buffer::new(Memory::Host(vec![0; BUFFER_BYTES])),
            Buffer::new(Memory::Pinned(bed.device.alloc_pinned(BUFFER_BYTES).unwrap())),
            Buffer::new(Memory::Managed(bed.device.alloc_managed(BUFFER_BYTES).unwrap())),
        ];
        // The first GPU is here twice, because most cases are to use it.
        for device in devices.iter().chain(&devices[..1]) {
            buffers.push(Buffer::new(Memory::Device(device.alloc(BUFFER_BYTES).unwrap())));
        }
        let contents = (0..3).map(|number| {
            let path = folder.join(format!("file {number}"));
            let mut options = fs::File::options();
            let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            Contents { path, file, model: Vec::new() }
        });
        let mut world = Self {
            bed,
            folder,
            noise,
            random: Random::new(seed),
            seed,
            case: 0,
            doing: String::new(),
            engines: Vec::new(),
            engine: 0,
            contents: contents.collect(),
            opens: Vec::new(),
            buffers,
            scratch: vec![0; FILE_BYTES],
        };
        for _ in 0..4 {
            let engine = world.new_engine();
            world.engines.push(engine);
        }
        while world.opens.len() < 8 {
            let open = world.new_open();
            world.opens.push(open);
        }
        for buffer in 0..world.buffers.len() {
            let bytes = world.some_noise(BUFFER_BYTES);
            world.buffers[buffer].put(0, bytes);
        }
        world
    }

    fn some_noise(&mut self, len: usize) -> &'a [u8] {
        let start = self.random.below(self.noise.len() - len);
        &self.noise[start..start + len]
    }

    fn new_engine(&mut self) -> Engine {
        let random = &mut self.random;
        let mut engine = Engine::builder()
            .driver(self.bed.driver.clone())
            .threads(1 + random.below(8))
            .bounce_buffer_bytes(random.pick(&[4 * KIB, 8 * KIB, 32 * KIB, 64 * KIB, 64 * KIB, MIB, 4 * MIB]))
            .gds_threshold_bytes(random.pick(&[0, 16 * KIB, MIB]));
        if random.one_in(2) {
            let tasks = [1, 3, 511, 4095, 4096, 5000, 64 * KIB, 100_003, MIB, 16 * MIB];
            engine = engine.chunk_bytes(random.pick(&tasks));
        }
        if random.one_in(3) {
            engine = engine.bounce_memory_bytes(random.pick(&[1, MIB]));
        }
        engine.build()
    }

    fn new_open(&mut self) -> Open {
        if let Some(emulator) = &self.bed.emulator {
            let status = if self.random.one_in(2) { FileSystems::NVME.bits() } else { 0 };
            emulator.control(&format!("nvidia-fs 2 17 {status}"));
        }
        let random = &mut self.random;
        let contents = random.below(self.contents.len());
        let (reads, writes) =
            random.pick(&[(true, true), (true, true), (true, true), (true, false), (false, true)]);
        let direct = [DirectIo::Auto, DirectIo::Never, DirectIo::Always, DirectIo::Always];
        let (direct_read, direct_write) = (random.pick(&direct), random.pick(&direct));
        let mut policy =
            random.pick(&[RoutePolicy::Auto, RoutePolicy::PosixOnly, RoutePolicy::RequireCufile]);
        let engine = &self.engines[random.below(self.engines.len())];
        let options = OpenOptions::new()
            .read(reads)
            .write(writes)
            .engine(engine)
            .direct_read(direct_read)
            .direct_write(direct_write);
        let path = &self.contents[contents].path;
        let file = options.clone().policy(policy).open(path).or_else(|error| {
            assert!(matches!(error.cause(), Cause::NoCufile(_)), "{error}");
            policy = RoutePolicy::Auto;
            options.policy(policy).open(path)
        });
        let mut file = file.unwrap();
        let settings = engine.settings();
        let mut task = None;
        if random.one_in(4) {
            task = Some(random.pick(&[1000, 4096, 10_000, 300_000, 16 * MIB]));
            file = file.with_chunk_bytes(task.unwrap());
        }
        let chunk_bytes = chunk_bytes(engine).min(task.unwrap_or(usize::MAX));
        let text = format!(
            "{} ({policy:?}: {}, {direct_read:?} {direct_write:?}, chunks of {task:?} or {:?}, {} threads with {} bytes each)",
            path.display(),
            file.route().kind(),
            settings.chunk_bytes,
            settings.threads,
            settings.bounce_buffer_bytes
        );
        Open { contents, file, reads, writes, chunk_bytes, text }
    }

    fn one_case(&mut self) {
        self.doing.clear();
        self.engine = self.random.below(self.engines.len());
        while self.random.one_in(4) {
            self.disturb();
        }
        match self.random.below(22) {
            0..6 => self.read(),
            6..10 => self.write(),
            10..13 => self.read_pieces("File::read_many", Self::file_read_many),
            13 => self.read_pieces("mapped read_many", Self::mapped_read_many),
            14 | 15 => self.read_pieces("Engine::read_many", Self::engine_read_many),
            16 | 17 => self.write_pieces("File::write_many", Self::file_write_many),
            18 => self.write_pieces("Engine::write_many", Self::engine_write_many),
            19 | 20 => self.read_each_piece(),
            _ => self.futures(),
        }
        if self.case.is_multiple_of(64) {
            self.check_all();
        }
    }

    fn check_all(&mut self) {
        self.check_files();
        self.buffers.iter().for_each(|buffer| buffer.check(0..BUFFER_BYTES));
    }

    fn check_files(&mut self) {
        self.contents.iter().for_each(|contents| contents.check(&mut self.scratch));
    }

    fn disturb(&mut self) {
        let contents = self.random.below(self.contents.len());
        let size = self.contents[contents].model.len();
        let len = self.length(64 * KIB, usize::MAX);
        match self.random.below(12) {
            0 | 1 => {
                let open = self.new_open();
                let old = self.random.below(self.opens.len());
                self.opens[old] = open;
            }
            2 => {
                let engine = self.new_engine();
                let old = self.random.below(self.engines.len());
                self.engines[old] = engine;
            }
            3 => drop(self.engines[self.random.below(self.engines.len())].release_buffers()),
            4 | 5 => {
                let bytes = self.some_noise(len);
                self.contents[contents].replace(bytes);
            }
            6 => {
                self.contents[contents].file.set_len(len as u64).unwrap();
                self.contents[contents].set_len(len);
            }
            7 | 8 => {
                // The range begins in the file, because a hole cannot lie behind its end.
                let start = self.random.below(size.max(1));
                let hole = start..(start + len).min(size);
                if !hole.is_empty() && self.punch_hole(contents, &hole) {
                    self.contents[contents].model[hole].fill(0);
                }
            }
            _ => page_cache::evict(&self.contents[contents].file, 0..u64::MAX).unwrap(),
        }
    }

    fn punch_hole(&self, contents: usize, hole: &Range<usize>) -> bool {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let file = self.contents[contents].file.as_raw_fd();
        // SAFETY: the call takes integers.
        unsafe { libc::fallocate(file, mode, hole.start as libc::off_t, hole.len() as libc::off_t) == 0 }
    }

    /// Chooses a length, often one where the engine's choice changes.
    fn length(&mut self, chunk_bytes: usize, most_chunks: usize) -> usize {
        let random = &mut self.random;
        let len = match random.below(16) {
            0 | 1 => random.pick(&[0, 1, 511, 512, 513, 4095, 4096, 4097]),
            2..=5 => random.below(10_000),
            6 | 7 => (1 + random.below(5)) * chunk_bytes + random.below(3) - 1,
            8 => {
                let edges = [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB];
                random.pick(&edges) + random.below(3) - 1
            }
            9 => random.below(700) * 4 * KIB,
            10..=12 => random.below(MIB),
            13 | 14 => random.below(3 * MIB),
            _ => random.below(LONGEST),
        };
        len.min(LONGEST).min(chunk_bytes.saturating_mul(most_chunks))
    }

    fn offset(&mut self, size: usize, len: usize) -> usize {
        let random = &mut self.random;
        match random.below(10) {
            0 => 0,
            1 => size,
            2 => size.saturating_sub(len),
            3 => (size + random.below(10_000)).saturating_sub(len),
            4 => size + random.below(MIB),
            5 | 6 => random.below(size / 4096 + 1) * 4096,
            _ => random.below(size + 1),
        }
    }

    fn start(&mut self, buffer: usize, len: usize) -> usize {
        let room = BUFFER_BYTES - len;
        let start = self.random.below(room.min(256 * KIB) + 1);
        let beyond = (self.buffers[buffer].address() + start) % 4096;
        if self.random.one_in(3) && start >= beyond { start - beyond } else { start }
    }

    fn open(&mut self, wanted: impl Fn(&Open) -> bool) -> usize {
        loop {
            let open = self.random.below(self.opens.len());
            if wanted(&self.opens[open]) {
                return open;
            }
            // There may be no bytes.
            let new = self.new_open();
            self.opens[open] = new;
        }
    }

    fn size(&self, open: usize) -> usize {
        self.contents[self.opens[open].contents].model.len()
    }

    fn piece(&mut self, open: usize) -> Piece {
        let len = self.length(self.opens[open].chunk_bytes, MOST_CHUNKS);
        let offset = self.offset(self.size(open), len);
        let buffer = self.random.below(self.buffers.len());
        Piece { open, offset, buffer, start: self.start(buffer, len), len }
    }

    fn describe(&mut self, how: &str, pieces: &[Piece]) {
        let mut text = format!("{how} {} pieces:", pieces.len());
        for piece in pieces.iter().take(5) {
            let Piece { open, offset, buffer, start, len } = *piece;
            let place = if self.buffers[buffer].is_device() { "device memory" } else { "host memory" };
            let (size, file) = (self.size(open), &self.opens[open].text);
            text += &format!(
                "\n  {len} bytes at {offset} of {size} in {file} and {start} of {place} (buffer {buffer})"
            );
        }
        self.doing = text;
    }

    fn read(&mut self) {
        let open = self.open(|open| open.reads);
        let piece = self.piece(open);
        let Piece { offset, buffer, start, len, .. } = piece;
        let way = self.random.pick(&["read_at", "inline read_at", "read_exact_at", "mapped read_at"]);
        self.describe(way, &[piece]);
        let expected = self.size(open).saturating_sub(offset).min(len);
        let file = &self.opens[open].file;
        let mut memory = self.buffers[buffer].slice_mut(start..start + len);
        let result = match way {
            "read_at" => file.read_at(&mut memory, offset as u64),
            "inline read_at" => file.inline().read_at(&mut memory, offset as u64),
            "read_exact_at" => file.read_exact_at(&mut memory, offset as u64).map(|()| len),
            _ => file.map().unwrap().read_at(&mut memory, offset as u64),
        };
        let count = match result {
            Err(error) if way == "read_exact_at" && matches!(error.cause(), Cause::EndOfFile { .. }) => {
                assert!(error.bytes_done() < len);
                self.check_end(&error, open);
                error.bytes_done()
            }
            result => result.unwrap(),
        };
        assert_eq!(count, expected);
        self.take_over(&piece, expected);
        self.buffers[buffer].check(start..start + len);
        self.check_files();
    }

    /// Puts the bytes that were read into the model. Beyond the end of the file, host memory that the kernel wrote
    /// itself may have become zeros. Memory that cuFile wrote may have any bytes there.
    fn take_over(&mut self, piece: &Piece, count: usize) {
        let Piece { open, offset, buffer, start, len } = *piece;
        let buffer = &mut self.buffers[buffer];
        let contents = &self.contents[self.opens[open].contents];
        if count > 0 {
            buffer.model[start..start + count].copy_from_slice(&contents.model[offset..offset + count]);
        }
        let rest = start + count..start + len;
        if rest.is_empty() {
            return;
        }
        let found = buffer.get(rest.clone()).into_owned();
        if buffer.is_device() {
            if self.opens[open].file.route().kind() != RouteKind::Posix {
                buffer.model[rest].copy_from_slice(&found);
            }
        } else {
            for (model, found) in buffer.model[rest].iter_mut().zip(found) {
                *model = if found == 0 { 0 } else { *model };
            }
        }
    }

    fn refresh(&mut self, buffer: usize, start: usize, len: usize) {
        if self.random.one_in(2) {
            let bytes = self.some_noise(len);
            self.buffers[buffer].put(start, bytes);
        }
    }

    fn write(&mut self) {
        let open = self.open(|open| open.writes);
        let mut piece = self.piece(open);
        piece.offset = piece.offset.min(FILE_BYTES - piece.len);
        let Piece { offset, buffer, start, len, .. } = piece;
        let inline = self.random.one_in(3);
        self.describe(if inline { "inline write_all_at" } else { "write_all_at" }, &[piece]);
        self.refresh(buffer, start, len);
        let memory = self.buffers[buffer].slice(start..start + len);
        let file = &self.opens[open].file;
        match inline {
            true => file.inline().write_all_at(&memory, offset as u64).unwrap(),
            false => file.write_all_at(&memory, offset as u64).unwrap(),
        }
        self.contents[self.opens[open].contents]
            .write(offset, &self.buffers[buffer].model[start..start + len]);
        self.check_files();
        self.buffers[buffer].check(start..start + len);
    }

    /// Returns ranges for one call. They are disjoint in memory for a read, and in the files for a write.
    fn pieces(&mut self, write: bool, several: bool) -> Vec<Piece> {
        let wanted = |open: &Open| if write { open.writes } else { open.reads };
        let (count, longest) = match self.random.below(10) {
            // The engine plans this number of ranges window by window.
            0 if !several && self.random.one_in(4) => (33_000 + self.random.below(30_000), 40),
            0 => (self.random.below(3), 2 * MIB),
            1..=3 => (300 + self.random.below(1000), 300),
            4 | 5 => (self.random.below(60), 9000),
            6 | 7 => (self.random.below(60), 150_000),
            _ => (self.random.below(8), MIB),
        };
        let one = (self.open(wanted), self.random.below(self.buffers.len()));
        let (aligned, neighbours, gaps) =
            (self.random.one_in(4), self.random.one_in(3), self.random.one_in(2) && count < 10_000);
        // The next free place in each file and buffer.
        let mut ends: Vec<usize> = (0..self.contents.len())
            .map(|file| self.random.below(self.contents[file].model.len().min(FILE_BYTES / 2) + 1))
            .collect();
        let mut memory_ends: Vec<usize> =
            (0..self.buffers.len()).map(|buffer| self.start(buffer, LONGEST / 2)).collect();
        let mut pieces = Vec::new();
        for _ in 0..count {
            let (open, buffer) = match several {
                true => (self.open(wanted), self.random.below(self.buffers.len())),
                false => one,
            };
            let chunk_bytes = self.opens[open].chunk_bytes.min(chunk_bytes(&self.engines[self.engine]));
            let most = chunk_bytes * MOST_CHUNKS / count;
            let mut len = self.random.below(longest.min(most) + 1);
            if self.random.one_in(8) {
                len = 0;
            } else if aligned {
                len = len.next_multiple_of(4096);
            }
            let gap = |random: &mut Random| match gaps {
                true => random.pick(&[0, 0, 1, 16, 511, 4096, 20_000]),
                false => 0,
            };
            let (file_gap, memory_gap) = (gap(&mut self.random), gap(&mut self.random));
            let mut offset = ends[self.opens[open].contents] + file_gap;
            let mut start = memory_ends[buffer] + memory_gap;
            if aligned {
                offset = offset.next_multiple_of(4096);
            }
            if !neighbours && write {
                start = self.start(buffer, len);
            } else if !neighbours {
                let size = self.size(open);
                // Some calls are to succeed.
                offset = if self.random.one_in(2 * count) {
                    self.offset(size, len)
                } else {
                    self.random.below(size.saturating_sub(len) + 1)
                };
            }
            if start + len > BUFFER_BYTES || offset + len > FILE_BYTES {
                break;
            }
            ends[self.opens[open].contents] = offset + len;
            memory_ends[buffer] = start + len;
            pieces.push(Piece { open, offset, buffer, start, len });
        }
        if self.random.one_in(2) {
            self.random.shuffle(&mut pieces);
        }
        pieces
    }

    fn ranges(pieces: &[Piece]) -> Vec<IoRange> {
        let range = |piece: &Piece| IoRange {
            file_offset: piece.offset as u64,
            buffer_offset: piece.start,
            len_bytes: piece.len,
        };
        pieces.iter().map(range).collect()
    }

    fn file_read_many(&mut self, pieces: &[Piece]) -> gpufile::Result<()> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let mut memory = self.buffers[first.buffer].slice_mut(0..BUFFER_BYTES);
        self.opens[first.open].file.read_many(&mut memory, &Self::ranges(pieces))
    }

    fn mapped_read_many(&mut self, pieces: &[Piece]) -> gpufile::Result<()> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let mut memory = self.buffers[first.buffer].slice_mut(0..BUFFER_BYTES);
        let mapped = self.opens[first.open].file.map().unwrap();
        mapped.read_many(&mut memory, &Self::ranges(pieces))
    }

    fn engine_read_many(&mut self, pieces: &[Piece]) -> gpufile::Result<()> {
        self.read_requests(pieces, |engine, requests| engine.read_many(requests))
    }

    fn read_requests<R>(
        &mut self,
        pieces: &[Piece],
        read: impl FnOnce(&Engine, &mut [Request<BufSliceMut<'_>, &File>]) -> R,
    ) -> R {
        let Self { opens, buffers, engines, .. } = self;
        // The parts of each buffer, cut off from its beginning to its end, in the order of the ranges.
        let mut requests: Vec<(usize, Request<BufSliceMut<'_>, &File>)> = Vec::new();
        for (number, buffer) in buffers.iter_mut().enumerate() {
            let of_buffer = |at: &usize| pieces[*at].buffer == number;
            let mut ordered: Vec<usize> = (0..pieces.len()).filter(of_buffer).collect();
            ordered.sort_by_key(|at| (pieces[*at].start, pieces[*at].len));
            let (mut rest, mut end) = (buffer.slice_mut(0..BUFFER_BYTES), 0);
            for at in ordered {
                let Piece { open, offset, start, len, .. } = pieces[at];
                let (_, from_start) = rest.split_at(start - end);
                let (part, behind) = from_start.split_at(len);
                requests.push((at, Request { file: &opens[open].file, buffer: part, offset: offset as u64 }));
                (rest, end) = (behind, start + len);
            }
        }
        requests.sort_by_key(|(at, _)| *at);
        let mut requests: Vec<Request<BufSliceMut<'_>, &File>> =
            requests.into_iter().map(|(_, request)| request).collect();
        read(&engines[self.engine], &mut requests)
    }

    fn check_end(&self, error: &Error, open: usize) {
        let size = self.size(open) as u64;
        assert!(matches!(error.cause(), Cause::EndOfFile { at } if *at == size), "{error}: not at {size}");
    }

    fn read_pieces(&mut self, how: &str, read: fn(&mut Self, &[Piece]) -> gpufile::Result<()>) {
        let pieces = self.pieces(false, how == "Engine::read_many");
        self.describe(how, &pieces);
        let count = |world: &Self, piece: &Piece| world.size(piece.open).saturating_sub(piece.offset);
        let is_short = |world: &Self, piece: &Piece| count(world, piece) < piece.len;
        match read(self, &pieces) {
            Ok(()) => {
                assert!(!pieces.iter().any(|piece| is_short(self, piece)), "success beyond the end");
                for piece in &pieces {
                    self.take_over(piece, piece.len);
                }
            }
            Err(Error::Entry { entry, error, .. }) => {
                let failed = &pieces[entry];
                self.check_end(&error, failed.open);
                assert!(is_short(self, failed), "entry {entry}: {error}");
                assert!(error.bytes_done() <= count(self, failed), "entry {entry}: {error}");
                self.take_over(failed, error.bytes_done());
                self.take_over_what_was_read(&pieces);
            }
            Err(error) => panic!("{error}"),
        }
        self.check_pieces(&pieces);
    }

    fn read_each_piece(&mut self) {
        let several = self.random.one_in(2);
        let pieces = self.pieces(false, several);
        self.describe(if several { "Engine::read_many_each" } else { "File::read_many_each" }, &pieces);
        let outcomes = match pieces.first() {
            Some(first) if !several => {
                let mut memory = self.buffers[first.buffer].slice_mut(0..BUFFER_BYTES);
                self.opens[first.open].file.read_many_each(&mut memory, &Self::ranges(&pieces)).unwrap()
            }
            _ => self.read_requests(&pieces, |engine, requests| engine.read_many_each(requests)),
        };
        for (piece, outcome) in pieces.iter().zip(outcomes) {
            let count = self.size(piece.open).saturating_sub(piece.offset).min(piece.len);
            assert_eq!(outcome.unwrap(), count, "{piece:?}");
            self.take_over(piece, count);
        }
        self.check_pieces(&pieces);
    }

    /// Updates the model after a failed read. Each byte is that of the file or the old one. Beyond the end of the
    /// file it is as after [`take_over`](Self::take_over).
    fn take_over_what_was_read(&mut self, pieces: &[Piece]) {
        let Self { buffers, contents, opens, .. } = self;
        for (number, buffer) in buffers.iter_mut().enumerate() {
            let pieces = || pieces.iter().filter(|piece| piece.buffer == number && piece.len > 0);
            let Some(end) = pieces().map(|piece| piece.start + piece.len).max() else { continue };
            let found = buffer.get(0..end).into_owned();
            for piece in pieces() {
                let Piece { open, offset, start, len, .. } = *piece;
                let found = &found[start..start + len];
                let by_cufile = opens[open].file.route().kind() != RouteKind::Posix;
                let in_file = contents[opens[open].contents].model.get(offset..).unwrap_or_default();
                if in_file.get(..len) == Some(found) {
                    buffer.model[start..start + len].copy_from_slice(found);
                } else if buffer.model[start..start + len] != *found {
                    for (at, found) in found.iter().enumerate() {
                        let is_left_open = if buffer.is_device() { by_cufile } else { *found == 0 };
                        if in_file.get(at).map_or(is_left_open, |in_file| in_file == found) {
                            buffer.model[start + at] = *found;
                        }
                    }
                }
            }
        }
    }

    fn check_pieces(&mut self, pieces: &[Piece]) {
        for buffer in 0..self.buffers.len() {
            let of_buffer = || pieces.iter().filter(|piece| piece.buffer == buffer);
            let start = of_buffer().map(|piece| piece.start).min();
            let end = of_buffer().map(|piece| piece.start + piece.len).max();
            if let (Some(start), Some(end)) = (start, end) {
                self.buffers[buffer].check(start..end);
            }
        }
        self.check_files();
    }

    fn file_write_many(&mut self, pieces: &[Piece]) -> gpufile::Result<()> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let memory = self.buffers[first.buffer].slice(0..BUFFER_BYTES);
        let (file, ranges) = (&self.opens[first.open].file, Self::ranges(pieces));
        match self.random.one_in(2) {
            true => file.write_many(&memory, &ranges),
            false => file.write_many_each(&memory, &ranges)?.into_iter().collect(),
        }
    }

    fn engine_write_many(&mut self, pieces: &[Piece]) -> gpufile::Result<()> {
        let Self { opens, buffers, engines, .. } = self;
        let request = |piece: &Piece| {
            let memory = buffers[piece.buffer].slice(piece.start..piece.start + piece.len);
            Request { file: &opens[piece.open].file, buffer: memory, offset: piece.offset as u64 }
        };
        let requests: Vec<_> = pieces.iter().map(request).collect();
        match self.random.one_in(2) {
            true => engines[self.engine].write_many(&requests),
            false => engines[self.engine].write_many_each(&requests).into_iter().collect(),
        }
    }

    fn write_pieces(&mut self, how: &str, write: fn(&mut Self, &[Piece]) -> gpufile::Result<()>) {
        let pieces = self.pieces(true, how == "Engine::write_many");
        self.describe(how, &pieces);
        for piece in pieces.iter().take(20) {
            self.refresh(piece.buffer, piece.start, piece.len);
        }
        write(self, &pieces).unwrap();
        for Piece { open, offset, buffer, start, len } in &pieces {
            self.contents[self.opens[*open].contents]
                .write(*offset, &self.buffers[*buffer].model[*start..start + len]);
        }
        self.check_pieces(&pieces);
    }

    fn futures(&mut self) {
        let write = self.random.one_in(2);
        let several = self.random.one_in(2);
        let mut pieces = self.pieces(write, several);
        pieces.truncate(24);
        self.describe(if write { "write_all_at_async" } else { "read_at_async" }, &pieces);
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        for piece in &pieces {
            let Piece { open, offset, buffer, start, len } = *piece;
            let mut own = self.bed.device.alloc(len).unwrap();
            let file = self.opens[open].file.clone();
            if write {
                let bytes = &self.buffers[buffer].model[start..start + len];
                if self.buffers[buffer].is_device() {
                    own.copy_from_host(0, bytes).unwrap();
                    writes.push((len, file.write_all_at_async(Own::Device(own), offset as u64)));
                } else {
                    writes.push((len, file.write_all_at_async(Own::Host(bytes.to_vec()), offset as u64)));
                }
                self.contents[self.opens[open].contents].write(offset, bytes);
            } else {
                let own = match self.buffers[buffer].is_device() {
                    true => Own::Device(own),
                    false => Own::Host(vec![0; len]),
                };
                reads.push((*piece, file.read_at_async(own, offset as u64)));
            }
        }
        self.random.shuffle(&mut reads);
        self.random.shuffle(&mut writes);
        for (len, future) in writes {
            if self.random.one_in(4) {
                // The test drops it at its end, because a transfer that is dropped before goes on.
                while !future.is_done() {
                    std::thread::yield_now();
                }
                continue;
            }
            assert_eq!(future.wait().0.unwrap(), len);
        }
        for (piece, future) in reads {
            if self.random.one_in(4) {
                continue;
            }
            let (count, own) = future.wait();
            let contents = &self.contents[self.opens[piece.open].contents].model;
            let expected = contents.len().saturating_sub(piece.offset).min(piece.len);
            assert_eq!(count.unwrap(), expected);
            let found = match own {
                Own::Device(memory) => memory.to_vec().unwrap(),
                Own::Host(memory) => memory,
            };
            if expected > 0 {
                let bytes = &contents[piece.offset..piece.offset + expected];
                assert_same(&found[..expected], bytes, "what was read", 0);
            }
        }
        self.check_files();
    }
}

enum Own {
    Device(DeviceBuffer),
    Host(Vec<u8>),
}

// SAFETY: the buffer inside keeps the promise, and stays the same one.
unsafe impl cufile::IoBuf for Own {
    fn as_ptr(&self) -> *const u8 {
        match self {
            Own::Device(memory) => memory.as_ptr(),
            Own::Host(memory) => memory.as_ptr(),
        }
    }

    fn len_bytes(&self) -> usize {
        match self {
            Own::Device(memory) => memory.len_bytes(),
            Own::Host(memory) => memory.len(),
        }
    }

    fn location(&self) -> cufile::Location {
        match self {
            Own::Device(memory) => cufile::IoBuf::location(memory),
            Own::Host(_) => cufile::Location::HOST,
        }
    }
}

// SAFETY: the buffer inside keeps the promise.
unsafe impl cufile::IoBufMut for Own {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Own::Device(memory) => memory.as_mut_ptr(),
            Own::Host(memory) => memory.as_mut_ptr(),
        }
    }
}
