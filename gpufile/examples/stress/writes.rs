//! Rounds that write.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use gpufile::{DirectIo, File, IoRange, Request};
use testkit::memory::Kind;
use testkit::ways::{Call, Way, bytes_of};

use super::actor::Actor;
use super::content::{Random, compare, content};
use super::memory::{self, any_alike, any_way};
use super::{REGION, Result, Scene, Stage};

/// The expected contents of the files that an actor has written.
pub struct Copies {
    /// The actor's region of each scene's file, to which the other actors write too.
    regions: Vec<Vec<u8>>,
    /// The actor's own file, which grows and is made anew.
    own: Vec<u8>,
    own_path: PathBuf,
}

/// The most bytes that the actor's own file gets.
const OWN_LEN: usize = 24_000_000;

impl Copies {
    pub fn new(stage: &Stage, number: u64) -> Result<Self> {
        let regions = stage.scenes.iter().map(|_| vec![0; REGION as usize]).collect();
        let own_path = stage.folder.join(format!("own-{number}"));
        fs::write(&own_path, [])?;
        Ok(Self { regions, own: Vec::new(), own_path })
    }
}

/// Ranges of a file, and the places of their bytes in the source.
struct Plan {
    ranges: Vec<IoRange>,
    source: Vec<u8>,
}

pub fn round(actor: &mut Actor<'_>, scene: &Scene, random: &mut Random) -> Result {
    let at = actor.stage.scenes.iter().position(|one| std::ptr::eq(one, scene)).expect("one of the stage's");
    let kind = actor.kind(random);
    if random.once_in(2) {
        let mut copy = std::mem::take(&mut actor.copies.regions[at]);
        let file = Actor::any(&scene.written, random);
        let start = actor.number * REGION;
        let plan = plan(actor, random, copy.len(), copy.len());
        let outcome = write(actor, scene, random, kind, (file, start), &plan)
            .and_then(|way| check(&scene.written_path, start, &mut copy, &plan, way));
        actor.copies.regions[at] = copy;
        return outcome;
    }
    let mut copy = std::mem::take(&mut actor.copies.own);
    if random.once_in(12) {
        fs::remove_file(&actor.copies.own_path)?;
        copy.clear();
    } else if random.once_in(12) && !copy.is_empty() {
        copy.truncate(random.below(copy.len()));
        fs::File::options().write(true).open(&actor.copies.own_path)?.set_len(copy.len() as u64)?;
    }
    let direct = random.pick(&[DirectIo::Auto, DirectIo::Auto, DirectIo::Always, DirectIo::Never]);
    let policy = random.pick(&scene.policies);
    let options = File::options().read(true).write(true).create(true).engine(&scene.engine);
    let file = options.policy(policy).direct_write(direct).open(&actor.copies.own_path)?;
    let plan = plan(actor, random, copy.len(), OWN_LEN);
    let way = write(actor, scene, random, kind, (&file, 0), &plan)?;
    let path = actor.copies.own_path.clone();
    check(&path, 0, &mut copy, &plan, way)?;
    let (found, expected) = (fs::metadata(&path)?.len(), copy.len() as u64);
    if found != expected {
        return Err(format!("{way}: the file has {found} bytes instead of {expected}").into());
    }
    actor.copies.own = copy;
    Ok(())
}

/// Returns disjoint ranges, some of which begin at the end of the file.
fn plan(actor: &Actor<'_>, random: &mut Random, now_len: usize, most: usize) -> Plan {
    let longest = if random.once_in(6) { 8_000_000 } else { 200_000 };
    let count = if random.once_in(3) { 1 } else { 1 + random.below(60) };
    let mut at = if random.once_in(2) { random.below(most) } else { now_len.min(most - 1) };
    let (mut ranges, mut place) = (Vec::new(), random.below(5000));
    for _ in 0..count {
        at += if random.once_in(2) { 0 } else { random.below(9000) };
        let len_bytes = random.len(longest);
        if at + len_bytes > most || place + len_bytes > 15_000_000 {
            break;
        }
        ranges.push(IoRange { file_offset: at as u64, buffer_offset: place, len_bytes });
        (at, place) = (at + len_bytes, place + len_bytes + random.below(100));
    }
    random.shuffle(&mut ranges);
    Plan { ranges, source: content(actor.written_salt(), 0, place) }
}

