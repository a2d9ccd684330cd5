//! Uses of `cufile`, without a line of `unsafe`, that together call every function of cuFile.

#![forbid(unsafe_code)]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cufile::cuda::Cuda;
use cufile::params::{Param, Slab};
use cufile::stats::Level;
use cufile::{
    Batch, Driver, Entry, FileHandle, FileSystem, Library, OpError, P2pFlags, RegisterFlags,
    RegisteredBuffer, RegisteredStream, StreamFlags,
};
use testkit::bed::pattern;

use super::{Problem, Scenario, Stage, moved, same};

/// Bytes of each transfer.
pub const LEN: usize = 12_288;

pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "open", opened: false, run: &open },
    Scenario { name: "parameters", opened: false, run: &parameters },
    Scenario { name: "statistics", opened: true, run: &statistics },
    Scenario { name: "machine", opened: true, run: &machine },
    Scenario { name: "read", opened: true, run: &read },
    Scenario { name: "write", opened: true, run: &write },
    Scenario { name: "vectors", opened: true, run: &vectors },
    Scenario { name: "registered buffer", opened: true, run: &registered_buffer },
    Scenario { name: "batch read", opened: true, run: &batch_read },
    Scenario { name: "batch write", opened: true, run: &batch_write },
    Scenario { name: "cancelled batch", opened: true, run: &cancelled_batch },
    Scenario { name: "stream read", opened: true, run: &stream_read },
    Scenario { name: "stream write", opened: true, run: &stream_write },
    Scenario { name: "two streams", opened: true, run: &two_streams },
];

const SLABS: [Slab; 1] = [Slab { size_bytes: 4096, count: 1 }];

fn open(stage: &Stage) -> Result<(), Problem> {
    let emulator = stage.emulator();
    let (libcuda, libcudart) = (emulator.driver(), emulator.runtime());
    // Loading asks like this when it has several files to choose from.
    libcudart.driver_version();
    let cuda = Cuda::from_sys(libcuda, libcudart)?;
    let library = Library::from_sys(emulator.cufile())?;
    let driver = Driver::builder()
        .library(library)
        .cuda(cuda)
        .set(Param::MAX_IO_THREADS, 4)
        .set(Param::ALLOW_COMPAT_MODE, true)
        .set(Param::LOGGING_LEVEL, "ERROR".to_owned())
        .set(Param::POSIX_POOL_SLABS, SLABS.to_vec())
        .set(Param::GPU_BOUNCE_BUFFER_SLABS, SLABS.to_vec())
        .poll_mode(true, 4096)
        .max_direct_io_size(16 << 20)
        .max_cache_size(1 << 20)
        .max_pinned_memory(1 << 30)
        .open()?;
    driver.properties()?;
    driver.use_count()?;
    driver.close()?;
    Ok(())
}

fn parameters(stage: &Stage) -> Result<(), Problem> {
    let library = Library::from_sys(stage.emulator().cufile())?;
    let params = library.params();
    params.get(Param::MAX_IO_THREADS)?;
    params.get(Param::ALLOW_COMPAT_MODE)?;
    params.get(Param::LOGGING_LEVEL)?;
    params.limits(Param::MAX_IO_THREADS)?;
    params.set(Param::POSIX_POOL_SLABS, SLABS.to_vec())?;
    same(params.get(Param::POSIX_POOL_SLABS)? == SLABS, "slabs")?;
    params.set(Param::GPU_BOUNCE_BUFFER_SLABS, SLABS.to_vec())?;
    same(params.get(Param::GPU_BOUNCE_BUFFER_SLABS)? == SLABS, "slabs")
}

fn statistics(stage: &Stage) -> Result<(), Problem> {
    let statistics = stage.bed().driver.statistics();
    statistics.set_level(Level::PerGpu)?;
    same(statistics.level()? == Level::PerGpu, "the level")?;
    statistics.start()?;
    statistics.reset()?;
    statistics.basic()?;
    statistics.detailed()?;
    statistics.per_gpu()?;
    statistics.stop()?;
    Ok(())
}

