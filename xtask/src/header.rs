//! The headers and their bound parts, with one bindgen run for each header.

use std::path::PathBuf;
use std::sync::Once;
use std::{env, fs};

use anyhow::{Context, Result};
use bindgen::EnumVariation;
use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ItemInfo, ParseCallbacks};

use crate::packages::{CUDA_CRT, LIBCLANG};
use crate::target::Target;

pub struct Header {
    pub file: &'static str,
    /// Regular expressions; none means everything that the header itself declares.
    pub functions: &'static [&'static str],
    /// Prefixes of constants, in addition to those that the functions need.
    pub constants: &'static [&'static str],
    types: &'static [&'static str],
    /// Functions that must not be called, and types that other modules define.
    blocked: &'static [&'static str],
}

pub const CUFILE: Header = Header {
    file: "cufile.h",
    functions: &[],
    constants: &[],
    types: &[],
    blocked: &[
        // The header maps this name to cuFileDriverClose_v2; the plain symbol is the old ABI.
        "cuFileDriverClose",
        // From cuda-rt-sys and libc.
        "cudaError_enum|CUresult|CUstream|CUstream_st",
        "off_t|__off_t|loff_t|__loff_t|off64_t|__off64_t|ssize_t|__ssize_t|sockaddr|sa_family_t|timespec|__time_t|__syscall_slong_t",
    ],
};

pub const CUDA_RUNTIME: Header = Header {
    file: "cuda_runtime_api.h",
    functions: &[
        // device
        "cudaGetDeviceCount|cudaGetDevice|cudaSetDevice|cudaSetDeviceFlags|cudaGetDeviceFlags",
        "cudaDeviceGetAttribute|cudaDeviceGetPCIBusId|cudaDeviceGetByPCIBusId|cudaDeviceSynchronize|cudaDeviceReset",
        "cudaDeviceCanAccessPeer|cudaDeviceEnablePeerAccess|cudaMemGetInfo",
        // memory
        "cudaMalloc|cudaFree|cudaMallocHost|cudaHostAlloc|cudaFreeHost|cudaMallocManaged",
        "cudaMallocAsync|cudaFreeAsync|cudaMallocFromPoolAsync|cudaDeviceGetDefaultMemPool",
        "cudaMemPoolSetAttribute|cudaMemPoolGetAttribute|cudaMemPoolTrimTo",
        "cudaHostRegister|cudaHostUnregister|cudaHostGetDevicePointer|cudaHostGetFlags|cudaPointerGetAttributes",
        // copies and sets
        "cudaMemcpy|cudaMemcpyAsync|cudaMemcpyPeer|cudaMemcpyPeerAsync|cudaMemset|cudaMemsetAsync",
        "cudaMemcpy2D|cudaMemcpy2DAsync|cudaMemcpy3D|cudaMemcpy3DAsync|cudaMemcpyBatchAsync",
        // streams and events
        "cudaStreamCreate|cudaStreamCreateWithFlags|cudaStreamCreateWithPriority|cudaStreamDestroy",
        "cudaStreamSynchronize|cudaStreamQuery|cudaStreamWaitEvent|cudaStreamGetFlags|cudaStreamIsCapturing",
        "cudaThreadExchangeStreamCaptureMode",
        "cudaDeviceGetStreamPriorityRange|cudaLaunchHostFunc",
        "cudaEventCreate|cudaEventCreateWithFlags|cudaEventDestroy|cudaEventRecord|cudaEventQuery",
        "cudaEventSynchronize|cudaEventElapsedTime",
        // errors and versions
        "cudaGetErrorName|cudaGetErrorString|cudaGetLastError|cudaPeekAtLastError",
        "cudaDriverGetVersion|cudaRuntimeGetVersion",
    ],
    constants: &[
        "cudaStream",
        "cudaEvent",
        "cudaHostAlloc",
        "cudaHostRegister",
        "cudaMemAttach",
        "cudaDeviceSchedule",
        "cudaDeviceMapHost",
    ],
    types: &[],
    blocked: &["CUstream_st|CUevent_st", "cudaStreamLegacy|cudaStreamPerThread"],
};

pub const CUDA_DRIVER: Header = Header {
    file: "cuda.h",
    functions: &[
        "cuInit|cuDriverGetVersion|cuGetErrorName|cuGetErrorString",
        // devices and primary contexts
        "cuDeviceGet|cuDeviceGetCount|cuDeviceGetName|cuDeviceGetAttribute|cuDeviceTotalMem_v2|cuDeviceGetUuid_v2",
        "cuDeviceGetPCIBusId|cuDevicePrimaryCtxRetain|cuDevicePrimaryCtxRelease_v2|cuDevicePrimaryCtxGetState",
        "cuCtxGetCurrent|cuCtxSetCurrent|cuCtxPushCurrent_v2|cuCtxPopCurrent_v2|cuCtxGetDevice|cuCtxSynchronize",
        // memory
        "cuMemAlloc_v2|cuMemFree_v2|cuMemsetD8_v2|cuMemcpyHtoD_v2|cuMemcpyDtoH_v2|cuMemGetAddressRange_v2",
        "cuPointerGetAttribute",
        // virtual memory
        "cuMemAddressReserve|cuMemAddressFree|cuMemCreate|cuMemRelease|cuMemMap|cuMemUnmap|cuMemSetAccess",
        "cuMemGetAccess|cuMemGetAllocationGranularity|cuMemGetAllocationPropertiesFromHandle",
        "cuMemRetainAllocationHandle",
        // stream memory operations
        "cuStreamWaitValue32_v2|cuStreamWaitValue64_v2|cuStreamWriteValue32_v2|cuStreamWriteValue64_v2",
        "cuStreamBatchMemOp_v2",
        // kernels
        "cuModuleLoadData|cuModuleUnload|cuModuleGetFunction|cuLaunchKernel",
    ],
    constants: &[],
    types: &[
        "CUresult",
        "CUstream",
        "CUevent",
        "CUstreamBatchMemOpType",
        "CUstreamWaitValue_flags",
        "CUstreamWriteValue_flags",
    ],
    // A union that grows with each release; `cuda-rt-sys` declares it by hand, and `conformance` compares its members.
    blocked: &["CUstreamBatchMemOpParams.*"],
};

