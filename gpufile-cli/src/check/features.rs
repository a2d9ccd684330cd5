//! The table of features: what gpufile and libcufile can do on this machine.

use super::libraries::calls_since;
use super::machine::Machine;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    pub key: &'static str,
    pub name: &'static str,
    pub is_there: bool,
}

/// Returns the features, those of gpufile first.
pub fn table(machine: &Machine) -> Vec<Feature> {
    let driver = machine.driver.as_ref().ok();
    let has_gpu = !machine.gpus().is_empty();
    let feature = |key, name, is_there| Feature { key, name, is_there };
    let missing = machine.libraries.cufile_version.map(calls_since);
    // A call of libcufile stands for the feature that came with it.
    let has = |call: &str| {
        let lacks = missing.as_ref().map(|calls| calls.iter().any(|(name, _)| *name == call));
        lacks == Some(false) && driver.is_some()
    };
    vec![
        feature("host-memory", "host memory", true),
        feature("gpu-memory", "GPU memory", has_gpu),
        feature(
            "gds",
            "GPUDirect Storage (nvidia-fs)",
            driver.is_some_and(|driver| driver.nvidia_fs.is_some()),
        ),
        feature("p2pdma", "cuFile over P2PDMA", driver.is_some_and(|driver| driver.p2pdma)),
        feature(
            "compat-mode",
            "cuFile's compatibility mode",
            driver.is_some_and(|driver| driver.allows_compat_mode),
        ),
        feature(
            "kernels",
            "scattered ranges with a kernel",
            has_gpu && machine.gpus().iter().all(|gpu| gpu.no_kernel.is_none()),
        ),
        feature("parameters", "cuFile's parameters (1.14)", has("cuFileGetParameterSizeT")),
        feature("statistics", "cuFile's statistics (1.15)", has("cuFileGetStatsL1")),
        feature("p2p-flags", "cuFile's peer-to-peer flags (1.16)", has("cuFileDriverGetP2PFlags")),
        feature("vectored", "cuFile's vectored calls (1.19)", has("cuFileReadv")),
    ]
}
