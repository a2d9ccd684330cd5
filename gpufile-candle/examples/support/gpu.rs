//! The peak of device memory, and the speed of the link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::cudarc::driver::CudaContext;
use candle_core::{Device, Error, Result};

/// The most device memory in use since the start of the watch.
pub struct Peak {
    least_free: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    start_free: usize,
    model_bytes: u64,
}

impl Peak {
    pub fn watch(device: &Device, model_bytes: u64) -> Result<Option<Self>> {
        let Device::Cuda(device) = device else { return Ok(None) };
        let context = device.cuda_stream().context().clone();
        let start_free = context.mem_get_info().map_err(Error::wrap)?.0;
        let least_free = Arc::new(AtomicUsize::new(start_free));
        let stop = Arc::new(AtomicBool::new(false));
        let (least, stopped) = (least_free.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(SeqCst) {
                let free = context.mem_get_info().map_or(usize::MAX, |(free, _)| free);
                least.fetch_min(free, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Ok(Some(Self { least_free, stop, thread, start_free, model_bytes }))
    }

    pub fn report(self, what: &str) {
        self.stop.store(true, SeqCst);
        self.thread.join().expect("the watch");
        let peak = self.start_free - self.least_free.load(SeqCst);
        let model = self.model_bytes;
        println!(
            "{what}, device memory at most: {peak} bytes, {:.4} of the model",
            peak as f64 / model as f64
        );
    }
}

/// Reports the speed of copies from pinned memory.
pub fn link(device: &Device) -> Result<()> {
    let Device::Cuda(device) = device else { return Ok(()) };
    const BYTES: usize = 1 << 30;
    let context: &Arc<CudaContext> = &device.cuda_stream().context().clone();
    // SAFETY: the bytes are copied only to be timed, and any are valid.
    let host = unsafe { context.alloc_pinned::<u8>(BYTES) }.map_err(Error::wrap)?;
    let mut memory = device.alloc_zeros::<u8>(BYTES)?;
    let mut best = f64::MAX;
    for _ in 0..5 {
        context.synchronize().map_err(Error::wrap)?;
        let start = Instant::now();
        device.memcpy_htod(&host, &mut memory)?;
        context.synchronize().map_err(Error::wrap)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    super::report("the link, from pinned memory", vec![best], BYTES as u64);
    Ok(())
}
