//! The GPUs that CUDA shows, joined with their PCI devices.

use cufile::cuda::{Cuda, Device};
use gpufile::Engine;

use super::pci::PciDevice;

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gpu {
    /// CUDA's number of the GPU.
    pub ordinal: u32,
    pub name: String,
    pub memory_bytes: Option<u64>,
    /// Empty if CUDA does not tell.
    pub address: String,
    /// The device in sysfs, if it is visible there.
    pub pci: Option<PciDevice>,
    /// The reason why scattered ranges are copied one by one; `None` if a kernel moves them.
    pub no_kernel: Option<String>,
}

/// The reason why there are no GPUs to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoGpus {
    /// libcuda or libcudart does not load.
    NoLibrary,
    /// CUDA works and has no device.
    NoDevice,
    /// CUDA fails.
    Failed(String),
}

impl Gpu {
    /// Returns the GPU's name with its number.
    pub fn title(&self) -> String {
        format!("GPU {} ({})", self.ordinal, self.name)
    }
}

/// Returns the GPUs of CUDA.
///
/// # Errors
/// The reason why there are none.
pub fn all(cuda: &cufile::Result<Cuda>, devices: &[PciDevice]) -> Result<Vec<Gpu>, NoGpus> {
    let cuda = match cuda {
        Ok(cuda) => cuda,
        Err(cufile::Error::Load(_)) => return Err(NoGpus::NoLibrary),
        Err(cufile::Error::NoDevice) => return Err(NoGpus::NoDevice),
        Err(error) => return Err(NoGpus::Failed(error.to_string())),
    };
    let failed = |error: cufile::Error| NoGpus::Failed(error.to_string());
    (0..cuda.device_count().map_err(failed)?)
        .map(|ordinal| cuda.device(ordinal).map(|device| gpu(cuda, &device, devices)).map_err(failed))
        .collect()
}

fn gpu(cuda: &Cuda, device: &Device, devices: &[PciDevice]) -> Gpu {
    // In lower case, as in sysfs.
    let address = device.pci_bus_id().unwrap_or_default().to_lowercase();
    Gpu {
        ordinal: device.ordinal(),
        name: device.name().unwrap_or_else(|error| error.to_string()),
        memory_bytes: memory_bytes(cuda, device),
        pci: devices.iter().find(|found| found.address == address).cloned(),
        address,
        no_kernel: Engine::builder()
            .cuda(cuda.clone())
            .build()
            .load_kernels(device)
            .err()
            .map(|error| error.to_string()),
    }
}

fn memory_bytes(cuda: &Cuda, device: &Device) -> Option<u64> {
    let mut bytes = 0;
    // SAFETY: `bytes` outlives the call, and the device is CUDA's own number of it.
    let code = unsafe { (cuda.driver().cuDeviceTotalMem_v2)(&mut bytes, device.ordinal().cast_signed()) };
    (code == cuda_rt_sys::driver::CUresult::CUDA_SUCCESS).then_some(bytes as u64)
}