impl Header {
    /// Returns bindgen's Rust text.
    pub fn read(&self, include_dirs: &[PathBuf], target: Target) -> Result<String> {
        provide_libclang()?;
        let mut builder = bindgen::Builder::default()
            .header_contents("bound.h", &format!("#include <{}>\n", self.file))
            .clang_args(include_dirs.iter().map(|dir| format!("-I{}", dir.display())))
            .clang_arg(format!("--target={}", target.triple()))
            .clang_arg(format!("-isystem{}", compiler_headers(target)?.display()))
            .use_core()
            .size_t_is_usize(true)
            .generate_comments(false)
            // By hand for structs with unions, which cannot derive it.
            .impl_debug(true)
            .prepend_enum_name(false)
            .anon_fields_prefix("anon_")
            .default_enum_style(EnumVariation::NewType { is_bitfield: false, is_global: false })
            .parse_callbacks(Box::new(Names));
        if self.functions.is_empty() {
            builder = builder.allowlist_file(format!(".*/{}", self.file.replace('.', "\\.")));
        }
        for name in self.functions {
            builder = builder.allowlist_function(name);
        }
        for prefix in self.constants {
            builder = builder.allowlist_var(format!("{prefix}.*"));
        }
        for name in self.types {
            builder = builder.allowlist_type(name);
        }
        for name in self.blocked {
            builder = builder.blocklist_item(name);
        }
        let text = builder.generate().with_context(|| format!("bindgen on {}", self.file))?.to_string();
        Ok(with_long_of_linux(&text))
    }
}

/// Names C's `long` by its length on Linux. With the shorter one of Windows, types would have another layout there.
fn with_long_of_linux(text: &str) -> String {
    [";", ",", ")", "]"].iter().fold(text.to_owned(), |text, end| {
        text.replace(&format!("::core::ffi::c_long{end}"), &format!("i64{end}"))
    })
}

#[derive(Debug)]
struct Names;

impl ParseCallbacks for Names {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        let name = match item.name {
            "CUfileDrvProps__bindgen_ty_1" => "CUfileDrvProps_anon_nvfs",
            "CUfileDescr_t__bindgen_ty_1" => "CUfileDescr_anon_handle",
            "CUfileIOParams__bindgen_ty_1" => "CUfileIOParams_anon_u",
            "CUfileIOParams__bindgen_ty_1__bindgen_ty_1" => "CUfileIOParams_anon_batch",
            "CUFILEStatus_enum" => "CUfileStatus_t",
            "cudaError_enum" => "CUresult",
            name => return anonymous(name).or_else(|| name.strip_suffix("_enum").map(str::to_owned)),
        };
        Some(name.to_owned())
    }

    fn blocklisted_type_implements_trait(&self, _: &str, _: DeriveTrait) -> Option<ImplementsTrait> {
        // Integers, pointers, and newtypes of ours: all of them are Copy and Debug.
        Some(ImplementsTrait::Yes)
    }
}

/// Returns the name of a struct or union that C nests without a name. It contains `_anon_`, on which conformance
/// relies.
fn anonymous(name: &str) -> Option<String> {
    name.contains("__bindgen_ty_").then(|| name.replace("__bindgen_ty_", "_anon_"))
}

/// Returns the folder with `crt/host_defines.h`.
pub fn crt_headers(target: Target) -> Result<PathBuf> {
    let crt = CUDA_CRT.folder_of("host_defines.h", target)?;
    Ok(crt.parent().context("crt lies in an include folder")?.to_owned())
}

/// Provides libclang from `LIBCLANG_PATH`, or else the pinned one.
fn provide_libclang() -> Result<()> {
    static SET: Once = Once::new();
    if env::var_os("LIBCLANG_PATH").is_none() {
        let folder = LIBCLANG.folder_of("libclang.so", Target::host()?)?;
        // SAFETY: xtask is single-threaded until bindgen runs, and nothing else reads the environment.
        SET.call_once(|| unsafe { env::set_var("LIBCLANG_PATH", folder) });
    }
    Ok(())
}

/// Returns the folder of `stddef.h`, which a bare libclang lacks.
fn compiler_headers(target: Target) -> Result<PathBuf> {
    let mut compiler = target.c_compiler();
    let output = compiler.arg("-print-file-name=include").output().context("cannot run the C compiler")?;
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    fs::metadata(folder.join("stddef.h")).with_context(|| format!("{} has no stddef.h", folder.display()))?;
    Ok(folder)
}
