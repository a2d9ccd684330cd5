//! Copies from the memory of one GPU to that of another.

use cuda_rt_sys::runtime::cudaError_t;

use super::{Device, Stream};
use crate::error::{Result, check_runtime};

impl Device {
    /// Returns whether this device can use the memory of `peer` directly, over NVLink or PCIe
    /// (`cudaDeviceCanAccessPeer`). Returns false for the device itself.
    ///
    /// Names elsewhere: `current_context_can_access_pointer` (KvikIO).
    ///
    /// # Errors
    /// CUDA's error; [`Error::Forked`](crate::Error::Forked).
    #[doc(alias = "cudaDeviceCanAccessPeer")]
    #[doc(alias = "current_context_can_access_pointer")]
    pub fn can_access_peer(&self, peer: &Device) -> Result<bool> {
        self.cuda().check_alive()?;
        let mut answer = 0;
        // SAFETY: `answer` outlives the call; CUDA refuses ordinals that do not exist.
        check_runtime("cudaDeviceCanAccessPeer", unsafe {
            (self.cuda().runtime().cudaDeviceCanAccessPeer)(
                &mut answer,
                self.ordinal().cast_signed(),
                peer.ordinal().cast_signed(),
            )
        })?;
        Ok(answer != 0)
    }

    /// Lets work on this device use the memory of `peer` directly, until the process ends
    /// (`cudaDeviceEnablePeerAccess`). Succeeds without effect if that is already enabled. The other direction needs
    /// its own call.
    ///
    /// Without it, copies between the two pass through host memory.
    ///
    /// # Errors
    /// CUDA's error: `cudaErrorPeerAccessUnsupported` if the device [cannot](Self::can_access_peer) do it;
    /// [`Error::Forked`](crate::Error::Forked).
    #[doc(alias = "cudaDeviceEnablePeerAccess")]
    pub fn enable_peer_access(&self, peer: &Device) -> Result<()> {
        let _entered = self.enter()?;
        let runtime = self.cuda().runtime();
        // SAFETY: takes integers; the device's context is current.
        match unsafe { (runtime.cudaDeviceEnablePeerAccess)(peer.ordinal().cast_signed(), 0) } {
            cudaError_t::cudaErrorPeerAccessAlreadyEnabled => {
                // CUDA keeps this as the thread's last error, which other code would take for a failure of its call.
                // SAFETY: takes nothing.
                unsafe { (runtime.cudaGetLastError)() };
                Ok(())
            }
            code => check_runtime("cudaDeviceEnablePeerAccess", code),
        }
    }
}

impl Stream {
    /// Copies memory of this stream's device to memory of `peer`, after the work already in the stream
    /// (`cudaMemcpyPeerAsync`). To learn when the copy is done, [record](Self::record) an event right after it.
    ///
    /// The copy is direct if this device may [use the memory of the peer](Device::enable_peer_access).
    ///
    /// # Errors
    /// CUDA's error, which may be the failure of earlier work. The copy may be in flight then.
    ///
    /// # Safety
    /// `source` must be `len_bytes` of memory of this stream's device, and `target` the same number of bytes of the
    /// peer. Until the copy is done, nothing may write `source`, and nothing else may use `target`.
    #[doc(alias = "cudaMemcpyPeerAsync")]
    pub unsafe fn copy_to_peer(
        &self,
        peer: &Device,
        target: *mut u8,
        source: *const u8,
        len_bytes: usize,
    ) -> Result<()> {
        let device = self.device();
        let _entered = device.enter()?;
        // SAFETY: the caller's promise; the stream is alive.
        check_runtime("cudaMemcpyPeerAsync", unsafe {
            (device.cuda().runtime().cudaMemcpyPeerAsync)(
                target.cast(),
                peer.ordinal().cast_signed(),
                source.cast(),
                device.ordinal().cast_signed(),
                len_bytes,
                self.as_raw(),
            )
        })
    }
}
