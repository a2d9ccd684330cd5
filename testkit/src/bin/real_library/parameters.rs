//! Checks of parameters before the driver is open: libcufile returns the set values, and does not check limits yet.
//!
//! Only opening the driver reads cufile.json and puts defaults in; until then most getters answer 0.

use std::ffi::{CStr, CString};
use std::path::Path;

use cufile_sys::{
    CUFileBoolConfigParameter_t as Bool, CUFileSizeTConfigParameter_t as Size,
    CUFileStringConfigParameter_t as Text, CUfileError_t, Library,
};

use crate::checks::{Checks, Held, by_version, expect, libcuda_is_present};

const SUCCESS: u32 = 0;
const INVALID: u32 = 5022;

fn code(status: CUfileError_t) -> u32 {
    assert_eq!(status.cu_err.as_raw(), 0, "a CUDA error from a parameter call");
    status.err.as_raw()
}

/// Calls a function that the library may lack.
macro_rules! call {
    ($library:ident.$name:ident($($argument:expr),* $(,)?)) => {
        $library.$name.map(|function| {
            // SAFETY: pointers lead to memory of the length given, which outlives the call.
            code(unsafe { function($($argument),*) })
        })
    };
}

pub fn run(checks: &mut Checks, path: &Path, version: i32) {
    // SAFETY: the file is one of NVIDIA's packages.
    let library = match unsafe { Library::load_from(path) } {
        Ok(library) => library,
        Err(error) => return checks.check("the library loads", || Err(error.to_string())),
    };
    sizes(checks, &library, version);
    flags(checks, &library, version);
    texts(checks, &library, version);
    posix_pool_slabs(checks, &library);
    gpu_bounce_buffer_slabs(checks, &library);
    stats_level(checks, &library);
    limits_from_the_device(checks, &library, version);
}

struct SizeParameter {
    parameter: Size,
    /// The getter's answer before anything is set, by version.
    unset: &'static [(i32, usize)],
    /// Smallest and largest value by version; none: refused, or see [`limits_from_the_device`].
    limits: &'static [(i32, (usize, usize))],
}

const fn size(
    parameter: Size,
    unset: &'static [(i32, usize)],
    limits: &'static [(i32, (usize, usize))],
) -> SizeParameter {
    SizeParameter { parameter, unset, limits }
}

/// The largest multiple of 4 KiB that a number of bytes can be, in KiB.
const ALL_OF_MEMORY_KB: usize = usize::MAX / 1024 / 4 * 4;

const SIZES: &[SizeParameter] = &[
    size(Size::CUFILE_PARAM_PROFILE_STATS, &[(0, 0)], &[]),
    size(Size::CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH, &[(0, 128)], &[(0, (1, 256))]),
    size(
        Size::CUFILE_PARAM_EXECUTION_MAX_IO_THREADS,
        &[(0, 0), (1160, 8)],
        &[(0, (0, 32)), (1160, (0, 128))],
    ),
    size(Size::CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB, &[(0, 1024)], &[(0, (4, u32::MAX as usize))]),
    size(Size::CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM, &[(0, 0), (1160, 4)], &[(0, (0, 8))]),
    size(Size::CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, &[(0, 0)], &[(0, (64, 16384))]),
    size(Size::CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, &[(0, 0)], &[]),
    size(Size::CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB, &[(0, 0)], &[(0, (64, 16384))]),
    size(Size::CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, &[(0, 0)], &[]),
    size(Size::CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &[(0, 0)], &[(0, (1, 256))]),
    size(Size::CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, &[(0, 0)], &[(0, (4, ALL_OF_MEMORY_KB))]),
    size(Size::CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS, &[(0, 0)], &[(0, (1, 1000))]),
];

fn get_size(library: &Library, parameter: Size) -> Option<(u32, usize)> {
    let mut value = UNTOUCHED;
    let code = call!(library.cuFileGetParameterSizeT(parameter, &mut value))?;
    Some((code, value))
}

fn set_size(library: &Library, parameter: Size, value: usize) -> Option<u32> {
    call!(library.cuFileSetParameterSizeT(parameter, value))
}

fn limits(library: &Library, parameter: Size) -> Option<(u32, usize, usize)> {
    let (mut least, mut most) = (UNTOUCHED, UNTOUCHED);
    let code = call!(library.cuFileGetParameterMinMaxValue(parameter, &mut least, &mut most))?;
    Some((code, least, most))
}

/// A mark of memory that a call did not write.
const UNTOUCHED: usize = 0x0123_4567;

