//! Tests of the number of calls that loads make. Gaps between tensors in memory must not cut reads and copies.

use gpufile::formats::safetensors::{self, Checkpoint, Placement, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::{Engine, OpenOptions, RoutePolicy};
use testkit::bed::{Bed, pattern};

const COUNT: usize = 3000;
/// Nothing is between these in memory.
const EVEN: [u64; 4] = [1024, 4096, 16, 992];
/// Gaps are between all of these.
const ODD: [u64; 4] = [1001, 4095, 17, 999];
/// These are shorter than the alignment.
const SHORT: [u64; 4] = [4, 3, 1, 15];

#[derive(Clone, Copy)]
enum To {
    Host,
    Device,
    TwoDevices,
}

#[derive(Debug, Clone, Copy)]
struct Calls {
    host: u64,
    posix: u64,
    cufile: u64,
    kernels: i64,
    peer_copies: i64,
}

/// Loads a model of tensors with these lengths in turn, and counts.
fn load(lens: [u64; 4], to: To, policy: RoutePolicy) -> Calls {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.control("gpus 2");
    let names: Vec<_> = (0..COUNT).map(|number| format!("{number:05}")).collect();
    let content = pattern(COUNT + 4096);
    let shapes: Vec<_> = (0..COUNT).map(|number| [lens[number % lens.len()]]).collect();
    let bytes = |number: usize| &content[number..number + shapes[number][0] as usize];
    let tensors: Vec<_> =
        (0..COUNT).map(|n| TensorData::new(&names[n], Dtype::U8, &shapes[n], bytes(n))).collect();
    let path = bed.path("model.safetensors");
    safetensors::save(&path, &tensors, &SaveOptions::new().sync(false)).unwrap();

    let engine = Engine::builder().driver(bed.driver.clone()).threads(4).build();
    let options = OpenOptions::new().engine(&engine).policy(policy);
    let checkpoint = Checkpoint::open_with([&path], &options).unwrap();
    let before = engine.stats();
    let check = |number: usize, found: &[u8]| assert!(found == bytes(number), "{number}");
    match to {
        To::Host => {
            let loaded = checkpoint.load().to_host().unwrap();
            (0..COUNT).for_each(|number| check(number, loaded.bytes(&names[number]).unwrap()));
        }
        To::Device => {
            let loaded = checkpoint.load().to_device(&bed.device).unwrap();
            let memory = loaded.buffer().to_vec().unwrap();
            (0..COUNT).for_each(|n| check(n, &memory[loaded.tensor(&names[n]).unwrap().range]));
        }
        To::TwoDevices => {
            let devices = [0, 1].map(|gpu| bed.driver.cuda().device(gpu).unwrap());
            for loaded in checkpoint.load().placed(&Placement::all()).to_devices(&devices).unwrap() {
                let memory = loaded.buffer().to_vec().unwrap();
                (0..COUNT).for_each(|n| check(n, &memory[loaded.tensor(&names[n]).unwrap().range]));
            }
        }
    }
    let after = engine.stats();
    Calls {
        host: after.host.reads - before.host.reads,
        posix: after.posix.reads - before.posix.reads,
        cufile: after.cufile_compat.reads - before.cufile_compat.reads,
        kernels: emulator.calls("cuLaunchKernel"),
        peer_copies: emulator.calls("cudaMemcpyPeerAsync"),
    }
}

#[test]
fn gaps_in_memory_cut_no_reads_of_files() {
    for to in [To::Host, To::Device, To::TwoDevices] {
        let [even, odd, short] = [EVEN, ODD, SHORT].map(|lens| load(lens, to, RoutePolicy::PosixOnly));
        assert!(even.posix + even.host < 30, "{even:?}");
        assert!(odd.posix + odd.host <= even.posix + even.host + 2, "{odd:?}, but {even:?}");
        assert!(short.posix + short.host <= 5, "{short:?}");
        // A kernel moves all tensors of a read at once.
        assert!(odd.kernels as u64 <= odd.posix && even.kernels + short.kernels == 0, "{odd:?}");
        assert!(odd.peer_copies <= even.peer_copies, "{odd:?}, but {even:?}");
    }
}

#[test]
fn reads_by_cufile_are_one_per_tensor_with_gaps() {
    for to in [To::Device, To::TwoDevices] {
        let [even, odd, short] = [EVEN, ODD, SHORT].map(|lens| load(lens, to, RoutePolicy::RequireCufile));
        assert!((1..30).contains(&even.cufile), "{even:?}");
        assert!(odd.cufile <= COUNT as u64 + even.cufile, "{odd:?}, but {even:?}");
        assert_eq!(short.cufile, 1, "{short:?}");
        assert!(odd.peer_copies <= even.peer_copies, "{odd:?}, but {even:?}");
    }
}
