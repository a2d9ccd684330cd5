//! Uses of `gpufile`'s engine, which may mend a failure, but not hide one.

use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use std::{fs, ptr};

use cufile::cuda::{DeviceBuffer, Stream};
use gpufile::{Engine, File, IoRange, OpenOptions, RoutePolicy};
use testkit::bed::pattern;
use testkit::in_a_fork;

use super::{Problem, Scenario, Stage, same};

pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "engine read", opened: true, run: read },
    Scenario { name: "engine write", opened: true, run: write },
    Scenario { name: "engine many", opened: true, run: many },
    Scenario { name: "engine each", opened: true, run: each },
    Scenario { name: "engine lists", opened: true, run: lists },
    Scenario { name: "engine read by cuFile", opened: true, run: read_by_cufile },
    Scenario { name: "engine write by cuFile", opened: true, run: write_by_cufile },
    Scenario { name: "engine futures", opened: true, run: futures },
    Scenario { name: "engine streams", opened: true, run: streams },
    Scenario { name: "engine lists in a stream", opened: true, run: stream_lists },
    Scenario { name: "engine behind a blocked stream", opened: true, run: blocked_stream },
    Scenario { name: "engine dropped first", opened: true, run: dropped_first },
    Scenario { name: "engine in a forked child", opened: true, run: forked_child },
    Scenario { name: "engines of one file", opened: true, run: two_engines },
];

pub const LEN: usize = 100_001;

pub fn open(stage: &Stage, contents: &[u8], policy: RoutePolicy) -> Result<File, Problem> {
    let path = stage.path("file");
    fs::write(&path, contents).expect("a file");
    open_again(stage, policy)
}

/// Opens the same file with an engine of its own.
fn open_again(stage: &Stage, policy: RoutePolicy) -> Result<File, Problem> {
    let path = stage.path("file");
    let engine = Engine::builder()
        .driver(stage.bed().driver.clone())
        .threads(2)
        .chunk_bytes(1 << 15)
        .bounce_buffer_bytes(1 << 14);
    Ok(OpenOptions::new().read(true).write(true).engine(&engine.build()).policy(policy).open(path)?)
}

fn read_as(stage: &Stage, policy: RoutePolicy) -> Result<(), Problem> {
    let file = open(stage, &pattern(LEN), policy)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    file.read_exact_at(&mut buffer, 0)?;
    same(buffer.to_vec()? == pattern(LEN), "what was read")
}

fn write_as(stage: &Stage, policy: RoutePolicy) -> Result<(), Problem> {
    let file = open(stage, b"", policy)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    file.write_all_at(&buffer, 0)?;
    same(fs::read(file.path()).expect("the file") == pattern(LEN), "what was written")
}

fn read(stage: &Stage) -> Result<(), Problem> {
    read_as(stage, RoutePolicy::PosixOnly)
}

fn write(stage: &Stage) -> Result<(), Problem> {
    write_as(stage, RoutePolicy::PosixOnly)
}

fn read_by_cufile(stage: &Stage) -> Result<(), Problem> {
    read_as(stage, RoutePolicy::RequireCufile)
}

fn write_by_cufile(stage: &Stage) -> Result<(), Problem> {
    write_as(stage, RoutePolicy::RequireCufile)
}

/// Returns ranges with gaps between them.
fn ranges() -> Vec<IoRange> {
    (0..20)
        .map(|index| IoRange {
            file_offset: index * 4000,
            buffer_offset: index as usize * 4000,
            len_bytes: 700,
        })
        .collect()
}

fn are_right(buffer: &DeviceBuffer) -> Result<(), Problem> {
    let found = buffer.to_vec()?;
    let right = |range: &IoRange| {
        let bytes = range.buffer_offset..range.buffer_offset + range.len_bytes;
        found[bytes.clone()] == pattern(LEN)[bytes]
    };
    same(ranges().iter().all(right), "what was written and read")
}

fn many(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, b"", RoutePolicy::PosixOnly)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    file.write_many(&buffer, &ranges())?;
    buffer.fill(0)?;
    file.read_many(&mut buffer, &ranges())?;
    are_right(&buffer)
}

fn each(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, b"", RoutePolicy::PosixOnly)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    file.write_many_each(&buffer, &ranges())?.into_iter().collect::<gpufile::Result<()>>()?;
    buffer.fill(0)?;
    let read = file.read_many_each(&mut buffer, &ranges())?.into_iter().sum::<gpufile::Result<usize>>()?;
    same(read == 20 * 700, "the number of bytes")?;
    are_right(&buffer)?;
    let (written, (mut buffer, ranges)) = file.write_many_each_async(buffer, ranges()).wait();
    written?.into_iter().try_for_each(|outcome| outcome.map(drop))?;
    buffer.fill(0)?;
    let (read, (buffer, _)) = file.read_many_each_async(buffer, ranges).wait();
    same(read?.into_iter().sum::<gpufile::Result<usize>>()? == 20 * 700, "the number of bytes")?;
    are_right(&buffer)
}

fn lists(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, b"", RoutePolicy::PosixOnly)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    let (written, (mut buffer, ranges)) = file.write_many_async(buffer, ranges()).wait();
    written?;
    buffer.fill(0)?;
    let (read, (buffer, _)) = file.read_many_async(buffer, ranges).wait();
    same(read? == 20 * 700, "the number of bytes")?;
    are_right(&buffer)
}

