//! Tests that a caller that waits for its workers leaves them the processor that it shares with them.

use std::time::Duration;

use gpufile::{Engine, OpenOptions, RoutePolicy};
use testkit::alone;
use testkit::bed::{Bed, pattern};

const LEN: usize = 8 << 20;

/// Lets this thread, and those that it starts from now on, run on one processor only.
fn stay_on_one_processor() {
    // SAFETY: zeros are an empty set, and the set outlives both calls.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of_val(&set);
        assert_eq!(libc::sched_getaffinity(0, size, &mut set), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|number| libc::CPU_ISSET(*number, &set)).unwrap();
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size, &set), 0);
    }
}

fn processor_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(clock, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn waiting_uses_little_processor_time() {
    alone(|| {
        stay_on_one_processor();
        let bed = Bed::emulated();
        bed.file("data", &pattern(LEN));
        let engine =
            Engine::builder().driver(bed.driver.clone()).policy(RoutePolicy::PosixOnly).threads(2).build();
        let file = OpenOptions::new().read(true).engine(&engine).open(bed.path("data")).unwrap();
        let mut buffer = bed.device.alloc(LEN).unwrap();
        file.read_exact_at(&mut buffer, 0).unwrap();
        let clocks = [libc::CLOCK_THREAD_CPUTIME_ID, libc::CLOCK_PROCESS_CPUTIME_ID];
        let before = clocks.map(processor_time);
        for _ in 0..60 {
            file.read_exact_at(&mut buffer, 0).unwrap();
        }
        let [of_caller, of_all] = [0, 1].map(|clock| processor_time(clocks[clock]) - before[clock]);
        assert!(of_caller < of_all / 10, "the caller took {of_caller:?} of {of_all:?}");
    });
}
