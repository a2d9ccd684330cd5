//! Uses of CUDA, and of memory by its address, that together call every function of CUDA that the crates call.

use std::ffi::CString;
use std::time::Duration;

use cuda_rt_sys::driver::CUdevice_attribute;
use cufile::cuda::{KernelArgument, WordOperation};
use cufile::{BufSlice, IoBuf, IoBufMut, OpError, RegisterFlags};
use testkit::bed::pattern;

use super::scenarios::LEN;
use super::{Problem, Scenario, Stage, same};

pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "devices", opened: true, run: &devices },
    Scenario { name: "memory", opened: true, run: &memory },
    Scenario { name: "mapped memory", opened: true, run: &mapped_memory },
    Scenario { name: "streams", opened: true, run: &streams },
    Scenario { name: "copies in streams", opened: true, run: &copies },
    Scenario { name: "copies between GPUs", opened: true, run: &peers },
    Scenario { name: "kernels", opened: true, run: &kernels },
    Scenario { name: "refused registration", opened: true, run: &refused_registration },
];

fn devices(stage: &Stage) -> Result<(), Problem> {
    let cuda = stage.bed().driver.cuda();
    same(cuda.device_count()? == 2, "the number of GPUs")?;
    let device = cuda.device(1)?;
    let buffer = device.alloc(1)?;
    same(cuda.device_of(&buffer)?.ordinal() == 1, "the GPU of a buffer")?;
    device.name()?;
    device.pci_bus_id()?;
    device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    device.synchronize()?;
    device.set_current()?;
    Ok(())
}

fn memory(stage: &Stage) -> Result<(), Problem> {
    let device = &stage.bed().device;
    let mut buffer = device.alloc(LEN)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    same(buffer.to_vec()? == pattern(LEN), "device memory")?;
    buffer.fill(7)?;
    same(buffer.to_vec()? == [7; LEN], "filled memory")?;
    buffer.free()?;
    device.alloc_pinned(LEN)?;
    // Registered huge pages.
    device.alloc_pinned(2 << 20)?;
    device.alloc_managed(LEN)?;
    Ok(())
}

fn mapped_memory(stage: &Stage) -> Result<(), Problem> {
    let mut buffer = stage.bed().device.reserve(8 << 20)?;
    buffer.grow(1)?;
    buffer.grow(1)?;
    buffer.copy_from_host(0, &pattern(LEN))?;
    same(buffer.to_vec()?[..LEN] == pattern(LEN), "mapped memory")?;
    stage.bed().device.reserve(1)?;
    buffer.unmap()?;
    Ok(())
}

fn streams(stage: &Stage) -> Result<(), Problem> {
    let device = &stage.bed().device;
    let (one, other) = (device.stream()?, device.stream()?);
    let (sender, receiver) = std::sync::mpsc::channel();
    one.call_on_host(move || _ = sender.send(()))?;
    let (start, end) = (stage.bed().device.timing_event()?, stage.bed().device.timing_event()?);
    one.record_into(&start)?;
    one.record_into(&end)?;
    end.wait()?;
    let _: Duration = end.elapsed_since(&start)?;
    let event = one.record()?;
    other.wait_event(&event)?;
    while !other.is_idle()? || !event.is_done()? {
        std::thread::sleep(Duration::from_micros(100));
    }
    event.wait()?;
    one.synchronize()?;
    same(!one.is_capturing()?, "no stream is captured")?;
    same(receiver.try_recv().is_ok(), "the host function")
}

