//! Prints the name and the text of every code of cuFile, and CUDA's name of one CUDA code.
//!
//! usage: sample_008_error_names

mod common;

use std::process::ExitCode;

use std::ffi::CStr;
use std::ptr;

use cuda_rt_sys::driver::{CUresult, Library};
use cufile::OpError;
use cufile_sys::CUFILEOP_BASE_ERR;

fn main() -> ExitCode {
    common::run("none", |_| {
        let mut count = 0;
        for number in CUFILEOP_BASE_ERR as i32 + 1..CUFILEOP_BASE_ERR as i32 + 100 {
            let code = OpError::from_raw(number);
            if let Some(name) = code.name() {
                println!("{number} {name}: {}", code.sentence());
                count += 1;
            }
        }

        let code = CUresult::CUDA_ERROR_INVALID_CONTEXT;
        let (library, mut name) = (Library::load()?, ptr::null());
        // SAFETY: `name` outlives the call.
        match unsafe { (library.cuGetErrorName)(code, &mut name) } {
            CUresult::CUDA_SUCCESS => {}
            code => return Err(format!("cuGetErrorName: {code:?}").into()),
        }
        // SAFETY: CUDA's names are constants.
        let name = unsafe { CStr::from_ptr(name) }.to_str()?;
        println!("CUDA's {}: {name}", code.as_raw());
        println!("{count} codes of cuFile, one of CUDA");
        Ok(())
    })
}
