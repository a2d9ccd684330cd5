//! Rounds that read.

use std::mem;

use gpufile::{Cause, IoRange, Request};
use testkit::memory::{Kind, Memory};
use testkit::ways::{AtEnd, Call, Moves, Way, bytes_of};

use super::actor::Actor;
use super::content::{Random, content, fill};
use super::memory::{self, any_alike, any_way, compare_memory};
use super::{READ_LEN, READ_SALT, Result, Scene};

/// The most bytes that a range has, in most rounds.
const RANGE_LEN: usize = 200_000;
/// The byte in the gaps between ranges, before and after a read.
const GAP: u8 = 0xEE;

pub fn round(actor: &mut Actor<'_>, scene: &Scene, random: &mut Random) -> Result {
    let kind = actor.kind(random);
    let mut memory = actor.take(kind);
    let outcome = match random.below(8) {
        0..=2 => one(actor, scene, random, &mut memory),
        3..=5 => many(actor, scene, random, kind, &mut memory),
        6 => requests(actor, scene, random, &mut memory),
        _ => owned(actor, scene, random, kind),
    };
    actor.put(kind, memory);
    outcome.map_err(|error| format!("{kind:?} memory, {error}").into())
}

/// Reads one range, which may extend beyond the end of the file.
fn one(actor: &mut Actor<'_>, scene: &Scene, random: &mut Random, memory: &mut Memory) -> Result {
    let most = if random.once_in(12) { 16_000_000 } else { RANGE_LEN };
    let (len, place) = (random.len(most), random.below(30_000));
    let offset =
        if random.once_in(10) { READ_LEN - random.below(2 * len) as u64 } else { offset(random, len) };
    let alike = any_alike(random, false);
    let file = (alike.of)(Actor::any(&scene.read, random))?;
    let way = any_way(random, |way| matches!(way.call, Call::Read(_)));
    let Call::Read(read) = way.call else { unreachable!("{way:?} does not read one range") };
    let what = || format!("{alike:?}{way:?} of {len} bytes at {offset}, to {place}");
    let left = len.min(READ_LEN.saturating_sub(offset) as usize);
    let read = match read(&file, &mut memory.part_mut(place..place + len), offset) {
        Err(error) if left < len && way.moves == Moves::Reads(AtEnd::Fails) => match error.cause() {
            Cause::EndOfFile { at: READ_LEN } => 0,
            _ => return Err(error.into()),
        },
        read if read.as_ref().is_ok_and(|read| *read != left) => {
            return Err(format!("{}: {read:?} instead of {left} bytes", what()).into());
        }
        read => read?,
    };
    compare_memory(memory, place, &content(READ_SALT, offset, read), what)?;
    actor.count(way.name, 1, read);
    Ok(())
}

fn many(
    actor: &mut Actor<'_>,
    scene: &Scene,
    random: &mut Random,
    kind: Kind,
    memory: &mut Memory,
) -> Result {
    let most = match kind {
        Kind::Device if random.once_in(8) => 120_000_000,
        _ => random.len(8_000_000),
    };
    let ranges = ranges(random, most);
    let mut expected = vec![GAP; ranges.iter().map(end).max().unwrap_or(0)];
    memory.put(0, &expected)?;
    let alike = any_alike(random, false);
    let file = (alike.of)(Actor::any(&scene.read, random))?;
    let stream = Scene::stream(actor.stream.as_ref(), random)?;
    let is_such = |way: &Way| !way.is_write() && way.is_list() && (stream.is_some() || !way.takes_stream());
    let way = any_way(random, is_such);
    let what = || format!("{alike:?}{way:?} of {} ranges", ranges.len());
    let (result, read) = way.run(&file, stream, mem::replace(memory, Memory::Host(Vec::new())), &ranges);
    *memory = read;
    let (read, wanted) = (result?, bytes_of(&ranges));
    if read != wanted {
        return Err(format!("{}: {read} bytes instead of {wanted}", what()).into());
    }
    for range in &ranges {
        fill(READ_SALT, range.file_offset, &mut expected[range.buffer_offset..end(range)]);
    }
    compare_memory(memory, 0, &expected, what)?;
    actor.count(way.name, 1, read);
    Ok(())
}

