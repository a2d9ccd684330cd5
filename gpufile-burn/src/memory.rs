//! Memory of the host for a tensor, with the layout of a vector of its elements.

use burn_std::Bytes;
use bytemuck::allocation::try_zeroed_vec;
use bytemuck::{Pod, cast_slice_mut};
use gpufile::formats::Dtype;

use crate::Error;

/// Elements by their size. burn makes a vector of numbers from them without a copy, which it does only for memory that was
/// allocated with the alignment of the numbers.
pub(crate) enum Memory {
    One(Vec<u8>),
    Two(Vec<u16>),
    Four(Vec<u32>),
    Eight(Vec<u64>),
}

impl Memory {
    /// Allocates zeros.
    ///
    /// # Errors
    /// If the host has no room, where `vec!` would end the process.
    pub(crate) fn zeroed(dtype: Dtype, len_bytes: u64) -> Result<Self, Error> {
        fn zeros<E: Pod>(len_bytes: u64) -> Result<Vec<E>, Error> {
            let none = || format!("the host has no {len_bytes} bytes of memory for a tensor");
            let len_bytes = usize::try_from(len_bytes).map_err(|_| none())?;
            Ok(try_zeroed_vec(len_bytes / size_of::<E>()).map_err(|()| none())?)
        }
        Ok(match dtype.size_bits() {
            16 => Self::Two(zeros(len_bytes)?),
            32 => Self::Four(zeros(len_bytes)?),
            64 => Self::Eight(zeros(len_bytes)?),
            _ => Self::One(zeros(len_bytes)?),
        })
    }

    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        match self {
            Self::One(elements) => elements,
            Self::Two(elements) => cast_slice_mut(elements),
            Self::Four(elements) => cast_slice_mut(elements),
            Self::Eight(elements) => cast_slice_mut(elements),
        }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::One(elements) => Bytes::from_elems(elements),
            Self::Two(elements) => Bytes::from_elems(elements),
            Self::Four(elements) => Bytes::from_elems(elements),
            Self::Eight(elements) => Bytes::from_elems(elements),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_elements_need_no_copy() {
        fn same<E: bytemuck::Pod>(dtype: Dtype) {
            let mut memory = Memory::zeroed(dtype, 48).expect("memory");
            memory.buffer()[47] = 3;
            let bytes = memory.into_bytes();
            assert_eq!((bytes.len(), bytes[47]), (48, 3));
            let address = bytes.as_ptr();
            let Ok(elements) = bytes.try_into_vec::<E>() else { panic!("{dtype} needs a copy") };
            assert_eq!((elements.as_ptr().cast(), elements.len()), (address, 48 / size_of::<E>()));
        }
        same::<u8>(Dtype::Bool);
        same::<i8>(Dtype::I8);
        same::<u16>(Dtype::BF16);
        same::<f32>(Dtype::F32);
        same::<i32>(Dtype::I32);
        same::<f64>(Dtype::F64);
        same::<u64>(Dtype::U64);
    }
}
