//! Transfers between disk and memory, on the emulator.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cufile_emulator::Emulator;
use gpufile::cuda::{Cuda, Device, DeviceMemory};
use gpufile::kv_blocks::{BlockError, BlockStore};
use gpufile::{Engine, IoBufMut, OpenOptions, cufile};
use kvbm_executor::{BlockDimension, Dimensions, Executor, Layout, Options, Refused};

const DIMENSIONS: Dimensions = Dimensions {
    num_blocks: 6,
    num_layers: 3,
    outer_dim: 2,
    page_size: 16,
    inner_dim: 128,
    dtype_width_bytes: 2,
};
const PAGE: usize = 16 * 128 * 2;
const BLOCK: usize = 6 * PAGE;

/// The kinds of memory that KVBM has.
#[derive(Debug, Clone, Copy)]
enum Kind {
    System,
    Pinned,
    Device,
}

/// The layouts that KVBM has.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Contiguous,
    Layers(BlockDimension),
}

const KINDS: [Kind; 3] = [Kind::System, Kind::Pinned, Kind::Device];
const SHAPES: [Shape; 3] = [
    Shape::Contiguous,
    Shape::Layers(BlockDimension::BlockIsFirstDim),
    Shape::Layers(BlockDimension::BlockIsSecondDim),
];

/// An emulated GPU, and an engine on it.
struct Bed {
    emulator: Emulator,
    cuda: Cuda,
    engine: Engine,
    device: Device,
}

impl Bed {
    fn new() -> Self {
        let emulator = Emulator::start();
        let library = cufile::Library::from_sys(emulator.cufile()).unwrap();
        let cuda = Cuda::from_sys(emulator.driver(), emulator.runtime()).unwrap();
        let driver = cufile::Driver::builder().library(library).cuda(cuda.clone()).open().unwrap();
        let device = cuda.device(0).unwrap();
        let engine = Engine::builder().cuda(cuda.clone()).driver(driver).threads(2).build();
        Self { emulator, cuda, engine, device }
    }

    fn executor(&self, folder: &Path, blocks: usize) -> Executor {
        let files = OpenOptions::new().engine(&self.engine);
        let builder = BlockStore::builder(BLOCK).limit_bytes((blocks * BLOCK) as u64).files(&files);
        Executor::new(builder.open(folder).unwrap())
    }

    /// Registers memory of a layout, whose bytes are all `fill`.
    fn layout(&self, executor: &Executor, kind: Kind, shape: Shape, fill: u8) -> Held {
        let (count, len_bytes) = match shape {
            Shape::Contiguous => (1, 6 * BLOCK),
            Shape::Layers(_) => (3, 2 * BLOCK),
        };
        let bytes = vec![fill; len_bytes];
        let register = |_| {
            let mut buffer: Box<dyn IoBufMut + Send> = match kind {
                Kind::System => Box::new(vec![0_u8; len_bytes]),
                Kind::Pinned => Box::new(self.device.alloc_pinned(len_bytes).unwrap()),
                Kind::Device => Box::new(self.device.alloc(len_bytes).unwrap()),
            };
            self.cuda.copy(&bytes, &mut *buffer).unwrap();
            executor.memory().register(buffer).unwrap()
        };
        let bases: Vec<_> = (0..count).map(register).collect();
        let layout = match shape {
            Shape::Contiguous => Layout::fully_contiguous(DIMENSIONS, bases[0]),
            Shape::Layers(order) => Layout::layer_separate(DIMENSIONS, &bases, order),
        };
        Held { layout: layout.unwrap(), bases, len_bytes }
    }

    /// Returns a block as it is on disk. The memory is read as a whole, and its parts found by their addresses.
    fn read(&self, executor: &Executor, held: &Held, block: usize) -> Vec<u8> {
        let mut found = vec![0; BLOCK];
        for part in held.layout.descriptors(block, 0..3).unwrap() {
            let base = held.base_of(part.address);
            let mut bytes = vec![0; held.len_bytes];
            let copy = |buffer: &mut (dyn IoBufMut + Send)| self.cuda.copy(&*buffer, &mut bytes).unwrap();
            executor.memory().access(base, copy).unwrap();
            found[part.offset..][..part.len_bytes]
                .copy_from_slice(&bytes[part.address - base..][..part.len_bytes]);
        }
        found
    }

