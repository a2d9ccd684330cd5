use gpufile::kv_blocks;
use pyo3::prelude::*;

use crate::error::not_pickled;
use crate::memory::{Access, Memory};

/// Memory that blocks are stored from and fetched into: the paged memory of a KV cache, or a tensor of one layer.
///
/// ``buffer`` is contiguous memory of the host or of a GPU that may be written to. The region keeps it, and so does
/// each transfer that uses it, also one whose future is gone. A part belongs to at most one transfer at a time: another block that names it ends with
/// ``Outcome.IN_USE``. So make one region of a buffer, and keep it.
#[pyclass(frozen, module = "gpufile.kv_blocks")]
pub struct Region(pub kv_blocks::Region<Memory>);

#[pymethods]
impl Region {
    #[new]
    fn new(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(kv_blocks::Region::new(Memory::of(buffer, Access::Write)?)))
    }

    /// The length of the memory in bytes. In a forked child, a region of its parent has none.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.len_bytes()
    }

    /// The number of bytes that transfers use.
    #[getter]
    fn bytes_in_use(&self) -> usize {
        self.0.bytes_in_use()
    }

    fn __reduce_ex__(&self, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        let instead = "its memory belongs to its process; make one of other memory there";
        Err(not_pickled("gpufile.kv_blocks.Region", instead))
    }

    fn __repr__(&self) -> String {
        format!("<gpufile.kv_blocks.Region nbytes={} bytes_in_use={}>", self.nbytes(), self.bytes_in_use())
    }
}
