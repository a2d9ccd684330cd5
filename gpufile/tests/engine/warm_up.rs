use gpufile::{Engine, EngineBuilder, File, RoutePolicy};
use testkit::Emulator;
use testkit::bed::{Bed, pattern};
use testkit::in_flight::soon;

const LEN: usize = (6 << 20) + 777;
const THREADS: usize = 4;
const BOUNCE: usize = 1 << 20;
/// A buffer has room for what alignment adds to a chunk.
const BUFFER: usize = BOUNCE + BOUNCE / 8 + 4 * 4096;

fn builder(bed: &Bed) -> EngineBuilder {
    Engine::builder().driver(bed.driver.clone()).threads(THREADS).bounce_buffer_bytes(BOUNCE)
}

fn emulator(bed: &Bed) -> &Emulator {
    bed.emulator.as_ref().unwrap()
}

fn reads_work(bed: &Bed, engine: &Engine) {
    let options = File::options().read(true).policy(RoutePolicy::PosixOnly);
    let file = options.engine(engine).open(bed.path("data")).unwrap();
    for _ in 0..3 {
        let mut device = bed.device.alloc(LEN).unwrap();
        file.read_exact_at(&mut device, 0).unwrap();
        assert!(device.to_vec().unwrap() == pattern(LEN));
    }
}

fn bed() -> Bed {
    let bed = Bed::emulated();
    bed.file("data", &pattern(LEN));
    bed
}

#[test]
fn transfers_after_it_allocate_no_pinned_memory() {
    let bed = bed();
    let engine = builder(&bed).build();
    engine.warm_up(std::slice::from_ref(&bed.device)).unwrap();
    let (pinned, streams) = (emulator(&bed).live("pinned-bytes"), emulator(&bed).live("streams"));
    let buffers = engine.stats().pinned_bytes as usize / BUFFER;
    assert_eq!((buffers, pinned as u64), (2 * THREADS, engine.stats().pinned_bytes));
    // Any more pinned memory would be refused, and the refusal counted.
    for function in ["cudaHostAlloc", "cudaHostRegister", "cudaStreamCreateWithFlags"] {
        emulator(&bed).fault(function, "err=2 times=all");
    }
    reads_work(&bed, &engine);
    engine.warm_up(std::slice::from_ref(&bed.device)).unwrap();
    assert_eq!((emulator(&bed).live("pinned-bytes"), emulator(&bed).live("streams")), (pinned, streams));
    assert!(
        engine.stats().fallbacks.keys().all(|reason| !reason.contains("cudaHost")),
        "{:?}",
        engine.stats()
    );
    // A worker may hold its lane a little longer than the transfer takes.
    let mut released = 0;
    soon("all are released", || {
        released += engine.release_buffers() as i64;
        engine.stats().pinned_bytes == 0
    });
    assert!(released >= pinned, "{released}");
}

#[test]
fn it_stays_within_the_limit_of_memory() {
    let bed = bed();
    // Room for two lanes of two buffers.
    let engine = builder(&bed).bounce_memory_bytes(5 * BOUNCE).build();
    engine.warm_up(std::slice::from_ref(&bed.device)).unwrap();
    assert!(engine.stats().pinned_bytes as usize <= 5 * BOUNCE && engine.stats().pinned_bytes > 0);
    reads_work(&bed, &engine);
    assert!(engine.stats().pinned_bytes as usize <= 5 * BOUNCE);
}

#[test]
fn every_gpu_gets_its_own_memory() {
    let bed = bed();
    emulator(&bed).control("gpus 3");
    let engine = builder(&bed).build();
    let cuda = engine.cuda().unwrap();
    engine.warm_up(&[cuda.device(0).unwrap(), cuda.device(2).unwrap()]).unwrap();
    assert_eq!(engine.stats().pinned_bytes as usize / BUFFER, 2 * 2 * THREADS);
    engine.warm_up(&[]).unwrap();
}

#[test]
fn failures_in_the_middle_leave_what_works() {
    let bed = bed();
    // All lanes share two streams, and take their events from one list.
    let streams = (0..2).map(|after| ("cudaStreamCreateWithFlags", after));
    let events = (0..6).map(|after| ("cudaEventCreateWithFlags", after));
    for (function, after) in streams.chain(events) {
        let engine = builder(&bed).build();
        emulator(&bed).fault(function, &format!("err=2 times=1 after={after}"));
        engine.warm_up(std::slice::from_ref(&bed.device)).unwrap_err();
        emulator(&bed).control("clear");
        reads_work(&bed, &engine);
        // A worker may hold its lane a little longer than the transfer takes, and the call passes it by.
        soon(&format!("{function} {after}: all buffers are there"), || {
            engine.warm_up(std::slice::from_ref(&bed.device)).unwrap();
            engine.stats().pinned_bytes as usize / BUFFER == 2 * THREADS
        });
    }
}

#[test]
fn several_threads_may_call_it_beside_transfers() {
    let bed = bed();
    let engine = builder(&bed).bounce_memory_bytes(5 * BOUNCE).build();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| engine.warm_up(std::slice::from_ref(&bed.device)).unwrap());
            scope.spawn(|| reads_work(&bed, &engine));
        }
    });
    assert!(engine.stats().pinned_bytes as usize <= 5 * BOUNCE);
}
