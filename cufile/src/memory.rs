//! The kinds of memory that can take part in I/O.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cufile_sys::off_t;

use crate::context::Context;
use crate::error::{Error, Result};

/// Memory whose bytes can be written to a file: host or device memory of any origin.
///
/// Implemented for slices and vectors of bytes, for the buffers of [`cuda`](crate::cuda), for
/// [`RegisteredBuffer`](crate::RegisteredBuffer), for parts of them, and behind a reference, [`Box`] or [`Arc`].
///
/// A type without [`location`](Self::location) does not compile, because no answer fits all memory:
///
/// ```compile_fail,E0046
/// struct Bytes(Box<[u8]>);
///
/// // SAFETY: a box does not move its bytes.
/// unsafe impl cufile::IoBuf for Bytes {
///     fn as_ptr(&self) -> *const u8 {
///         self.0.as_ptr()
///     }
///
///     fn len_bytes(&self) -> usize {
///         self.0.len()
///     }
/// }
/// ```
///
/// # Safety
/// Safe code here relies on every method of this trait. An implementation must keep these promises from the first
/// use of the value as a buffer until it is dropped, or for ever if it is forgotten:
///
/// - Every method gives the same answer each time. Moving the value, or using a shared reference to it, changes no
///   answer. Other uses of a mutable reference may change answers.
/// - The [`len_bytes`](Self::len_bytes) bytes from [`as_ptr`](Self::as_ptr) on lie in one allocation, which is not freed.
///   If there are any, the host or CUDA can read them, from any thread.
/// - While the value is borrowed, nothing writes these bytes, except libcufile and CUDA for the borrower.
/// - [`location`](Self::location) is true of the bytes, field by field, as [`Location`] says.
#[diagnostic::on_unimplemented(
    note = "for an array, pass `.as_slice()` or `.as_mut_slice()`",
    note = "for numbers, pass their bytes, for example with `bytemuck::cast_slice`"
)]
pub unsafe trait IoBuf {
    /// Returns the first byte's address.
    fn as_ptr(&self) -> *const u8;

    /// Returns the number of bytes.
    ///
    /// Names elsewhere: `get_alloc_info` (KvikIO); `size` (KvikIO, kvik-rs).
    #[doc(alias = "get_alloc_info")]
    #[doc(alias = "size")]
    fn len_bytes(&self) -> usize;

    /// Returns where the bytes lie: [`Location::HOST`], [`Location::device`], or that of the buffer around them.
    fn location(&self) -> Location;
}

/// The location of a buffer, for the host, for CUDA and for cuFile.
///
/// An implementation of [`IoBuf`] promises what each field says.
///
/// Names elsewhere: `is_host_memory` (KvikIO).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// True if the host can access the memory like any other. It cannot access device memory and, on some systems, managed
    /// memory. If true, all bytes are initialised, and the host can read them. If false, CUDA allocated them, the CUDA
    /// runtime can copy them, and there is a context.
    pub is_host_accessible: bool,
    /// A valid context of the memory, which must be current on a thread that transfers this memory. `None` leaves the
    /// thread's context unchanged.
    pub context: Option<Context>,
    /// True if the memory is registered with cuFile, like that of a [`RegisteredBuffer`](crate::RegisteredBuffer). If true,
    /// the address that `base_offset` gives is registered, and the registration covers all of the bytes.
    ///
    /// Stream-ordered and batch transfers differ for registered and other memory. If false for registered memory, they
    /// are slower and more restricted.
    pub is_registered: bool,
    /// The distance in bytes from the address by which cuFile knows the memory to the memory's first byte. That address is
    /// in the same allocation.
    pub base_offset: usize,
}

impl Location {
    /// Ordinary host memory.
    pub const HOST: Self =
        Self { is_host_accessible: true, context: None, is_registered: false, base_offset: 0 };

    /// Returns the location of device memory of this context. cuFile gets the address of the memory's first byte.
    #[inline]
    pub const fn device(context: Context) -> Self {
        Self { is_host_accessible: false, context: Some(context), ..Self::HOST }
    }
}

