//! The bounce buffers of the engine, with stand-ins for the GPUs and their processors.

#[path = "../../src/gpu/bounce.rs"]
pub mod bounce;
#[path = "../../src/gpu/nvtx.rs"]
pub mod nvtx;

/// A stand-in for CUDA, limited to the calls by which the engine asks for GPUs.
pub mod gpus {
    use std::sync::Arc;

    use crate::GPU;
    use crate::cuda::{Device, IoBuf, IoBufMut, Location, Result, fill_with};
    use crate::gpu::processors::Processors;
    use crate::memory::{Memory, Place};
    use crate::route::Counters;

    #[derive(Default)]
    pub struct Gpus {
        pub counters: Arc<Counters>,
    }

    impl Gpus {
        pub fn device(&self, ordinal: u32) -> Result<Device> {
            Ok(Device(ordinal))
        }

        pub fn visible(&self) -> usize {
            1
        }

        /// Returns the stand-in for CUDA, which is this one.
        pub fn cuda(&self) -> Result<&Self> {
            Ok(self)
        }

        pub fn fill<B: IoBufMut + ?Sized>(&self, target: &mut B, byte: u8) -> Result<()> {
            fill_with(target.as_mut_ptr(), target.len_bytes(), byte);
            Ok(())
        }

        pub fn forget_kernels(&self, _: u32) {}

        pub fn processors_near(&self, _: Place) -> Option<Processors> {
            None
        }

        pub fn memory_of<B: IoBuf + ?Sized>(&self, buffer: &B) -> Result<Memory> {
            let Location { is_host_accessible, context, is_registered, base_offset } = buffer.location();
            Ok(Memory {
                ptr: buffer.as_ptr().cast_mut(),
                len_bytes: buffer.len_bytes(),
                place: if is_host_accessible { Place::Host } else { GPU },
                context,
                is_in_primary_context: true,
                is_registered,
                base_offset,
            })
        }

        pub fn memory_of_mut<B: IoBufMut + ?Sized>(&self, buffer: &mut B) -> Result<Memory> {
            Ok(Memory { ptr: buffer.as_mut_ptr(), ..self.memory_of(buffer)? })
        }
    }
}

/// A stand-in for sets of processors: shuttle's threads run in turn.
pub mod processors {
    #[derive(Clone, Copy)]
    pub struct Processors;

    impl Processors {
        pub fn keep_this_thread(&self) {}
    }
}

/// A stand-in for the groups of packed tensors, which the files of the models do not have.
pub mod unpack {
    #[derive(Clone, Copy)]
    pub struct PackedGroup;
}