fn sizes(checks: &mut Checks, library: &Library, version: i32) {
    for SizeParameter { parameter, unset, limits: known } in SIZES {
        let parameter = *parameter;
        let unset = by_version(unset, version);
        checks.check_if(format!("{parameter:?} reads {unset:?} before it is set"), || {
            Some(expect(Some(get_size(library, parameter)?), unset.map(|unset| (SUCCESS, unset))))
        });
        let known = by_version(known, version);
        match known {
            Some((least, most)) => {
                checks.check_if(format!("{parameter:?} goes from {least} to {most}"), || {
                    Some(expect(limits(library, parameter)?, (SUCCESS, least, most)))
                });
            }
            None if parameter == Size::CUFILE_PARAM_PROFILE_STATS => {
                checks.check_if(format!("{parameter:?} has no limits"), || {
                    Some(expect(limits(library, parameter)?, (INVALID, UNTOUCHED, UNTOUCHED)))
                });
            }
            None => {}
        }
        let (least, most) = known.unwrap_or((0, 1 << 30));
        for value in [least, most, least.wrapping_sub(1), most.wrapping_add(1), 0, usize::MAX] {
            checks.check_if(
                format!("{parameter:?} takes and gives back {value}, within its limits or not"),
                || {
                    let set = set_size(library, parameter, value)?;
                    Some(expect((set, get_size(library, parameter)?), (SUCCESS, (SUCCESS, value))))
                },
            );
        }
        checks.check_if(format!("{parameter:?} can be put back"), || {
            Some(expect(set_size(library, parameter, unset?)?, SUCCESS))
        });
    }
    let beyond = Size(SIZES.len() as u32);
    checks.check_if("a size parameter beyond the last one is refused", || {
        let answers = (get_size(library, beyond)?, set_size(library, beyond, 1)?);
        Some(expect(answers, ((INVALID, UNTOUCHED), INVALID)))
    });
    checks.check_if("a size parameter beyond the last one has no limits", || {
        Some(expect(limits(library, beyond)?, (INVALID, UNTOUCHED, UNTOUCHED)))
    });
    checks.check_if("a size cannot be written to nowhere", || {
        let parameter = Size::CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH;
        Some(expect(call!(library.cuFileGetParameterSizeT(parameter, std::ptr::null_mut()))?, INVALID))
    });
}

/// Checks limits that depend on the device. In 1.15 and 1.16 the query opens the driver, which in 1.16 never
/// returns without libcuda. Without a device, libcufile does not write the largest value.
fn limits_from_the_device(checks: &mut Checks, library: &Library, version: i32) {
    if libcuda_is_present() || (1160..1170).contains(&version) {
        return;
    }
    for (parameter, least) in [
        (Size::CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, 0),
        (Size::CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, 64),
    ] {
        checks.check_if(format!("{parameter:?} leaves its largest value unwritten without a device"), || {
            Some(expect(limits(library, parameter)?, (SUCCESS, least, UNTOUCHED)))
        });
    }
}

struct Flag {
    parameter: Bool,
    /// Code and value before anything is set, by version.
    unset: &'static [(i32, (u32, bool))],
}

const fn flag(parameter: Bool, unset: &'static [(i32, (u32, bool))]) -> Flag {
    Flag { parameter, unset }
}

const OFF: &[(i32, (u32, bool))] = &[(0, (SUCCESS, false))];
/// Parameters that 1.19 brought.
const OFF_SINCE_1_19: &[(i32, (u32, bool))] = &[(1190, (SUCCESS, false))];

const FLAGS: &[Flag] = &[
    flag(Bool::CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, OFF),
    flag(Bool::CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, OFF),
    flag(Bool::CUFILE_PARAM_FORCE_COMPAT_MODE, OFF),
    flag(Bool::CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE, OFF),
    flag(Bool::CUFILE_PARAM_EXECUTION_PARALLEL_IO, &[(0, (SUCCESS, false)), (1160, (SUCCESS, true))]),
    // From 1.16 on it can be read only once it was set.
    flag(Bool::CUFILE_PARAM_PROFILE_NVTX, &[(0, (SUCCESS, false)), (1160, (INVALID, UNTOUCHED_FLAG))]),
    flag(Bool::CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY, OFF),
    flag(Bool::CUFILE_PARAM_USE_PCIP2PDMA, OFF),
    flag(Bool::CUFILE_PARAM_PREFER_IO_URING, OFF),
    flag(Bool::CUFILE_PARAM_FORCE_ODIRECT_MODE, OFF),
    flag(Bool::CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION, OFF),
    flag(Bool::CUFILE_PARAM_STREAM_MEMOPS_BYPASS, OFF),
    flag(Bool::CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE, OFF_SINCE_1_19),
    flag(Bool::CUFILE_PARAM_GDS_FALLBACK_IO, OFF_SINCE_1_19),
];