/// Writes the ranges by a random call, and returns its name. The file offsets of the ranges count from
/// `start`.
fn write(
    actor: &mut Actor<'_>,
    scene: &Scene,
    random: &mut Random,
    kind: Kind,
    (file, start): (&File, u64),
    plan: &Plan,
) -> Result<&'static str> {
    let Plan { ranges, source } = plan;
    let mut memory = actor.take(kind);
    memory.put(0, source)?;
    let file = &(any_alike(random, true).of)(file)?;
    let offset = |range: &IoRange| start + range.file_offset;
    let bytes = |range: &IoRange| range.buffer_offset..range.buffer_offset + range.len_bytes;
    let way = match random.below(7) {
        0 | 1 => {
            let way = any_way(random, |way| matches!(way.call, Call::Write(_)));
            let Call::Write(write) = way.call else { unreachable!("{way:?} does not write one range") };
            for range in ranges {
                write(file, &memory.part(bytes(range)), offset(range))?;
            }
            way.name
        }
        2..=4 => {
            let ranges: Vec<_> =
                ranges.iter().map(|range| IoRange { file_offset: offset(range), ..*range }).collect();
            let stream = Scene::stream(actor.stream.as_ref(), random)?;
            let takes_such = |way: &Way| stream.is_some() || !way.takes_stream();
            let way = any_way(random, |way| way.is_write() && way.is_list() && takes_such(way));
            let (result, written) = way.run(file, stream, memory, &ranges);
            memory = written;
            let (written, wanted) = (result?, bytes_of(&ranges));
            if written != wanted {
                return Err(format!("{way:?}: {written} bytes instead of {wanted}").into());
            }
            way.name
        }
        5 => {
            let request = |range| Request { file, buffer: memory.part(bytes(range)), offset: offset(range) };
            let requests: Vec<_> = ranges.iter().map(request).collect();
            match random.below(2) {
                0 => {
                    scene.engine.write_many(&requests)?;
                    "engine write_many"
                }
                _ => {
                    let outcomes = scene.engine.write_many_each(&requests);
                    outcomes.into_iter().collect::<gpufile::Result<()>>()?;
                    "engine write_many_each"
                }
            }
        }
        _ => {
            let stream = Scene::stream(actor.stream.as_ref(), random)?;
            let takes_such = |way: &Way| way.takes_stream() == stream.is_some();
            let is_such = |way: &Way| way.is_write() && !way.is_list() && way.is_owner() && takes_such(way);
            let way = any_way(random, is_such);
            let mut pending = Vec::new();
            for range in ranges {
                let mut own = memory::new(actor.stage.device.as_ref(), kind, range.len_bytes)?;
                own.put(0, &source[bytes(range)])?;
                pending.push(way.start(file, stream, own, offset(range)));
            }
            random.shuffle(&mut pending);
            pending.into_iter().try_for_each(|transfer| transfer.wait().0.map(drop))?;
            way.name
        }
    };
    actor.put(kind, memory);
    actor.count(way, 1, bytes_of(ranges));
    Ok(way)
}

/// Compares all of the actor's bytes in the file with the copy, by plain reads.
fn check(path: &PathBuf, start: u64, copy: &mut Vec<u8>, plan: &Plan, way: &str) -> Result {
    for IoRange { file_offset, buffer_offset, len_bytes } in &plan.ranges {
        let (start, end) = (*file_offset as usize, *file_offset as usize + len_bytes);
        if copy.len() < end {
            copy.resize(end, 0);
        }
        copy[start..end].copy_from_slice(&plan.source[*buffer_offset..buffer_offset + len_bytes]);
    }
    let file = fs::File::open(path)?;
    let mut found = vec![0; copy.len()];
    let mut done = 0;
    // Bytes that no actor has written yet may lie behind the end of the file.
    while done < found.len() {
        match file.read_at(&mut found[done..], start + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    Ok(compare(&found, copy, || format!("{way} of {} ranges to {}", plan.ranges.len(), path.display()))?)
}
