//! Uses of `gpufile`'s engine, which may mend a failure, but not hide one.

use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use std::{fs, ptr};

use cufile::cuda::Stream;
use gpufile::{Engine, File, OpenOptions, RoutePolicy};
use testkit::bed::pattern;
use testkit::in_a_fork;
use testkit::memory::{Kind, Memory};
use testkit::ways::{WAYS, Way};

use super::{Problem, Scenario, Stage, same};

pub fn scenarios() -> Vec<Scenario> {
    let each = WAYS.iter().map(|way| {
        let run = Box::new(move |stage: &Stage| run(stage, way));
        Scenario { name: format!("engine {}", way.name).leak(), opened: true, run: Box::leak(run) }
    });
    each.chain(OTHERS.iter().copied()).collect()
}

const OTHERS: &[Scenario] = &[
    Scenario { name: "engine read by cuFile", opened: true, run: &read_by_cufile },
    Scenario { name: "engine write by cuFile", opened: true, run: &write_by_cufile },
    Scenario { name: "engine behind a blocked stream", opened: true, run: &blocked_stream },
    Scenario { name: "engine dropped first", opened: true, run: &dropped_first },
    Scenario { name: "engine in a forked child", opened: true, run: &forked_child },
    Scenario { name: "engines of one file", opened: true, run: &two_engines },
];

pub const LEN: usize = 100_001;

pub fn open(stage: &Stage, contents: &[u8], policy: RoutePolicy) -> Result<File, Problem> {
    let path = stage.path("file");
    fs::write(&path, contents).expect("a file");
    open_again(stage, policy)
}

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

fn run(stage: &Stage, way: &Way) -> Result<(), Problem> {
    let file = open(stage, b"", RoutePolicy::PosixOnly)?;
    let device = &stage.bed().device;
    let stream = way.takes_stream().then(|| device.stream()).transpose()?;
    way.check(&file, stream.as_ref(), &pattern(LEN), |bytes| {
        Memory::new(Kind::Device, &stage.bed().driver, device, bytes)
    })
}

fn read_by_cufile(stage: &Stage) -> Result<(), Problem> {
    read_as(stage, RoutePolicy::RequireCufile)
}

fn write_by_cufile(stage: &Stage) -> Result<(), Problem> {
    write_as(stage, RoutePolicy::RequireCufile)
}

/// Keeps the stream from going on until the result is dropped, but not for long, because a call that cannot be
/// submitted waits for it.
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

/// Forks while transfers are in flight, which the child drops.
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