fn machine(stage: &Stage) -> Result<(), Problem> {
    let driver = &stage.bed().driver;
    driver.bar_size_bytes(0)?;
    match driver.export_pcie_topology(stage.path("topology")) {
        // Most machines fail like this.
        Err(error) if error.op_error() == Some(OpError::INTERNAL_ERROR) => {}
        result => result?,
    }
    driver.set_p2p_flags(FileSystem::Nvme, P2pFlags::PCI_P2PDMA)?;
    same(driver.p2p_flags(FileSystem::Nvme)? == P2pFlags::PCI_P2PDMA, "the flags")?;
    driver.properties()?;
    driver.use_count()?;
    Ok(())
}

pub fn register(stage: &Stage, contents: &[u8]) -> Result<Arc<FileHandle>, Problem> {
    Ok(Arc::new(FileHandle::register(&stage.bed().driver, stage.file(contents))?))
}

fn read(stage: &Stage) -> Result<(), Problem> {
    let handle = register(stage, &pattern(LEN))?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    let read = handle.read_at(&mut buffer, 0)?;
    same(buffer.to_vec()?[..read] == pattern(LEN)[..read], "what was read")?;
    moved(LEN, read)
}

fn write(stage: &Stage) -> Result<(), Problem> {
    let handle = register(stage, b"")?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    let written = handle.write_at(&buffer, 0)?;
    same(stage.contents()[..] == pattern(LEN)[..written], "what was written")?;
    moved(LEN, written)
}

fn vectors(stage: &Stage) -> Result<(), Problem> {
    let handle = register(stage, b"")?;
    let bytes = pattern(LEN);
    let parts: Vec<Vec<u8>> = bytes.chunks(LEN / 2).map(<[u8]>::to_vec).collect();
    let written = handle.writev_at(&parts, 0)?;
    same(stage.contents()[..] == bytes[..written], "what was written")?;
    moved(LEN, written)?;
    let mut parts = [vec![0; LEN / 2], vec![0; LEN / 2]];
    let read = handle.readv_at(&mut parts, 0)?;
    same(parts.concat()[..read] == bytes[..read], "what was read")?;
    moved(LEN, read)
}

fn registered_buffer(stage: &Stage) -> Result<(), Problem> {
    let bed = stage.bed();
    let handle = register(stage, &pattern(LEN))?;
    let buffer = bed.device.alloc(LEN)?;
    let mut buffer = RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty())?;
    let read = handle.read_at(&mut buffer, 0)?;
    moved(LEN, read)?;
    let mut bytes = vec![0; LEN];
    bed.driver.cuda().copy(&buffer, &mut bytes)?;
    same(bytes == pattern(LEN), "what was read")?;
    let mut buffer = buffer.deregister()?;
    buffer.fill(1)?;
    Ok(())
}

pub type Buffer = RegisteredBuffer<cufile::cuda::DeviceBuffer>;

pub const ENTRIES: usize = 4;

pub fn buffers(stage: &Stage, bytes: &[u8]) -> Result<Vec<Buffer>, Problem> {
    let bed = stage.bed();
    let buffer = |bytes: &[u8]| {
        let mut buffer = bed.device.alloc(LEN)?;
        buffer.copy_from_host(0, bytes)?;
        Ok(RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty())?)
    };
    bytes.chunks(LEN).map(buffer).collect()
}

fn wait_all(batch: &mut Batch<Buffer>) -> Result<Vec<(u64, usize, Buffer)>, Problem> {
    let mut completions = batch.wait_all()?;
    completions.sort_by_key(|completion| completion.id);
    same(completions.len() == ENTRIES, "the number of completions")?;
    completions
        .into_iter()
        .map(|completion| {
            let bytes = completion.result?;
            let buffer = completion.buffer.ok_or_else(|| Problem::Wrong("a missing buffer".to_owned()))?;
            Ok((completion.id, bytes, buffer))
        })
        .collect()
}

fn batch_read(stage: &Stage) -> Result<(), Problem> {
    let bytes = pattern(ENTRIES * LEN);
    let handle = register(stage, &bytes)?;
    let mut batch = Batch::new(&stage.bed().driver, ENTRIES)?;
    let entry = |(index, buffer)| Entry::read(&handle, buffer, (index * LEN) as u64).id(index as u64);
    let entries = buffers(stage, &vec![0; bytes.len()])?.into_iter().enumerate().map(entry);
    batch.submit(entries)?;
    for (id, read, buffer) in wait_all(&mut batch)? {
        let mut found = vec![0; read];
        handle.driver().cuda().copy(&buffer.slice(..read), &mut found)?;
        same(found == bytes[id as usize * LEN..][..read], "what was read")?;
        moved(LEN, read)?;
    }
    Ok(())
}

