//! Tests of memory registered with cuFile. `ways.rs` reads and writes it by every method.

use std::fs;

use gpufile::cuda::DeviceBuffer;
use gpufile::{Cause, Engine, File, RegisteredBuffer, Request, RoutePolicy};
use testkit::bed::{Bed, pattern};

/// A length of more than one chunk.
const LEN: usize = (5 << 20) + 321;

#[test]
fn parts_and_requests_of_registered_memory_are_moved() {
    Bed::each(|bed| {
        let engine = Engine::builder().driver(bed.driver.clone()).build();
        let bytes = pattern(LEN);
        for policy in [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly] {
            let path = bed.path(&format!("{policy:?}"));
            let options = File::options().read(true).write(true).create(true).engine(&engine);
            let file = options.policy(policy).open(&path).unwrap();
            let mut buffer = engine.register(bed.device.alloc(LEN).unwrap()).unwrap();
            let contents = |buffer: &RegisteredBuffer<DeviceBuffer>| buffer.get().to_vec().unwrap();

            let cuda = bed.driver.cuda();
            cuda.copy(&bytes, &mut buffer).unwrap();
            file.write_all_at(&buffer, 0).unwrap();
            assert!(fs::read(&path).unwrap() == bytes, "{policy:?}");
            cuda.fill(&mut buffer, 0).unwrap();
            file.read_exact_at(&mut buffer.slice_mut(1000..LEN), 1000).unwrap();
            assert!(contents(&buffer)[1000..] == bytes[1000..], "{policy:?}, a part");

            let (mut one, mut other) = buffer.slice_mut(..).split_at(LEN / 2);
            let requests = [(0, &mut other), ((LEN - LEN / 2) as u64, &mut one)];
            let mut requests = requests.map(|(at, part)| Request { file: &file, buffer: part, offset: at });
            engine.read_many(&mut requests).unwrap();
            let swapped = [&bytes[LEN - LEN / 2..], &bytes[..LEN - LEN / 2]].concat();
            assert!(contents(&buffer) == swapped, "{policy:?}, Engine::read_many");
            engine.write_many(&[Request { file: &file, buffer: &buffer, offset: 0 }]).unwrap();
            assert!(fs::read(&path).unwrap() == swapped, "{policy:?}, Engine::write_many");
            assert!(buffer.deregister().is_ok());
        }
    });
}

#[test]
fn dropping_a_registered_buffer_deregisters_it() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let engine = Engine::builder().driver(bed.driver.clone()).build();
    let buffer = engine.register(bed.device.alloc(4096).unwrap()).unwrap();
    assert_eq!(emulator.live("buffers"), 1);
    drop(buffer);
    assert_eq!(emulator.live("buffers"), 0);
    emulator.fault("cuFileBufRegister", "err=5011 cu=2");
    let failed = engine.register(bed.device.alloc(4096).unwrap()).unwrap_err();
    assert!(failed.to_string().contains("4096 bytes of device memory"), "{failed}");
    assert!(matches!(failed.error.cause(), Cause::Cufile(_)));
    engine.register(failed.into_value()).unwrap();
}
