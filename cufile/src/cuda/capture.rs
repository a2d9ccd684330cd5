//! CUDA calls during captures of other streams.

use cuda_rt_sys::runtime::cudaStreamCaptureMode;

use super::Cuda;

/// A guard from [`Cuda::beside_captures`], which lets the calling thread allocate, wait and query while another
/// stream is captured for a CUDA graph.
///
/// By default, CUDA refuses such calls on any thread and ends the capture, because they might belong to it. This
/// crate's calls never do.
pub(super) struct BesideCaptures<'a> {
    cuda: &'a Cuda,
    before: cudaStreamCaptureMode,
}

impl Cuda {
    pub(super) fn beside_captures(&self) -> BesideCaptures<'_> {
        let before = self.exchange(cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed);
        BesideCaptures { cuda: self, before }
    }

    fn exchange(&self, mut mode: cudaStreamCaptureMode) -> cudaStreamCaptureMode {
        // SAFETY: `mode` outlives the call. A failure leaves it as it is, and then the call that follows fails.
        unsafe { (self.runtime().cudaThreadExchangeStreamCaptureMode)(&mut mode) };
        mode
    }
}

impl Drop for BesideCaptures<'_> {
    fn drop(&mut self) {
        self.cuda.exchange(self.before);
    }
}