    /// Changes a block, which is given as it is on disk.
    fn write(&self, executor: &Executor, held: &Held, block: usize, contents: &[u8]) {
        for part in held.layout.descriptors(block, 0..3).unwrap() {
            let base = held.base_of(part.address);
            let change = |buffer: &mut (dyn IoBufMut + Send)| {
                let mut bytes = vec![0; held.len_bytes];
                self.cuda.copy(&*buffer, &mut bytes).unwrap();
                bytes[part.address - base..][..part.len_bytes]
                    .copy_from_slice(&contents[part.offset..][..part.len_bytes]);
                self.cuda.copy(&bytes, buffer).unwrap();
            };
            executor.memory().access(base, change).unwrap();
        }
    }
}

/// A layout, and the allocations that it has.
struct Held {
    layout: Layout,
    bases: Vec<usize>,
    len_bytes: usize,
}

impl Held {
    fn base_of(&self, address: usize) -> usize {
        let holds = |base: &&usize| (**base..**base + self.len_bytes).contains(&address);
        *self.bases.iter().find(holds).unwrap()
    }
}

/// Returns bytes that no two seeds share.
fn contents(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..BLOCK).map(byte).collect()
}

#[test]
fn blocks_pass_between_all_memories_and_layouts() {
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let executor = bed.executor(&folder.path().join("disk"), 64);
    let pairs = KINDS.iter().flat_map(|kind| SHAPES.iter().map(move |shape| (*kind, *shape)));
    let pairs: Vec<_> = pairs.collect();
    for (number, &(kind, shape)) in pairs.iter().enumerate() {
        let from = bed.layout(&executor, kind, shape, 0);
        let keys = [2 * number as u128, 2 * number as u128 + 1];
        let sent = keys.map(|key| contents(key as u64));
        bed.write(&executor, &from, 0, &sent[0]);
        bed.write(&executor, &from, 4, &sent[1]);
        executor.offload(&from.layout, &[0, 4], &keys, Options::default()).unwrap().wait().unwrap();
        for &(to_kind, to_shape) in &pairs {
            let to = bed.layout(&executor, to_kind, to_shape, 0xff);
            let onboarding = executor.onboard(&keys, &to.layout, &[3, 1], Options::default()).unwrap();
            pollster::block_on(onboarding).unwrap();
            for block in 0..6 {
                let found = bed.read(&executor, &to, block);
                let expected = match block {
                    3 => &sent[0],
                    1 => &sent[1],
                    _ => &vec![0xff; BLOCK],
                };
                assert!(found == *expected, "{kind:?} {shape:?} to {to_kind:?} {to_shape:?}: block {block}");
            }
            to.bases.iter().for_each(|base| assert!(executor.memory().deregister(*base)));
        }
        from.bases.iter().for_each(|base| assert!(executor.memory().deregister(*base)));
    }
}

#[test]
fn layers_are_onboarded_one_by_one() {
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let executor = bed.executor(&folder.path().join("disk"), 8);
    for shape in SHAPES {
        let memory = bed.layout(&executor, Kind::Device, shape, 0);
        let sent = contents(1);
        bed.write(&executor, &memory, 5, &sent);
        executor.offload(&memory.layout, &[5], &[9], Options::default()).unwrap().wait().unwrap();
        for layer in [1, 0, 2] {
            let options = Options { layers: Some(layer..layer + 1), deadline: None };
            executor.onboard(&[9], &memory.layout, &[2], options).unwrap().wait().unwrap();
            let found = bed.read(&executor, &memory, 2);
            for other in 0..3 {
                let part = 2 * other * PAGE..2 * (other + 1) * PAGE;
                let has_come = [1, 0, 2].iter().position(|of| *of == other)
                    <= [1, 0, 2].iter().position(|of| *of == layer);
                let expected = if has_come { sent[part.clone()].to_vec() } else { vec![0; 2 * PAGE] };
                assert!(found[part] == expected, "{shape:?}: layer {other} after {layer}");
            }
        }
        let part = Options { layers: Some(0..1), deadline: None };
        assert_eq!(
            executor.offload(&memory.layout, &[5], &[9], part).unwrap_err(),
            Refused::PartOfBlock { layers: 0..1, of: 3 }
        );
        memory.bases.iter().for_each(|base| assert!(executor.memory().deregister(*base)));
    }
}