fn requests(actor: &mut Actor<'_>, scene: &Scene, random: &mut Random, memory: &mut Memory) -> Result {
    let most = random.len(4_000_000);
    let mut ranges = ranges(random, most);
    ranges.sort_by_key(|range| range.buffer_offset);
    let whole = ranges.last().map_or(0, end);
    memory.put(0, &vec![GAP; whole])?;
    let mut rest = memory.part_mut(0..whole);
    let (mut at, mut requests) = (0, Vec::new());
    for range in &ranges {
        let (_, behind) = rest.split_at(range.buffer_offset - at);
        let (part, behind) = behind.split_at(range.len_bytes);
        (rest, at) = (behind, end(range));
        requests.push(Request {
            file: Actor::any(&scene.read, random),
            buffer: part,
            offset: range.file_offset,
        });
    }
    random.shuffle(&mut requests);
    let way = match random.below(2) {
        0 => {
            scene.engine.read_many(&mut requests)?;
            "engine read_many"
        }
        _ => {
            scene
                .engine
                .read_many_each(&mut requests)
                .into_iter()
                .try_for_each(|outcome| outcome.map(drop))?;
            "engine read_many_each"
        }
    };
    drop(requests);
    let mut expected = vec![GAP; whole];
    for range in &ranges {
        fill(READ_SALT, range.file_offset, &mut expected[range.buffer_offset..end(range)]);
    }
    compare_memory(memory, 0, &expected, || format!("{way} of {} requests", ranges.len()))?;
    actor.count(way, 1, bytes_of(&ranges));
    Ok(())
}

/// Runs several reads at once that own their buffers, and drops some of them, perhaps after their engine.
fn owned(actor: &mut Actor<'_>, scene: &Scene, random: &mut Random, kind: Kind) -> Result {
    let alone = scene.read_alone(random)?;
    let stream = Scene::stream(actor.stream.as_ref(), random)?;
    let way = any_way(random, |way| {
        let takes_such = way.takes_stream() == stream.is_some();
        !way.is_write() && !way.is_list() && way.is_owner() && takes_such
    });
    let mut pending = Vec::new();
    for _ in 0..1 + random.below(8) {
        let most = if random.once_in(10) { 8_000_000 } else { RANGE_LEN };
        let len = random.len(most);
        let offset = offset(random, len);
        let memory = memory::new(actor.stage.device.as_ref(), kind, len)?;
        let file = alone.as_ref().unwrap_or_else(|| Actor::any(&scene.read, random));
        pending.push((offset, len, way.start(file, stream, memory, offset)));
    }
    // The transfers may have the last references to the engine.
    drop(alone);
    random.shuffle(&mut pending);
    let (mut calls, mut bytes) = (0, 0);
    for (offset, len, transfer) in pending {
        if random.once_in(5) {
            drop(transfer);
            continue;
        }
        let (read, memory) = transfer.wait();
        let what = || format!("{way:?} of {len} bytes at {offset}");
        let read = read?;
        compare_memory(&memory, 0, &content(READ_SALT, offset, len), what)?;
        (calls, bytes) = (calls + 1, bytes + read);
    }
    actor.count(way.name, calls, bytes);
    Ok(())
}

/// Returns an offset at which a range of `len` bytes may begin.
fn offset(random: &mut Random, len: usize) -> u64 {
    random.below(READ_LEN as usize - len) as u64
}

/// Returns ranges anywhere in the file, for a buffer of `most` bytes. They have gaps or none, are ordered or
/// not, and have one length or many.
fn ranges(random: &mut Random, most: usize) -> Vec<IoRange> {
    let fixed = random.pick(&[None, None, Some(64), Some(300), Some(700), Some(4096), Some(12_000)]);
    let longest = random.len(RANGE_LEN);
    let gaps = random.pick(&[0, 1, 700, 5000]);
    // The limit on the number of ranges. Lists of more than 32,768 are planned in windows everywhere. cuFile takes a
    // call for each range, so longer lists would keep a round going after the end of the run.
    let most_ranges = 40_000;
    let (mut ranges, mut at) = (Vec::new(), 0);
    while ranges.len() < most_ranges {
        at += if gaps > 0 && random.once_in(3) { random.below(gaps) } else { 0 };
        let len_bytes = fixed.unwrap_or_else(|| random.len(longest));
        if at + len_bytes > most {
            break;
        }
        let follows: Option<&IoRange> = ranges.last().filter(|_| random.once_in(4));
        let behind = follows.map(|range| range.file_offset + range.len_bytes as u64);
        let fits = |offset: &u64| offset + len_bytes as u64 <= READ_LEN;
        let file_offset = behind.filter(fits).unwrap_or_else(|| offset(random, len_bytes));
        ranges.push(IoRange { file_offset, buffer_offset: at, len_bytes });
        at += len_bytes;
    }
    if random.once_in(2) {
        random.shuffle(&mut ranges);
    }
    ranges
}

fn end(range: &IoRange) -> usize {
    range.buffer_offset + range.len_bytes
}
