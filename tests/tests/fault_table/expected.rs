//! The outcomes that a fault may have.

use std::error::Error as _;

use super::Problem;
use super::faults::{BATCH_ENTRY, Effect};

pub const KINDS: [&str; 15] = [
    "allocations",
    "device-bytes",
    "pinned-bytes",
    "host-registrations",
    "reservations",
    "physical",
    "streams",
    "events",
    "modules",
    "contexts",
    "handles",
    "buffers",
    "batches",
    "stream-registrations",
    "use-count",
];

/// Calls whose failure need not be reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    Never,
    Sometimes,
    Always,
}

/// Functions with unreported failures, and the reason.
const SILENT: &[(&str, Silence, &str)] = &[
    ("cudaThreadExchangeStreamCaptureMode", Silence::Always, "what it is for fails if that matters"),
    ("cuCtxPopCurrent_v2", Silence::Always, "dropping a guard tells nobody"),
    ("cuDevicePrimaryCtxRelease_v2", Silence::Always, "dropping a device tells nobody"),
    ("cudaGetLastError", Silence::Always, "it only clears an error that is none"),
    ("cudaStreamDestroy", Silence::Always, "dropping a stream tells nobody"),
    ("cudaEventDestroy", Silence::Always, "dropping an event tells nobody"),
    ("cuModuleUnload", Silence::Always, "dropping a module tells nobody"),
    ("cudaFree", Silence::Sometimes, "dropping a buffer tells nobody"),
    ("cudaFreeHost", Silence::Always, "dropping a buffer tells nobody"),
    ("cudaHostRegister", Silence::Always, "cudaHostAlloc allocates the buffer instead"),
    ("cudaHostUnregister", Silence::Always, "dropping a buffer tells nobody"),
    ("cuMemUnmap", Silence::Sometimes, "dropping a buffer tells nobody"),
    ("cuMemAddressFree", Silence::Sometimes, "dropping a buffer tells nobody"),
    ("cudaDriverGetVersion", Silence::Always, "then no libcudart is taken for too new"),
    ("cudaRuntimeGetVersion", Silence::Always, "then the functions of no version in particular are used"),
    ("cuPointerGetAttribute", Silence::Always, "then the memory counts as still allocated"),
    ("cudaPointerGetAttributes", Silence::Always, "it only explains an error"),
    ("cuMemGetAddressRange_v2", Silence::Always, "it only explains an error"),
    ("cuFileBatchIOCancel", Silence::Always, "the entries are waited for instead"),
    ("cuCtxGetCurrent", Silence::Sometimes, "what a drop needs it for is kept"),
    ("cuCtxPushCurrent_v2", Silence::Sometimes, "what a drop needs it for is kept"),
    ("cudaDeviceSynchronize", Silence::Sometimes, "dropping mapped memory tells nobody"),
    ("cudaMalloc", Silence::Sometimes, "dropping mapped memory waits in another way"),
    ("cudaStreamIsCapturing", Silence::Sometimes, "dropping a stream waits for it then"),
    ("cudaStreamQuery", Silence::Sometimes, "dropping a registered stream deregisters it then"),
    ("cudaStreamSynchronize", Silence::Sometimes, "dropping a stream tells nobody"),
    ("cudaEventRecord", Silence::Sometimes, "a transfer without an event is waited for by its stream"),
    ("cuDeviceGetAttribute", Silence::Sometimes, "drivers that do not know RDMA do not have it"),
    ("cuFileBufDeregister", Silence::Sometimes, "dropping a registered buffer keeps it"),
    ("cuFileStreamDeregister", Silence::Sometimes, "dropping a registered stream keeps it"),
    (
        "cuFileBatchIOGetStatus",
        Silence::Sometimes,
        "a batch that is cancelled is asked only for what it has done",
    ),
    ("batch-entry", Silence::Sometimes, "what becomes of cancelled entries is not reported"),
    (
        "cuFileGetParameterString",
        Silence::Sometimes,
        "the code for a buffer too short, so a longer one is tried",
    ),
    ("cuFileGetParameterPosixPoolSlabArray", Silence::Sometimes, "a longer buffer is tried"),
    ("cuFileGetParameterGpuBounceBufferSlabArray", Silence::Sometimes, "a longer buffer is tried"),
];

fn silence(function: &str) -> Silence {
    SILENT.iter().find(|(name, ..)| *name == function).map_or(Silence::Never, |(_, silence, _)| *silence)
}

