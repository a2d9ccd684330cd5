//! The answers of all calls while the driver is not open, on a host without libcuda.
//!
//! The checks leave out calls that open the driver and never return. These are HandleRegister, BufRegister, ReadAsync
//! and WriteAsync from 1.16 on, GetBARSizeInKB in 1.16, and ExportPCIeTopology in every version that has it.

use std::path::Path;
use std::ptr::{null, null_mut};

use cufile_sys::{
    CUfileDescr_t, CUfileDriverStatusFlags, CUfileDrvProps_t, CUfileError_t, CUfileP2PFlags, Library,
};

use crate::checks::{Checks, by_version, expect, libcuda_is_present, say};

/// Code and CUDA code of a status, or result and errno of a transfer.
type Answer = (i64, i64);

struct Call {
    /// A claim in words.
    name: &'static str,
    /// `None` where the library lacks the function.
    make: fn(&Library) -> Option<Answer>,
    /// Right answers, each with the first version that gives it; `None` forbids the call.
    expected: Expected,
}

fn status(status: CUfileError_t) -> Answer {
    (status.err.as_raw().into(), status.cu_err.as_raw().into())
}

fn transfer(call: impl FnOnce() -> isize) -> Answer {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = 0 };
    let result = call();
    (result as i64, std::io::Error::last_os_error().raw_os_error().unwrap_or(0).into())
}

macro_rules! call {
    ($library:ident.$name:ident($($argument:expr),*)) => {{
        // SAFETY: every argument is a value, null where the call must refuse it, or outlives the call.
        unsafe { ($library.$name)($($argument),*) }
    }};
    ($library:ident?.$name:ident($($argument:expr),*)) => {{
        let function = $library.$name?;
        // SAFETY: as above.
        unsafe { function($($argument),*) }
    }};
}

type Expected = &'static [(i32, Option<Answer>)];

const SUCCESS: Expected = &[(0, Some((0, 0)))];
const NOT_OPEN: Expected = &[(0, Some((5001, 0)))];
const CLOSING: Expected = &[(0, Some((5006, 0)))];
const NO_CUDA: Expected = &[(0, Some((5011, 3)))];
const INVALID: Expected = &[(0, Some((5022, 0)))];
const EINVAL: Expected = &[(0, Some((-1, 22)))];

/// Up to 1.15 a call that opens the driver fails without libcuda; from 1.16 on it never returns on a kernel without
/// `/proc/modules`.
const OPENS: Expected = &[(0, Some((5033, 0))), (1160, None)];

const PROPERTIES: Expected = &[(0, Some((0, 0))), (1130, Some((5011, 3))), (1170, Some((0, 0)))];

const PROPERTY_SET: Expected = &[(0, Some((5001, 0))), (1130, Some((5011, 3))), (1170, Some((0, 0)))];

const PROPERTY_SET_WITH_DEVICE: Expected =
    &[(0, Some((5001, 0))), (1130, Some((5011, 3))), (1170, Some((5011, 0)))];

