//! cuFile's driver: opening, closing, properties, and queries about the machine.

use std::ffi::{c_char, c_int, c_long};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use cuda_rt_sys::driver::CUresult;
use cufile_sys::{
    CUfileDriverControlFlags_t, CUfileDriverStatusFlags_t, CUfileDrvProps_anon_nvfs, CUfileDrvProps_t,
    CUfileError_t, CUfileFeatureFlags_t, CUfileP2PFlags_t,
};

use super::opened::{self, need_open, use_count};
use super::params::{self, Number, Switch};
use super::stats;
use crate::control::{self, lock};
use crate::status::{self, INVALID, cuda_failed, failed};
use crate::{c, device, trace};

pub(super) fn open_for_use() -> Result<(), CUfileError_t> {
    let mut opened = lock(&opened::COUNT);
    if *opened == 0 {
        openable()?;
        params::take_over();
        stats::open(params::number(Number::ProfileStats));
        *opened = 1;
    }
    Ok(())
}

/// Fails without a GPU; the driver itself opens without one from 1.16 on.
pub(super) fn need_gpu() -> Result<(), CUfileError_t> {
    device::initialise().map_err(cuda_failed)
}

fn openable() -> Result<(), CUfileError_t> {
    if control::version() < 1160 { need_gpu() } else { Ok(()) }
}

