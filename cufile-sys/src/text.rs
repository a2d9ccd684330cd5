//! One sentence for each code.

use crate::bindings::CUfileOpError as Code;

pub(crate) const fn sentence(code: Code) -> &'static str {
    match code {
        Code::CU_FILE_SUCCESS => "the call succeeded",
        Code::CU_FILE_DRIVER_NOT_INITIALIZED => "the cuFile driver is not open",
        Code::CU_FILE_DRIVER_INVALID_PROPS => "a driver property has an invalid value",
        Code::CU_FILE_DRIVER_UNSUPPORTED_LIMIT => "a driver property is outside its limits",
        Code::CU_FILE_DRIVER_VERSION_MISMATCH => "the nvidia-fs kernel module does not match this libcufile",
        Code::CU_FILE_DRIVER_VERSION_READ_ERROR => {
            "the version of the nvidia-fs kernel module cannot be read"
        }
        Code::CU_FILE_DRIVER_CLOSING => "the cuFile driver is being closed",
        Code::CU_FILE_PLATFORM_NOT_SUPPORTED => "cuFile does not support this platform",
        Code::CU_FILE_IO_NOT_SUPPORTED => "cuFile does not support this file",
        Code::CU_FILE_DEVICE_NOT_SUPPORTED => "cuFile does not support this GPU",
        Code::CU_FILE_NVFS_DRIVER_ERROR => "a call to the nvidia-fs kernel module failed",
        Code::CU_FILE_CUDA_DRIVER_ERROR => "a call to the CUDA driver failed",
        Code::CU_FILE_CUDA_POINTER_INVALID => "CUDA does not know the pointer",
        Code::CU_FILE_CUDA_MEMORY_TYPE_INVALID => "this kind of memory cannot be used for the call",
        Code::CU_FILE_CUDA_POINTER_RANGE_ERROR => "the range goes beyond the allocation",
        Code::CU_FILE_CUDA_CONTEXT_MISMATCH => "the memory belongs to another CUDA context",
        Code::CU_FILE_INVALID_MAPPING_SIZE => "the access goes beyond the pinned size",
        Code::CU_FILE_INVALID_MAPPING_RANGE => "the access goes beyond the mapped range",
        Code::CU_FILE_INVALID_FILE_TYPE => "this type of file cannot be used with cuFile",
        Code::CU_FILE_INVALID_FILE_OPEN_FLAG => "the file was opened with flags that do not allow the call",
        Code::CU_FILE_DIO_NOT_SET => "the file was not opened with O_DIRECT",
        Code::CU_FILE_INVALID_VALUE => "an argument is invalid",
        Code::CU_FILE_MEMORY_ALREADY_REGISTERED => {
            "the memory is already registered, or exceeds its allocation"
        }
        Code::CU_FILE_MEMORY_NOT_REGISTERED => "the memory is not registered",
        Code::CU_FILE_PERMISSION_DENIED => "access to the driver or the file is denied",
        Code::CU_FILE_DRIVER_ALREADY_OPEN => "the cuFile driver is already open",
        Code::CU_FILE_HANDLE_NOT_REGISTERED => "the file is not registered, or cannot be",
        Code::CU_FILE_HANDLE_ALREADY_REGISTERED => "the file descriptor is already registered",
        Code::CU_FILE_DEVICE_NOT_FOUND => "no GPU was found",
        Code::CU_FILE_INTERNAL_ERROR => "libcufile failed internally",
        Code::CU_FILE_GETNEWFD_FAILED => "libcufile could not get a new file descriptor",
        Code::CU_FILE_NVFS_SETUP_ERROR => "the nvidia-fs kernel module could not be set up",
        Code::CU_FILE_IO_DISABLED => "the configuration disables cuFile for this file",
        Code::CU_FILE_BATCH_SUBMIT_FAILED => "the batch could not be submitted",
        Code::CU_FILE_GPU_MEMORY_PINNING_FAILED => "GPU memory could not be pinned",
        Code::CU_FILE_BATCH_FULL => "the batch queue is full",
        Code::CU_FILE_ASYNC_NOT_SUPPORTED => "stream-ordered I/O is not supported here",
        Code::CU_FILE_INTERNAL_BATCH_SETUP_ERROR => "setting up the batch failed inside libcufile",
        Code::CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR => "submitting the batch failed inside libcufile",
        Code::CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR => "polling the batch failed inside libcufile",
        Code::CU_FILE_INTERNAL_BATCH_CANCEL_ERROR => "cancelling the batch failed inside libcufile",
        Code::CU_FILE_NOMEM_ERROR => "libcufile is out of memory",
        Code::CU_FILE_IO_ERROR => "the transfer failed",
        Code::CU_FILE_INTERNAL_BUF_REGISTER_ERROR => "registering the buffer failed inside libcufile",
        Code::CU_FILE_HASH_OPR_ERROR => "a hash operation failed inside libcufile",
        Code::CU_FILE_INVALID_CONTEXT_ERROR => "the CUDA context is invalid",
        Code::CU_FILE_NVFS_INTERNAL_DRIVER_ERROR => "the nvidia-fs kernel module failed internally",
        Code::CU_FILE_BATCH_NOCOMPAT_ERROR => "the batch needs the compatibility mode, which is off",
        Code::CU_FILE_IO_MAX_ERROR => "the end marker of cuFile's codes, not an error",
        _ => "a code that this version of the bindings does not know",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_named_code_has_a_different_sentence() {
        let named: Vec<Code> = (0..7000).map(Code::from_raw).filter(|code| code.name().is_some()).collect();
        assert_eq!(named.len(), 49);
        let sentences: HashSet<_> = named.iter().map(|code| sentence(*code)).collect();
        assert_eq!(sentences.len(), named.len());
        assert!(
            !sentences.contains(sentence(Code::from_raw(5999))),
            "an unknown code has the text of a known one"
        );
    }

    #[test]
    fn codes_print_as_name_or_number() {
        assert_eq!(format!("{:?}", Code::from_raw(5022)), "CU_FILE_INVALID_VALUE");
        assert_eq!(format!("{:?}", Code::from_raw(5999)), "CUfileOpError(5999)");
    }
}
