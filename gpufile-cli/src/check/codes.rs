//! The remedies for codes with which CUDA does not start, the cuFile driver does not open, or a file is not registered.

/// Codes of cuFile, each with its remedy.
const CUFILE: &[(u32, &str)] = &[
    (
        5001,
        "load nvidia-fs (`modprobe nvidia_fs`), or set properties.allow_compat_mode to true in cufile.json",
    ),
    (5002, "correct the values of cufile.json: `gpufile check --verbose` lists them with their limits"),
    (5003, "correct the values of cufile.json: `gpufile check --verbose` lists them with their limits"),
    (5004, "install nvidia-fs and libcufile of the same CUDA release, and load the module again"),
    (
        5005,
        "check that /proc/driver/nvidia-fs/version can be read here; a container needs the host's /proc and /dev/nvidia-fs*",
    ),
    (5006, "wait until the driver has closed, or open it once for the whole process"),
    (
        5007,
        "cuFile has no direct path on this platform (IOMMU, processor, WSL); set properties.allow_compat_mode to true",
    ),
    (
        5008,
        "cuFile has no direct path to this file; set properties.allow_compat_mode to true, or move it to ext4 or xfs on NVMe",
    ),
    (
        5009,
        "cuFile does not support this GPU; set properties.allow_compat_mode to true, or use another one with CUDA_VISIBLE_DEVICES",
    ),
    (
        5010,
        "read the kernel log (`dmesg | grep nvidia-fs`), and load nvidia-fs again after the drivers of GPU and storage",
    ),
    (5011, "the CUDA code beside it is the reason; without one, run `nvidia-smi`"),
    (5018, "name a regular file: cuFile takes no folders, pipes or devices without a file system"),
    (5019, "open the file for this direction, without O_APPEND, O_NONBLOCK and O_NOFOLLOW"),
    (5020, "open the file with O_DIRECT, or set properties.allow_compat_mode to true"),
    (5022, "the descriptor or an argument is invalid; keep the file open until its handle is closed"),
    (
        5025,
        "permit this user to read and write /dev/nvidia-fs*, and the file; in a container, pass these devices on",
    ),
    (5026, "set parameters before the driver opens, and open it only once"),
    (
        5027,
        "let udev describe the disk: run udevd, or mount the host's /run/udev into the container (-v /run/udev:/run/udev:ro)",
    ),
    (5028, "register each descriptor once, and share its handle; or duplicate the descriptor"),
    (5029, "give the container or job its GPUs; `nvidia-smi -L` lists those that are visible"),
    (
        5030,
        "read cufile.log; in a container, the usual reason is a missing /run/udev (-v /run/udev:/run/udev:ro)",
    ),
    (5031, "raise the limit of open files (`ulimit -n`)"),
    (
        5033,
        "load nvidia-fs, and make /dev/nvidia-fs* visible here; or set properties.allow_compat_mode to true",
    ),
    (5034, "remove the file's disk, mount or file system from denylist in cufile.json"),
    (
        5036,
        "register less, or raise properties.max_device_pinned_mem_size_kb; BAR1 of the GPU is the upper limit",
    ),
    (5043, "free host memory, or raise the container's limit"),
    (5045, "register smaller buffers: BAR1 or the limit of pinned memory is used up"),
    (5047, "make a CUDA context current on the thread before its calls of cuFile"),
    (5048, "read the kernel log (`dmesg | grep nvidia-fs`), and load nvidia-fs again"),
];

/// Codes of CUDA's driver and runtime, each with its remedy.
const CUDA: &[(u32, &str)] = &[
    (
        1,
        "set no unusual CUDA_ variables, and install libcudart of the display driver's CUDA release or an older one",
    ),
    (
        2,
        "free memory of the host and of the GPUs; `nvidia-smi` lists the processes, and a container may have a limit",
    ),
    (3, "start CUDA anew in the child after a fork, or fork before its first use"),
    (
        34,
        "the libcuda that was found is the toolkit's stub for linking: take its folder stubs out of LD_LIBRARY_PATH, or set \
          CUDA_LIBRARY to the display driver's libcuda.so.1",
    ),
    (35, "install a newer display driver, or set CUDART_LIBRARY to an older libcudart"),
    (46, "another process holds the GPU: wait for it, or permit several with `nvidia-smi -c DEFAULT`"),
    (100, "unset CUDA_VISIBLE_DEVICES, and give the container its GPUs; `nvidia-smi -L` lists them"),
    (101, "correct CUDA_VISIBLE_DEVICES; `nvidia-smi -L` lists the GPUs"),
    (102, "give the virtual GPU its licence; `nvidia-smi -q` shows its state"),
    (
        214,
        "the GPU's memory has an error that ECC cannot correct: reset the GPU or reboot (`nvidia-smi -q -d ECC`)",
    ),
    (
        304,
        "make the devices /dev/nvidia* accessible here, and check limits of memory and processes (`ulimit -a`)",
    ),
    (801, "this platform lacks the function: update the display driver"),
    (
        802,
        "start NVIDIA's fabric manager of the display driver's version (`systemctl start nvidia-fabricmanager`): GPUs with \
           NVSwitch wait for it; `nvidia-smi -q` shows the state of Fabric",
    ),
    (
        803,
        "the display driver's library and its loaded module have different versions: reboot after an update; in a container, \
           remove its own libcuda",
    ),
    (
        804,
        "this libcuda is of the compatibility package (cuda-compat), which this GPU does not support: take it out of \
           LD_LIBRARY_PATH, or install a newer display driver",
    ),
    (805, "start the MPS daemon (`nvidia-cuda-mps-control -d`), or unset CUDA_MPS_PIPE_DIRECTORY"),
    (806, "start the MPS daemon again: `echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d`"),
    (807, "wait until the MPS server is ready, or start its daemon again"),
    (808, "end other clients of MPS: the server takes no more"),
    (809, "end other clients of MPS: the device has no more connections"),
    (810, "an error of another client ended this one: start the MPS daemon again"),
    (
        999,
        "load nvidia_uvm again (`modprobe -r nvidia_uvm; modprobe nvidia_uvm`), and look for Xid in `dmesg`; a suspended \
           machine needs this, too",
    ),
];

