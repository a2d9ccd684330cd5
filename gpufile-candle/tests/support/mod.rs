//! The devices that tests run on.

use candle_core::Device;

pub const CPU: Device = Device::Cpu;

/// Runs a test on the CPU and, with the feature `cuda`, on the first GPU.
pub fn each_device(test: impl Fn(&Device)) {
    test(&CPU);
    #[cfg(feature = "cuda")]
    test(&Device::new_cuda(0).expect("a GPU, or the emulator"));
}

/// Returns whether candle computes on a device. `.ci/candle-cuda`, which has no kernels of candle, sets the variable.
pub fn computes(device: &Device) -> bool {
    device.is_cpu() || std::env::var_os("GPUFILE_TEST_NO_KERNELS").is_none()
}
