//! The faults that a function can have.

use cuda_rt_sys::driver::CUresult;
use cuda_rt_sys::runtime::cudaError_t;
use cufile_sys::{CUfileOpError, CUfileStatus_t};

/// The emulator's name for the execution of one batch entry.
pub const BATCH_ENTRY: &str = "batch-entry";

/// A fault in the emulator's words, and the effect that it must have.
pub struct Fault {
    pub settings: String,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Code(i64),
    /// cuFile's code for an error of the CUDA driver, and that error.
    Cuda(i64),
    /// An error without a code.
    Unspecified,
    Failure,
    /// A transfer of this number of bytes.
    Short(usize),
    /// Success, possibly late.
    Nothing,
}

fn fault(settings: impl Into<String>, effect: Effect) -> Fault {
    Fault { settings: settings.into(), effect }
}

fn named<T: std::fmt::Debug>(end: u32, of: fn(u32) -> T) -> impl Iterator<Item = i64> {
    (1..end).filter(move |number| !format!("{:?}", of(*number)).contains('(')).map(i64::from)
}

fn cufile_codes() -> impl Iterator<Item = i64> {
    // The last has no name.
    named(6000, CUfileOpError::from_raw).filter(|code| *code > 5000).chain([5999])
}

fn driver_codes() -> impl Iterator<Item = i64> {
    named(1000, CUresult::from_raw).chain([77_777])
}

fn runtime_codes() -> impl Iterator<Item = i64> {
    named(1000, cudaError_t::from_raw).chain([77_777])
}

const ERRNOS: std::ops::Range<i64> = 1..134;

const EIO: i64 = 5;

pub fn of(function: &str, len: usize) -> Vec<Fault> {
    let mut faults = vec![
        fault("delay_us=1500", Effect::Nothing),
        // This fault ends only with the test.
        fault("hold=1", Effect::Nothing),
    ];
    let lens = [len - 1, len / 2, 0];
    match function {
        // These functions return nothing.
        "cuFileHandleDeregister" | "cuFileBatchIODestroy" => {}
        "cuFileUseCount" => {
            faults.extend([-1, 0].map(|count| fault(format!("ret={count}"), Effect::Nothing)))
        }
        "cuFileRead" | "cuFileWrite" | "cuFileReadv" | "cuFileWritev" => {
            faults.extend(ERRNOS.map(|errno| fault(format!("errno={errno}"), Effect::Code(errno))));
            for code in cufile_codes() {
                faults.push(fault(format!("err={code}"), Effect::Code(code)));
                faults.push(fault(format!("ret=-{code}"), Effect::Code(code)));
            }
            faults.push(fault("ret=-1", Effect::Unspecified));
            faults.push(fault("ret=999999999", Effect::Code(EIO)));
            faults.extend(lens.map(|len| fault(format!("short={len}"), Effect::Short(len))));
        }
        "cuFileReadAsync" | "cuFileWriteAsync" => {
            faults.extend(statuses());
            faults.extend(completions());
            faults.extend(lens.map(|len| fault(format!("short={len}"), Effect::Short(len))));
        }
        BATCH_ENTRY => {
            faults.extend(completions());
            faults.extend(lens.map(|len| fault(format!("short={len}"), Effect::Short(len))));
            // These statuses mean that the entry is in flight. The emulator would never report its end.
            let over = [
                CUfileStatus_t::CUFILE_INVALID,
                CUfileStatus_t::CUFILE_CANCELED,
                CUfileStatus_t::CUFILE_TIMEOUT,
                CUfileStatus_t::CUFILE_FAILED,
                CUfileStatus_t::from_raw(1 << 20),
            ];
            faults.extend(over.map(|status| fault(format!("status={}", status.as_raw()), Effect::Failure)));
        }
        // The emulator returns 5030 even without a fault.
        "cuFileExportPCIeTopology" => {
            faults.extend(statuses().filter(|fault| fault.effect != Effect::Code(5030)));
        }
        _ if function.starts_with("cuFile") => faults.extend(statuses()),
        _ if is_of_the_runtime(function) => {
            faults.extend(runtime_codes().map(|code| fault(format!("err={code}"), code_of(function, code))));
        }
        _ => faults.extend(driver_codes().map(|code| fault(format!("err={code}"), Effect::Code(code)))),
    }
    faults
}

fn statuses() -> impl Iterator<Item = Fault> {
    let codes = cufile_codes().map(|code| fault(format!("err={code}"), Effect::Code(code)));
    let cuda = driver_codes().map(|code| fault(format!("cu={code}"), Effect::Cuda(code)));
    // Some versions return the negative of a code.
    codes.chain(cuda).chain([fault("err=-5022", Effect::Code(5022))])
}

fn completions() -> impl Iterator<Item = Fault> {
    let numbers = ERRNOS.chain(cufile_codes());
    let failures = numbers.map(|number| {
        let effect = if number == 1 { Effect::Unspecified } else { Effect::Code(number) };
        fault(format!("bytes=-{number}"), effect)
    });
    failures.chain([fault("bytes=999999999", Effect::Code(EIO))])
}

fn is_of_the_runtime(function: &str) -> bool {
    cuda_rt_sys::runtime::Functions::SYMBOLS.iter().any(|symbol| symbol.name == function)
}

fn code_of(function: &str, code: i64) -> Effect {
    let not_ready = i64::from(cudaError_t::cudaErrorNotReady.as_raw());
    let already = i64::from(cudaError_t::cudaErrorPeerAccessAlreadyEnabled.as_raw());
    match function {
        // This is an answer, not an error.
        "cudaStreamQuery" | "cudaEventQuery" if code == not_ready => Effect::Nothing,
        "cudaDeviceEnablePeerAccess" if code == already => Effect::Nothing,
        _ => Effect::Code(code),
    }
}

/// Returns at most `count` faults, other ones for other functions and calls.
pub fn some<'a>(
    faults: &'a [Fault],
    count: usize,
    function: &str,
    after: u64,
) -> impl Iterator<Item = &'a Fault> {
    let count = count.min(faults.len());
    let start = function.bytes().fold(after as usize * 37, |sum, byte| sum * 31 % 99_991 + usize::from(byte));
    (0..count).map(move |turn| &faults[(start + turn * faults.len() / count) % faults.len()])
}