const UNTOUCHED_FLAG: bool = true;

fn get_flag(library: &Library, parameter: Bool) -> Option<(u32, bool)> {
    let mut value = UNTOUCHED_FLAG;
    let code = call!(library.cuFileGetParameterBool(parameter, &mut value))?;
    Some((code, value))
}

fn set_flag(library: &Library, parameter: Bool, value: bool) -> Option<u32> {
    call!(library.cuFileSetParameterBool(parameter, value))
}

fn flags(checks: &mut Checks, library: &Library, version: i32) {
    for Flag { parameter, unset } in FLAGS {
        let parameter = *parameter;
        let Some(unset) = by_version(unset, version) else {
            refused_flag(checks, library, parameter);
            continue;
        };
        checks.check_if(format!("{parameter:?} reads {unset:?} before it is set"), || {
            Some(expect(get_flag(library, parameter)?, unset))
        });
        for value in [true, false] {
            checks.check_if(format!("{parameter:?} takes and gives back {value}"), || {
                let set = set_flag(library, parameter, value)?;
                Some(expect((set, get_flag(library, parameter)?), (SUCCESS, (SUCCESS, value))))
            });
        }
    }
    refused_flag(checks, library, Bool(FLAGS.len() as u32));
}

fn refused_flag(checks: &mut Checks, library: &Library, parameter: Bool) {
    checks.check_if(format!("{parameter:?} is refused by a library that does not know it"), || {
        let answers = (get_flag(library, parameter)?, set_flag(library, parameter, true)?);
        Some(expect(answers, ((INVALID, UNTOUCHED_FLAG), INVALID)))
    });
}

/// Returns code and text; no text if the getter wrote none.
fn get_text(library: &Library, parameter: Text, room: usize) -> Option<(u32, Option<String>)> {
    let mut buffer = vec![1_u8; room.max(1)];
    let code = call!(library.cuFileGetParameterString(parameter, buffer.as_mut_ptr().cast(), room as i32))?;
    let text = CStr::from_bytes_until_nul(&buffer).ok().map(|text| text.to_string_lossy().into_owned());
    Some((code, text))
}

fn set_text(library: &Library, parameter: Text, text: &CStr) -> Option<u32> {
    call!(library.cuFileSetParameterString(parameter, text.as_ptr()))
}

const ROOM: usize = 256;

fn texts(checks: &mut Checks, library: &Library, version: i32) {
    let log = std::env::var("CUFILE_LOGFILE_PATH").ok();
    for (parameter, unset) in [
        (Text::CUFILE_PARAM_LOGGING_LEVEL, Some(String::new())),
        (Text::CUFILE_PARAM_ENV_LOGFILE_PATH, log.clone()),
        (Text::CUFILE_PARAM_LOG_DIR, Some(String::new())),
    ] {
        checks.check_if(format!("{parameter:?} reads {unset:?} before it is set"), || {
            let code = if unset.is_some() { SUCCESS } else { INVALID };
            Some(expect(get_text(library, parameter, ROOM)?, (code, unset)))
        });
        let text = log.as_deref().unwrap_or("TRACE");
        checks.check_if(
            format!("{parameter:?} takes and gives back {text}, whether it makes sense or not"),
            || {
                let set = set_text(library, parameter, &CString::new(text).ok()?)?;
                let got = get_text(library, parameter, ROOM)?;
                Some(expect((set, got), (SUCCESS, (SUCCESS, Some(text.to_owned())))))
            },
        );
        checks.check_if(format!("{parameter:?} needs room for the text and its end"), || {
            let enough = get_text(library, parameter, text.len() + 1)?;
            let short = get_text(library, parameter, text.len())?;
            Some(expect((enough, short), ((SUCCESS, Some(text.to_owned())), (INVALID, None))))
        });
        checks.check_if(format!("{parameter:?} refuses an empty text"), || {
            Some(expect(set_text(library, parameter, c"")?, INVALID))
        });
    }
    let parameter = Text::CUFILE_PARAM_RDMA_TRANSPORT;
    checks.check_if(format!("{parameter:?} reads DC_V1 since 1.19"), || {
        let expected = if version >= 1190 { (SUCCESS, Some("DC_V1".to_owned())) } else { (INVALID, None) };
        Some(expect(get_text(library, parameter, ROOM)?, expected))
    });
    checks.check_if(format!("{parameter:?} refuses a transport that there is not"), || {
        Some(expect(set_text(library, parameter, c"PIGEON")?, INVALID))
    });
    let beyond = Text(4);
    checks.check_if("a text parameter beyond the last one is refused", || {
        let answers = (get_text(library, beyond, ROOM)?, set_text(library, beyond, c"text")?);
        Some(expect(answers, ((INVALID, None), INVALID)))
    });
}

