use gpufile::Engine;
use gpufile::remote::RemoteFile;
use testkit::alone;
use testkit::bed::{Bed, pattern};
use testkit::counting::{assert_counting, peak};
use testkit::web::Server;

const LONG: usize = (64 << 20) + 4321;

#[test]
fn bodies_are_not_collected_before_they_are_copied() {
    alone(|| {
        assert_counting();
        let bytes = pattern(LONG);
        let server = Server::new(bytes.clone());
        let bed = Bed::emulated();
        let engine = Engine::builder().driver(bed.driver.clone()).threads(4).build();
        let file = RemoteFile::options().engine(&engine).open(&server.url("/data")).unwrap();
        let mut host = vec![0; LONG];
        let mut device = bed.device.alloc(LONG).unwrap();
        let limit = engine.settings().bounce_memory_bytes();
        for _ in 0..2 {
            let peak_bytes = peak(|| file.read_exact_at(&mut host, 0).unwrap());
            assert!(peak_bytes < 1 << 20, "{peak_bytes} bytes for host memory");
            assert!(host == bytes);
            host.fill(0);
            let before = engine.stats().pinned_bytes as usize;
            let peak_bytes = peak(|| file.read_exact_at(&mut device, 0).unwrap());
            let pinned_bytes = engine.stats().pinned_bytes as usize - before;
            // The emulator's pinned memory comes from another allocator, or from this one.
            assert!(
                peak_bytes < pinned_bytes + (1 << 20),
                "{peak_bytes} bytes beside {pinned_bytes} pinned ones"
            );
            assert!(engine.stats().pinned_bytes as usize <= limit);
            assert!(device.to_vec().unwrap() == bytes);
        }
    });
}
