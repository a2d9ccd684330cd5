//! Statistics of three levels, in structs of the emulated version's size.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use cufile_sys::{
    CUfileError_t, CUfileOpCounter_t, CUfileStatsLevel1_t, CUfileStatsLevel2_t, CUfileStatsLevel3_t,
};

use super::opened::need_open;
use crate::c;
use crate::control::{self, lock};
use crate::status::{self, INVALID, failed};

struct Stats {
    level: c_int,
    values: CUfileStatsLevel3_t,
}

static STATS: LazyLock<Mutex<Stats>> = LazyLock::new(|| Mutex::new(Stats { level: 0, values: zeroed() }));

fn zeroed() -> CUfileStatsLevel3_t {
    // SAFETY: the struct is made of integers, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

fn record(body: impl FnOnce(&mut CUfileStatsLevel3_t)) {
    let mut stats = lock(&STATS);
    if stats.level > 0 {
        body(&mut stats.values);
    }
}

pub(super) fn open(level: usize) {
    if level > 0 {
        lock(&STATS).level = level as c_int;
    }
}

/// Forgets the counters when the driver closes, and from 1.17 on the level too.
pub(super) fn close() {
    let mut stats = lock(&STATS);
    let level = if control::version() < 1170 { stats.level } else { 0 };
    *stats = Stats { level, values: zeroed() };
}

pub(super) fn count(which: impl FnOnce(&mut CUfileStatsLevel1_t) -> &mut CUfileOpCounter_t, ok: bool) {
    record(|values| {
        let counter = which(&mut values.detailed.basic);
        match ok {
            true => counter.ok += 1,
            false => counter.err += 1,
        }
    });
}

pub(super) fn transfer(
    write: bool,
    size: usize,
    moved: &Result<usize, c_int>,
    time: Duration,
    device: c_int,
) {
    record(|values| {
        let bytes = *moved.as_ref().unwrap_or(&0) as u64;
        let bucket = (size >> 12).checked_ilog2().map_or(0, |power| power as usize + 1).min(31);
        let microseconds = time.as_micros() as u64;
        let detailed = &mut values.detailed;
        let gpu = usize::try_from(device).ok().and_then(|device| values.per_gpu_stats.get_mut(device));
        if write {
            detailed.basic.write_bytes += bytes;
            detailed.basic.write_lat_sum_us += microseconds;
            detailed.write_size_kb_hist[bucket] += 1;
            if let Some(gpu) = gpu {
                gpu.writes_bytes += bytes;
                gpu.n_total_writes += 1;
                gpu.n_posix_writes += 1;
                gpu.n_writes_err += u64::from(moved.is_err());
            }
        } else {
            detailed.basic.read_bytes += bytes;
            detailed.basic.read_lat_sum_us += microseconds;
            detailed.read_size_kb_hist[bucket] += 1;
            if let Some(gpu) = gpu {
                gpu.read_bytes += bytes;
                gpu.n_total_reads += 1;
                gpu.n_posix_reads += 1;
                gpu.n_reads_err += u64::from(moved.is_err());
            }
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetStatsLevel(level: c_int) -> CUfileError_t {
    status::call("cuFileSetStatsLevel", || {
        if !(0..=3).contains(&level) {
            return Err(INVALID);
        }
        lock(&STATS).level = level;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsLevel(level: *mut c_int) -> CUfileError_t {
    status::call("cuFileGetStatsLevel", || c::put(level, lock(&STATS).level).ok_or(INVALID))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileStatsStart() -> CUfileError_t {
    status::call("cuFileStatsStart", || {
        need_open()?;
        let mut stats = lock(&STATS);
        if stats.level == 0 {
            return Err(failed(5030));
        }
        stats.values = zeroed();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileStatsStop() -> CUfileError_t {
    status::call("cuFileStatsStop", || {
        need_open()?;
        *lock(&STATS) = Stats { level: 0, values: zeroed() };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileStatsReset() -> CUfileError_t {
    status::call("cuFileStatsReset", || {
        need_open()?;
        lock(&STATS).values = zeroed();
        Ok(())
    })
}

/// Returns a size that up to 1.18 ends before the counters of vectored calls.
fn level_1_size() -> usize {
    match control::version() {
        ..1190 => offset_of!(CUfileStatsLevel1_t, readv_ops),
        _ => size_of::<CUfileStatsLevel1_t>(),
    }
}

/// Fails unless the driver is open and statistics are collected at `level` or above.
fn values(level: c_int) -> Result<Box<CUfileStatsLevel3_t>, CUfileError_t> {
    need_open()?;
    let stats = lock(&STATS);
    if stats.level < level {
        return Err(INVALID);
    }
    let mut values = Box::new(stats.values);
    values.num_gpus = control::gpus() as u32;
    for (index, gpu) in values.per_gpu_stats.iter_mut().take(control::gpus() as usize).enumerate() {
        gpu.uuid = uuid(index as c_int);
    }
    Ok(values)
}

pub(super) fn uuid(device: c_int) -> [c_char; 16] {
    let mut bytes = b"emulated-gpu-\0\0\0".map(|byte| byte as c_char);
    bytes[14] = b'0' as c_char + device as c_char;
    bytes
}

/// Copies what the emulated version writes, to that version's offset.
fn write<T>(target: *mut u8, offset: usize, value: &T, size: usize) {
    let source = ptr::from_ref(value).cast::<u8>();
    // SAFETY: `size` is at most that of `value`, and by the C caller's promise the target is a struct that has this
    // part at `offset`.
    unsafe { target.add(offset).copy_from_nonoverlapping(source, size.min(size_of::<T>())) };
}

/// Leaves the last entries of the histograms unwritten, as libcufile does.
fn write_level_2(target: *mut u8, detailed: &CUfileStatsLevel2_t) {
    let first = level_1_size();
    let histogram = size_of_val(&detailed.read_size_kb_hist);
    write(target, 0, &detailed.basic, first);
    write(target, first, &detailed.read_size_kb_hist, histogram * 3 / 4);
    write(target, first + histogram, &detailed.write_size_kb_hist, histogram * 3 / 4);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL1(stats: *mut CUfileStatsLevel1_t) -> CUfileError_t {
    status::call("cuFileGetStatsL1", || {
        let found = values(1)?;
        if stats.is_null() {
            return Err(INVALID);
        }
        write(stats.cast(), 0, &found.detailed.basic, level_1_size());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL2(stats: *mut CUfileStatsLevel2_t) -> CUfileError_t {
    status::call("cuFileGetStatsL2", || {
        let found = values(2)?;
        if stats.is_null() {
            return Err(INVALID);
        }
        write_level_2(stats.cast(), &found.detailed);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL3(stats: *mut CUfileStatsLevel3_t) -> CUfileError_t {
    status::call("cuFileGetStatsL3", || {
        let found = values(3)?;
        if stats.is_null() {
            return Err(INVALID);
        }
        let target = stats.cast::<u8>();
        let missing = size_of::<CUfileStatsLevel1_t>() - level_1_size();
        let gpus = size_of_val(&found.per_gpu_stats[..found.num_gpus as usize]);
        write_level_2(target, &found.detailed);
        write(target, offset_of!(CUfileStatsLevel3_t, num_gpus) - missing, &found.num_gpus, 4);
        write(target, offset_of!(CUfileStatsLevel3_t, per_gpu_stats) - missing, &found.per_gpu_stats, gpus);
        Ok(())
    })
}

declared! {
    cufile_sys::Functions:
    ; newer:
    cuFileSetStatsLevel cuFileGetStatsLevel cuFileStatsStart cuFileStatsStop cuFileStatsReset
    cuFileGetStatsL1 cuFileGetStatsL2 cuFileGetStatsL3
}
