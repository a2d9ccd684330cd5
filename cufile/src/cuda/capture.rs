//! CUDA calls beside captures.

use cuda_rt_sys::runtime::cudaStreamCaptureMode;

use super::Cuda;

/// Lets the calling thread allocate, wait and ask while a stream elsewhere is captured for a CUDA graph; from
/// [`Cuda::beside_captures`].
///
/// By default CUDA refuses such calls then, on any thread, and gives the capture up, because they could be meant to be part
/// of it. Those of this crate never are.
pub(super) struct BesideCaptures<'a> {
    cuda: &'a Cuda,
    before: cudaStreamCaptureMode,
}

impl Cuda {
    pub(super) fn beside_captures(&self) -> BesideCaptures<'_> {
        let before = self.exchange(cudaStreamCaptureMode::cudaStreamCaptureModeRelaxed);
        BesideCaptures { cuda: self, before }
    }

    /// Sets the mode of the calling thread; returns the one before.
    fn exchange(&self, mut mode: cudaStreamCaptureMode) -> cudaStreamCaptureMode {
        // SAFETY: `mode` outlives the call. A failure leaves it as it is, which is what the call that follows fails of.
        unsafe { (self.runtime().cudaThreadExchangeStreamCaptureMode)(&mut mode) };
        mode
    }
}

impl Drop for BesideCaptures<'_> {
    fn drop(&mut self) {
        self.cuda.exchange(self.before);
    }
}