/// Checks that the table lists each function whose failure is never reported.
pub fn check_reports(function: &str, reported: usize, silent: usize) -> Result<(), String> {
    let right = match silence(function) {
        Silence::Never => silent == 0,
        Silence::Sometimes => reported > 0,
        Silence::Always => reported == 0 && silent > 0,
    };
    if right {
        Ok(())
    } else {
        Err(format!("{function}: {reported} failures are reported, {silent} are not"))
    }
}

const MEMORY: &[&str] =
    &["allocations", "device-bytes", "pinned-bytes", "host-registrations", "reservations", "physical"];

const TRANSFER: &[&str] = &[
    "allocations",
    "device-bytes",
    "handles",
    "descriptors",
    "events",
    "streams",
    "stream-registrations",
    "batches",
    "buffers",
];

/// Functions whose failure leaves a resource that cannot be given back, or that libcufile may still use.
const LEFT: &[(&str, &[&str])] = &[
    ("cudaStreamDestroy", &["streams"]),
    ("cudaEventDestroy", &["events"]),
    ("cuModuleUnload", &["modules"]),
    ("cudaFree", MEMORY),
    ("cudaFreeHost", MEMORY),
    ("cudaHostUnregister", MEMORY),
    ("cuMemUnmap", MEMORY),
    ("cuMemRelease", MEMORY),
    ("cuMemAddressFree", &["reservations"]),
    ("cuDevicePrimaryCtxRelease_v2", &["contexts"]),
    ("cuCtxGetCurrent", TRANSFER),
    ("cuCtxGetCurrent", MEMORY),
    ("cuCtxGetCurrent", &["modules"]),
    ("cuCtxPushCurrent_v2", TRANSFER),
    ("cuCtxPushCurrent_v2", MEMORY),
    ("cuCtxPushCurrent_v2", &["modules"]),
    ("cudaDeviceSynchronize", MEMORY),
    ("cudaEventSynchronize", TRANSFER),
    ("cudaStreamSynchronize", TRANSFER),
    ("cuFileBufDeregister", &["buffers", "allocations", "device-bytes"]),
    ("cuFileStreamDeregister", &["streams", "stream-registrations"]),
];

pub fn may_be_left(function: &str, kind: &str) -> bool {
    LEFT.iter().any(|(name, kinds)| *name == function && kinds.contains(&kind))
}

pub fn judge(
    scenario: &str,
    function: &str,
    effect: &Effect,
    outcome: &Result<(), Problem>,
) -> Result<(), String> {
    match (effect, outcome) {
        (_, Err(Problem::Wrong(what))) => Err(format!("{what} is wrong")),
        (Effect::Nothing, Ok(())) => Ok(()),
        (Effect::Short(wanted), Err(Problem::Short(bytes))) if wanted == bytes => Ok(()),
        (_, Ok(())) if silence(function) != Silence::Never => Ok(()),
        (_, Ok(())) if scenario.starts_with("engine") => Ok(()),
        (_, Ok(())) => Err("is not reported".to_owned()),
        (Effect::Code(code), Err(problem)) => names(function, &[*code], problem),
        (Effect::Cuda(code), Err(problem)) => names(function, &[5011, *code], problem),
        (Effect::Unspecified, Err(problem)) => names(function, &[], problem),
        (Effect::Failure, Err(Problem::Cufile(_) | Problem::Engine(_))) => Ok(()),
        (Effect::Short(_), Err(Problem::Engine(_))) => Ok(()),
        (Effect::Nothing | Effect::Short(_) | Effect::Failure, Err(problem)) => {
            Err(format!("comes out as {problem:?}"))
        }
    }
}

fn names(function: &str, codes: &[i64], problem: &Problem) -> Result<(), String> {
    if let (Problem::Cufile(cufile::Error::NoDevice), "cuInit", [100]) = (problem, function, codes) {
        return Ok(());
    }
    let text = match problem {
        Problem::Cufile(error) => {
            if let [code, ..] = codes
                && error.raw_code().map(i64::from) != Some(*code)
            {
                return Err(format!("has the code {:?}: {error}", error.raw_code()));
            }
            error.to_string()
        }
        Problem::Engine(error) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(error) = source {
                text = format!("{text}: {error}");
                source = error.source();
            }
            text
        }
        other => return Err(format!("comes out as {other:?}")),
    };
    let name = match function {
        BATCH_ENTRY => "cuFileBatchIO",
        _ => function.trim_end_matches("_v2"),
    };
    match text.contains(name) && codes.iter().all(|code| text.contains(&code.to_string())) {
        true => Ok(()),
        false => Err(format!("is not named by {text:?}")),
    }
}
