//! Reads a file into GPU memory by the raw bindings alone, and compares it with what `std` reads.

use cuda_rt_sys::runtime::{self, c::*};
use cufile_sys::c::*;
use std::{env, error::Error, fs, io, os::fd::AsRawFd, ptr};

fn cufile(call: &str, status: CUfileError_t) -> Result<(), Box<dyn Error>> {
    let failed = || format!("{call}: {} ({:?})", CUFILE_ERRSTR(status.err), status.cu_err).into();
    (status.err == CU_FILE_SUCCESS).then_some(()).ok_or_else(failed)
}

fn cuda(call: &str, status: cudaError_t) -> Result<(), Box<dyn Error>> {
    (status == cudaSuccess).then_some(()).ok_or_else(|| format!("{call}: {status:?}").into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).ok_or("usage: raw-read FILE")?;
    runtime::Library::shared()?;
    cufile_sys::Library::shared()?;
    let file = fs::File::open(&path)?;
    let size = file.metadata()?.len() as usize;
    let (mut host, mut memory, mut handle, mut gpus) = (vec![0; size], ptr::null_mut(), ptr::null_mut(), 0);
    let mut descr = CUfileDescr_t { type_: CU_FILE_HANDLE_TYPE_OPAQUE_FD, ..Default::default() };
    descr.handle.fd = file.as_raw_fd();
    // SAFETY: the pointers are to values of this function, and the memory has `size` bytes.
    unsafe {
        cuda("cudaGetDeviceCount", cudaGetDeviceCount(&mut gpus))?; // without libcuda, opening the driver hangs
        cufile("cuFileDriverOpen", cuFileDriverOpen())?;
        cufile("cuFileHandleRegister", cuFileHandleRegister(&mut handle, &mut descr))?;
        cuda("cudaMalloc", cudaMalloc(&mut memory, size))?;
        cufile("cuFileBufRegister", cuFileBufRegister(memory, size, 0))?;
        match cuFileRead(handle, memory, size, 0, 0) {
            -1 => return Err(io::Error::last_os_error().into()),
            code if code < 0 => return Err(CUFILE_ERRSTR(code).into()),
            read => println!("{read} bytes"),
        }
        cuda("cudaMemcpy", cudaMemcpy(host.as_mut_ptr().cast(), memory, size, cudaMemcpyDeviceToHost))?;
        cufile("cuFileBufDeregister", cuFileBufDeregister(memory))?;
        cuda("cudaFree", cudaFree(memory))?;
        cuFileHandleDeregister(handle);
        cufile("cuFileDriverClose", cuFileDriverClose())?;
    }
    if host == fs::read(&path)? { Ok(()) } else { Err("the file has other bytes".into()) }
}