fn copies(stage: &Stage) -> Result<(), Problem> {
    let device = &stage.bed().device;
    // They come before the stream, so that they outlive its work.
    let mut source = device.alloc_pinned(LEN)?;
    let mut target = device.alloc_pinned(LEN)?;
    let mut between = device.alloc(LEN)?;
    let mut word = device.alloc(4)?;
    source.copy_from_slice(&pattern(LEN));
    word.fill(0)?;
    let stream = device.stream()?;
    let word = word.as_mut_ptr().cast::<u32>();
    let (half, start) = (LEN / 2, target.as_mut_ptr());
    // SAFETY: the stream is dropped first, and waits for its work.
    unsafe {
        stream.copy_to_device(between.as_mut_ptr(), &source)?;
        stream.on_words(&[WordOperation::Write(word, 5), WordOperation::Wait(word, 5)])?;
        let from = [between.as_ptr(), between.as_ptr().add(half)];
        stream.copy_batch(&[start, start.add(half)], &from, &[half; 2])?;
        stream.copy_on_device(between.as_mut_ptr(), target.as_ptr(), LEN)?;
    }
    stream.synchronize()?;
    drop(stream);
    same(*target == *pattern(LEN), "copied bytes")
}

fn peers(stage: &Stage) -> Result<(), Problem> {
    let (one, other) = (&stage.bed().device, stage.bed().driver.cuda().device(1)?);
    same(one.can_access_peer(&other)?, "access to the other GPU")?;
    one.enable_peer_access(&other)?;
    one.enable_peer_access(&other)?;
    // They come before the stream, so that they outlive its work.
    let (mut source, mut target) = (one.alloc(LEN)?, other.alloc(LEN)?);
    source.copy_from_host(0, &pattern(LEN))?;
    let stream = one.stream()?;
    // SAFETY: the stream is dropped first, and waits for its work.
    unsafe { stream.copy_to_peer(&other, target.as_mut_ptr(), source.as_ptr(), LEN) }?;
    stream.synchronize()?;
    drop(stream);
    same(target.to_vec()? == pattern(LEN), "bytes copied between GPUs")
}

/// Scatters bytes over a buffer, by a kernel of gpufile.
fn kernels(stage: &Stage) -> Result<(), Problem> {
    let device = &stage.bed().device;
    let ptx = CString::new(include_str!("../../../gpufile/kernels/scatter_gather.ptx"));
    // They come before the stream, so that they outlive its work.
    let kernel = device.load_module(&ptx.expect("a text without NUL"))?.kernel(c"gpufile_scatter")?;
    let (mut source, mut target, mut table) = (device.alloc(LEN)?, device.alloc(LEN)?, device.alloc(32)?);
    source.copy_from_host(0, &pattern(LEN))?;
    target.fill(0)?;
    // The halves change places.
    let half = LEN / 2;
    let entry = |to: usize, from: usize| {
        let address = target.as_ptr().expose_provenance() + to;
        [address as u64, from as u64 | (half as u64) << 32].map(u64::to_le_bytes).concat()
    };
    table.copy_from_host(0, &[entry(0, half), entry(half, 0)].concat())?;
    let stream = device.stream()?;
    let arguments = [
        KernelArgument::Pointer(table.as_ptr()),
        KernelArgument::U32(2),
        KernelArgument::Pointer(source.as_ptr()),
    ];
    // SAFETY: the kernel takes these arguments, and all that it uses outlives the stream.
    unsafe { stream.launch(&kernel, 1, 64, arguments) }?;
    stream.synchronize()?;
    drop(stream);
    let mut swapped = pattern(LEN);
    swapped.rotate_left(half);
    same(target.to_vec()? == swapped, "scattered bytes")
}

/// Registers memory that libcufile refuses. Calls of CUDA explain the refusal, and their failure hides nothing.
fn refused_registration(stage: &Stage) -> Result<(), Problem> {
    let bed = stage.bed();
    let mut buffer = bed.device.alloc(4096)?;
    // SAFETY: the memory is only registered, which fails.
    let beyond = unsafe { BufSlice::from_device(&bed.device, buffer.as_mut_ptr(), 8192) };
    match bed.driver.with_registered(&beyond, RegisterFlags::empty(), |_| ()) {
        Err(error) if error.op_error() == Some(OpError::CUDA_POINTER_RANGE_ERROR) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err(Problem::Wrong("memory beyond an allocation was registered".to_owned())),
    }
}
