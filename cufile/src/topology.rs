//! libcufile's view of the machine: BAR1 sizes and the PCIe topology.

use std::ffi::{CString, c_int};
use std::path::Path;

use crate::driver::Driver;
use crate::error::{Error, Result, check};
use crate::library::newer;

impl Driver {
    /// Returns the size in bytes of a GPU's BAR1, the window through which peers reach its memory
    /// (`cuFileGetBARSizeInKB`). Since cuFile 1.15.
    ///
    /// `gpu_index` counts the visible GPUs from 0.
    ///
    /// Names elsewhere: `get_bar_size_in_kb` (Python).
    ///
    /// # Errors
    /// [`Error::Unsupported`], or libcufile's code if fewer GPUs are visible.
    #[doc(alias = "cuFileGetBARSizeInKB")]
    #[doc(alias = "get_bar_size_in_kb")]
    pub fn bar_size_bytes(&self, gpu_index: u32) -> Result<u64> {
        const OPERATION: &str = "cuFileGetBARSizeInKB";
        self.check_alive()?;
        let call = newer!(self.library(), cuFileGetBARSizeInKB)?;
        let index = c_int::try_from(gpu_index)
            .map_err(|_| Error::invalid(OPERATION, format!("GPU {gpu_index} does not fit into C's int")))?;
        let mut size = 0;
        // SAFETY: `size` outlives the call.
        check(OPERATION, unsafe { call(index, &mut size) })
            .map_err(|error| error.about(&format_args!("GPU {index}")).advise(self.visible(gpu_index)))?;
        Ok((size as u64).saturating_mul(1024))
    }

    fn visible(&self, gpu_index: u32) -> String {
        match self.cuda().device_count() {
            Ok(count) if gpu_index >= count => format!("{count} are visible, counted from 0"),
            _ => String::new(),
        }
    }

    /// Writes the PCIe topology of GPUs, disks and network cards to a file (`cuFileExportPCIeTopology`). Since cuFile
    /// 1.17.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the path holds a NUL, [`Error::Unsupported`], or libcufile's code:
    /// [`OpError::INTERNAL_ERROR`](crate::OpError::INTERNAL_ERROR) where it found no topology.
    #[doc(alias = "cuFileExportPCIeTopology")]
    pub fn export_pcie_topology(&self, path: impl AsRef<Path>) -> Result<()> {
        const OPERATION: &str = "cuFileExportPCIeTopology";
        self.check_alive()?;
        let call = newer!(self.library(), cuFileExportPCIeTopology)?;
        let path = path.as_ref();
        let text = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| {
            Error::invalid(OPERATION, format!("the path {path:?} contains a NUL byte; remove it"))
        })?;
        // SAFETY: the path is terminated and outlives the call.
        check(OPERATION, unsafe { call(text.as_ptr()) })
            .map_err(|error| error.about(&format_args!("{path:?}")))
    }
}
