//! Parameters: numbers with limits, switches, strings and slab arrays.

use std::ffi::{c_char, c_int};
use std::sync::{LazyLock, Mutex};

use cufile_sys::{
    CUFileBoolConfigParameter_t, CUFileSizeTConfigParameter_t, CUFileStringConfigParameter_t, CUfileError_t,
};

use super::opened::before_open;
use crate::c;
use crate::control::lock;
use crate::status::{self, INVALID};

/// The numbers in C's order.
#[derive(Clone, Copy)]
pub(super) enum Number {
    ProfileStats = 0,
    MaxDirectIo = 5,
    DeviceCache = 6,
    PerBufferCache = 7,
    Pinned = 8,
    BatchSize = 9,
    PollThreshold = 10,
    BatchTimeout = 11,
}

/// The switches in C's order.
#[derive(Clone, Copy)]
pub(super) enum Switch {
    PollMode = 0,
    AllowCompatMode = 1,
}

struct Limits {
    default: usize,
    smallest: usize,
    largest: usize,
    multiple: usize,
}

const fn limits(default: usize, smallest: usize, largest: usize, multiple: usize) -> Limits {
    Limits { default, smallest, largest, multiple }
}

const ANY: usize = u32::MAX as usize;

const NUMBERS: [Limits; 12] = [
    limits(0, 0, 3, 1),
    limits(128, 1, 256, 1),
    limits(4, 0, 128, 1),
    limits(8192, 0, ANY, 1),
    limits(4, 0, 8, 1),
    limits(16384, 64, 16384, 64),
    limits(131_072, 0, ANY, 1),
    limits(1024, 0, ANY, 1),
    limits(33_554_432, 0, ANY, 1),
    limits(128, 1, 256, 1),
    limits(4, 0, ANY, 1),
    limits(5, 1, 1000, 1),
];

const PROFILE_STATS: usize = CUFileSizeTConfigParameter_t::CUFILE_PARAM_PROFILE_STATS.as_raw() as usize;
const PROFILE_NVTX: usize = CUFileBoolConfigParameter_t::CUFILE_PARAM_PROFILE_NVTX.as_raw() as usize;

type Slabs = Vec<(usize, usize)>;

#[derive(Clone)]
struct Params {
    numbers: [usize; 12],
    switches: [bool; 14],
    strings: [String; 4],
    posix_slabs: Slabs,
    gpu_slabs: Slabs,
}

static PARAMS: LazyLock<Mutex<Params>> = LazyLock::new(|| Mutex::new(Params::configured()));

/// The driver copies them to [`PARAMS`] when it opens.
static CHOSEN: Mutex<Option<Params>> = Mutex::new(None);

pub(super) fn remember() {
    let now = lock(&PARAMS).clone();
    *lock(&CHOSEN) = Some(now);
}

pub(super) fn forget() {
    *lock(&PARAMS) = Params::configured();
}

pub(super) fn close() {
    *lock(&CHOSEN) = None;
    forget();
}

pub(super) fn take_over() {
    let chosen = lock(&CHOSEN).clone();
    if let Some(chosen) = chosen {
        *lock(&PARAMS) = chosen;
    }
}

impl Params {
    fn configured() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let mut switches = [false; 14];
        for on in [
            CUFileBoolConfigParameter_t::CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE,
            CUFileBoolConfigParameter_t::CUFILE_PARAM_EXECUTION_PARALLEL_IO,
            CUFileBoolConfigParameter_t::CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY,
        ] {
            switches[on.as_raw() as usize] = true;
        }
        let slabs = vec![(4, 128), (1024, 64), (16384, 64)];
        Self {
            numbers: NUMBERS.map(|limits| limits.default),
            switches,
            strings: ["ERROR".into(), variable("CUFILE_LOGFILE_PATH"), String::new(), "DC_V1".into()],
            posix_slabs: slabs.clone(),
            gpu_slabs: slabs,
        }
    }
}

pub(super) fn number(which: Number) -> usize {
    lock(&PARAMS).numbers[which as usize]
}

pub(super) fn switch(which: Switch) -> bool {
    lock(&PARAMS).switches[which as usize]
}

pub(super) fn within_limits(which: Number, value: usize) -> Option<()> {
    let limits = &NUMBERS[which as usize];
    let within = (limits.smallest..=limits.largest).contains(&value) && value.is_multiple_of(limits.multiple);
    within.then_some(())
}

pub(super) fn set_number(which: Number, value: usize) {
    lock(&PARAMS).numbers[which as usize] = value;
}

pub(super) fn set_switch(which: Switch, value: bool) {
    lock(&PARAMS).switches[which as usize] = value;
}

