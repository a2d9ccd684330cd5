//! Files that are read through a mapping, some of which change while they are mapped.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gpufile::{Cause, Engine, Error, File, IoRange, Request};
use testkit::bed::{Bed, pattern};
use testkit::random::Random;

const PAGE: usize = 4096;

fn range(file_offset: usize, buffer_offset: usize, len_bytes: usize) -> IoRange {
    IoRange { file_offset: file_offset as u64, buffer_offset, len_bytes }
}

fn engine(bed: &Bed) -> Engine {
    Engine::builder().cuda(bed.driver.cuda().clone()).threads(3).bounce_buffer_bytes(64 << 10).build()
}

fn open(bed: &Bed, engine: &Engine, name: &str) -> File {
    File::options().read(true).engine(engine).open(bed.path(name)).unwrap()
}

fn is_end_of_file(error: &Error) -> bool {
    match error {
        Error::Entry { error, .. } => is_end_of_file(error),
        error => matches!(error.cause(), Cause::EndOfFile { .. }),
    }
}

#[test]
fn random_ranges_of_mappings_have_the_files_bytes() {
    Bed::each(|bed| {
        let bytes = pattern(700_001);
        bed.file("data", &bytes);
        let engine = engine(bed);
        let file = open(bed, &engine, "data");
        // SAFETY: nothing writes to the file.
        let mappings = [file.map().unwrap(), unsafe { file.map_unchecked() }.unwrap()];
        let mut random = Random::new(5);
        for longest in [1, 64, 700, 5000, 300_000] {
            let (mut ranges, mut end) = (Vec::new(), 0);
            for _ in 0..(600_000 / longest).min(3000) {
                let len = random.below(longest + 1);
                ranges.push(range(random.below(bytes.len() - len), end, len));
                end += len + random.below(3);
            }
            ranges.reverse();
            for mapped in &mappings {
                let (mut host, mut device) = (vec![7; end], bed.device.alloc(end).unwrap());
                device.fill(7).unwrap();
                mapped.read_many(&mut host, &ranges).unwrap();
                mapped.read_many(&mut device, &ranges).unwrap();
                let mut expected = vec![7; end];
                for IoRange { file_offset, buffer_offset, len_bytes } in &ranges {
                    expected[*buffer_offset..][..*len_bytes]
                        .copy_from_slice(&bytes[*file_offset as usize..][..*len_bytes]);
                }
                assert!(host == expected && device.to_vec().unwrap() == expected, "{longest}");
            }
        }
    });
}

#[test]
fn prefetch_of_shortened_files_names_the_end() {
    let bed = Bed::emulated();
    let mapped = |left: u64| {
        let name = format!("data-{left}");
        let file = bed.file(&name, &pattern(4 * PAGE));
        let mapped = open(&bed, &engine(&bed), &name).map().unwrap();
        file.set_len(left).unwrap();
        mapped
    };
    for left in [0, 1, PAGE as u64, 3 * PAGE as u64] {
        let error = mapped(left).prefetch().unwrap_err();
        assert!(
            matches!(error, Error::File { cause: Cause::EndOfFile { at }, .. } if at == left),
            "{left}: {error}"
        );
    }
    // The last page is still there.
    mapped(4 * PAGE as u64 - 1).prefetch().unwrap();
}

