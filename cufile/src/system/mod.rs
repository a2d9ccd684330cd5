//! The calls of the operating system, and stand-ins for them where libcufile does not exist.
//!
//! Outside Linux no library loads, so a driver there comes from functions of the program
//! ([`Library::from_sys`](crate::Library::from_sys)).

use std::ffi::c_int;

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(not(target_os = "linux"))]
pub use elsewhere::*;
#[cfg(target_os = "linux")]
pub use linux::*;
#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;

pub struct Description {
    /// Type and permissions, in Linux's numbers.
    pub mode: u16,
    pub open_flags: c_int,
    /// The alignments of addresses and of offsets for `O_DIRECT`, in bytes.
    pub direct_io: Option<(u32, u32)>,
    pub file_system: Option<String>,
    /// Major and minor number.
    pub device: (u32, u32),
}

#[derive(Clone, Copy)]
pub enum Advice {
    /// A forked child finds zeros in them.
    WipeOnFork,
    /// Huge pages may take the place of small ones.
    HugePages,
    /// They are made now, not when they are first used.
    Populate,
    /// Their bytes are no longer needed.
    Discard,
}
