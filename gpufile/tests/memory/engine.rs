//! Tests that repeated transfers of device memory allocate nothing on any thread, except in CUDA.

use gpufile::{Engine, IoRange, OpenOptions, RoutePolicy};
use testkit::alone;
use testkit::bed::{Bed, folders};
use testkit::counting::{allocations, assert_counting};

#[test]
fn repeated_device_transfers_allocate_nothing() {
    alone(|| {
        assert_counting();
        Bed::each(|bed| {
            for (folder, policy) in folders()
                .iter()
                .flat_map(|folder| [(folder, RoutePolicy::PosixOnly), (folder, RoutePolicy::RequireCufile)])
            {
                let engine = Engine::builder().driver(bed.driver.clone()).threads(4).build();
                let path = folder.path().join(format!("{policy:?} {}", bed.is_real()));
                let options =
                    OpenOptions::new().read(true).write(true).create(true).engine(&engine).policy(policy);
                // The real cuFile does not accept every file system.
                let Ok(file) = options.open(path) else { continue };
                for len in [4096, 1 << 20, 20 << 20] {
                    let mut buffer = bed.device.alloc(len).unwrap();
                    file.write_all_at(&buffer, 0).unwrap();
                    let written = allocations(|| file.write_all_at(&buffer, 0).unwrap());
                    let read = allocations(|| file.read_exact_at(&mut buffer, 0).unwrap());
                    let inline = allocations(|| file.inline().read_at(&mut buffer, 0).map(drop).unwrap());
                    assert_eq!((written, read, inline), (0, 0, 0), "{policy:?}, {len} bytes");
                }
                let mut buffer = bed.device.alloc(8 << 20).unwrap();
                let range =
                    |file_offset, buffer_offset| IoRange { file_offset, buffer_offset, len_bytes: 900 };
                for (count, step) in [(10, 5000), (2000, 1000)] {
                    let ascending: Vec<_> =
                        (0..count).map(|at| range((at * step) as u64, at * 1000)).collect();
                    let scattered: Vec<_> = (0..count)
                        .map(|at| range(((count - at) * step) as u64, (at * 7 % count) * 1000))
                        .collect();
                    for ranges in [&ascending, &scattered] {
                        let read = allocations(|| file.read_many(&mut buffer, ranges).unwrap());
                        let written = allocations(|| file.write_many(&buffer, ranges).unwrap());
                        assert_eq!((read, written), (0, 0), "{policy:?}, {count} ranges");
                    }
                }
            }
        });
    });
}
