use std::fs;

use gpufile::cuda::DeviceBuffer;
use gpufile::{BufSliceMut, Cause, Engine, File, OpenOptions, Request, RoutePolicy};
use testkit::bed::{Bed, pattern};
use testkit::in_flight::soon;
use testkit::random::Random;
use testkit::{Emulator, in_threads};

const MIB: usize = 1 << 20;
const LONG: usize = 9 * MIB + 4321;

fn bed(gpus: usize) -> Bed {
    let emulator = Emulator::start();
    emulator.control(&format!("gpus {gpus}"));
    Bed::on(emulator)
}

fn emulator(bed: &Bed) -> &Emulator {
    bed.emulator.as_ref().unwrap()
}

fn engine(bed: &Bed, threads: usize) -> Engine {
    Engine::builder().driver(bed.driver.clone()).policy(RoutePolicy::PosixOnly).threads(threads).build()
}

fn options(engine: &Engine) -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).engine(engine)
}

fn alloc(bed: &Bed, gpu: usize, len_bytes: usize) -> DeviceBuffer {
    bed.driver.cuda().device(gpu as u32).unwrap().alloc(len_bytes).unwrap()
}

/// The bytes of a request: a GPU, or host memory, and a range of the file.
struct Piece {
    gpu: Option<usize>,
    offset: usize,
    len_bytes: usize,
}

/// Returns pieces of a file of `LONG` bytes for random places, in random order.
fn pieces(gpus: usize, random: &mut Random) -> Vec<Piece> {
    (0..300)
        .map(|number| {
            let len_bytes = match number % 50 {
                0 => MIB + random.below(2 * MIB),
                1 => 0,
                _ => 1 + random.below(9000),
            };
            let gpu = (random.below(10) > 0).then(|| random.below(gpus));
            Piece { gpu, offset: random.below(LONG - len_bytes), len_bytes }
        })
        .collect()
}

enum Target {
    Device(DeviceBuffer),
    Host(Vec<u8>),
}

impl Target {
    fn of(bed: &Bed, piece: &Piece) -> Self {
        match piece.gpu {
            // CUDA has no empty allocations.
            Some(gpu) if piece.len_bytes > 0 => Target::Device(alloc(bed, gpu, piece.len_bytes)),
            _ => Target::Host(vec![0; piece.len_bytes]),
        }
    }

    fn request<'a>(&'a mut self, file: &'a File, offset: usize) -> Request<BufSliceMut<'a>, &'a File> {
        let buffer = match self {
            Target::Device(buffer) => buffer.into(),
            Target::Host(bytes) => bytes.into(),
        };
        Request { file, buffer, offset: offset as u64 }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Target::Device(buffer) => buffer.to_vec().unwrap(),
            Target::Host(bytes) => bytes.clone(),
        }
    }
}

#[test]
fn one_call_reads_to_every_gpu_and_the_host() {
    for gpus in [1, 2, 4, 8] {
        let bed = bed(gpus);
        let bytes = pattern(LONG);
        bed.file("data", &bytes);
        let engine = engine(&bed, 2);
        let file = &options(&engine).open(bed.path("data")).unwrap();
        let mut random = Random::new(gpus as u64);
        for round in 0..3 {
            let pieces = pieces(gpus, &mut random);
            let mut targets: Vec<_> = pieces.iter().map(|piece| Target::of(&bed, piece)).collect();
            let request = |(target, piece): (_, &Piece)| Target::request(target, file, piece.offset);
            let mut requests: Vec<_> = targets.iter_mut().zip(&pieces).map(request).collect();
            engine.read_many(&mut requests).unwrap();
            for (Piece { gpu, offset, len_bytes }, target) in pieces.iter().zip(&targets) {
                let expected = &bytes[*offset..][..*len_bytes];
                assert!(target.bytes() == expected, "{gpus} GPUs, round {round}, {offset} to {gpu:?}");
            }
            // The workers of a GPU share two streams.
            assert_eq!(emulator(&bed).live("streams") as usize, 2 * gpus);
        }
    }
}

