//! Buffers of the host as slices.

use std::slice;

use cufile::{BufSlice, IoBuf};

/// Returns the bytes of a buffer in memory of the host; `None` for device memory.
pub(crate) fn host_bytes<'b>(buffer: &BufSlice<'b>) -> Option<&'b [u8]> {
    if !buffer.location().is_host_accessible {
        return None;
    }
    if buffer.len_bytes() == 0 {
        // Such a buffer may have no address.
        return Some(&[]);
    }
    // SAFETY: a `BufSlice` has as many bytes, which the host can read, and nothing changes them while it is borrowed.
    Some(unsafe { slice::from_raw_parts(buffer.as_ptr(), buffer.len_bytes()) })
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use cufile::Location;

    use super::*;

    struct Nowhere;

    // SAFETY: it has no bytes.
    unsafe impl IoBuf for Nowhere {
        fn as_ptr(&self) -> *const u8 {
            ptr::null()
        }

        fn len_bytes(&self) -> usize {
            0
        }

        fn location(&self) -> Location {
            Location::HOST
        }
    }

    #[test]
    fn buffers_without_bytes_need_no_address() {
        assert_eq!(host_bytes(&BufSlice::new(&Nowhere, ..)), Some(&[][..]));
        let bytes = [1, 2, 3];
        assert_eq!(host_bytes(&BufSlice::new(&bytes[..], 1..)), Some(&bytes[1..]));
    }
}