fn set(name: &'static str, body: impl FnOnce() -> Option<()>) -> CUfileError_t {
    status::one_at_a_time(name, || {
        before_open()?;
        body().ok_or(INVALID)?;
        remember();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterSizeT(
    param: CUFileSizeTConfigParameter_t,
    value: *mut usize,
) -> CUfileError_t {
    status::one_at_a_time("cuFileGetParameterSizeT", || {
        let found = lock(&PARAMS).numbers.get(param.as_raw() as usize).copied();
        c::put(value, found.ok_or(INVALID)?).ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterSizeT(
    param: CUFileSizeTConfigParameter_t,
    value: usize,
) -> CUfileError_t {
    set("cuFileSetParameterSizeT", || {
        // Limits are not checked.
        *lock(&PARAMS).numbers.get_mut(param.as_raw() as usize)? = value;
        Some(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterMinMaxValue(
    param: CUFileSizeTConfigParameter_t,
    min_value: *mut usize,
    max_value: *mut usize,
) -> CUfileError_t {
    status::one_at_a_time("cuFileGetParameterMinMaxValue", || {
        let index = param.as_raw() as usize;
        let limits = NUMBERS.get(index).filter(|_| index != PROFILE_STATS).ok_or(INVALID)?;
        c::put(min_value, limits.smallest).ok_or(INVALID)?;
        c::put(max_value, limits.largest).ok_or(INVALID)
    })
}

fn is_switch(index: usize) -> bool {
    index < 14 && index != PROFILE_NVTX
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterBool(
    param: CUFileBoolConfigParameter_t,
    value: *mut bool,
) -> CUfileError_t {
    status::one_at_a_time("cuFileGetParameterBool", || {
        let index = param.as_raw() as usize;
        if !is_switch(index) {
            return Err(INVALID);
        }
        c::put(value, lock(&PARAMS).switches[index]).ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterBool(
    param: CUFileBoolConfigParameter_t,
    value: bool,
) -> CUfileError_t {
    set("cuFileSetParameterBool", || {
        let index = param.as_raw() as usize;
        is_switch(index).then(|| lock(&PARAMS).switches[index] = value)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterString(
    param: CUFileStringConfigParameter_t,
    desc_str: *mut c_char,
    len: c_int,
) -> CUfileError_t {
    status::one_at_a_time("cuFileGetParameterString", || {
        let found = lock(&PARAMS).strings.get(param.as_raw() as usize).cloned().ok_or(INVALID)?;
        if found.is_empty() && param == CUFileStringConfigParameter_t::CUFILE_PARAM_ENV_LOGFILE_PATH {
            return Err(INVALID);
        }
        c::put_text(desc_str, len, &found).ok_or(INVALID)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterString(
    param: CUFileStringConfigParameter_t,
    desc_str: *const c_char,
) -> CUfileError_t {
    set("cuFileSetParameterString", || {
        let text = c::text(desc_str).filter(|text| !text.is_empty())?;
        *lock(&PARAMS).strings.get_mut(param.as_raw() as usize)? = text;
        Some(())
    })
}

fn set_slabs(
    which: fn(&mut Params) -> &mut Slabs,
    sizes: *const usize,
    counts: *const usize,
    length: c_int,
) -> Option<()> {
    let length = usize::try_from(length).ok().filter(|length| *length > 0)?;
    let slabs = c::array(sizes, length)?.into_iter().zip(c::array(counts, length)?).collect();
    *which(&mut lock(&PARAMS)) = slabs;
    Some(())
}

fn get_slabs(
    which: fn(&mut Params) -> &mut Slabs,
    sizes: *mut usize,
    counts: *mut usize,
    length: c_int,
) -> Result<(), CUfileError_t> {
    let (found_sizes, found_counts): (Vec<usize>, Vec<usize>) =
        which(&mut lock(&PARAMS)).iter().copied().unzip();
    if usize::try_from(length) != Ok(found_sizes.len()) {
        return Err(INVALID);
    }
    c::put_array(sizes, &found_sizes).ok_or(INVALID)?;
    c::put_array(counts, &found_counts).ok_or(INVALID)
}

fn posix(params: &mut Params) -> &mut Slabs {
    &mut params.posix_slabs
}

fn gpu(params: &mut Params) -> &mut Slabs {
    &mut params.gpu_slabs
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterPosixPoolSlabArray(
    size_values: *const usize,
    count_values: *const usize,
    len: c_int,
) -> CUfileError_t {
    set("cuFileSetParameterPosixPoolSlabArray", || set_slabs(posix, size_values, count_values, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterPosixPoolSlabArray(
    size_values: *mut usize,
    count_values: *mut usize,
    len: c_int,
) -> CUfileError_t {
    status::one_at_a_time("cuFileGetParameterPosixPoolSlabArray", || {
        get_slabs(posix, size_values, count_values, len)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterGpuBounceBufferSlabArray(
    size_values: *const usize,
    count_values: *const usize,
    len: c_int,
) -> CUfileError_t {
    set("cuFileSetParameterGpuBounceBufferSlabArray", || set_slabs(gpu, size_values, count_values, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterGpuBounceBufferSlabArray(
    size_values: *mut usize,
    count_values: *mut usize,
    len: c_int,
) -> CUfileError_t {
    status::one_at_a_time("cuFileGetParameterGpuBounceBufferSlabArray", || {
        get_slabs(gpu, size_values, count_values, len)
    })
}

declared! {
    cufile_sys::Functions:
    ; newer:
    cuFileGetParameterSizeT cuFileSetParameterSizeT cuFileGetParameterMinMaxValue cuFileGetParameterBool
    cuFileSetParameterBool cuFileGetParameterString cuFileSetParameterString
    cuFileSetParameterPosixPoolSlabArray cuFileGetParameterPosixPoolSlabArray
    cuFileSetParameterGpuBounceBufferSlabArray cuFileGetParameterGpuBounceBufferSlabArray
}
