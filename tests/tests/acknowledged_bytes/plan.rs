//! The plan of a case: files, their owners, the threads' operations, and the faults, all from one seed.

use gpufile::{DirectIo, RoutePolicy};
use testkit::random::Random;
use testkit::ways::{ALIKE, Alike, WAYS, Way};

use crate::faults::Fault;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The longest transfer in bytes.
pub const LONGEST: usize = 18 * MIB;
/// The noise in bytes, the source of all written bytes.
pub const NOISE_BYTES: usize = LONGEST + 2 * MIB;
/// Bytes that the final write and read move.
pub const SPARE_BYTES: usize = 36 * 4096;

#[derive(Debug)]
pub struct Plan {
    pub engine: EnginePlan,
    /// True if cuFile has a direct route to disks: libcufile then writes whole blocks of 4 KiB, so no two threads
    /// may write to one block.
    pub gds: bool,
    pub files: Vec<FilePlan>,
    pub slots: Vec<Slot>,
    pub threads: Vec<ThreadPlan>,
    /// True if cuFile insists on the context of a buffer's GPU.
    pub require_context: bool,
    /// True if threads that open files use another engine.
    pub other_engine: bool,
    /// Faults while the threads work.
    pub faults: Vec<Fault>,
    /// Faults while the engine ends.
    pub late_faults: Vec<Fault>,
}

#[derive(Debug)]
pub struct EnginePlan {
    pub threads: usize,
    pub bounce_buffer_bytes: usize,
    pub bounce_memory_bytes: Option<usize>,
    pub chunk_bytes: Option<usize>,
    pub gds_threshold_bytes: usize,
    pub overread: bool,
}

#[derive(Debug)]
pub struct FilePlan {
    /// Bytes at the beginning that no thread uses before the end.
    pub front_bytes: usize,
    /// The new file's length in bytes, the first ones of the noise.
    pub len_bytes: usize,
    pub policy: RoutePolicy,
    pub direct_read: DirectIo,
    pub direct_write: DirectIo,
}

/// A range of a file that one thread writes, or nobody.
#[derive(Debug)]
pub struct Slot {
    pub file: usize,
    pub start: u64,
    pub len_bytes: usize,
    pub owner: Option<usize>,
}

#[derive(Debug, Default)]
pub struct ThreadPlan {
    /// True if the thread opens the files while faults strike.
    pub opens: bool,
    pub ops: Vec<Op>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Host,
    Pinned,
    Managed,
    Device(u32),
    /// Memory of writes; reads use memory of the first GPU.
    Registered,
}

impl Place {
    pub const ALL: [Place; 6] =
        [Place::Host, Place::Pinned, Place::Managed, Place::Device(0), Place::Device(1), Place::Registered];

    fn random(random: &mut Random) -> Self {
        random.pick(&[
            Place::Host,
            Place::Host,
            Place::Pinned,
            Place::Managed,
            Place::Device(0),
            Place::Device(0),
            Place::Device(0),
            Place::Device(1),
            Place::Registered,
        ])
    }
}

#[derive(Debug, Clone)]
pub struct Piece {
    pub slot: usize,
    pub start: usize,
    pub len_bytes: usize,
    /// The position of the written bytes in the noise.
    pub noise: usize,
}

/// The end of a transfer in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Waited,
    Awaited,
    Cancelled,
    Dropped,
}

#[derive(Debug, Clone, Copy)]
pub struct How {
    pub way: &'static Way,
    pub alike: &'static Alike,
    /// For a way that starts a transfer of one range.
    pub fate: Fate,
}