fn futures(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, b"", RoutePolicy::PosixOnly)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    let (written, mut buffer) = file.write_all_at_async(buffer, 0).wait();
    written?;
    buffer.fill(0)?;
    let (read, buffer) = file.read_at_async(buffer, 0).wait();
    same(read? == LEN && buffer.to_vec()? == pattern(LEN), "what was written and read")
}

fn streams(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, b"", RoutePolicy::PosixOnly)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    let stream = stage.bed().device.stream()?;
    let (written, mut buffer) = file.write_all_at_on_stream(&stream, buffer, 0).wait();
    written?;
    buffer.fill(0)?;
    let (read, buffer) = file.read_at_on_stream(&stream, buffer, 0).wait();
    same(read? == LEN && buffer.to_vec()? == pattern(LEN), "what was written and read")
}

fn stream_lists(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, b"", RoutePolicy::PosixOnly)?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    let stream = stage.bed().device.stream()?;
    let (written, mut buffer) = file.write_many_on_stream(&stream, buffer, &ranges()).wait();
    written?;
    buffer.fill(0)?;
    let (read, buffer) = file.read_many_on_stream(&stream, buffer, &ranges()).wait();
    same(read? == 20 * 700, "the number of bytes")?;
    are_right(&buffer)
}

/// Keeps the stream from going on until the result is dropped. Not for long, because a call that cannot be submitted
/// waits for the stream.
fn block(stream: &Stream) -> Result<Sender<()>, Problem> {
    let (sender, receiver) = mpsc::channel();
    stream.call_on_host(move || {
        let _ = receiver.recv_timeout(Duration::from_millis(20));
    })?;
    Ok(sender)
}

fn blocked_stream(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, b"", RoutePolicy::PosixOnly)?;
    let [mut source, target] = [stage.bed().device.alloc(LEN)?, stage.bed().device.alloc(LEN)?];
    source.copy_from_host(0, &pattern(LEN))?;
    let stream = stage.bed().device.stream()?;
    let gate = block(&stream)?;
    let write = file.write_all_at_on_stream(&stream, source, 0);
    let read = file.read_at_on_stream(&stream, target, 0);
    drop(gate);
    let (written, (read, buffer)) = (write.wait().0, read.wait());
    written?;
    same(read? == LEN && buffer.to_vec()? == pattern(LEN), "what was written and read")
}

/// Leaves the last references to an engine to its transfers.
fn dropped_first(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, &pattern(LEN), RoutePolicy::PosixOnly)?;
    let [one, other] = [stage.bed().device.alloc(LEN)?, stage.bed().device.alloc(LEN)?];
    let stream = stage.bed().device.stream()?;
    let gate = block(&stream)?;
    let (on_stream, future) = (file.read_at_on_stream(&stream, one, 0), file.read_at_async(other, 0));
    drop(file);
    drop(gate);
    for (read, buffer) in [on_stream.wait(), future.wait()] {
        same(read? == LEN && buffer.to_vec()? == pattern(LEN), "what was read")?;
    }
    Ok(())
}

/// Forks while transfers are in flight. The child drops them, and frees what it can.
fn forked_child(stage: &Stage) -> Result<(), Problem> {
    let file = open(stage, &pattern(LEN), RoutePolicy::PosixOnly)?;
    let [one, other] = [stage.bed().device.alloc(LEN)?, stage.bed().device.alloc(LEN)?];
    let stream = stage.bed().device.stream()?;
    let gate = block(&stream)?;
    let (on_stream, future) = (file.read_at_on_stream(&stream, one, 0), file.read_at_async(other, 0));
    let ended = in_a_fork(|| {
        assert!(future.is_done() && on_stream.is_done());
        // SAFETY: the child ends without using or dropping the parent's values again.
        drop(unsafe { (ptr::read(&on_stream), ptr::read(&future)) });
        file.engine().release_buffers();
    });
    drop(gate);
    for (read, buffer) in [on_stream.wait(), future.wait()] {
        same(read? == LEN && buffer.to_vec()? == pattern(LEN), "what was read")?;
    }
    ended.map_err(Problem::Wrong)
}

fn two_engines(stage: &Stage) -> Result<(), Problem> {
    let files = [open(stage, b"", RoutePolicy::PosixOnly)?, open_again(stage, RoutePolicy::RequireCufile)?];
    let bytes = pattern(LEN);
    // They meet within a block.
    let halves = [(0, &bytes[..LEN / 2]), (LEN / 2, &bytes[LEN / 2..])];
    let mut writes = Vec::new();
    for (file, (start, half)) in files.iter().zip(halves) {
        let mut buffer = stage.bed().device.alloc(half.len())?;
        buffer.copy_from_host(0, half)?;
        writes.push(file.write_all_at_async(buffer, start as u64));
    }
    let written: Vec<_> = writes.into_iter().map(|write| write.wait().0).collect();
    written.into_iter().collect::<gpufile::Result<Vec<_>>>()?;
    let mut buffer = stage.bed().device.alloc(LEN)?;
    files[0].read_exact_at(&mut buffer, 0)?;
    same(buffer.to_vec()? == bytes, "what both wrote")
}
