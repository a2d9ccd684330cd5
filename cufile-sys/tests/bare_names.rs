//! Programs as in C, with C's bare names, each in a process of its own: the names call one library for the process.

use std::error::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::{env, fs, panic, ptr};

use cuda_rt_sys::runtime::c::*;
use cufile_sys::c::*;

const CHILD: &str = "CUFILE_SYS_TEST_IS_CHILD";
const VARIABLES: [&str; 3] = ["CUFILE_LIBRARY", "CUDART_LIBRARY", "CUDA_LIBRARY"];

/// Runs `test` again in another process, with `library` for all of CUDA; there, runs `program`.
fn in_child(test: &str, library: &Path, program: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        return program();
    }
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", test]).env(CHILD, "1").envs(VARIABLES.map(|name| (name, library)));
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn read_as_in_c(path: &Path) -> Result<(), Box<dyn Error>> {
    let written: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    fs::write(path, &written)?;
    let file = fs::File::open(path)?;
    let (mut handle, mut memory) = (ptr::null_mut(), ptr::null_mut());
    let mut read = vec![0; written.len()];
    // SAFETY: pointers are to local variables, handle and memory live until they are given back, and sizes are theirs.
    unsafe {
        check(cuFileDriverOpen())?;
        let mut description = CUfileDescr_t { type_: CU_FILE_HANDLE_TYPE_OPAQUE_FD, ..Default::default() };
        description.handle.fd = file.as_raw_fd();
        check(cuFileHandleRegister(&mut handle, &mut description))?;
        assert_eq!(cudaMalloc(&mut memory, read.len()), cudaSuccess);
        check(cuFileBufRegister(memory, read.len(), 0))?;
        let count = cuFileRead(handle, memory, read.len(), 0, 0);
        assert_eq!(count, read.len() as isize, "{}", CUFILE_ERRSTR(count));
        assert_eq!(
            cudaMemcpy(read.as_mut_ptr().cast(), memory, read.len(), cudaMemcpyDeviceToHost),
            cudaSuccess
        );
        check(cuFileBufDeregister(memory))?;
        assert_eq!(cudaFree(memory), cudaSuccess);
        cuFileHandleDeregister(handle);
        check(cuFileDriverClose())?;
        assert_eq!(cuFileUseCount(), 0);
        let closed_already = cufile_sys::Library::shared()?.cuFileDriverClose();
        assert_eq!(closed_already.err, CU_FILE_DRIVER_NOT_INITIALIZED);
    }
    assert!(read == written);
    Ok(())
}

fn check(status: CUfileError_t) -> Result<(), Box<dyn Error>> {
    if status.err == CU_FILE_SUCCESS { Ok(()) } else { Err(CUFILE_ERRSTR(status.err).into()) }
}

#[test]
fn a_program_of_bare_names_reads_a_file() {
    in_child("a_program_of_bare_names_reads_a_file", &cufile_emulator::library_path(), || {
        let path = env::temp_dir().join(format!("cufile-sys-{}", std::process::id()));
        let outcome = read_as_in_c(&path);
        fs::remove_file(&path).unwrap();
        outcome.unwrap();
        let library = format!("{:?}", cufile_sys::Library::shared().unwrap());
        assert!(library.contains("libcufile_emulator.so"), "{library}");
    });
}

#[test]
fn bare_names_panic_with_the_reason_without_a_library() {
    in_child("bare_names_panic_with_the_reason_without_a_library", Path::new("/nonexistent.so"), || {
        // SAFETY: there is nothing to call.
        let panicked = panic::catch_unwind(|| unsafe { cuFileUseCount() }).unwrap_err();
        let text = panicked.downcast_ref::<String>().unwrap();
        assert!(text.contains("/nonexistent.so") && text.contains("CUFILE_LIBRARY"), "{text}");
        assert_eq!(cufile_sys::Library::shared().unwrap_err().to_string(), *text);
    });
}

#[test]
fn default_structs_are_cleared() {
    let description = CUfileDescr_t::default();
    assert_eq!(description.type_.as_raw(), 0);
    assert!(description.fs_ops.is_null());
    // SAFETY: all bytes are initialised.
    assert!(unsafe { description.handle.handle }.is_null());
    let operations = CUfileFSOps_t::default();
    assert!(operations.read.is_none() && operations.write.is_none());
    assert_eq!(CUfileError_t::default().err, CU_FILE_SUCCESS);
    let statistics = CUfileStatsLevel3_t::default();
    assert_eq!((statistics.num_gpus, statistics.per_gpu_stats[15].reg_bytes), (0, 0));
}

#[test]
fn structs_with_unions_print_their_fields() {
    let description = CUfileDescr_t { type_: CU_FILE_HANDLE_TYPE_OPAQUE_FD, ..Default::default() };
    let text = format!("{description:?}");
    assert!(text.contains("CU_FILE_HANDLE_TYPE_OPAQUE_FD") && text.contains("fs_ops"), "{text}");
    let entry = CUfileIOParams_t { opcode: CUFILE_WRITE, ..Default::default() };
    assert!(format!("{entry:?}").contains("opcode: CUFILE_WRITE"), "{entry:?}");
}
