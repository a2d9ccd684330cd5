//! Uses of `gpufile`'s engine, which may mend a failure, but not hide one.

use std::fs;

use cufile::cuda::DeviceBuffer;
use cufile_tests::bed::pattern;
use gpufile::{Engine, File, IoRange, OpenOptions, RoutePolicy};

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
];

pub const LEN: usize = 100_001;

pub fn open(stage: &Stage, contents: &[u8], policy: RoutePolicy) -> Result<File, Problem> {
    let path = stage.path("file");
    fs::write(&path, contents).expect("a file");
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