#[test]
fn failed_blocks_are_named_and_the_others_come() {
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let executor = bed.executor(&folder.path().join("disk"), 8);
    let memory = bed.layout(&executor, Kind::Device, SHAPES[1], 0);
    let sent = contents(3);
    bed.write(&executor, &memory, 0, &sent);
    executor.offload(&memory.layout, &[0], &[0xab], Options::default()).unwrap().wait().unwrap();
    // One block of the disk goes to two of the memory.
    let onboarding =
        executor.onboard(&[0xab, 0xcd, 0xab], &memory.layout, &[1, 2, 3], Options::default()).unwrap();
    let error = onboarding.wait().unwrap_err();
    assert_eq!((error.of, error.failed.len()), (3, 1));
    let failed = &error.failed[0];
    assert_eq!((failed.position, failed.block, failed.key), (1, 2, 0xcd));
    assert!(matches!(failed.error, BlockError::Missing));
    assert_eq!(
        error.to_string(),
        "1 of 3 blocks were not moved, the first of them block 2 with key 0xcd: the store does not have the block"
    );
    for (block, expected) in [(1, sent.clone()), (2, vec![0; BLOCK]), (3, sent)] {
        assert!(bed.read(&executor, &memory, block) == expected, "block {block}");
    }
}

#[test]
fn wrong_calls_are_refused_and_move_nothing() {
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let executor = bed.executor(&folder.path().join("disk"), 8);
    let memory = bed.layout(&executor, Kind::Device, Shape::Contiguous, 1);
    let layout = &memory.layout;
    let offload = |blocks: &[usize], keys: &[u128]| {
        executor.offload(layout, blocks, keys, Options::default()).unwrap_err()
    };
    assert_eq!(offload(&[0], &[1, 2]), Refused::Counts { blocks: 1, keys: 2 });
    assert_eq!(offload(&[0, 6], &[1, 2]), Refused::Block { block: 6, blocks: 6 });
    assert_eq!(offload(&[4, 0, 4], &[1, 2, 3]), Refused::BlockTwice(4));
    assert_eq!(offload(&[0, 1], &[7, 7]), Refused::KeyTwice(7));
    for layers in [2..2, 2..4] {
        let options = Options { layers: Some(layers.clone()), deadline: None };
        let refused = executor.onboard(&[1], layout, &[0], options).unwrap_err();
        assert_eq!(refused, Refused::Layers { layers, of: 3 });
    }
    // The last page lies behind the memory.
    let shifted = Layout::fully_contiguous(DIMENSIONS, memory.bases[0] + PAGE).unwrap();
    let onboard = |block| executor.onboard(&[1], &shifted, &[block], Options::default());
    assert!(matches!(onboard(5).unwrap_err(), Refused::Unregistered { block: 5, .. }));
    assert!(onboard(4).unwrap().wait().is_err(), "its memory is registered, and its key is not there");
    assert!(executor.store().is_empty() && executor.memory().bytes_in_use() == 0);
    assert!(executor.onboard(&[], layout, &[], Options::default()).unwrap().wait().is_ok());
}

#[test]
fn memory_of_a_framework_is_registered_once() {
    const LEN: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let bed = Bed::new();
    let executor = bed.executor(&folder.path().join("disk"), 1);
    let mut tensor = bed.device.alloc(LEN).unwrap();
    let start = tensor.as_mut_ptr();
    let tensor = Arc::new(tensor);
    let part = |at: usize, len_bytes: usize| {
        let owner = tensor.clone();
        // SAFETY: the owner keeps the bytes, and this test does not use them.
        unsafe { DeviceMemory::from_raw(&bed.device, start.wrapping_add(at), len_bytes, owner) }
    };
    let register = |at: usize, len_bytes: usize| executor.memory().register(part(at, len_bytes));
    let middle = register(LEN / 4, LEN / 2).unwrap();
    assert_eq!(middle, start.addr() + LEN / 4);
    for (at, len_bytes) in
        [(0, LEN), (0, LEN / 4 + 1), (3 * LEN / 4 - 1, 1), (LEN / 2, 100), (LEN / 4, LEN / 2)]
    {
        let refused = register(at, len_bytes).unwrap_err();
        assert_eq!((refused.address, refused.len_bytes), (start.addr() + at, len_bytes));
    }
    register(0, LEN / 4).unwrap();
    register(3 * LEN / 4, LEN / 4).unwrap();
    assert_eq!(Arc::strong_count(&tensor), 4);
    assert!(executor.memory().deregister(middle) && !executor.memory().deregister(middle));
    assert_eq!(Arc::strong_count(&tensor), 3);
    register(LEN / 4, LEN / 2).unwrap();
}

