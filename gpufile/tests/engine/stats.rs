//! Tests of an engine's counts, on each route and beside failures.

use gpufile::{Engine, File, IoRange, RoutePolicy, Stats, Traffic};
use testkit::bed::{Bed, pattern};
use testkit::in_flight::soon;

const LEN: usize = (3 << 20) + 777;

fn open(bed: &Bed, policy: RoutePolicy) -> File {
    let engine = Engine::builder()
        .driver(bed.driver.clone())
        .threads(2)
        .bounce_buffer_bytes(1 << 20)
        .chunk_bytes(1 << 20)
        .build();
    let options = File::options().read(true).write(true).policy(policy);
    options.engine(&engine).open(bed.path("data")).unwrap()
}

fn bed() -> Bed {
    let bed = Bed::emulated();
    bed.file("data", &pattern(LEN));
    bed
}

fn counts(traffic: Traffic) -> [u64; 4] {
    [traffic.reads, traffic.read_bytes, traffic.writes, traffic.write_bytes]
}

fn there_and_back(bed: &Bed, file: &File) {
    let mut device = bed.device.alloc(LEN).unwrap();
    file.read_exact_at(&mut device, 0).unwrap();
    file.write_all_at(&device, 0).unwrap();
}

#[test]
fn host_memory_counts_apart_from_device_memory() {
    let bed = bed();
    let file = open(&bed, RoutePolicy::PosixOnly);
    assert_eq!(file.engine().stats(), Stats::default());
    let mut host = vec![0; LEN];
    file.read_exact_at(&mut host, 0).unwrap();
    file.write_all_at(&host, 0).unwrap();
    // A read beyond the end brings what there is.
    assert_eq!(file.read_at(&mut host[..1000], LEN as u64 - 10).unwrap(), 10);
    let stats = file.engine().stats();
    let [reads, read_bytes, writes, write_bytes] = counts(stats.host);
    assert_eq!((read_bytes, write_bytes), (LEN as u64 + 10, LEN as u64));
    assert!((4..=6).contains(&reads) && (1..=4).contains(&writes), "{stats:?}");
    assert_eq!((counts(stats.posix), stats.pinned_bytes), ([0; 4], 0));
}

#[test]
fn device_memory_counts_by_its_route() {
    let bed = bed();
    let file = open(&bed, RoutePolicy::PosixOnly);
    there_and_back(&bed, &file);
    let mut small = bed.device.alloc(1000).unwrap();
    file.read_exact_at(&mut small, 5).unwrap();
    let stats = file.engine().stats();
    let [reads, read_bytes, writes, write_bytes] = counts(stats.posix);
    assert_eq!((read_bytes, write_bytes), (LEN as u64 + 1000, LEN as u64));
    assert!((5..=6).contains(&reads) && (4..=5).contains(&writes), "{stats:?}");
    assert_eq!((counts(stats.host), counts(stats.cufile_compat)), ([0; 4], [0; 4]));
    assert_eq!(
        stats.fallbacks.into_iter().collect::<Vec<_>>(),
        [("the file was opened for POSIX only".into(), 1)]
    );

    let file = open(&bed, RoutePolicy::RequireCufile);
    there_and_back(&bed, &file);
    let stats = file.engine().stats();
    assert_eq!(counts(stats.cufile_compat), [4, LEN as u64, 4, LEN as u64], "{stats:?}");
    assert_eq!((counts(stats.host), counts(stats.posix)), ([0; 4], [0; 4]));
    assert_eq!(stats.fallbacks.len(), 1, "{stats:?}");
}

#[test]
fn adjacent_ranges_are_one_request() {
    let bed = bed();
    let file = open(&bed, RoutePolicy::PosixOnly);
    let range = |at: usize| IoRange { file_offset: at as u64 * 512, buffer_offset: at * 512, len_bytes: 512 };
    let mut host = vec![0; 64 * 512];
    file.read_many(&mut host, &(0..64).map(range).collect::<Vec<_>>()).unwrap();
    assert_eq!(counts(file.engine().stats().host), [1, 64 * 512, 0, 0]);
}

#[test]
fn stream_transfers_and_pinned_memory_are_counted() {
    let bed = bed();
    let file = open(&bed, RoutePolicy::PosixOnly);
    let stream = bed.device.stream().unwrap();
    let (count, _device) = file.read_at_on_stream(&stream, bed.device.alloc(LEN).unwrap(), 0).wait();
    count.unwrap();
    let stats = file.engine().stats();
    assert_eq!((stats.posix.read_bytes, stats.host.read_bytes), (LEN as u64, 0));
    let pinned = || bed.emulator.as_ref().unwrap().live("pinned-bytes") as u64;
    assert!(pinned() > 0 && stats.pinned_bytes == pinned(), "{stats:?}");
    there_and_back(&bed, &file);
    assert_eq!(file.engine().stats().pinned_bytes, pinned());
    // A worker may hold its lane a little longer than the transfer takes.
    soon("all are released", || {
        file.engine().release_buffers();
        (file.engine().stats().pinned_bytes, pinned()) == (0, 0)
    });
}

#[test]
fn memory_that_a_reset_took_is_no_longer_pinned() {
    let bed = bed();
    let file = open(&bed, RoutePolicy::PosixOnly);
    // Small reads use a buffer on the calling thread.
    let read = || file.read_exact_at(&mut bed.device.alloc(1000).unwrap(), 0).unwrap();
    read();
    let emulator = bed.emulator.as_ref().unwrap();
    // SAFETY: nothing is in flight.
    unsafe { bed.reset() };
    read();
    let pinned_bytes = emulator.live("pinned-bytes") as u64;
    assert!(pinned_bytes > 0);
    assert_eq!(file.engine().stats().pinned_bytes, pinned_bytes);
}

#[test]
fn refusals_and_short_calls_are_counted() {
    let bed = bed();
    let emulator = bed.emulator.as_ref().unwrap();
    for function in ["cudaHostAlloc", "cudaHostRegister"] {
        emulator.fault(function, "err=2 times=all");
    }
    let file = open(&bed, RoutePolicy::PosixOnly);
    there_and_back(&bed, &file);
    let stats = file.engine().stats();
    let refusals: u64 = stats
        .fallbacks
        .iter()
        .filter(|(reason, _)| reason.contains("cudaHostAlloc"))
        .map(|(_, count)| count)
        .sum();
    assert!((2..=4).contains(&refusals) && stats.pinned_bytes == 0, "{stats:?}");
    assert_eq!(stats.continued_calls, 0);

    emulator.control("clear");
    emulator.fault("cuFileRead", "short=100000 times=2");
    let file = open(&bed, RoutePolicy::RequireCufile);
    let mut device = bed.device.alloc(LEN).unwrap();
    file.read_exact_at(&mut device, 0).unwrap();
    let stats = file.engine().stats();
    assert_eq!((stats.cufile_compat.read_bytes, stats.continued_calls), (LEN as u64, 2), "{stats:?}");
}
