//! The memory of the models: which bytes are allocated, and which threads use them now.
//!
//! Freed memory stays until the next schedule, so a use of it fails the model instead of the program.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::LazyLock;

use shuttle::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A call that submits to a stream fails, and submits nothing.
    Refused,
    /// A call that submits to a stream fails, but the stream carries out the work.
    RefusedLate,
    /// A query of an event fails, but the stream continues.
    Asked,
    /// An operation of a stream fails, and the stream carries out no more.
    Dies,
    /// An allocation of pinned memory fails.
    NoMemory,
    /// The creation of a stream fails.
    NoStream,
    /// A drop gives up waiting for a transfer.
    GivesUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Pinned,
    Buffer,
}

struct Allocation {
    memory: Box<[u64]>,
    len_bytes: usize,
    kind: Kind,
    is_live: bool,
}

impl Allocation {
    fn range(&self) -> Range<usize> {
        let start = self.memory.as_ptr().addr();
        start..start + self.len_bytes
    }
}

struct Use {
    number: usize,
    bytes: Range<usize>,
    access: Access,
    user: &'static str,
}

#[derive(Default)]
struct World {
    allocations: Vec<Allocation>,
    /// Memory of earlier schedules, kept for reuse: allocating fresh memory takes longer than a schedule.
    spare: Vec<Box<[u64]>>,
    uses: Vec<Use>,
    last_use: usize,
    /// Each planned fault, and the number of calls before it.
    faults: Vec<(Fault, usize)>,
    transfers: usize,
    streams: usize,
    schedules: usize,
    leaked: usize,
    /// The number of notifications that no thread waited for.
    vain_notifications: usize,
    is_child: bool,
    is_broken: bool,
}

thread_local! {
    // The scheduler runs all threads of a model on one thread of the operating system.
    static WORLD: RefCell<World> = RefCell::default();
}

/// Reports a failure that a model found, and panics. The engine could catch a panic without a report where it
/// calls wakers.
fn broken(what: String) -> ! {
    WORLD.with_borrow_mut(|world| world.is_broken = true);
    panic!("{what}");
}

pub fn begin() {
    WORLD.with_borrow_mut(|world| {
        let used = std::mem::take(&mut world.allocations);
        world.spare.extend(used.into_iter().map(|allocation| allocation.memory));
        let (spare, schedules) = (std::mem::take(&mut world.spare), world.schedules + 1);
        *world = World { spare, schedules, ..World::default() };
    });
}

/// Fails if anything is left.
pub fn end() {
    WORLD.with_borrow(|world| {
        assert!(!world.is_broken, "something was caught");
        assert!(world.uses.is_empty(), "something is under way");
        assert_eq!(world.transfers, 0, "a job has a transfer still");
        assert_eq!(live_in(world, Kind::Buffer), world.leaked, "a buffer was lost");
    });
}

pub fn count_vain_notification() {
    WORLD.with_borrow_mut(|world| world.vain_notifications += 1);
}

pub fn vain_notifications() -> usize {
    WORLD.with_borrow(|world| world.vain_notifications)
}

fn live_in(world: &World, kind: Kind) -> usize {
    world.allocations.iter().filter(|allocation| allocation.is_live && allocation.kind == kind).count()
}

pub fn live(kind: Kind) -> usize {
    WORLD.with_borrow(|world| live_in(world, kind))
}

/// Plans a fault for a later call, of which the first has the number 0.
pub fn fail(fault: Fault, at_call: usize) {
    WORLD.with_borrow_mut(|world| world.faults.push((fault, at_call)));
}

pub fn heal() {
    WORLD.with_borrow_mut(|world| world.faults.clear());
}

/// Returns whether a fault happens at this call, and counts the call.
pub fn happens(fault: Fault) -> bool {
    WORLD.with_borrow_mut(|world| {
        let Some(at) = world.faults.iter().position(|(known, _)| *known == fault) else { return false };
        if world.faults[at].1 == 0 {
            world.faults.remove(at);
            return true;
        }
        world.faults[at].1 -= 1;
        false
    })
}

/// Returns a number that no other stream of the schedule has.
pub fn next_stream() -> usize {
    WORLD.with_borrow_mut(|world| {
        world.streams += 1;
        world.streams
    })
}

pub fn count_transfers(more: bool) {
    WORLD.with_borrow_mut(|world| {
        world.transfers = world.transfers.wrapping_add_signed(if more { 1 } else { -1 })
    });
}

