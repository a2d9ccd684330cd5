//! libnccl, loaded when first needed. The crate cudarc loads it only as `libnccl.so`, which packages for running
//! programs lack, and panics without it.

#![allow(non_snake_case, reason = "C's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cuda_rt_sys::LoadError;
use cuda_rt_sys::loader::{Search, SharedLibrary};
use cufile::fork::OnceCell;

const SEARCH: Search = Search {
    library: "libnccl",
    variable: "NCCL_LIBRARY",
    names: &["libnccl.so.2", "libnccl.so"],
    toolkit: true,
};

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;

/// `cudaStream_t`.
type Stream = *mut c_void;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Id(pub [u8; 128]);

/// `ncclResult_t`, of which newer versions may have more values than older ones.
pub(super) type Code = c_uint;

pub(super) const SUCCESS: Code = 0;
pub(super) const IN_PROGRESS: Code = 7;

/// `ncclUint8` of `ncclDataType_t`.
pub(super) const BYTES: c_uint = 1;

/// `ncclConfig_t` of version 2.14, the first one whose calls need not wait for other ranks. Newer versions take it
/// too.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    undefined: c_int,
}

impl Config {
    /// Returns the settings of a communicator whose calls never wait for other ranks.
    pub fn without_waiting() -> Self {
        let size = size_of::<Self>();
        Self { size, magic: 0xcafe_beef, version: 21400, blocking: 0, undefined: c_int::MIN }
    }
}

macro_rules! functions {
    ($($name:ident: $function:ty;)*) => {
        /// The functions of libnccl 2.14 and newer.
        pub(super) struct Nccl { $(pub $name: $function,)* }

        impl Nccl {
            fn resolve(library: SharedLibrary) -> Result<Self, LoadError> {
                // SAFETY: the types are those of NCCL's documentation.
                Ok(Self { $($name: unsafe { library.required(name(concat!(stringify!($name), "\0")))? },)* })
            }
        }
    };
}

functions! {
    ncclGetUniqueId: unsafe extern "C" fn(*mut Id) -> Code;
    ncclCommInitRankConfig: unsafe extern "C" fn(*mut Comm, c_int, Id, c_int, *mut Config) -> Code;
    ncclCommGetAsyncError: unsafe extern "C" fn(Comm, *mut Code) -> Code;
    ncclCommFinalize: unsafe extern "C" fn(Comm) -> Code;
    ncclCommDestroy: unsafe extern "C" fn(Comm) -> Code;
    ncclCommAbort: unsafe extern "C" fn(Comm) -> Code;
    ncclAllGather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_uint, Comm, Stream) -> Code;
    ncclBroadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_uint, c_int, Comm, Stream) -> Code;
    ncclGroupStart: unsafe extern "C" fn() -> Code;
    ncclGroupEnd: unsafe extern "C" fn() -> Code;
    ncclGetErrorString: unsafe extern "C" fn(Code) -> *const c_char;
}

fn name(symbol: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(symbol.as_bytes()).expect("the macro ends it with NUL")
}

impl Nccl {
    /// Returns the process's libnccl. The first call that succeeds loads it.
    ///
    /// # Errors
    /// The files that were tried.
    pub fn load() -> Result<&'static Self, LoadError> {
        static LOADED: OnceCell<Nccl> = OnceCell::new();
        if let Some(loaded) = LOADED.get() {
            return Ok(loaded);
        }
        // SAFETY: trusts the environment, as the search for CUDA does.
        let loaded = unsafe { SharedLibrary::load(&SEARCH, Self::resolve) }?;
        Ok(LOADED.get_or_init(|| loaded))
    }

    /// Returns NCCL's words for an error.
    pub fn message(&self, code: Code) -> String {
        // SAFETY: takes any integer.
        let text = unsafe { (self.ncclGetErrorString)(code) };
        if text.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: a static string of NCCL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