/// Memory that a file can be read into.
///
/// # Safety
/// In addition to the promises of [`IoBuf`]:
///
/// - [`as_mut_ptr`](Self::as_mut_ptr) is the address that [`as_ptr`](IoBuf::as_ptr) returns. The bytes may be written
///   through it until the value is used again, except by this trait. A pointer from a shared reference does not allow
///   writing, even after a cast.
/// - While the value is borrowed mutably, or owned by a transfer, nothing else reads or writes the bytes.
/// - Any bytes may be written there: every value that contains them stays valid.
#[diagnostic::on_unimplemented(
    note = "for an array, pass `.as_slice()` or `.as_mut_slice()`",
    note = "for numbers, pass their bytes, for example with `bytemuck::cast_slice`"
)]
pub unsafe trait IoBufMut: IoBuf {
    /// Returns the first byte's address, for writing.
    fn as_mut_ptr(&mut self) -> *mut u8;
}

// SAFETY: a slice is at one address while it is borrowed.
unsafe impl IoBuf for [u8] {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    #[inline]
    fn len_bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn location(&self) -> Location {
        Location::HOST
    }
}

// SAFETY: a mutable borrow is sole access.
unsafe impl IoBufMut for [u8] {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}

// SAFETY: moving a vector does not move its bytes; those beyond its length do not count.
unsafe impl IoBuf for Vec<u8> {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr()
    }

    #[inline]
    fn len_bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn location(&self) -> Location {
        Location::HOST
    }
}

// SAFETY: a vector owns its bytes.
unsafe impl IoBufMut for Vec<u8> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_slice().as_mut_ptr()
    }
}

macro_rules! through_a_pointer {
    ($pointer:ty) => {
        // SAFETY: the target keeps the promise, and moving the pointer does not move it.
        unsafe impl<B: IoBuf + ?Sized> IoBuf for $pointer {
            #[inline]
            fn as_ptr(&self) -> *const u8 {
                (**self).as_ptr()
            }

            #[inline]
            fn len_bytes(&self) -> usize {
                (**self).len_bytes()
            }

            #[inline]
            fn location(&self) -> Location {
                (**self).location()
            }
        }
    };
}

through_a_pointer!(&B);
through_a_pointer!(&mut B);
through_a_pointer!(Box<B>);
// Only the sole owner of a shared value gets a mutable reference.
through_a_pointer!(Arc<B>);

// SAFETY: a mutable borrow is sole access.
unsafe impl<B: IoBufMut + ?Sized> IoBufMut for &mut B {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }
}
// SAFETY: a box owns its content.
unsafe impl<B: IoBufMut + ?Sized> IoBufMut for Box<B> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }
}

pub(crate) struct Span {
    pub base: *mut c_void,
    pub offset: off_t,
    pub len_bytes: usize,
    pub context: Option<Context>,
}

impl Span {
    #[inline]
    pub fn new(
        operation: &'static str,
        buffer: &(impl IoBuf + ?Sized),
        offset: usize,
        len_bytes: usize,
    ) -> Result<Self> {
        let total = buffer.len_bytes();
        let fits = offset.checked_add(len_bytes).is_some_and(|end| end <= total);
        let Location { base_offset, context, .. } = buffer.location();
        let from_base = off_t::try_from(base_offset.wrapping_add(offset)).ok();
        match from_base {
            Some(from_base) if fits => Ok(Self {
                base: buffer.as_ptr().wrapping_sub(base_offset).cast_mut().cast(),
                offset: from_base,
                len_bytes,
                context,
            }),
            _ => Err(out_of_range(operation, offset, len_bytes, total)),
        }
    }

    #[inline]
    pub fn new_mut(
        operation: &'static str,
        buffer: &mut (impl IoBufMut + ?Sized),
        offset: usize,
        len_bytes: usize,
    ) -> Result<Self> {
        let base_offset = buffer.location().base_offset;
        let span = Self::new(operation, buffer, offset, len_bytes)?;
        Ok(Self { base: buffer.as_mut_ptr().wrapping_sub(base_offset).cast(), ..span })
    }

    /// Returns the address of the part's first byte, regardless of the registered base.
    #[inline]
    pub fn start(&self) -> *mut c_void {
        // `new` made the offset from a usize.
        self.base.wrapping_byte_add(self.offset as usize)
    }
}

