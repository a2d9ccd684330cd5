//! Codes, with the part of the system that returns them, and their names.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::LazyLock;

use cuda_rt_sys::driver::CUresult;
use cuda_rt_sys::runtime::cudaError_t;
use cufile::sys::CUfileOpError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    CuFile(u32),
    Cuda(u32),
    Errno(i32),
}

/// Names in lower case.
static NAMES: LazyLock<HashMap<String, Code>> = LazyLock::new(|| {
    let aliases = [("EWOULDBLOCK", libc::EAGAIN), ("ENOTSUP", libc::EOPNOTSUPP)];
    let errnos = ERRNOS.iter().chain(&aliases).map(|(name, number)| (*name, Code::Errno(*number)));
    let cuda =
        numbers_of_cuda().flat_map(|code| names_of_cuda(code).map(move |name| (name, Code::Cuda(code))));
    let cufile = numbers_of_cufile().filter_map(|code| Some((name_of_cufile(code)?, Code::CuFile(code))));
    // A name of the runtime may be another number of the driver: the driver's comes last.
    let all = errnos.chain(cuda).chain(cufile);
    all.map(|(name, code)| (name.to_ascii_lowercase(), code)).collect()
});

impl Code {
    /// Returns the code with this name. Numbers of the operating system have names in upper case.
    pub fn named(word: &str) -> Option<Self> {
        let code = *NAMES.get(&word.to_ascii_lowercase())?;
        let is_upper = || !word.contains(|c: char| c.is_ascii_lowercase());
        (!matches!(code, Self::Errno(_)) || is_upper()).then_some(code)
    }

    pub fn cufile(number: u32) -> Option<Self> {
        numbers_of_cufile().contains(&number).then(|| name_of_cufile(number).map(|_| Self::CuFile(number)))?
    }

    pub fn has_name(self) -> bool {
        match self {
            Self::CuFile(code) => name_of_cufile(code).is_some(),
            Self::Cuda(code) => names_of_cuda(code).next().is_some(),
            Self::Errno(errno) => name_of_errno(errno).is_some(),
        }
    }

    pub fn title(self) -> String {
        match self {
            Self::CuFile(code) => format!("{} ({code})", name_of_cufile(code).unwrap_or("code")),
            Self::Cuda(code) => {
                format!("{} (CUDA {code})", names_of_cuda(code).collect::<Vec<_>>().join(", "))
            }
            Self::Errno(errno) => {
                format!(
                    "{} (errno {errno}, {})",
                    name_of_errno(errno).unwrap_or("errno"),
                    words_of_errno(errno)
                )
            }
        }
    }

    /// Returns the words of the system or, for CUDA, those of the name.
    pub fn words(self) -> String {
        match self {
            Self::CuFile(code) => CUfileOpError::from_raw(code).sentence().to_owned(),
            Self::Cuda(code) => names_of_cuda(code).next().map(words_of_name).unwrap_or_default(),
            Self::Errno(errno) => words_of_errno(errno),
        }
    }
}

fn numbers_of_cufile() -> Range<u32> {
    5000..5100
}

/// Returns the numbers of CUDA's errors. The runtime adds 10,000 to an error of the driver that it does not know.
pub fn numbers_of_cuda() -> impl Iterator<Item = u32> {
    (0..1_500).chain(10_000..10_050).filter(|code| names_of_cuda(*code).next().is_some())
}

fn name_of_cufile(code: u32) -> Option<&'static str> {
    CUfileOpError::from_raw(code).name()
}

fn names_of_cuda(code: u32) -> impl Iterator<Item = &'static str> {
    [CUresult::from_raw(code).name(), cudaError_t::from_raw(code).name()].into_iter().flatten()
}

fn name_of_errno(errno: i32) -> Option<&'static str> {
    ERRNOS.iter().find(|(_, number)| *number == errno).map(|(name, _)| *name)
}

fn words_of_errno(errno: i32) -> String {
    let words = io::Error::from_raw_os_error(errno).to_string();
    words.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Returns `lossy query` for `CUDA_ERROR_LOSSY_QUERY` and for `cudaErrorLossyQuery`.
fn words_of_name(name: &str) -> String {
    let name =
        name.trim_start_matches("CUDA_ERROR_").trim_start_matches("cudaError").trim_start_matches("CUDA_");
    let mut words = String::new();
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_ascii_uppercase() && before.is_ascii_lowercase()) {
            words.push(' ');
        }
        if c != '_' {
            words.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words.trim_start().to_owned()
}

/// Returns the words in lower case of every number of the operating system.
pub fn words_of_errnos() -> impl Iterator<Item = (i32, String)> {
    ERRNOS.iter().map(|(_, number)| (*number, words_of_errno(*number).to_ascii_lowercase()))
}

macro_rules! names {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// Numbers of Linux on x86-64 and aarch64.
const ERRNOS: &[(&str, i32)] = names![
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK
    ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT
    EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV
    ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX
    ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT
    ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET
    ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH
    EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY
    EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_words() {
        assert_eq!(Code::named("EL3HLT"), Some(Code::Errno(libc::EL3HLT)));
        assert_eq!(Code::named("el3hlt"), None);
        assert_eq!(Code::named("CUDAERRORNODEVICE"), Code::named("CUDA_ERROR_NO_DEVICE"));
        assert!(Code::Errno(libc::EL3HLT).title().contains("Level 3 halted"));
        assert_eq!(words_of_name("CUDA_ERROR_LOSSY_QUERY"), "lossy query");
        assert_eq!(words_of_name("cudaErrorLossyQuery"), "lossy query");
        assert!(
            !Code::Cuda(4000).has_name() && !Code::Errno(4000).has_name() && !Code::CuFile(5999).has_name()
        );
    }
}