#[test]
fn missing_bytes_of_shortened_files_are_errors() {
    Bed::each(|bed| {
        let bytes = pattern(40 * PAGE);
        for left in [0, 1, PAGE, 17 * PAGE + 100, 40 * PAGE - 1] {
            let name = format!("data-{left}");
            bed.file(&name, &bytes);
            let engine = engine(bed);
            let mapped = open(bed, &engine, &name).map().unwrap();
            mapped.prefetch().unwrap();
            let changed = fs::File::options().write(true).open(bed.path(&name)).unwrap();
            changed.set_len(left as u64).unwrap();
            let mut host = vec![0; bytes.len()];
            let mut device = bed.device.alloc(bytes.len()).unwrap();
            for error in [
                mapped.read_exact_at(&mut host, 0).unwrap_err(),
                mapped.read_exact_at(&mut device, 0).unwrap_err(),
                mapped.read_exact_at(&mut host[..2], 40 * PAGE as u64 - 2).unwrap_err(),
                mapped
                    .read_many(&mut device, &[range(0, 0, 1), range(40 * PAGE - 700, 100, 700)])
                    .unwrap_err(),
            ] {
                assert!(is_end_of_file(&error), "{left}: {error}");
            }
            // As without a mapping, a read is short at the end of the file.
            assert_eq!(mapped.read_at(&mut host, 0).unwrap(), left);
            assert_eq!(mapped.read_at(&mut device, 0).unwrap(), left);
            // The bytes that are left can be read.
            if left > 0 {
                assert_eq!(mapped.read_at(&mut host[..left], 0).unwrap(), left);
                mapped.read_many(&mut device, &[range(left - 1, 50, 1), range(0, 0, 1)]).unwrap();
                assert!(host[..left] == bytes[..left]);
                assert_eq!(device.to_vec().unwrap()[50], bytes[left - 1]);
            }
            // After it grew again, the file has zeros there.
            changed.set_len(40 * PAGE as u64).unwrap();
            mapped.read_exact_at(&mut host, 0).unwrap();
            assert!(host[..left] == bytes[..left] && host[left..].iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn every_read_of_a_mapped_file_has_its_bytes() {
    Bed::each(|bed| {
        let bytes = pattern(300_000);
        let file = bed.file("data", &bytes);
        let engine = engine(bed);
        let mapped = open(bed, &engine, "data").map().unwrap();
        let memory = || bed.device.alloc(bytes.len()).unwrap();
        // Bytes that the file got after it was mapped.
        let more = pattern(350_000);
        file.write_all_at(&more[bytes.len()..], bytes.len() as u64).unwrap();
        let mut host = vec![0; more.len()];
        mapped.read_exact_at(&mut host, 0).unwrap();
        assert!(host == more);
        assert_eq!(mapped.read_at(&mut host[..10], more.len() as u64 - 4).unwrap(), 4);

        let ranges = [range(200_000, 0, 1000), range(5, 1000, 70_000), range(320_000, 71_000, 9)];
        let expected = ranges.map(|range| &more[range.file_offset as usize..][..range.len_bytes]).concat();
        let (count, (device, _)) = mapped.read_many_async(memory(), ranges.to_vec()).wait();
        assert_eq!(count.unwrap(), expected.len());
        assert!(device.to_vec().unwrap()[..expected.len()] == expected);
        let mut device = memory();
        let outcomes = mapped.read_many_each(&mut device, &ranges).unwrap();
        assert!(outcomes.iter().all(Result::is_ok));
        assert!(device.to_vec().unwrap()[..expected.len()] == expected);

        let (count, device) = mapped.read_at_async(memory(), 0).wait();
        assert!(count.unwrap() == bytes.len() && device.to_vec().unwrap() == bytes);
        let stream = bed.device.stream().unwrap();
        let (count, device) = mapped.read_at_on_stream(&stream, memory(), 0).wait();
        assert!(count.unwrap() == bytes.len() && device.to_vec().unwrap() == bytes);
        let mut device = memory();
        let plain = open(bed, &engine, "data");
        for files in [[&mapped, &mapped], [&mapped, &plain]] {
            device.fill(0).unwrap();
            let (low, high) = device.slice_mut(..).split_at(100_000);
            let mut requests = [
                Request { file: files[0], buffer: low, offset: 0 },
                Request { file: files[1], buffer: high, offset: 100_000 },
            ];
            engine.read_many(&mut requests).unwrap();
            assert!(device.to_vec().unwrap() == bytes);
        }
    });
}

/// Reads the whole mapping again and again, to memory of the host and of the GPU in turn. Returns the numbers of
/// reads that succeeded and that failed.
fn read_again_and_again(bed: &Bed, mapped: &File, len: usize, ends: &AtomicBool) -> [usize; 2] {
    let (mut host, mut device) = (vec![0; len], bed.device.alloc(len).unwrap());
    let ranges: Vec<_> = (0..len / 700).map(|at| range(700 * at, 700 * at, 700)).rev().collect();
    let mut counts = [0; 2];
    while !ends.load(Ordering::Relaxed) || counts.contains(&0) {
        for outcome in [
            mapped.read_exact_at(&mut host, 0),
            mapped.read_many(&mut host, &ranges),
            mapped.read_many(&mut device, &ranges),
        ] {
            match outcome {
                Ok(()) => counts[0] += 1,
                Err(error) => {
                    assert!(is_end_of_file(&error), "{error}");
                    counts[1] += 1;
                }
            }
        }
    }
    counts
}

#[test]
fn files_shortened_during_reads_send_no_signal() {
    Bed::each(|bed| {
        let bytes = pattern(70 * PAGE + 5);
        bed.file("data", &bytes);
        let engine = engine(bed);
        let mapped = open(bed, &engine, "data").map().unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let readers =
                [(); 2].map(|()| scope.spawn(|| read_again_and_again(bed, &mapped, bytes.len(), &ends)));
            let file = fs::File::options().write(true).open(bed.path("data")).unwrap();
            let mut random = Random::new(11);
            for _ in 0..300 {
                file.set_len(random.below(bytes.len()) as u64).unwrap();
                thread::yield_now();
                file.write_all_at(&bytes, 0).unwrap();
                thread::yield_now();
            }
            ends.store(true, Ordering::Relaxed);
            // The readers see a shorter file at least once, and a whole one.
            while !readers.iter().all(|reader| reader.is_finished()) {
                file.set_len(5).unwrap();
                thread::sleep(std::time::Duration::from_millis(5));
                file.write_all_at(&bytes, 0).unwrap();
                thread::sleep(std::time::Duration::from_millis(5));
            }
            for reader in readers {
                let [whole, short] = reader.join().unwrap();
                assert!(whole > 0 && short > 0, "{whole} {short}");
            }
        });
    });
}
