//! Tests of values that need no library.

use std::io;

use crate::{Error, ErrorKind, OpError, Status, Version};
use cuda_rt_sys::driver::CUresult;
use cuda_rt_sys::runtime::cudaError_t;

fn version(minor: u32) -> Version {
    Version { major: 1, minor }
}

fn of_cufile(code: OpError) -> Error {
    Error::CuFile { operation: "cuFileRead".into(), code, cuda: None, advice: None }
}

fn of_runtime(code: cudaError_t) -> Error {
    Error::CudaRuntime { operation: Default::default(), code }
}

fn of_driver(code: CUresult) -> Error {
    Error::CudaDriver { operation: Default::default(), code }
}

fn of_system(errno: i32) -> Error {
    Error::Io { operation: "cuFileRead".into(), source: io::Error::from_raw_os_error(errno) }
}

#[test]
fn each_error_has_its_kind_and_io_kind() {
    use io::ErrorKind as Io;
    let unsupported = Error::Unsupported { symbol: "cuFileReadv", since: version(18), loaded: version(11) };
    let elsewhere = crate::LoadError::Unsupported { library: "libcufile", reason: "on this system" };
    let invalid = Error::InvalidInput { operation: "cuFileRead", problem: "it is too long".into() };
    for (error, kind, io_kind, raw) in [
        (Error::NoDevice, ErrorKind::NoDevice, Io::NotFound, None),
        (unsupported, ErrorKind::Unsupported, Io::Unsupported, None),
        (elsewhere.into(), ErrorKind::Unsupported, Io::Unsupported, None),
        (invalid, ErrorKind::InvalidInput, Io::InvalidInput, None),
        (Error::InUse { what: "the driver", users: 2 }, ErrorKind::Busy, Io::ResourceBusy, None),
        (Error::Forked, ErrorKind::Forked, Io::Other, None),
        (Error::Unspecified { operation: "cuFileRead".into() }, ErrorKind::Io, Io::Other, None),
        (
            of_cufile(OpError::PERMISSION_DENIED),
            ErrorKind::PermissionDenied,
            Io::PermissionDenied,
            Some(5025),
        ),
        (of_cufile(OpError::GETNEWFD_FAILED), ErrorKind::OutOfMemory, Io::OutOfMemory, Some(5031)),
        (of_cufile(OpError::BATCH_FULL), ErrorKind::Busy, Io::ResourceBusy, Some(5037)),
        (of_cufile(OpError::CUDA_DRIVER_ERROR), ErrorKind::Cuda, Io::Other, Some(5011)),
        (of_cufile(OpError::from_raw(5777)), ErrorKind::Other, Io::Other, Some(5777)),
        (
            of_runtime(cudaError_t::cudaErrorMemoryAllocation),
            ErrorKind::OutOfMemory,
            Io::OutOfMemory,
            Some(2),
        ),
        (of_runtime(cudaError_t::cudaErrorNoDevice), ErrorKind::NoDevice, Io::NotFound, Some(100)),
        (of_runtime(cudaError_t::cudaErrorInsufficientDriver), ErrorKind::NoDevice, Io::NotFound, Some(35)),
        (of_runtime(cudaError_t::cudaErrorInvalidValue), ErrorKind::Cuda, Io::Other, Some(1)),
        (of_driver(CUresult::CUDA_ERROR_OUT_OF_MEMORY), ErrorKind::OutOfMemory, Io::OutOfMemory, Some(2)),
        (of_driver(CUresult::CUDA_ERROR_NO_DEVICE), ErrorKind::NoDevice, Io::NotFound, Some(100)),
        (of_driver(CUresult::CUDA_ERROR_INVALID_VALUE), ErrorKind::Cuda, Io::Other, Some(1)),
        (of_system(libc::EACCES), ErrorKind::PermissionDenied, Io::PermissionDenied, Some(libc::EACCES)),
        (of_system(libc::EINVAL), ErrorKind::InvalidInput, Io::InvalidInput, Some(libc::EINVAL)),
        (of_system(libc::ENOMEM), ErrorKind::OutOfMemory, Io::OutOfMemory, Some(libc::ENOMEM)),
        (of_system(libc::EOPNOTSUPP), ErrorKind::Unsupported, Io::Unsupported, Some(libc::EOPNOTSUPP)),
        (of_system(libc::ENOSPC), ErrorKind::Io, Io::StorageFull, Some(libc::ENOSPC)),
    ] {
        assert_eq!((error.kind(), error.io_kind(), error.raw_code()), (kind, io_kind, raw), "{error}");
        assert_eq!(io::Error::from(error).kind(), io_kind);
    }
}

#[test]
fn statuses_have_their_c_names() {
    for (status, name) in [
        (Status::WAITING, "CUFILE_WAITING"),
        (Status::COMPLETE, "CUFILE_COMPLETE"),
        (Status::FAILED, "CUFILE_FAILED"),
    ] {
        assert_eq!(status.name(), Some(name));
        assert_eq!(Status::from_raw(status.as_raw()), status);
    }
    assert_eq!(Status::from_raw(4096).name(), None);
}