#[cold]
fn out_of_range(operation: &'static str, offset: usize, len_bytes: usize, total: usize) -> Error {
    Error::invalid(operation, format!("{len_bytes} bytes at offset {offset} of a buffer of {total} bytes"))
}

/// Returns base and offset of the place `offset` bytes after the buffer's `start`, for transfers that run later.
///
/// cuFile looks a base up among the registered ones. Unregistered memory, it assumes, begins there and, for
/// stream-ordered transfers, is as long as the transfer, which leaves no offset.
pub(crate) fn name(buffer: &(impl IoBuf + ?Sized), start: *mut u8, offset: usize) -> (*mut u8, usize) {
    let Location { is_registered, base_offset, .. } = buffer.location();
    if is_registered {
        (start.wrapping_sub(base_offset), base_offset + offset)
    } else {
        (start.wrapping_add(offset), 0)
    }
}

/// Lets C fill in a zeroed structure with room behind it. A library's structure may be longer than this crate's.
///
/// # Safety
/// Zeros, and what `fill` writes, must be a valid `T`.
pub(crate) unsafe fn filled<T>(fill: impl FnOnce(*mut T) -> Result<()>) -> Result<T> {
    #[repr(C)]
    struct Roomy<T> {
        value: MaybeUninit<T>,
        room: [u64; 128],
    }
    let mut roomy = Roomy { value: MaybeUninit::zeroed(), room: [0; 128] };
    // The pointer is to the whole, so that C may write the room through it.
    fill((&raw mut roomy).cast())?;
    // SAFETY: the caller's promise.
    Ok(unsafe { roomy.value.assume_init() })
}

#[inline]
pub(crate) fn file_offset(operation: &'static str, offset: u64) -> Result<off_t> {
    off_t::try_from(offset)
        .map_err(|_| Error::invalid(operation, format!("file offset {offset} does not fit into off_t")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn spans_outside_the_buffer_are_refused() {
        let buffer = vec![0u8; 100];
        for (offset, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1), (1, usize::MAX), (60, 41)] {
            let error = Span::new("cuFileRead", &buffer, offset, len).err().expect("out of range");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{offset} {len}");
        }
        let span = Span::new("cuFileRead", &buffer, 60, 40).unwrap();
        assert_eq!(
            (span.base.cast_const().cast(), span.offset, span.len_bytes),
            (buffer.as_slice().as_ptr(), 60, 40)
        );
        assert!(Span::new("cuFileRead", &buffer, 100, 0).is_ok());
    }

    struct TwoFaced;

    // SAFETY: nothing touches the memory.
    unsafe impl IoBuf for TwoFaced {
        fn as_ptr(&self) -> *const u8 {
            std::ptr::without_provenance(4096)
        }

        fn len_bytes(&self) -> usize {
            10
        }

        fn location(&self) -> Location {
            Location::HOST
        }
    }

    // SAFETY: as above.
    unsafe impl IoBufMut for TwoFaced {
        fn as_mut_ptr(&mut self) -> *mut u8 {
            std::ptr::without_provenance_mut(8192)
        }
    }

    #[test]
    fn reads_into_memory_use_the_mutable_address() {
        let read = Span::new("cuFileWrite", &TwoFaced, 3, 5).unwrap();
        let written = Span::new_mut("cuFileRead", &mut TwoFaced, 3, 5).unwrap();
        assert_eq!([read.base, written.base].map(<*mut _>::addr), [4096, 8192]);
        assert_eq!((written.offset, written.len_bytes, written.start().addr()), (3, 5, 8195));
        let parts = [crate::slice::Part::whole(&TwoFaced), crate::slice::Part::whole_mut(&mut TwoFaced)];
        assert_eq!(parts.map(|part| part.ptr.addr()), [4096, 8192]);
    }

    #[test]
    fn file_offsets_beyond_off_t_are_refused() {
        assert!(file_offset("cuFileRead", i64::MAX as u64).is_ok());
        assert!(file_offset("cuFileRead", i64::MAX as u64 + 1).is_err());
    }
}
