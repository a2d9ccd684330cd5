//! A code, by the part of the system that returns it.

/// A code.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Code {
    CuFile(i32),
    Cuda(u32),
    Errno(i32),
}