/// Code, sizes and counts of the first slabs.
type Slabs = (u32, Vec<usize>, Vec<usize>);
type GetSlabs<'a> = &'a dyn Fn(&mut [usize], &mut [usize]) -> Option<u32>;
type SetSlabs<'a> = &'a dyn Fn(&[usize], &[usize]) -> Option<u32>;

fn posix_pool_slabs(checks: &mut Checks, library: &Library) {
    slabs(
        checks,
        "POSIX pool",
        &|sizes, counts| {
            let len = sizes.len() as i32;
            call!(library.cuFileGetParameterPosixPoolSlabArray(sizes.as_mut_ptr(), counts.as_mut_ptr(), len))
        },
        &|sizes, counts| {
            let len = sizes.len() as i32;
            call!(library.cuFileSetParameterPosixPoolSlabArray(sizes.as_ptr(), counts.as_ptr(), len))
        },
    );
}

fn gpu_bounce_buffer_slabs(checks: &mut Checks, library: &Library) {
    slabs(
        checks,
        "GPU bounce buffer",
        &|sizes, counts| {
            let len = sizes.len() as i32;
            call!(library.cuFileGetParameterGpuBounceBufferSlabArray(
                sizes.as_mut_ptr(),
                counts.as_mut_ptr(),
                len
            ))
        },
        &|sizes, counts| {
            let len = sizes.len() as i32;
            call!(library.cuFileSetParameterGpuBounceBufferSlabArray(sizes.as_ptr(), counts.as_ptr(), len))
        },
    );
}

fn slabs(checks: &mut Checks, name: &str, get: GetSlabs<'_>, set: SetSlabs<'_>) {
    let read = |len: usize| -> Option<Slabs> {
        let (mut sizes, mut counts) = (vec![UNTOUCHED; len], vec![UNTOUCHED; len]);
        Some((get(&mut sizes, &mut counts)?, sizes, counts))
    };
    let refused = |len| (INVALID, vec![UNTOUCHED; len], vec![UNTOUCHED; len]);
    for len in [1, 2, 3, 4] {
        checks.check_if(format!("{name}: {len} slabs cannot be read before any are set"), || {
            Some(expect(read(len)?, refused(len)))
        });
    }
    checks.check_if(format!("{name}: slabs are given back in the number they were set"), || {
        let code = set(&[4, 1024], &[2, 3])?;
        Some(expect((code, read(2)?), (SUCCESS, (SUCCESS, vec![4, 1024], vec![2, 3]))))
    });
    for len in [1, 3] {
        checks.check_if(format!("{name}: {len} of two slabs cannot be read"), || {
            Some(expect(read(len)?, refused(len)))
        });
    }
    checks.check_if(format!("{name}: no slabs are refused"), || Some(expect(set(&[], &[])?, INVALID)));
}

fn stats_level(checks: &mut Checks, library: &Library) {
    let get = || -> Option<(u32, i32)> {
        let mut level = -1;
        Some((call!(library.cuFileGetStatsLevel(&mut level))?, level))
    };
    checks.check_if("the statistics level is 0 before it is set", || Some(expect(get()?, (SUCCESS, 0))));
    for level in 0..=3 {
        checks.check_if(format!("the statistics level {level} is taken and given back"), || {
            let set = call!(library.cuFileSetStatsLevel(level))?;
            Some(expect((set, get()?), (SUCCESS, (SUCCESS, level))))
        });
    }
    for level in [-1, 4] {
        checks.check_if(format!("the statistics level {level} is refused"), || {
            let set = call!(library.cuFileSetStatsLevel(level))?;
            Some(expect((set, get()?), (INVALID, (SUCCESS, 3))))
        });
    }
    checks.check_if("the statistics level cannot be written to nowhere", || -> Option<Held> {
        Some(expect(call!(library.cuFileGetStatsLevel(std::ptr::null_mut()))?, INVALID))
    });
}