/// Returns the remedy for the code in an error's text. A code of CUDA precedes the cuFile code that it explains.
pub fn remedy(error: &str) -> Option<&'static str> {
    let find = |table: &[(u32, &'static str)], code| {
        table.iter().find(|(known, _)| *known == code).map(|(_, remedy)| *remedy)
    };
    let codes = || numbered(error);
    let cuda = codes().filter(|(name, _)| name.starts_with("CUDA_ERROR_") || name.starts_with("cudaError"));
    let cufile = codes().filter(|(name, _)| name.starts_with("CU_FILE_") || *name == "code");
    let found = cuda.filter_map(|(_, code)| find(CUDA, code)).next();
    found.or_else(|| cufile.filter_map(|(_, code)| find(CUFILE, code)).next())
}

/// Returns each name in a text that a number in parentheses follows, as in `CU_FILE_INTERNAL_ERROR (5030)`.
fn numbered(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.match_indices(" (").filter_map(|(at, _)| {
        let name = text[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        let (number, _) = text[at + 2..].split_once(')')?;
        Some((name, number.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use cuda_rt_sys::driver::CUresult;
    use cufile::sys::CUfileOpError;

    use super::*;

    #[test]
    fn every_row_belongs_to_a_code_with_a_name() {
        for (code, words) in CUFILE {
            let name = CUfileOpError::from_raw(*code).name().unwrap_or_else(|| panic!("{code}"));
            assert_eq!(remedy(&format!("cuFileDriverOpen: {name} ({code}), text")), Some(*words));
        }
        for (code, words) in CUDA.iter().filter(|(code, _)| *code != 35) {
            let name = format!("{:?}", CUresult::from_raw(*code));
            assert!(name.starts_with("CUDA_ERROR_"), "{name}");
            assert_eq!(remedy(&format!("cuInit: {name} ({code})")), Some(*words));
        }
        assert!(remedy("cudaRuntimeGetVersion: cudaErrorInsufficientDriver (35)").is_some());
    }

    #[test]
    fn code_of_cuda_explains_the_code_of_cufile() {
        let error = "cuFileDriverOpen: CU_FILE_CUDA_DRIVER_ERROR (5011), a call failed, CUDA_ERROR_SYSTEM_NOT_READY (802)";
        assert!(remedy(error).unwrap().contains("fabric manager"));
        for text in ["", "no code", "CU_FILE_X (1)", "CUDA_ERROR_X (77777)", "file (5030)", "CU_FILE_X (5030"]
        {
            assert_eq!(remedy(text), None, "{text}");
        }
    }

    /// The codes that point to the same wrong advice as each other, if one word were to serve all.
    #[test]
    fn codes_with_different_reasons_have_different_remedies() {
        for (code, word) in [
            (34, "stub"),
            (46, "nvidia-smi -c DEFAULT"),
            (802, "fabric manager"),
            (803, "different versions"),
            (804, "cuda-compat"),
            (999, "nvidia_uvm"),
        ] {
            let found = remedy(&format!("cuInit: CUDA_ERROR_X ({code})")).unwrap();
            assert!(found.contains(word), "{code}: {found}");
        }
        for (code, word) in [
            (5001, "modprobe nvidia_fs"),
            (5004, "same CUDA release"),
            (5027, "udev"),
            (5030, "cufile.log"),
            (5034, "denylist"),
        ] {
            let found = remedy(&format!("cuFileHandleRegister: CU_FILE_X ({code})")).unwrap();
            assert!(found.contains(word), "{code}: {found}");
        }
    }
}
