//! The GPUs that CUDA shows, joined with their PCI devices.

use cuda_rt_sys::driver::CUdevice_attribute;
use cufile::cuda::{Cuda, Device};
use gpufile::Engine;

use super::pci::PciDevice;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gpu {
    pub ordinal: u32,
    pub name: String,
    pub memory_bytes: Option<u64>,
    /// Empty if CUDA does not tell.
    pub address: String,
    /// `None` if it is not visible in sysfs.
    pub pci: Option<PciDevice>,
    /// The reason why scattered ranges are copied one by one; `None` if a kernel moves them.
    pub no_kernel: Option<String>,
    pub compute_capability: Option<(i32, i32)>,
    /// True if other devices can reach the GPU's memory; `None` if CUDA does not tell.
    pub has_gpudirect: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoGpus {
    NoLibrary,
    /// CUDA works and has no device.
    NoDevice,
    Failed(String),
}

impl Gpu {
    pub fn title(&self) -> String {
        format!("GPU {} ({})", self.ordinal, self.name)
    }

    /// Returns the class that the name tells.
    pub fn class(&self) -> &'static str {
        let has = |words: &[&str]| words.iter().any(|word| self.name.contains(word));
        if has(&["GeForce", "TITAN"]) {
            "consumer"
        } else if has(&["Quadro", "RTX"]) {
            "workstation"
        } else if has(&["Orin", "Xavier", "Thor", "Tegra"]) {
            "embedded"
        } else {
            "data centre"
        }
    }

    pub fn is_mig(&self) -> bool {
        self.name.split_whitespace().any(|word| word == "MIG")
    }
}

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
    let attribute = |attribute| device.attribute(attribute).ok();
    Gpu {
        compute_capability: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
            .zip(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)),
        has_gpudirect: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)
            .map(|value| value != 0),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_class_and_slices() {
        for (name, class, is_mig) in [
            ("NVIDIA H100 80GB HBM3", "data centre", false),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "data centre", true),
            ("NVIDIA GeForce RTX 4090", "consumer", false),
            ("NVIDIA RTX A6000", "workstation", false),
            ("Tesla T4", "data centre", false),
            ("Orin", "embedded", false),
        ] {
            let gpu = Gpu { name: name.to_owned(), ..Gpu::default() };
            assert_eq!((gpu.class(), gpu.is_mig()), (class, is_mig), "{name}");
        }
    }
}
