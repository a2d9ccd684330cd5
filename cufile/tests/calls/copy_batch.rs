//! Tests that no two batches of copies of a process reach CUDA at once.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cuda_rt_sys::runtime::{self, Functions, cudaError_t, cudaMemcpyAttributes, cudaStream_t};
use cufile::IoBufMut;
use cufile::cuda::Cuda;
use testkit::Emulator;
use testkit::bed::pattern;

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
static INSIDE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Stays long enough for another call to come.
unsafe extern "C" fn counted(
    targets: *const *mut c_void,
    sources: *const *const c_void,
    sizes: *const usize,
    count: usize,
    attributes: *mut cudaMemcpyAttributes,
    indices: *mut usize,
    attribute_count: usize,
    stream: cudaStream_t,
) -> cudaError_t {
    MOST.fetch_max(INSIDE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    thread::sleep(Duration::from_millis(20));
    let batch = FUNCTIONS.get().unwrap().cudaMemcpyBatchAsync.unwrap();
    // SAFETY: the caller keeps the promise.
    let code = unsafe { batch(targets, sources, sizes, count, attributes, indices, attribute_count, stream) };
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    code
}

fn load(emulator: &Emulator) -> Cuda {
    let functions = *FUNCTIONS.get_or_init(|| *emulator.runtime().functions());
    let functions = Functions { cudaMemcpyBatchAsync: Some(counted), ..functions };
    // SAFETY: these are the emulator's functions. The replaced one does the same and sleeps.
    let runtime = unsafe { runtime::Library::from_functions(functions) };
    Cuda::from_sys(emulator.driver(), runtime).unwrap()
}

#[test]
fn copy_batches_of_a_process_are_serialised() {
    const THREADS: usize = 4;
    const LEN: usize = 1000;
    let emulator = Emulator::start();
    // The batches belong to different devices, streams and `Cuda` values.
    let cudas = [load(&emulator), load(&emulator)];
    let bytes = pattern(3 * LEN);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (cuda, bytes) = (&cudas[number % 2], &bytes);
            scope.spawn(move || {
                let device = cuda.device(0).unwrap();
                let stream = device.stream().unwrap();
                let mut source = device.alloc_pinned(3 * LEN).unwrap();
                source.copy_from_slice(bytes);
                let mut target = device.alloc(3 * LEN).unwrap();
                target.fill(0).unwrap();
                let sources = [source.as_ptr(), source[2 * LEN..].as_ptr()];
                let start = target.as_mut_ptr();
                let targets = [start, start.wrapping_add(2 * LEN)];
                for _ in 0..3 {
                    // SAFETY: the ranges lie in both buffers, and nothing else uses them.
                    unsafe { stream.copy_batch(&targets, &sources, &[LEN; 2]) }.unwrap();
                    stream.synchronize().unwrap();
                }
                let copied = target.to_vec().unwrap();
                assert!(copied[..LEN] == bytes[..LEN] && copied[2 * LEN..] == bytes[2 * LEN..]);
                assert!(copied[LEN..2 * LEN].iter().all(|byte| *byte == 0));
            });
        }
    });
    assert_eq!(MOST.load(Ordering::SeqCst), 1);
}