const CALLS: &[Call] = &[
    Call {
        name: "no handle is in use",
        make: |cufile| Some((call!(cufile.cuFileUseCount()), 0)),
        expected: SUCCESS,
    },
    Call {
        name: "closing a driver that is not open is refused",
        make: |cufile| Some(status(call!(cufile.cuFileDriverClose_v2()))),
        expected: NOT_OPEN,
    },
    Call {
        name: "statistics cannot start",
        make: |cufile| Some(status(call!(cufile?.cuFileStatsStart()))),
        expected: NOT_OPEN,
    },
    Call {
        name: "statistics cannot stop",
        make: |cufile| Some(status(call!(cufile?.cuFileStatsStop()))),
        expected: NOT_OPEN,
    },
    Call {
        name: "statistics cannot be reset",
        make: |cufile| Some(status(call!(cufile?.cuFileStatsReset()))),
        expected: NOT_OPEN,
    },
    Call {
        name: "statistics of level 1 cannot be read",
        make: |cufile| Some(status(call!(cufile?.cuFileGetStatsL1(zeroed().as_mut_ptr().cast())))),
        expected: NOT_OPEN,
    },
    Call {
        name: "statistics of level 2 cannot be read",
        make: |cufile| Some(status(call!(cufile?.cuFileGetStatsL2(zeroed().as_mut_ptr().cast())))),
        expected: NOT_OPEN,
    },
    Call {
        name: "statistics of level 3 cannot be read",
        make: |cufile| Some(status(call!(cufile?.cuFileGetStatsL3(zeroed().as_mut_ptr().cast())))),
        expected: NOT_OPEN,
    },
    Call {
        name: "deregistering an unknown buffer is refused",
        make: |cufile| Some(status(call!(cufile.cuFileBufDeregister(zeroed().as_ptr().cast())))),
        expected: CLOSING,
    },
    Call {
        name: "deregistering no handle does nothing",
        make: |cufile| {
            call!(cufile.cuFileHandleDeregister(null_mut()));
            Some((0, 0))
        },
        expected: SUCCESS,
    },
    Call {
        name: "reading without a handle is EINVAL",
        make: |cufile| {
            Some(transfer(|| call!(cufile.cuFileRead(null_mut(), zeroed().as_mut_ptr().cast(), 4096, 0, 0))))
        },
        expected: EINVAL,
    },
    Call {
        name: "writing without a handle is EINVAL",
        make: |cufile| {
            Some(transfer(|| call!(cufile.cuFileWrite(null_mut(), zeroed().as_ptr().cast(), 4096, 0, 0))))
        },
        expected: EINVAL,
    },
    Call {
        name: "reading a vector without a handle is EINVAL",
        make: |cufile| {
            let readv = cufile.cuFileReadv?;
            // SAFETY: the vector outlives the call, which must refuse the handle.
            Some(transfer(|| unsafe { readv(null_mut(), zeroed().as_ptr().cast(), 1, 0, 0) }))
        },
        expected: EINVAL,
    },
    Call {
        name: "writing a vector without a handle is EINVAL",
        make: |cufile| {
            let writev = cufile.cuFileWritev?;
            // SAFETY: the vector outlives the call, which must refuse the handle.
            Some(transfer(|| unsafe { writev(null_mut(), zeroed().as_ptr().cast(), 1, 0, 0) }))
        },
        expected: EINVAL,
    },
    Call {
        name: "a batch cannot be set up",
        make: |cufile| Some(status(call!(cufile.cuFileBatchIOSetUp(&mut null_mut(), 4)))),
        expected: &[(0, Some((5030, 0))), (1150, Some((5022, 0)))],
    },
    Call {
        name: "no batch cannot be submitted",
        make: |cufile| {
            Some(status(call!(cufile.cuFileBatchIOSubmit(null_mut(), 1, zeroed().as_mut_ptr().cast(), 0))))
        },
        expected: &[(0, Some((5030, 0))), (1150, Some((5040, 0)))],
    },
    Call {
        name: "no batch has no status",
        make: |cufile| {
            let events = zeroed().as_mut_ptr().cast();
            Some(status(call!(cufile.cuFileBatchIOGetStatus(null_mut(), 0, &mut 1, events, null_mut()))))
        },
        expected: &[(0, Some((5030, 0))), (1150, Some((5041, 0))), (1190, Some((5047, 0)))],
    },
    Call {
        name: "cancelling no batch is refused only from 1.19 on",
        make: |cufile| Some(status(call!(cufile.cuFileBatchIOCancel(null_mut())))),
        expected: &[(0, Some((0, 0))), (1190, Some((5047, 0)))],
    },
    Call {
        name: "destroying no batch does nothing",
        make: |cufile| {
            call!(cufile.cuFileBatchIODestroy(null_mut()));
            Some((0, 0))
        },
        expected: SUCCESS,
    },
    Call {
        name: "a stream that is not registered cannot be deregistered",
        make: |cufile| Some(status(call!(cufile.cuFileStreamDeregister(null_mut())))),
        expected: INVALID,
    },
    Call {
        name: "the null stream can be registered",
        make: |cufile| Some(status(call!(cufile.cuFileStreamRegister(null_mut(), 0)))),
        expected: SUCCESS,
    },
    Call {
        name: "a registered stream cannot be registered again",
        make: |cufile| Some(status(call!(cufile.cuFileStreamRegister(null_mut(), 0)))),
        expected: INVALID,
    },
    Call {
        name: "a registered stream cannot be registered with other flags",
        make: |cufile| Some(status(call!(cufile.cuFileStreamRegister(null_mut(), 15)))),
        expected: INVALID,
    },
    Call {
        name: "peer-to-peer flags cannot be read",
        make: |cufile| {
            let mut flags = CUfileP2PFlags(0);
            let kind = CUfileDriverStatusFlags::CU_FILE_NVME_SUPPORTED;
            Some(status(call!(cufile?.cuFileDriverGetP2PFlags(kind, &mut flags))))
        },
        expected: NO_CUDA,
    },
    Call {
        name: "peer-to-peer flags cannot be set",
        make: |cufile| {
            let kind = CUfileDriverStatusFlags::CU_FILE_NVME_SUPPORTED;
            Some(status(call!(cufile?.cuFileDriverSetP2PFlags(kind, CUfileP2PFlags(1)))))
        },
        expected: NO_CUDA,
    },
    Call {
        name: "the poll mode can be set from 1.17 on",
        make: |cufile| Some(status(call!(cufile.cuFileDriverSetPollMode(true, 4)))),
        expected: PROPERTY_SET,
    },
    Call {
        name: "the direct I/O size can be set from 1.17 on",
        make: |cufile| Some(status(call!(cufile.cuFileDriverSetMaxDirectIOSize(1024)))),
        expected: PROPERTY_SET,
    },
    Call {
        name: "a direct I/O size that is no multiple of 64 is refused",
        make: |cufile| Some(status(call!(cufile.cuFileDriverSetMaxDirectIOSize(1000)))),
        expected: &[(0, Some((5001, 0))), (1130, Some((5011, 3))), (1170, Some((5022, 0)))],
    },
    Call {
        name: "the cache size cannot be set without a device",
        make: |cufile| Some(status(call!(cufile.cuFileDriverSetMaxCacheSize(131_072)))),
        expected: PROPERTY_SET_WITH_DEVICE,
    },
    Call {
        name: "the pinned memory size cannot be set without a device",
        make: |cufile| Some(status(call!(cufile.cuFileDriverSetMaxPinnedMemSize(33_554_432)))),
        expected: PROPERTY_SET_WITH_DEVICE,
    },
    Call {
        name: "properties can be read in 1.11 and from 1.17 on",
        make: |cufile| {
            let properties: *mut CUfileDrvProps_t = zeroed().as_mut_ptr().cast();
            Some(status(call!(cufile.cuFileDriverGetProperties(properties))))
        },
        expected: PROPERTIES,
    },
    Call {
        name: "the poll mode can be set in 1.11 once the properties were read",
        make: |cufile| Some(status(call!(cufile.cuFileDriverSetPollMode(true, 4)))),
        expected: PROPERTIES,
    },
    Call {
        name: "the size of a BAR needs CUDA",
        make: |cufile| Some(status(call!(cufile?.cuFileGetBARSizeInKB(0, &mut 0)))),
        expected: &[(0, Some((5033, 0))), (1160, None), (1170, Some((5011, 0)))],
    },
    Call {
        name: "opening fails for want of libcuda",
        make: |cufile| Some(status(call!(cufile.cuFileDriverOpen()))),
        expected: OPENS,
    },
    Call {
        name: "registering a file opens the driver, which fails",
        make: |cufile| {
            let mut file: CUfileDescr_t = zero_descriptor();
            Some(status(call!(cufile.cuFileHandleRegister(&mut null_mut(), &mut file))))
        },
        expected: OPENS,
    },
    Call {
        name: "registering a buffer opens the driver, which fails",
        make: |cufile| Some(status(call!(cufile.cuFileBufRegister(zeroed().as_ptr().cast(), 4096, 0)))),
        expected: OPENS,
    },
    Call {
        name: "reading on a stream opens the driver, which fails",
        make: |cufile| {
            let (buffer, stream) = (zeroed().as_mut_ptr().cast(), null_mut());
            let (mut size, mut offsets, mut bytes) = (4096, [0, 0], 0);
            let [file_offset, buffer_offset] = &mut offsets;
            Some(status(call!(cufile.cuFileReadAsync(
                null_mut(),
                buffer,
                &mut size,
                file_offset,
                buffer_offset,
                &mut bytes,
                stream
            ))))
        },
        expected: OPENS,
    },
    Call {
        name: "no handle is in use after failed opens",
        make: |cufile| Some((call!(cufile.cuFileUseCount()), 0)),
        expected: SUCCESS,
    },
];

/// Returns room for every call, never freed.
fn zeroed() -> &'static mut [u64] {
    Vec::leak(vec![0; 8192])
}

fn zero_descriptor() -> CUfileDescr_t {
    CUfileDescr_t {
        type_: cufile_sys::CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD,
        handle: cufile_sys::CUfileDescr_anon_handle { fd: 0 },
        fs_ops: null(),
    }
}

pub fn run(checks: &mut Checks, path: &Path, version: i32) {
    // SAFETY: the file is one of NVIDIA's packages.
    let library = match unsafe { Library::load_from(path) } {
        Ok(library) => library,
        Err(error) => return checks.check("the library loads", || Err(error.to_string())),
    };
    if libcuda_is_present() {
        return say("skipped: this host has a libcuda, so that these calls may open the driver");
    }
    for call in CALLS {
        if let Some(expected) = by_version(call.expected, version).flatten() {
            checks.check_if(call.name, || Some(expect((call.make)(&library)?, expected)));
        }
    }
}