impl How {
    fn random(random: &mut Random, writes: bool, lists: bool) -> Self {
        // Half of the transfers own their memory.
        let owns = random.one_in(2);
        let is_such = |way: &&Way| (way.is_write(), way.is_list(), way.is_owner()) == (writes, lists, owns);
        let ways: Vec<_> = WAYS.iter().filter(is_such).collect();
        let alike: Vec<_> = ALIKE.iter().filter(|alike| alike.is_writable || !writes).collect();
        let fates = [Fate::Waited, Fate::Waited, Fate::Awaited, Fate::Cancelled, Fate::Dropped];
        Self {
            way: random.pick(&ways),
            alike: if random.one_in(2) { alike[0] } else { random.pick(&alike) },
            fate: random.pick(&fates),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum ManyHow {
    File(How),
    /// By the engine, from and to several files.
    Engine,
}

#[derive(Debug)]
pub enum Op {
    Write {
        piece: Piece,
        place: Place,
        how: How,
    },
    Read {
        piece: Piece,
        place: Place,
        how: How,
    },
    WriteMany {
        pieces: Vec<Piece>,
        place: Place,
        how: ManyHow,
    },
    ReadMany {
        pieces: Vec<Piece>,
        place: Place,
        how: ManyHow,
    },
    /// Replaces a file that only this thread uses.
    Save {
        array: bool,
        place: Place,
        sync: bool,
        tensors: Vec<(usize, usize)>,
    },
    /// Loads the file that was last saved as safetensors.
    Load,
    Open {
        file: usize,
    },
    /// Makes the file as long as its greatest length.
    Extend {
        file: usize,
    },
    /// Takes the file out of the page cache.
    Uncache {
        file: usize,
    },
    Sync {
        file: usize,
    },
    Release,
}

impl Op {
    /// Returns whether the engine repeats failed calls of CUDA and cuFile: for fewer ranges, to find the outcome of each.
    pub fn repeats(&self) -> bool {
        let (Op::WriteMany { how, .. } | Op::ReadMany { how, .. }) = self else { return false };
        matches!(how, ManyHow::File(how) if how.way.is_each())
    }

    pub fn name(&self) -> &'static str {
        match self {
            Op::Write { how, .. } | Op::Read { how, .. } => how.way.name,
            Op::WriteMany { how: ManyHow::File(how), .. } | Op::ReadMany { how: ManyHow::File(how), .. } => {
                how.way.name
            }
            Op::WriteMany { .. } => "Engine::write_many",
            Op::ReadMany { .. } => "Engine::read_many",
            Op::Save { .. } => "save",
            Op::Load => "load",
            Op::Open { .. } => "open",
            Op::Extend { .. } => "extend",
            Op::Uncache { .. } => "uncache",
            Op::Sync { .. } => "sync",
            Op::Release => "release",
        }
    }
}

impl Plan {
    /// Grows files less if `small`.
    pub fn new(seed: u64, small: bool) -> Self {
        let random = &mut Random::new(seed);
        let thread_count = random.pick(&[1, 2, 2, 3, 4]);
        let gds = random.one_in(3);
        // All threads make one new file longer at once.
        let grows = random.one_in(4);
        let files: Vec<_> =
            (0..random.pick(&[1, 1, 2, 3])).map(|_| FilePlan::random(random, small)).collect();
        let mut slots = Vec::new();
        for (file, FilePlan { front_bytes, .. }) in files.iter().enumerate() {
            let kind = match (small, grows) {
                (true, _) => Lengths::Small,
                (_, true) => Lengths::OftenLong,
                _ => Lengths::Any,
            };
            Slot::cut(random, &mut slots, (file, *front_bytes as u64), thread_count, gds, kind);
        }
        let mut plan = Self {
            engine: EnginePlan::random(random),
            gds,
            files,
            slots,
            threads: Vec::new(),
            require_context: random.one_in(4),
            other_engine: random.one_in(4),
            faults: Vec::new(),
            late_faults: Vec::new(),
        };
        for file in 0..plan.files.len() {
            let (front, end) = (plan.files[file].front_bytes, plan.file_end(file).min(NOISE_BYTES));
            let lengths = [0, 0, end, end, random.below(end), 5000.min(end)];
            plan.files[file].len_bytes =
                if grows || small { front } else { random.pick(&lengths).max(front) };
        }
        for thread in 0..thread_count {
            let opens = random.one_in(3);
            let mut ops: Vec<_> =
                (0..2 + random.below(6)).map(|_| Op::random(random, &plan, thread)).collect();
            if let Some(save) = ops.iter().position(|op| matches!(op, Op::Save { array: false, .. })) {
                ops.insert(save + 1, Op::Load);
            }
            if grows {
                ops.splice(0..0, Op::whole_slots(random, &plan, thread));
            }
            plan.threads.push(ThreadPlan { opens, ops });
        }
        plan.faults = (0..random.pick(&[0, 1, 2, 3, 4])).map(|_| Fault::random(random)).collect();
        if random.one_in(4) {
            plan.faults.extend(Fault::of_storage(random));
        }
        if random.one_in(4) {
            plan.late_faults = (0..1 + random.below(3)).map(|_| Fault::random(random)).collect();
        }
        plan.faults.extend(Fault::needed_beside(&plan.faults));
        plan
    }

    pub fn file_end(&self, file: usize) -> usize {
        let ends = self.slots.iter().filter(|slot| slot.file == file);
        ends.map(|slot| slot.start as usize + slot.len_bytes).max().unwrap_or(0)
    }
}

impl FilePlan {
    fn random(random: &mut Random, small: bool) -> Self {
        let direct = [DirectIo::Auto, DirectIo::Auto, DirectIo::Never, DirectIo::Always];
        Self {
            front_bytes: if small || random.one_in(2) { SPARE_BYTES } else { 0 },
            len_bytes: 0,
            policy: random.pick(&[RoutePolicy::Auto, RoutePolicy::PosixOnly, RoutePolicy::RequireCufile]),
            direct_read: random.pick(&direct),
            direct_write: random.pick(&direct),
        }
    }
}

impl EnginePlan {
    fn random(random: &mut Random) -> Self {
        Self {
            threads: random.pick(&[1, 2, 3, 4]),
            bounce_buffer_bytes: random.pick(&[4 * KIB, 32 * KIB, 64 * KIB, 256 * KIB, MIB]),
            bounce_memory_bytes: random.one_in(4).then_some(1),
            chunk_bytes: random.one_in(3).then(|| random.pick(&[5000, 64 * KIB, 100_003, MIB])),
            gds_threshold_bytes: random.pick(&[0, 16 * KIB]),
            overread: !random.one_in(4),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lengths {
    Any,
    Small,
    /// Lengths for which the engine often allocates a file's blocks in advance.
    OftenLong,
}

impl Slot {
    fn cut(
        random: &mut Random,
        slots: &mut Vec<Slot>,
        (file, mut start): (usize, u64),
        threads: usize,
        gds: bool,
        lengths: Lengths,
    ) {
        for _ in 0..1 + random.below(3 * threads) {
            let mut len_bytes = match random.below(24) {
                0 if random.one_in(3) && lengths == Lengths::Any => 16 * MIB + random.below(MIB),
                0..6 if lengths == Lengths::Small => 100_000 + random.below(MIB),
                0..6 => MIB + random.below(MIB + MIB / 2),
                6..14 if lengths == Lengths::OftenLong => MIB + random.below(MIB),
                6..12 => 1 + random.below(300_000),
                12..18 => 1 + random.below(20_000),
                18..21 => 4096 * (1 + random.below(8)),
                _ => 1 + random.below(100),
            };
            if gds {
                len_bytes = len_bytes.next_multiple_of(4096);
            }
            let owner = (!random.one_in(8)).then(|| random.below(threads));
            slots.push(Slot { file, start, len_bytes, owner });
            start += len_bytes as u64;
        }
    }
}

impl Op {
    fn random(random: &mut Random, plan: &Plan, thread: usize) -> Self {
        let mut own: Vec<_> =
            (0..plan.slots.len()).filter(|slot| plan.slots[*slot].owner == Some(thread)).collect();
        random.shuffle(&mut own);
        let place = Place::random(random);
        let Some(&first) = own.first() else { return Op::save(random, place) };
        let piece = Piece::random(random, first, plan.slots[first].len_bytes);
        match random.below(42) {
            0..15 => Op::Write { piece, place, how: How::random(random, true, false) },
            15..22 => Op::Read { piece, place, how: How::random(random, false, false) },
            22..35 => {
                let writes = random.below(13) < 9;
                let how = match random.one_in(4) {
                    true => ManyHow::Engine,
                    false => ManyHow::File(How::random(random, writes, true)),
                };
                if matches!(how, ManyHow::File(_)) {
                    own.retain(|slot| plan.slots[*slot].file == plan.slots[first].file);
                }
                own.truncate(1 + random.below(own.len()));
                own.sort_unstable();
                let mut pieces = Vec::new();
                let mut noise = 0;
                for slot in own {
                    Piece::several(random, &mut pieces, slot, plan.slots[slot].len_bytes, &mut noise);
                }
                match writes {
                    true => Op::WriteMany { pieces, place, how },
                    false => Op::ReadMany { pieces, place, how },
                }
            }
            35 => Op::Open { file: plan.slots[first].file },
            36 => Op::Sync { file: plan.slots[first].file },
            37 => Op::Release,
            38 => Op::Extend { file: plan.slots[first].file },
            39 => Op::Uncache { file: plan.slots[first].file },
            _ => Op::save(random, place),
        }
    }

    fn whole_slots(random: &mut Random, plan: &Plan, thread: usize) -> Vec<Self> {
        let own = plan.slots.iter().enumerate().filter(|(_, slot)| slot.owner == Some(thread));
        let mut ops: Vec<_> = own
            .map(|(slot, Slot { len_bytes, .. })| {
                let noise = random.below(NOISE_BYTES - len_bytes);
                let piece = Piece { slot, start: 0, len_bytes: *len_bytes, noise };
                let how = How { fate: Fate::Waited, ..How::random(random, true, false) };
                Op::Write { piece, place: Place::random(random), how }
            })
            .collect();
        if random.one_in(2) {
            ops.reverse();
        }
        ops
    }

    fn save(random: &mut Random, place: Place) -> Self {
        let array = random.one_in(3);
        let count = if array { 1 } else { 1 + random.below(4) };
        let mut tensors: Vec<(usize, usize)> = Vec::new();
        for _ in 0..count {
            let most = random.pick(&[100, 5000, 70_000, 70_000, 1_200_000]);
            let len_bytes = 1 + random.below(most);
            tensors.push((random.below(NOISE_BYTES - len_bytes), len_bytes));
        }
        Op::Save { array, place, sync: random.one_in(2), tensors }
    }
}

impl Piece {
    fn random(random: &mut Random, slot: usize, slot_bytes: usize) -> Self {
        let (start, len_bytes) = match random.below(3) {
            0 => (0, slot_bytes),
            _ => {
                let start = random.below(slot_bytes);
                (start, 1 + random.below(slot_bytes - start))
            }
        };
        Self { slot, start, len_bytes, noise: random.below(NOISE_BYTES - len_bytes) }
    }

    /// Returns parts of a slot and of one buffer, with or without gaps; the next part of the buffer begins at
    /// `noise`.
    fn several(
        random: &mut Random,
        pieces: &mut Vec<Self>,
        slot: usize,
        slot_bytes: usize,
        noise: &mut usize,
    ) {
        let gaps = random.one_in(2);
        let mut start = if gaps { random.below(slot_bytes) } else { 0 };
        for _ in 0..1 + random.below(4) {
            let mut len_bytes = 1 + random.below(slot_bytes - start);
            if !gaps && random.one_in(2) {
                len_bytes = slot_bytes - start;
            }
            if *noise + len_bytes > NOISE_BYTES {
                return;
            }
            pieces.push(Self { slot, start, len_bytes, noise: *noise });
            *noise += len_bytes + if gaps { random.below(50) } else { 0 };
            start += len_bytes + if gaps { random.below(5000) } else { 0 };
            if start >= slot_bytes {
                return;
            }
        }
    }
}
