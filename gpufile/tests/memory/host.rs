//! Tests that repeated transfers of host memory allocate nothing on any thread.

use gpufile::{Engine, File, IoRange, OpenOptions};
use testkit::alone;
use testkit::counting::{allocations, allocations_at_first, assert_counting};

fn file(engine: &Engine, folder: &tempfile::TempDir) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true).engine(engine);
    options.open(folder.path().join("data")).unwrap()
}

#[test]
fn repeated_host_transfers_allocate_nothing() {
    alone(|| {
        assert_counting();

        let engine = Engine::builder().threads(4).build();
        // The folders are on tmpfs, where there is one, and on the file system of temporary files.
        let memory = tempfile::tempdir_in("/dev/shm");
        for folder in memory.into_iter().chain(tempfile::tempdir()) {
            let file = file(&engine, &folder);
            for len in [4096, 1 << 20, 64 << 20] {
                let mut buffer = vec![1; len];
                file.write_all_at(&buffer, 0).unwrap();
                let written = allocations(|| file.write_all_at(&buffer, 0).unwrap());
                let read = allocations(|| file.read_exact_at(&mut buffer, 0).unwrap());
                let inline = allocations(|| file.inline().read_at(&mut buffer, 0).map(drop).unwrap());
                assert_eq!((written, read, inline), (0, 0, 0), "{len} bytes");
                let mut extending = (0..20).map(|_| {
                    allocations_at_first(|| {
                        file.set_len(0).unwrap();
                        file.write_all_at(&buffer, 0).unwrap();
                    })
                });
                // The engine makes a mapping anew for a single use. A worker that is late with a job costs another one.
                assert!(extending.any(|count| count <= 5), "{len} bytes");
            }
            let mut buffer = vec![0; 8 << 20];
            let range = |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 900 };
            for (count, step) in [(10, 5000), (8000, 1000)] {
                let ascending: Vec<_> = (0..count).map(|at| range((at * step) as u64, at * 1000)).collect();
                let scattered: Vec<_> = (0..count)
                    .map(|at| range(((count - at) * step) as u64, (at * 7 % count) * 1000))
                    .collect();
                for ranges in [&ascending, &scattered] {
                    let read = allocations(|| file.read_many(&mut buffer, ranges).unwrap());
                    let written = allocations(|| file.write_many(&buffer, ranges).unwrap());
                    assert_eq!((read, written), (0, 0), "{count} ranges");
                }
            }
        }
    });
}
