//! Copies a file through memory that the CUDA driver API allocated, and compares SHA-256 sums.
//!
//! Memory of any origin can be used if its type implements two traits. CUDA 13 has changed the creation of contexts,
//! so this example uses the GPU's primary context, which the runtime API shares.
//!
//! usage: sample_004_copy_driver_api_memory READ_FILE WRITE_FILE GPU

mod common;

use std::process::ExitCode;

use common::{MIB, all_of, compare_sha, create, make_file, open_to_read};
use cuda_rt_sys::driver::{CUdeviceptr, CUresult};
use cufile::cuda::{Cuda, Device};
use cufile::{Driver, FileHandle, IoBuf, IoBufMut, Location};

const LEN: usize = 31 * MIB;

fn main() -> ExitCode {
    common::run("READ_FILE WRITE_FILE GPU", |arguments| {
        let (source, target) = (arguments.path(0)?, arguments.path(1)?);
        make_file(source, LEN)?;
        // cuInit, cuDeviceGet, cuDevicePrimaryCtxRetain.
        let device = Cuda::load()?.device(arguments.number(2)?)?;
        let mut memory = Memory::alloc(&device, LEN)?;
        memory.fill(0)?;

        let driver = Driver::open()?;
        let from = FileHandle::register(&driver, open_to_read(source)?)?;
        all_of(from.read_at(&mut memory, 0)?, LEN, "cuFileRead")?;
        drop(from.deregister());

        let to = FileHandle::register(&driver, create(target)?)?;
        all_of(to.write_at(&memory, 0)?, LEN, "cuFileWrite")?;

        drop(to.deregister());
        drop(memory);
        driver.close()?;
        compare_sha(source, target, LEN)
    })
}

/// Memory of `cuMemAlloc`.
struct Memory {
    device: Device,
    address: CUdeviceptr,
    len_bytes: usize,
}

impl Memory {
    fn alloc(device: &Device, len_bytes: usize) -> Result<Self, String> {
        let (driver, mut address) = (device.cuda().driver(), 0);
        // SAFETY: the device keeps its context alive, and stays in `Memory`.
        check("cuCtxSetCurrent", unsafe { (driver.cuCtxSetCurrent)(device.context().as_raw()) })?;
        // SAFETY: `address` outlives the call.
        check("cuMemAlloc", unsafe { (driver.cuMemAlloc_v2)(&mut address, len_bytes) })?;
        Ok(Self { device: device.clone(), address, len_bytes })
    }

    fn fill(&mut self, byte: u8) -> Result<(), String> {
        let driver = self.device.cuda().driver();
        // SAFETY: the whole allocation, which `&mut self` owns.
        check("cuMemsetD8", unsafe { (driver.cuMemsetD8_v2)(self.address, byte, self.len_bytes) })?;
        // SAFETY: takes nothing. cuFile is not ordered with the memset.
        check("cuCtxSynchronize", unsafe { (driver.cuCtxSynchronize)() })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `alloc`, freed once.
        unsafe { (self.device.cuda().driver().cuMemFree_v2)(self.address) };
    }
}

// SAFETY: the allocation stays at its address until dropped, as does the context, which belongs to the device.
unsafe impl IoBuf for Memory {
    fn as_ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.address as usize)
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        Location::device(self.device.context())
    }
}

// SAFETY: `&mut self` is the only access to the memory.
unsafe impl IoBufMut for Memory {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

fn check(operation: &'static str, code: CUresult) -> Result<(), String> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{operation}: {code:?}")) }
}