pub fn alloc(len_bytes: usize, kind: Kind) -> *mut u8 {
    let words = len_bytes.div_ceil(8);
    WORLD.with_borrow_mut(|world| {
        let spare = world.spare.iter().position(|memory| memory.len() == words);
        let memory = spare.map_or_else(|| vec![0; words].into(), |at| world.spare.swap_remove(at));
        world.allocations.push(Allocation { memory, len_bytes, kind, is_live: true });
        world.allocations.last_mut().expect("just pushed").memory.as_mut_ptr().cast()
    })
}

pub fn free(ptr: *const u8) {
    let found = WORLD.with_borrow_mut(|world| {
        let all = &mut world.allocations;
        let Some(freed) = all.iter_mut().find(|all| all.is_live && all.range().start == ptr.addr()) else {
            return Some("freed twice".to_owned());
        };
        freed.is_live = false;
        let range = freed.range();
        let used = world.uses.iter().find(|one| overlap(&one.bytes, &range))?;
        Some(format!("freed while {} uses it", used.user))
    });
    if let Some(what) = found {
        broken(what);
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn check_live(world: &World, bytes: &Range<usize>) -> Result<(), String> {
    let within = |all: &Allocation| all.range().start <= bytes.start && bytes.end <= all.range().end;
    match world.allocations.iter().find(|all| within(all)) {
        Some(allocation) if allocation.is_live => Ok(()),
        Some(_) => Err("uses what was freed".to_owned()),
        None => Err("uses what never was".to_owned()),
    }
}

/// Fails if these bytes are not allocated.
pub fn check(ptr: *const u8, len_bytes: usize, user: &'static str) {
    let bytes = ptr.addr()..ptr.addr() + len_bytes;
    if let Err(what) = WORLD.with_borrow(|world| check_live(world, &bytes)) {
        broken(format!("{user} {what}"));
    }
}

/// Uses bytes for some time. During that time, no other thread may write these bytes, or read the bytes that
/// this thread writes.
pub fn using<R>(parts: &[(*const u8, usize, Access)], user: &'static str, act: impl FnOnce() -> R) -> R {
    let begun = WORLD.with_borrow_mut(|world| {
        world.last_use += 1;
        let number = world.last_use;
        for &(ptr, len_bytes, access) in parts {
            let bytes = ptr.addr()..ptr.addr() + len_bytes;
            check_live(world, &bytes).map_err(|what| format!("{user} {what}"))?;
            let meets =
                |one: &&Use| overlap(&one.bytes, &bytes) && [one.access, access].contains(&Access::Write);
            if let Some(other) = world.uses.iter().find(meets) {
                return Err(format!("{user} and {} use the same bytes", other.user));
            }
            world.uses.push(Use { number, bytes, access, user });
        }
        Ok(number)
    });
    let number = begun.unwrap_or_else(|what| broken(what));
    pause();
    let result = act();
    pause();
    let freed = WORLD.with_borrow_mut(|world| {
        let is_ours = |one: &Use| one.number == number;
        let freed =
            world.uses.iter().filter(|one| is_ours(one)).find_map(|one| check_live(world, &one.bytes).err());
        world.uses.retain(|one| !is_ours(one));
        freed
    });
    freed.map_or(result, |what| broken(format!("{user} {what}")))
}

/// Runs `child` as a forked child would: without the other threads, which are somewhere in their work. It must not take
/// a lock, which one of them may hold, or call CUDA. It must leave the memory as it is, because the parent goes on.
pub fn in_a_child(child: impl FnOnce()) {
    WORLD.with_borrow_mut(|world| world.is_child = true);
    child();
    WORLD.with_borrow_mut(|world| world.is_child = false);
}

pub fn is_child() -> bool {
    WORLD.with_borrow(|world| world.is_child)
}

/// Notes that all live buffers were leaked on purpose. Returns their number.
pub fn are_leaked() -> usize {
    WORLD.with_borrow_mut(|world| {
        world.leaked = live_in(world, Kind::Buffer);
        world.leaked
    })
}

/// Lets another thread run, without marking this one as waiting.
pub fn pause() {
    if is_child() {
        broken("a forked child waits, or takes a lock".to_owned());
    }
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// Returns the bytes that files hold. They occur nowhere else, and did not occur in earlier schedules.
pub fn pattern(offset: usize, len_bytes: usize) -> &'static [u8] {
    const WORDS: usize = 1 << 20;
    const SCHEDULES: usize = 1 << 12;
    static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mix = |word: u64| (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        (0..WORDS as u64).flat_map(|word| mix(mix(word)).to_ne_bytes()).collect()
    });
    let skip = 8 * (WORLD.with_borrow(|world| world.schedules) % SCHEDULES);
    &PATTERN[skip + offset..][..len_bytes]
}