#[test]
fn each_outcome_is_right_when_a_gpu_fails() {
    let bed = bed(4);
    let bytes = pattern(LONG);
    bed.file("data", &bytes);
    let engine = engine(&bed, 2);
    let file = &options(&engine).open(bed.path("data")).unwrap();
    let mut random = Random::new(7);
    for after in [0, 1, 5, 20] {
        let pieces = pieces(4, &mut random);
        let mut targets: Vec<_> = pieces.iter().map(|piece| Target::of(&bed, piece)).collect();
        let request = |(target, piece): (_, &Piece)| Target::request(target, file, piece.offset);
        let mut requests: Vec<_> = targets.iter_mut().zip(&pieces).map(request).collect();
        emulator(&bed).fault("cudaEventRecord", &format!("err=700 after={after}"));
        let outcomes = engine.read_many_each(&mut requests);
        for ((piece, target), outcome) in pieces.iter().zip(&targets).zip(&outcomes) {
            let expected = &bytes[piece.offset..][..piece.len_bytes];
            match outcome {
                Ok(read) => assert!(*read == piece.len_bytes && target.bytes() == expected, "{after} before"),
                Err(error) => assert!(matches!(error.cause(), Cause::Cufile(_)), "{error}"),
            }
        }
        let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        assert!(failed <= 1, "one call failed, and {failed} requests");
    }
}

#[test]
fn futures_read_and_write_lists_over_all_gpus() {
    let bed = bed(4);
    let bytes = pattern(LONG);
    let engine = engine(&bed, 2);
    let part = LONG / 8;
    let file = options(&engine).open(bed.path("data")).unwrap();
    let requests = |fill: bool| {
        let request = |number: usize| {
            let mut buffer = alloc(&bed, number % 4, part);
            if fill {
                buffer.copy_from_host(0, &bytes[number * part..][..part]).unwrap();
            }
            Request { file: file.clone(), buffer, offset: (number * part) as u64 }
        };
        (0..8).map(request).collect::<Vec<_>>()
    };
    assert_eq!(engine.write_many_async(requests(true)).wait().0.unwrap(), 8 * part);
    assert!(fs::read(bed.path("data")).unwrap() == bytes[..8 * part]);
    let (read, found) = engine.read_many_async(requests(false)).wait();
    assert_eq!(read.unwrap(), 8 * part);
    for (number, request) in found.iter().enumerate() {
        assert!(request.buffer.to_vec().unwrap() == bytes[number * part..][..part], "request {number}");
    }
}

#[test]
fn threads_use_all_gpus_and_one_of_them_at_once() {
    let bed = &bed(4);
    let bytes = &pattern(LONG);
    let engine = &engine(bed, 2);
    let work = |number: usize| {
        move || {
            let path = bed.path(&format!("{number}"));
            let file = options(engine).open(&path).unwrap();
            let mut buffer = alloc(bed, number % 4, LONG);
            for round in 0..4 {
                buffer.copy_from_host(0, bytes).unwrap();
                let half = LONG / 2 + round;
                let slices = [buffer.slice(half..), buffer.slice(..half)];
                let requests = [(half, &slices[0]), (0, &slices[1])].map(|(offset, slice)| Request {
                    file: &file,
                    buffer: slice,
                    offset: offset as u64,
                });
                engine.write_many(&requests).unwrap();
                buffer.fill(0).unwrap();
                file.read_exact_at(&mut buffer, 0).unwrap();
                assert!(buffer.to_vec().unwrap() == *bytes, "file {number}, round {round}");
            }
        }
    };
    in_threads((0..6).map(work));
    // A worker may hold its lane a little longer than the transfer takes.
    soon("all are released", || {
        engine.release_buffers();
        emulator(bed).live("pinned-bytes") == 0
    });
    assert_eq!(engine.release_buffers(), 0);
}

#[test]
fn chunks_are_shorter_where_several_gpus_are_visible() {
    const LEN: usize = 256 * MIB;
    let copies = |gpus: usize| {
        let bed = bed(gpus);
        let bytes = pattern(LEN);
        fs::write(bed.path("data"), &bytes).unwrap();
        let file = OpenOptions::new().read(true).engine(&engine(&bed, 2)).open(bed.path("data")).unwrap();
        let mut target = alloc(&bed, 0, LEN);
        let before = emulator(&bed).calls("cudaMemcpyAsync");
        file.read_at(&mut target, 0).unwrap();
        let copies = emulator(&bed).calls("cudaMemcpyAsync") - before;
        assert!(target.to_vec().unwrap() == bytes);
        copies
    };
    // Chunks of 3.5 and of 1.75 MiB, and the shorter ones at the start.
    let (one, two, three) = (copies(1), copies(2), copies(3));
    assert!(one < two && three == two, "{one}, {two} and {three} copies");
}