/// Returns true for versions that read their configuration again when a program reads the properties.
fn forgets() -> bool {
    control::version() < 1170
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverOpen() -> CUfileError_t {
    trace::call("cuFileDriverOpen", |_| String::new());
    status::one_at_a_time("cuFileDriverOpen", || {
        openable()?;
        let mut opened = lock(&opened::COUNT);
        if *opened == 0 {
            params::take_over();
            stats::open(params::number(Number::ProfileStats));
        }
        *opened += 1;
        Ok(())
    })
}

fn close() -> Result<(), CUfileError_t> {
    let mut opened = lock(&opened::COUNT);
    *opened = opened.checked_sub(1).ok_or(failed(5001))?;
    if *opened == 0 {
        opened::IS_BEGUN.store(false, Ordering::SeqCst);
        params::close();
        stats::close();
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverClose_v2() -> CUfileError_t {
    trace::call("cuFileDriverClose", |_| String::new());
    status::one_at_a_time("cuFileDriverClose_v2", close)
}

/// The name without a suffix, which libcufile exports too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverClose() -> CUfileError_t {
    trace::call("cuFileDriverClose", |_| String::new());
    status::one_at_a_time("cuFileDriverClose_v2", close)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileUseCount() -> c_long {
    trace::call("cuFileUseCount", |_| String::new());
    let hit = control::enter("cuFileUseCount");
    hit.sleep();
    hit.ret.unwrap_or(use_count() as c_long)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> CUfileError_t {
    status::call("cuFileGetVersion", || c::put(version, control::version()).ok_or(INVALID))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverGetProperties(props: *mut CUfileDrvProps_t) -> CUfileError_t {
    trace::call("cuFileDriverGetProperties", |_| String::new());
    status::without_transfers("cuFileDriverGetProperties", || {
        if control::gpus() == 0 && control::version() < 1170 {
            return Err(cuda_failed(CUresult::CUDA_ERROR_NOT_INITIALIZED));
        }
        if forgets() {
            params::forget();
            opened::IS_BEGUN.store(true, Ordering::SeqCst);
        }
        let number = |which| params::number(which) as u32;
        let poll = u32::from(params::switch(Switch::PollMode));
        let compatible = u32::from(params::switch(Switch::AllowCompatMode));
        let nvidia_fs = control::nvidia_fs();
        let value = CUfileDrvProps_t {
            nvfs: CUfileDrvProps_anon_nvfs {
                major_version: nvidia_fs.major,
                minor_version: nvidia_fs.minor,
                poll_thresh_size: params::number(Number::PollThreshold),
                max_direct_io_size: params::number(Number::MaxDirectIo),
                dstatusflags: nvidia_fs.status,
                dcontrolflags: poll << CUfileDriverControlFlags_t::CU_FILE_USE_POLL_MODE.as_raw()
                    | compatible << CUfileDriverControlFlags_t::CU_FILE_ALLOW_COMPAT_MODE.as_raw(),
            },
            fflags: 1 << CUfileFeatureFlags_t::CU_FILE_BATCH_IO_SUPPORTED.as_raw()
                | 1 << CUfileFeatureFlags_t::CU_FILE_STREAMS_SUPPORTED.as_raw()
                | 1 << CUfileFeatureFlags_t::CU_FILE_PARALLEL_IO_SUPPORTED.as_raw()
                | u32::from(control::p2pdma()) << CUfileFeatureFlags_t::CU_FILE_P2P_SUPPORTED.as_raw(),
            max_device_cache_size: number(Number::DeviceCache),
            per_buffer_cache_size: number(Number::PerBufferCache),
            max_device_pinned_mem_size: number(Number::Pinned),
            max_batch_io_size: number(Number::BatchSize),
            max_batch_io_timeout_msecs: number(Number::BatchTimeout),
        };
        c::put(props, value).ok_or(INVALID)
    })
}

/// Returns whether a setter older than the parameters has an effect. It has none up to 1.16, and none on an open
/// driver, which 1.11 requires.
fn limits_can_change() -> Result<bool, CUfileError_t> {
    if control::version() < 1130 {
        need_open()?;
    }
    Ok(!forgets() && use_count() == 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverSetPollMode(poll: bool, poll_threshold_size: usize) -> CUfileError_t {
    trace::call("cuFileDriverSetPollMode", |_| format!("{poll} {poll_threshold_size}"));
    status::without_transfers("cuFileDriverSetPollMode", || {
        params::within_limits(Number::PollThreshold, poll_threshold_size).ok_or(INVALID)?;
        if limits_can_change()? {
            params::set_number(Number::PollThreshold, poll_threshold_size);
            params::set_switch(Switch::PollMode, poll);
            params::remember();
        }
        Ok(())
    })
}

fn set_property(name: &'static str, which: Number, value: usize) -> CUfileError_t {
    trace::call(name, |_| value.to_string());
    status::without_transfers(name, || {
        let code = if control::version() < 1160 { 5003 } else { 5022 };
        params::within_limits(which, value).ok_or(failed(code))?;
        if limits_can_change()? {
            params::set_number(which, value);
            params::remember();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverSetMaxDirectIOSize(max_direct_io_size: usize) -> CUfileError_t {
    set_property("cuFileDriverSetMaxDirectIOSize", Number::MaxDirectIo, max_direct_io_size)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverSetMaxCacheSize(max_cache_size: usize) -> CUfileError_t {
    set_property("cuFileDriverSetMaxCacheSize", Number::DeviceCache, max_cache_size)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverSetMaxPinnedMemSize(max_pinned_size: usize) -> CUfileError_t {
    set_property("cuFileDriverSetMaxPinnedMemSize", Number::Pinned, max_pinned_size)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetBARSizeInKB(gpuIndex: c_int, barSize: *mut usize) -> CUfileError_t {
    status::call("cuFileGetBARSizeInKB", || {
        if !device::exists(gpuIndex) {
            return Err(INVALID);
        }
        c::put(barSize, 268_435_456).ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileExportPCIeTopology(filename: *const c_char) -> CUfileError_t {
    status::call("cuFileExportPCIeTopology", || {
        c::text(filename).ok_or(INVALID)?;
        Err(failed(5030))
    })
}

static P2P_FLAGS: Mutex<[u32; TARGETS]> = Mutex::new([0; TARGETS]);
const TARGETS: usize = CUfileDriverStatusFlags_t::CU_FILE_MAX_TARGET_TYPES.as_raw() as usize;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverGetP2PFlags(
    status_flag: CUfileDriverStatusFlags_t,
    p2p_flags: *mut CUfileP2PFlags_t,
) -> CUfileError_t {
    status::call("cuFileDriverGetP2PFlags", || {
        let flags = lock(&P2P_FLAGS).get(status_flag.as_raw() as usize).copied().ok_or(INVALID)?;
        c::put(p2p_flags, CUfileP2PFlags_t::from_raw(flags)).ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverSetP2PFlags(
    status_flag: CUfileDriverStatusFlags_t,
    p2p_flags: CUfileP2PFlags_t,
) -> CUfileError_t {
    status::call("cuFileDriverSetP2PFlags", || {
        // A program can add the flags of the platform, and clear none; libcufile manages the others.
        let settable = CUfileP2PFlags_t::CUFILE_P2PDMA.mask().as_raw();
        if p2p_flags.as_raw() & !settable != 0 {
            return Err(INVALID);
        }
        *lock(&P2P_FLAGS).get_mut(status_flag.as_raw() as usize).ok_or(INVALID)? |= p2p_flags.as_raw();
        Ok(())
    })
}

declared! {
    cufile_sys::Functions:
    cuFileDriverOpen cuFileDriverClose_v2 cuFileUseCount cuFileGetVersion cuFileDriverGetProperties
    cuFileDriverSetPollMode cuFileDriverSetMaxDirectIOSize cuFileDriverSetMaxCacheSize
    cuFileDriverSetMaxPinnedMemSize
    ; newer:
    cuFileGetBARSizeInKB cuFileExportPCIeTopology cuFileDriverGetP2PFlags cuFileDriverSetP2PFlags
}
