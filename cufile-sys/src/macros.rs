//! The function-like macros of `cufile.h`, and its peer-to-peer masks.

use core::ffi::{c_int, c_uint};

use crate::bindings::{CUFILEOP_BASE_ERR, CUfileError_t, CUfileOpError, CUfileP2PFlags_t, CUresult};
use crate::text;

/// A number that [`IS_CUFILE_ERR`] and [`CUFILE_ERRSTR`] take, as C's macros take any integer: the `err` of a status, its raw number,
/// the result of a transfer, and `errno`. The sign does not count.
pub trait ErrorNumber {
    /// Returns the number without its sign.
    fn magnitude(self) -> u32;
}

impl ErrorNumber for c_int {
    fn magnitude(self) -> u32 {
        self.unsigned_abs()
    }
}

impl ErrorNumber for c_uint {
    /// Takes a number beyond `c_int::MAX` as a negative one, as C's `abs` does.
    fn magnitude(self) -> u32 {
        (self as c_int).magnitude()
    }
}

impl ErrorNumber for isize {
    fn magnitude(self) -> u32 {
        u32::try_from(self.unsigned_abs()).unwrap_or(u32::MAX)
    }
}

impl ErrorNumber for CUfileOpError {
    fn magnitude(self) -> u32 {
        self.as_raw().magnitude()
    }
}

/// Returns whether a number is one of cuFile's own codes, of either sign, rather than a POSIX errno.
#[allow(non_snake_case, reason = "C's name")]
pub fn IS_CUFILE_ERR(err: impl ErrorNumber) -> bool {
    err.magnitude() > CUFILEOP_BASE_ERR
}

/// Returns one sentence on a cuFile code of either sign, in this crate's words.
#[allow(non_snake_case, reason = "C's name")]
pub fn CUFILE_ERRSTR(err: impl ErrorNumber) -> &'static str {
    text::sentence(CUfileOpError::from_raw(err.magnitude()))
}

/// Returns whether a status carries a CUDA error, which [`CU_FILE_CUDA_ERR`] then returns.
#[allow(non_snake_case, reason = "C's name")]
pub const fn IS_CUDA_ERR(status: CUfileError_t) -> bool {
    status.err.as_raw() == CUfileOpError::CU_FILE_CUDA_DRIVER_ERROR.as_raw()
}

/// Returns the CUDA error of a status.
#[allow(non_snake_case, reason = "C's name")]
pub const fn CU_FILE_CUDA_ERR(status: CUfileError_t) -> CUresult {
    status.cu_err
}

/// Mask of [`CUfileP2PFlags_t::CUFILE_P2PDMA`] for `cuFileDriverSetP2PFlags`.
pub const CU_FILE_P2P_FLAG_PCI_P2PDMA: CUfileP2PFlags_t = CUfileP2PFlags_t::CUFILE_P2PDMA.mask();
/// Mask of [`CUfileP2PFlags_t::CUFILE_NVFS`].
pub const CU_FILE_P2P_FLAG_NVFS: CUfileP2PFlags_t = CUfileP2PFlags_t::CUFILE_NVFS.mask();
/// Mask of [`CUfileP2PFlags_t::CUFILE_DMABUF`].
pub const CU_FILE_P2P_FLAG_DMABUF: CUfileP2PFlags_t = CUfileP2PFlags_t::CUFILE_DMABUF.mask();
/// Mask of [`CUfileP2PFlags_t::CUFILE_C2C`].
pub const CU_FILE_P2P_FLAG_C2C: CUfileP2PFlags_t = CUfileP2PFlags_t::CUFILE_C2C.mask();

impl CUfileP2PFlags_t {
    /// Returns the bit mask that the calls take for this bit position; no bit for a position that they cannot express.
    pub const fn mask(self) -> Self {
        match 1_u32.checked_shl(self.0) {
            Some(mask) => Self(mask),
            None => Self(0),
        }
    }
}

impl CUfileOpError {
    /// Returns one sentence on this code, as [`CUFILE_ERRSTR`] does.
    pub const fn sentence(self) -> &'static str {
        text::sentence(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_either_sign_above_the_base_are_cufile_errors() {
        assert!(IS_CUFILE_ERR(5001) && IS_CUFILE_ERR(-5022));
        assert!(!IS_CUFILE_ERR(0) && !IS_CUFILE_ERR(-22) && !IS_CUFILE_ERR(5000));
        assert!(IS_CUFILE_ERR(c_int::MIN), "abs of the smallest integer must not overflow");
    }

    #[test]
    fn macros_take_every_form_of_a_code() {
        let code = CUfileOpError::CU_FILE_INVALID_VALUE;
        let texts = [
            CUFILE_ERRSTR(code),
            CUFILE_ERRSTR(code.as_raw()),
            CUFILE_ERRSTR(-5022),
            CUFILE_ERRSTR(-5022_isize),
            CUFILE_ERRSTR((-5022_i32) as u32),
        ];
        assert_eq!(texts, [code.sentence(); 5]);
        assert!(IS_CUFILE_ERR(code) && IS_CUFILE_ERR(-5022_isize) && IS_CUFILE_ERR(isize::MIN));
        assert!(!IS_CUFILE_ERR(CUfileOpError::CU_FILE_SUCCESS) && !IS_CUFILE_ERR(-1_isize));
    }

    #[test]
    fn only_the_cuda_driver_code_carries_a_cuda_error() {
        let status = |err| CUfileError_t { err, cu_err: CUresult::CUDA_ERROR_NOT_INITIALIZED };
        assert!(IS_CUDA_ERR(status(CUfileOpError::CU_FILE_CUDA_DRIVER_ERROR)));
        assert!(!IS_CUDA_ERR(status(CUfileOpError::CU_FILE_INTERNAL_ERROR)));
        assert_eq!(CU_FILE_CUDA_ERR(status(CUfileOpError::CU_FILE_SUCCESS)).as_raw(), 3);
    }

    #[test]
    fn peer_to_peer_masks_are_powers_of_two() {
        let masks = [
            CU_FILE_P2P_FLAG_PCI_P2PDMA,
            CU_FILE_P2P_FLAG_NVFS,
            CU_FILE_P2P_FLAG_DMABUF,
            CU_FILE_P2P_FLAG_C2C,
            CUfileP2PFlags_t::CUFILE_NVIDIA_PEERMEM.mask(),
        ];
        assert_eq!(masks.map(CUfileP2PFlags_t::as_raw), [1, 2, 4, 8, 16]);
        for (position, mask) in [(31, 1 << 31), (32, 0), (u32::MAX, 0)] {
            assert_eq!(CUfileP2PFlags_t::from_raw(position).mask().as_raw(), mask);
        }
    }
}
