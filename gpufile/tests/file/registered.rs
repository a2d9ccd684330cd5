//! Tests that each call of gpufile that takes memory takes memory registered with cuFile.

use std::fs;

use gpufile::{Cause, Engine, File, IoRange, Request, RoutePolicy};
use testkit::bed::{Bed, pattern};

/// A length of more than one chunk.
const LEN: usize = (5 << 20) + 321;

#[test]
fn every_call_accepts_registered_memory_on_every_route() {
    Bed::each(|bed| {
        let engine = Engine::builder().driver(bed.driver.clone()).build();
        let bytes = pattern(LEN);
        let stream = bed.device.stream().unwrap();
        for policy in [RoutePolicy::RequireCufile, RoutePolicy::PosixOnly] {
            let path = bed.path(&format!("{policy:?}"));
            let options = File::options().read(true).write(true).create(true).engine(&engine);
            let file = options.policy(policy).open(&path).unwrap();
            let mut buffer = engine.register(bed.device.alloc(LEN).unwrap()).unwrap();
            let holds =
                |expected: &[u8], found: &[u8], call: &str| assert!(found == expected, "{policy:?}, {call}");
            let contents = |buffer: &gpufile::RegisteredBuffer<_>| -> Vec<u8> {
                let buffer: &gpufile::cuda::DeviceBuffer = buffer.get();
                buffer.to_vec().unwrap()
            };

            let cuda = bed.driver.cuda();
            cuda.copy(&bytes, &mut buffer).unwrap();
            file.write_all_at(&buffer, 0).unwrap();
            holds(&bytes, &fs::read(&path).unwrap(), "write_all_at");
            cuda.fill(&mut buffer, 0).unwrap();
            file.read_exact_at(&mut buffer, 0).unwrap();
            holds(&bytes, &contents(&buffer), "read_exact_at");
            cuda.fill(&mut buffer, 0).unwrap();
            file.inline().read_at(&mut buffer, 0).unwrap();
            holds(&bytes, &contents(&buffer), "inline read_at");

            cuda.fill(&mut buffer, 0).unwrap();
            file.read_exact_at(&mut buffer.slice_mut(1000..LEN), 1000).unwrap();
            holds(&bytes[1000..], &contents(&buffer)[1000..], "a part");
            let ranges: Vec<IoRange> = (0..LEN / 9999)
                .map(|n| IoRange { file_offset: n as u64 * 9999, buffer_offset: n * 9999, len_bytes: 77 })
                .collect();
            cuda.fill(&mut buffer, 0).unwrap();
            file.read_many(&mut buffer, &ranges).unwrap();
            let found = contents(&buffer);
            for range in &ranges {
                let place = range.buffer_offset..range.buffer_offset + 77;
                holds(&bytes[place.clone()], &found[place], "read_many");
            }
            file.write_many(&buffer, &ranges).unwrap();
            holds(&bytes, &fs::read(&path).unwrap(), "write_many");

            let (mut one, mut other) = buffer.slice_mut(..).split_at(LEN / 2);
            let requests = [(0, &mut other), ((LEN - LEN / 2) as u64, &mut one)];
            let mut requests = requests.map(|(at, part)| Request { file: &file, buffer: part, offset: at });
            engine.read_many(&mut requests).unwrap();
            let swapped = [&bytes[LEN - LEN / 2..], &bytes[..LEN - LEN / 2]].concat();
            holds(&swapped, &contents(&buffer), "Engine::read_many");
            engine.write_many(&[Request { file: &file, buffer: &buffer, offset: 0 }]).unwrap();
            holds(&swapped, &fs::read(&path).unwrap(), "Engine::write_many");

            fs::write(&path, &bytes).unwrap();
            let (outcomes, (buffer, ranges)) = file.read_many_each_async(buffer, ranges).wait();
            assert!(outcomes.unwrap().iter().all(|outcome| matches!(outcome, Ok(77))));
            let (count, buffer) = file.read_at_async(buffer, 0).wait();
            assert_eq!(count.unwrap(), LEN);
            holds(&bytes, &contents(&buffer), "read_at_async");
            let (count, buffer) = file.write_all_at_async(buffer, 7).wait();
            assert_eq!(count.unwrap(), LEN);
            holds(&bytes, &fs::read(&path).unwrap()[7..], "write_all_at_async");
            let (count, buffer) = file.read_at_on_stream(&stream, buffer, 7).wait();
            assert_eq!(count.unwrap(), LEN);
            holds(&bytes, &contents(&buffer), "read_at_on_stream");
            let (count, buffer) = file.write_all_at_on_stream(&stream, buffer, 0).wait();
            assert_eq!(count.unwrap(), LEN);
            holds(&bytes, &fs::read(&path).unwrap()[..LEN], "write_all_at_on_stream");
            let (count, mut buffer) = file.write_many_on_stream(&stream, buffer, &ranges).wait();
            assert_eq!(count.unwrap(), ranges.len() * 77);
            holds(&bytes, &fs::read(&path).unwrap()[..LEN], "write_many_on_stream");
            cuda.fill(&mut buffer, 0).unwrap();
            let (count, buffer) = file.read_many_on_stream(&stream, buffer, &ranges).wait();
            assert_eq!(count.unwrap(), ranges.len() * 77);
            let found = contents(&buffer);
            for range in &ranges {
                let place = range.buffer_offset..range.buffer_offset + 77;
                holds(&bytes[place.clone()], &found[place], "read_many_on_stream");
            }
            let mapped = file.map().unwrap();
            let mut buffer = buffer;
            cuda.fill(&mut buffer, 0).unwrap();
            mapped.read_exact_at(&mut buffer, 0).unwrap();
            holds(&bytes, &contents(&buffer), "read_exact_at of a mapped file");
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
