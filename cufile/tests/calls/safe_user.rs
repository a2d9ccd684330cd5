//! Tests of cufile without a line of `unsafe`.

#![forbid(unsafe_code)]

use std::sync::Arc;

use cufile::params::{Param, Slab};
use cufile::stats::Level;
use cufile::{
    Batch, Driver, Entry, FileHandle, FileSystem, P2pFlags, RegisterFlags, RegisteredBuffer,
    RegisteredStream, StreamFlags,
};
use testkit::Emulator;
use testkit::bed::{Bed, libraries, pattern};

const LEN: usize = 10_000;

/// Sets parameters of each kind, and reads them back, before the driver opens.
fn parameters(emulator: &Emulator) -> Driver {
    let (library, cuda) = libraries(emulator);
    let params = library.params();
    params.set(Param::MAX_IO_THREADS, 8).unwrap();
    assert_eq!(params.get(Param::MAX_IO_THREADS).unwrap(), 8);
    assert!(params.limits(Param::MAX_IO_THREADS).unwrap().contains(&8));
    params.set(Param::PREFER_IO_URING, true).unwrap();
    assert!(params.get(Param::PREFER_IO_URING).unwrap());
    params.set(Param::LOGGING_LEVEL, "INFO".into()).unwrap();
    assert_eq!(params.get(Param::LOGGING_LEVEL).unwrap(), "INFO");
    let slabs = [Slab { size_bytes: 1 << 20, count: 3 }];
    params.set(Param::POSIX_POOL_SLABS, slabs.to_vec()).unwrap();
    assert_eq!(params.get(Param::POSIX_POOL_SLABS).unwrap(), slabs);
    params.set(Param::GPU_BOUNCE_BUFFER_SLABS, slabs.to_vec()).unwrap();
    assert_eq!(params.get(Param::GPU_BOUNCE_BUFFER_SLABS).unwrap(), slabs);
    let builder = Driver::builder().library(library).cuda(cuda).poll_mode(true, 4096);
    builder.max_direct_io_size(1 << 20).max_cache_size(64 << 20).max_pinned_memory(1 << 30).open().unwrap()
}

fn driver(bed: &Bed) {
    let driver = &bed.driver;
    assert_eq!(driver.use_count().unwrap(), 1);
    assert!(driver.bar_size_bytes(0).unwrap() > 0);
    assert!(driver.properties().unwrap().max_batch_entries > 0);
    driver.set_p2p_flags(FileSystem::Nvme, P2pFlags::empty()).unwrap();
    assert!(driver.p2p_flags(FileSystem::Nvme).unwrap().is_empty());
    // The file exists only after success. libcufile cannot tell the topology of every machine.
    assert_eq!(driver.export_pcie_topology(bed.path("topology")).is_ok(), bed.path("topology").exists());
    let statistics = driver.statistics();
    statistics.set_level(Level::PerGpu).unwrap();
    assert_eq!(statistics.level().unwrap(), Level::PerGpu);
    statistics.start().unwrap();
}

/// Writes and reads by each kind of call.
fn transfers(bed: &Bed) {
    let bytes = pattern(LEN);
    let file = Arc::new(FileHandle::register(&bed.driver, bed.file("data", b"")).unwrap());
    let mut buffer = bed.device.alloc(LEN).unwrap();
    buffer.copy_from_host(0, &bytes).unwrap();
    let mut buffer = RegisteredBuffer::register(&bed.driver, buffer, RegisterFlags::empty()).unwrap();
    assert_eq!(file.write_at(&buffer, 0).unwrap(), LEN);
    bed.driver.cuda().fill(&mut buffer, 0).unwrap();
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), LEN);
    assert!(buffer.get().to_vec().unwrap() == bytes);

    let mut parts: Vec<_> = buffer.slice_mut(..).chunks(3000).collect();
    assert_eq!(file.writev_at(&parts, LEN as u64).unwrap(), LEN);
    assert_eq!(file.readv_at(&mut parts, LEN as u64).unwrap(), LEN);

    let stream = bed.device.stream().unwrap();
    let stream = RegisteredStream::register(&bed.driver, stream, StreamFlags::empty()).unwrap();
    let (written, buffer) = stream.write_at(&file, buffer, 0).unwrap().wait().unwrap();
    let (read, buffer) = stream.read_at(&file, buffer, LEN as u64).unwrap().wait().unwrap();
    assert_eq!((written, read), (LEN, LEN));
    stream.deregister().unwrap();

    let mut batch = Batch::new(&bed.driver, 2).unwrap();
    batch.submit([Entry::write(&file, buffer, 0)]).unwrap();
    let completion = batch.wait_all().unwrap().pop().unwrap();
    assert_eq!(completion.result.unwrap(), LEN);
    // Without this, the transfer may be over before it can be cancelled.
    let held = bed.emulator.as_ref().unwrap().hold("batch-entry", "");
    batch.submit([Entry::read(&file, completion.buffer.unwrap(), 0)]).unwrap();
    let cancelled = held.release_during("cuFileBatchIOCancel", || batch.cancel().unwrap());
    let buffer = cancelled.into_iter().next().unwrap().buffer.unwrap();
    drop(buffer.deregister().unwrap());
    drop(Arc::into_inner(file).unwrap().deregister().unwrap());
}

fn statistics(bed: &Bed) {
    let statistics = bed.driver.statistics();
    assert!(statistics.basic().unwrap().read.bytes >= LEN as u64);
    assert!(statistics.detailed().unwrap().basic.write.bytes >= LEN as u64);
    assert!(!statistics.per_gpu().unwrap().gpus.is_empty());
    statistics.reset().unwrap();
    statistics.stop().unwrap();
}

#[test]
fn every_function_can_be_used_without_unsafe_code() {
    let emulator = Emulator::start();
    parameters(&emulator).close().unwrap();
    let bed = Bed::on(emulator);
    driver(&bed);
    transfers(&bed);
    statistics(&bed);
    let emulator = bed.emulator.as_ref().unwrap();
    let names = cufile_sys::Functions::SYMBOLS.iter().map(|symbol| symbol.name);
    let unused: Vec<_> = names.filter(|name| emulator.calls(name) == 0).collect();
    assert!(unused.is_empty(), "{unused:?}");
}
