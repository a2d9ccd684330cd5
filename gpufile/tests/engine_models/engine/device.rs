//! The engine's side of a GPU, with a stand-in for the kernels.

#[path = "../../../src/engine/device/buffers.rs"]
pub mod buffers;
#[path = "../../../src/engine/device/copies.rs"]
pub mod copies;
#[path = "../../../src/engine/device/streams.rs"]
pub mod streams;
#[path = "../../../src/engine/device/submitter.rs"]
pub mod submitter;

/// A stand-in for the kernels, which no model needs: each transfer has one range.
mod staging {
    use std::sync::Arc;

    use super::staging_memory::StagingMemory;
    use super::streams::Streams;
    use crate::cuda::{Device, Stream};
    use crate::gpu::bounce::Bounce;
    use crate::gpu::gpus::Gpus;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OneCopy {
        pub device: *mut u8,
        pub host: *mut u8,
        pub len_bytes: usize,
    }

    #[derive(Clone, Copy)]
    pub struct Packed;

    pub struct Staging;

    impl Packed {
        pub fn write(_: &[OneCopy], _: &mut Bounce) -> Option<Self> {
            unreachable!("a transfer of one range has one copy")
        }
    }

    impl Staging {
        pub fn new(_: Arc<Gpus>, _: Arc<StagingMemory>) -> Self {
            Self
        }

        pub fn prepare(&mut self, _: &Device, _: &Bounce) {
            unreachable!("a transfer of one range has one copy")
        }

        pub unsafe fn scatter<'a>(
            &mut self,
            _: &'a Streams,
            _: &mut Bounce,
            _: Packed,
        ) -> cufile::Result<Option<&'a Stream>> {
            Ok(None)
        }

        pub unsafe fn gather(&mut self, _: &Stream, _: &mut Bounce, _: Packed) -> cufile::Result<bool> {
            Ok(false)
        }
    }
}

mod staging_memory {
    #[derive(Default)]
    pub struct StagingMemory;

    impl StagingMemory {
        pub fn live_bytes(&self) -> usize {
            0
        }

        pub fn free_unused(&self) {}
    }
}

/// A stand-in for the decoding of packed tensors, which the files of the models do not have.
mod unpacker {
    use crate::cuda::{Device, Stream};
    use crate::gpu::bounce::Bounce;
    use crate::gpu::unpack::PackedGroup;

    #[derive(Clone, Copy)]
    pub struct GroupTable {
        pub status_at: usize,
    }

    pub struct Unpacker;

    impl GroupTable {
        pub fn write(_: &[PackedGroup], _: usize, _: &mut Bounce) -> Option<Self> {
            unreachable!("no file has packed tensors")
        }
    }

    impl Unpacker {
        pub fn new(_: &Device, _: usize) -> cufile::Result<Self> {
            unreachable!("no file has packed tensors")
        }

        pub fn len_bytes(&self) -> usize {
            0
        }

        pub unsafe fn submit<'a>(
            &self,
            [_, last]: [&'a Stream; 2],
            _: &mut Bounce,
            _: GroupTable,
        ) -> cufile::Result<&'a Stream> {
            Ok(last)
        }
    }
}
