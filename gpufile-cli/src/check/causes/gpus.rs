//! Causes that lie in a GPU itself.

use super::Facts;
use crate::check::effect::Effect;

/// Causes with the GPU's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuCause {
    /// Other devices cannot access its memory.
    NoGpuDirect(String),
    /// A slice of a GPU that is divided by MIG.
    Mig(String),
}

impl GpuCause {
    pub fn all(Facts { machine, target, .. }: Facts<'_>) -> Vec<Self> {
        let mut causes = Vec::new();
        for gpu in machine.gpus() {
            if gpu.has_gpudirect == Some(false) && !target.is_direct() {
                causes.push(Self::NoGpuDirect(gpu.title()));
            }
            if gpu.is_mig() {
                causes.push(Self::Mig(gpu.title()));
            }
        }
        causes
    }

    pub fn effect(&self) -> Effect {
        match self {
            Self::NoGpuDirect(_) => Effect::Stages,
            Self::Mig(_) => Effect::Limits,
        }
    }

    pub fn key(&self) -> &'static str {
        match self {
            Self::NoGpuDirect(_) => "no-gpudirect",
            Self::Mig(_) => "mig",
        }
    }

    pub fn problem(&self) -> String {
        match self {
            Self::NoGpuDirect(gpu) => {
                format!("{gpu} does not give other devices access to its memory (no GPUDirect RDMA)")
            }
            Self::Mig(gpu) => {
                format!(
                    "{gpu} is a MIG slice, which shares BAR1 with others and has no peer copies to other GPUs"
                )
            }
        }
    }

    pub fn remedy(&self) -> String {
        let text = match self {
            Self::NoGpuDirect(_) => {
                "use a GPU for data centres or workstations: GeForce cards lack it; there, gpufile stages the bytes itself"
            }
            Self::Mig(_) => {
                "register small buffers only, or none; `nvidia-smi -mig 0` joins the slices of the whole GPU"
            }
        };
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use crate::check::machine::Machine;
    use crate::check::right_facts::{good, machine, only, staged, with};

    fn named(name: &str, has_gpudirect: Option<bool>) -> Machine {
        with(machine(), |machine| {
            let gpu = &mut machine.gpus.as_mut().unwrap()[0];
            (gpu.name, gpu.has_gpudirect) = (name.to_owned(), has_gpudirect);
        })
    }

    #[test]
    fn gpus_without_gpudirect_and_slices_are_named() {
        let consumer = named("NVIDIA GeForce RTX 4090", Some(false));
        only(&consumer, &staged(), "no-gpudirect", "GeForce RTX 4090", "data centres");
        only(&named("NVIDIA H200", None), &staged(), "other", "", "");
        let slice = named("NVIDIA H100 80GB HBM3 MIG 1g.10gb", Some(true));
        only(&slice, &good(), "mig", "is a MIG slice", "-mig 0");
    }
}