#[test]
fn the_disk_evicts_and_survives_restarts() {
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("disk");
    let executor = bed.executor(&folder, 4);
    let memory = bed.layout(&executor, Kind::Device, SHAPES[2], 0);
    for block in 0..4 {
        bed.write(&executor, &memory, block, &contents(block as u64));
    }
    let layout = &memory.layout;
    executor.offload(layout, &[0, 1, 2, 3], &[0, 1, 2, 3], Options::default()).unwrap().wait().unwrap();
    // Block 0 was used last, so two more blocks evict 1 and 2.
    executor.onboard(&[0], layout, &[5], Options::default()).unwrap().wait().unwrap();
    executor.offload(layout, &[2, 3], &[12, 13], Options::default()).unwrap().wait().unwrap();
    let sorted = |executor: &Executor| {
        let mut keys = executor.store().keys();
        keys.sort_unstable();
        keys
    };
    assert_eq!(sorted(&executor), [0, 3, 12, 13]);
    executor.into_store().close().unwrap();

    let executor = bed.executor(&folder, 4);
    assert_eq!((executor.store().recovery().whole, sorted(&executor)), (4, vec![0, 3, 12, 13]));
    let memory = bed.layout(&executor, Kind::System, Shape::Contiguous, 0);
    let keys = [0, 3, 12, 13];
    executor.onboard(&keys, &memory.layout, &[0, 1, 2, 3], Options::default()).unwrap().wait().unwrap();
    for (block, seed) in [(0, 0), (1, 3), (2, 2), (3, 3)] {
        assert!(bed.read(&executor, &memory, block) == contents(seed), "block {block}");
    }
}

#[test]
fn blocks_given_up_keep_their_memory_until_the_gpu_answers() {
    let bed = Bed::new();
    let folder = tempfile::tempdir().unwrap();
    let executor = bed.executor(&folder.path().join("disk"), 8);
    let memory = bed.layout(&executor, Kind::Device, Shape::Contiguous, 5);
    executor.offload(&memory.layout, &[0], &[1], Options::default()).unwrap().wait().unwrap();
    let held = bed.emulator.hold("cudaMemcpyAsync", "times=all");
    let deadline = Some(Instant::now() + Duration::from_millis(200));
    let late = executor.onboard(&[1], &memory.layout, &[1], Options { layers: None, deadline }).unwrap();
    let given_up = executor.onboard(&[1], &memory.layout, &[2], Options::default()).unwrap();
    assert!(given_up.could_yield());
    held.wait_for(1);
    let error = late.wait().unwrap_err();
    assert!(matches!(error.failed[0].error, BlockError::Deadline), "{error}");
    let start = Instant::now();
    let error = given_up.cancel().unwrap_err();
    assert!(
        start.elapsed() < Duration::from_secs(5) && matches!(error.failed[0].error, BlockError::Cancelled)
    );
    // No other transfer gets the memory, and its owner may not free it yet.
    assert!(executor.memory().bytes_in_use() >= BLOCK);
    let again = executor.onboard(&[1], &memory.layout, &[1], Options::default()).unwrap();
    assert!(matches!(again.wait().unwrap_err().failed[0].error, BlockError::InUse));
    let before = bed.emulator.live("allocations");
    assert!(executor.memory().deregister(memory.bases[0]));
    assert_eq!(bed.emulator.live("allocations"), before);
    held.release();
    let start = Instant::now();
    while bed.emulator.live("allocations") >= before {
        assert!(start.elapsed() < Duration::from_secs(60), "the memory is not freed");
        thread::sleep(Duration::from_millis(1));
    }
}
