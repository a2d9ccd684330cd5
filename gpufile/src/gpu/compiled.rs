//! The compiled kernels of `kernels/*.cu`, and loading them.

use std::ffi::CStr;

use cuda_rt_sys::driver::CUdevice_attribute;
use cufile::cuda::{Device, Module};

/// A file of kernels. `compiled!("sum")` is `kernels/sum.cu`.
pub(super) struct Compiled {
    /// For every GPU that CUDA 11.8 or newer supports, with a NUL at the end.
    pub ptx: &'static str,
    /// Machine code, with the compute capability that it is for.
    pub cubins: [((i32, i32), &'static [u8]); 3],
}

macro_rules! compiled {
    ($name:literal) => {
        $crate::gpu::compiled::Compiled {
            ptx: concat!(include_str!(concat!("../../kernels/", $name, ".ptx")), "\0"),
            cubins: [
                ((7, 5), include_bytes!(concat!("../../kernels/", $name, ".sm_75.cubin"))),
                ((8, 0), include_bytes!(concat!("../../kernels/", $name, ".sm_80.cubin"))),
                ((9, 0), include_bytes!(concat!("../../kernels/", $name, ".sm_90.cubin"))),
            ],
        }
    };
}
pub(super) use compiled;

impl Compiled {
    /// Loads the kernels, which `find` finds in their module.
    ///
    /// # Errors
    /// The error that CUDA returned for the PTX.
    pub fn load<K>(&self, device: &Device, find: impl Fn(&Module) -> cufile::Result<K>) -> cufile::Result<K> {
        // CUDA compiles the PTX, which takes 95 to 200 ms on an H100, unless its cache on disk contains the result. A
        // cubin is compiled already. GPUs without a cubin need the PTX.
        if let Some(found) = self.load_binary(device).and_then(|module| find(&module).ok()) {
            return Ok(found);
        }
        let ptx = CStr::from_bytes_with_nul(self.ptx.as_bytes()).expect("a text with one NUL, at its end");
        find(&device.load_module(ptx)?)
    }

    /// Loads the machine code for the GPU: that of its major compute capability, with at most its minor one. Returns `None` if
    /// there is none, or if CUDA does not load it.
    fn load_binary(&self, device: &Device) -> Option<Module> {
        let major =
            device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).ok()?;
        let minor =
            device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR).ok()?;
        let (_, cubin) = self.cubins.iter().find(|((of, least), _)| *of == major && *least <= minor)?;
        // SAFETY: `cargo xtask regen-kernels` makes the cubins by NVRTC, and checks that they are unchanged.
        unsafe { device.load_binary(cubin) }.ok()
    }
}