fn batch_write(stage: &Stage) -> Result<(), Problem> {
    let bytes = pattern(ENTRIES * LEN);
    let handle = register(stage, b"")?;
    let mut batch = Batch::new(&stage.bed().driver, ENTRIES)?;
    let entry = |(index, buffer)| Entry::write(&handle, buffer, (index * LEN) as u64).id(index as u64);
    let entries = buffers(stage, &bytes)?.into_iter().enumerate().map(entry);
    batch.submit(entries)?;
    let completions = wait_all(&mut batch)?;
    let contents = stage.contents();
    for (id, written, _) in completions {
        let range = id as usize * LEN..id as usize * LEN + written;
        same(contents.get(range.clone()) == bytes.get(range), "what was written")?;
        moved(LEN, written)?;
    }
    Ok(())
}

fn cancelled_batch(stage: &Stage) -> Result<(), Problem> {
    let handle = register(stage, &pattern(ENTRIES * LEN))?;
    let mut batch = Batch::new(&stage.bed().driver, ENTRIES)?;
    let entry = |(index, buffer)| Entry::read(&handle, buffer, (index * LEN) as u64);
    let all = vec![0; ENTRIES * LEN];
    let entries = buffers(stage, &all)?.into_iter().enumerate().map(entry);
    // The delay keeps entries in flight, so that there is something to cancel.
    stage.emulator().fault("batch-entry", "delay_us=2000");
    batch.submit(entries)?;
    batch.poll(0, ENTRIES, Some(Duration::ZERO))?;
    let completions = batch.cancel()?;
    same(completions.len() <= ENTRIES, "the number of completions")
}

pub fn stream_of(stage: &Stage) -> Result<RegisteredStream, Problem> {
    let bed = stage.bed();
    Ok(RegisteredStream::register(&bed.driver, bed.device.stream()?, StreamFlags::empty())?)
}

fn stream_read(stage: &Stage) -> Result<(), Problem> {
    let handle = register(stage, &pattern(LEN))?;
    let stream = stream_of(stage)?;
    let operation = stream.read_at(&handle, stage.bed().device.alloc(LEN)?, 0)?;
    while !operation.is_done()? {
        std::thread::sleep(Duration::from_micros(100));
    }
    let (read, buffer) = operation.wait()?;
    same(buffer.to_vec()?[..read] == pattern(LEN)[..read], "what was read")?;
    moved(LEN, read)?;
    stream.deregister()?;
    Ok(())
}

fn stream_write(stage: &Stage) -> Result<(), Problem> {
    let handle = register(stage, b"")?;
    let stream = stream_of(stage)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    let (written, _) = stream.write_at(&handle, buffer, 0)?.wait()?;
    same(stage.contents()[..] == pattern(LEN)[..written], "what was written")?;
    moved(LEN, written)
}

/// Makes two transfers at once, of which either may end first.
fn two_streams(stage: &Stage) -> Result<(), Problem> {
    let handle = register(stage, &pattern(2 * LEN))?;
    let streams = [stream_of(stage)?, stream_of(stage)?];
    let mut operations = Vec::new();
    for (index, stream) in streams.iter().enumerate() {
        operations.push(stream.read_at(&handle, stage.bed().device.alloc(LEN)?, (index * LEN) as u64)?);
    }
    // The test waits for the first transfer last.
    for (index, operation) in operations.into_iter().enumerate().rev() {
        let (read, buffer) = operation.wait()?;
        same(buffer.to_vec()?[..read] == pattern(2 * LEN)[index * LEN..][..read], "what was read")?;
        moved(LEN, read)?;
    }
    Ok(())
}

impl Stage {
    fn file(&self, contents: &[u8]) -> fs::File {
        let path = self.path("file");
        fs::write(&path, contents).expect("a file");
        fs::File::options().read(true).write(true).open(path).expect("the file just written")
    }

    fn contents(&self) -> Vec<u8> {
        fs::read(self.path("file")).expect("the file that was written")
    }
}
