//! Reads of columns on the emulator: cancelled in flight, tried again, and compared byte by byte.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use column_reader::{ALIGNMENT, ColumnReader, DeviceChunk, ReadError, Retries, Table};
use cufile_emulator::Emulator;
use gpufile::cuda::{Cuda, Device};
use gpufile::{Engine, File, IoBuf, RoutePolicy, cufile};

const ROUNDS: usize = 1000;
const CHUNKS: usize = 12;
const RETRIES: Retries = Retries { most_tries: 4, first_wait: Duration::from_micros(100) };

/// `CU_FILE_NOMEM_ERROR`, after which the same call may succeed, and `CU_FILE_IO_ERROR`.
const TRANSIENT: &str = "ret=-1 errno=5043";
const FINAL: &str = "ret=-1 errno=5044";

struct Bed {
    emulator: Emulator,
    cuda: Cuda,
    engine: Engine,
    device: Device,
}

/// The bitmap and the values of a chunk.
type Contents = (Vec<u8>, Vec<u8>);

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

    fn reader(&self, path: &Path) -> ColumnReader {
        let options = File::options().read(true).engine(&self.engine).policy(RoutePolicy::RequireCufile);
        let file = options.open(path).unwrap();
        let table = Table::open(&file).unwrap();
        ColumnReader::new(file, table, self.device.clone(), RETRIES, 4)
    }

    /// Waits until no more memory is allocated than this.
    async fn settled(&self, allocations: i64) {
        let start = Instant::now();
        while self.emulator.live("allocations") > allocations {
            assert!(start.elapsed() < Duration::from_secs(60), "memory of a cancelled read stays");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn assert_same(&self, chunk: &DeviceChunk, (validity, values): &Contents) {
        let mut found = vec![0; chunk.memory.len_bytes()];
        self.cuda.copy(&chunk.memory, &mut found).unwrap();
        assert_eq!(chunk.values_at % ALIGNMENT as usize, 0);
        assert!(found[..validity.len()] == validity[..], "another bitmap");
        assert!(found[chunk.values_at..] == values[..], "other values");
        assert_eq!(chunk.rows, values.len() as u64 / 8);
    }
}

fn noise(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Writes a table of two columns, and returns the chunks of the second.
fn write(path: &Path) -> Vec<Contents> {
    let (mut bytes, mut at, mut table) = (Vec::new(), 0, Table::default());
    let mut second = Vec::new();
    for chunk in 0..CHUNKS {
        let rows = 1 + chunk * 2311;
        for (seed, name) in [(chunk, "first"), (chunk + 100, "second")] {
            let contents = (noise(rows.div_ceil(8), seed), noise(rows * 8, seed + 1000));
            table.push(&mut bytes, &mut at, name, rows as u64, &contents.0, &contents.1).unwrap();
            if name == "second" {
                second.push(contents);
            }
        }
    }
    table.finish(&mut bytes).unwrap();
    std::fs::write(path, bytes).unwrap();
    second
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_rounds_lose_no_byte() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("table");
    let contents = write(&path);
    let reader = bed.reader(&path);
    // Workers keep memory of their own from here on.
    reader.read("second").await.unwrap();
    let allocated = bed.emulator.live("allocations");
    let (mut cancelled, mut retried, mut refused) = (0, 0, 0);
    for round in 0..ROUNDS {
        let number = round * 7 % CHUNKS;
        match round % 4 {
            0 => {}
            1 => {
                let held = bed.emulator.hold("cuFileRead", "times=all");
                let task = tokio::spawn({
                    let reader = reader.clone();
                    async move { reader.read_chunk("second", number).await }
                });
                // The read is within cuFile, and the memory in its hands.
                held.wait_for(1);
                task.abort();
                assert!(task.await.unwrap_err().is_cancelled());
                cancelled += 1;
                held.release();
                // A read at once, while workers end the other; then they drop its memory.
                let chunk = reader.read_chunk("second", number).await.unwrap();
                bed.assert_same(&chunk, &contents[number]);
                drop(chunk);
                bed.settled(allocated).await;
            }
            2 => {
                bed.emulator.fault("cuFileRead", &format!("times=1 {TRANSIENT}"));
                let chunk = reader.read_chunk("second", number).await.unwrap();
                assert_eq!(chunk.tries, 2);
                bed.assert_same(&chunk, &contents[number]);
                retried += 1;
            }
            _ => {
                bed.emulator.fault("cuFileRead", &format!("times=all {FINAL}"));
                let error = reader.read_chunk("second", number).await.unwrap_err();
                bed.emulator.control("clear");
                assert!(matches!(error, ReadError::Failed { tries: 1, .. }), "{error}");
                let source = std::error::Error::source(&error).unwrap().to_string();
                assert!(error.to_string().ends_with(&source), "{error}");
                refused += 1;
            }
        }
        let chunk = reader.read_chunk("second", number).await.unwrap();
        assert_eq!(chunk.tries, 1);
        bed.assert_same(&chunk, &contents[number]);
    }
    assert_eq!((cancelled, retried, refused), (ROUNDS / 4, ROUNDS / 4, ROUNDS / 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_has_its_chunks_in_order() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("table");
    let contents = write(&path);
    let reader = bed.reader(&path);
    bed.emulator.fault("cuFileRead", &format!("after=3 times=2 {TRANSIENT}"));
    let chunks = reader.read("second").await.unwrap();
    assert_eq!(chunks.len(), CHUNKS);
    assert!(chunks.iter().any(|chunk| chunk.tries > 1));
    for (chunk, contents) in chunks.iter().zip(&contents) {
        bed.assert_same(chunk, contents);
    }
    assert!(matches!(reader.read("third").await, Err(ReadError::NoColumn(name)) if name == "third"));
    bed.emulator.fault("cuFileRead", &format!("times=all {TRANSIENT}"));
    let error = reader.read("second").await.unwrap_err();
    assert!(matches!(error, ReadError::Failed { tries: 4, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_is_dropped_leaves_room_for_others() {
    let (bed, folder) = (Arc::new(Bed::new()), tempfile::tempdir().unwrap());
    let path = folder.path().join("table");
    let contents = write(&path);
    let reader = bed.reader(&path);
    let held = bed.emulator.hold("cuFileRead", "times=all");
    let late = tokio::time::timeout(Duration::from_millis(20), reader.read("second")).await;
    assert!(late.is_err(), "the reads are held");
    held.release();
    for (chunk, contents) in reader.read("second").await.unwrap().iter().zip(&contents) {
        bed.assert_same(chunk, contents);
    }
}
