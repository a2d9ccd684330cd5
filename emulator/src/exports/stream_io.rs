//! Stream-ordered reading and writing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

use cufile_sys::{
    CU_FILE_STREAM_FIXED_BUF_OFFSET, CU_FILE_STREAM_FIXED_FILE_OFFSET, CU_FILE_STREAM_FIXED_FILE_SIZE,
    CU_FILE_STREAM_PAGE_ALIGNED_INPUTS, CUfileError_t, CUfileHandle_t, CUstream, off_t,
};

use super::io::{BEYOND, Request};
use super::{driver, handle, stats};
use crate::c::{self, Carried};
use crate::control::{Hit, lock};
use crate::memory::{self, Kind};
use crate::status::{self, INVALID, cuda_failed};
use crate::stream::{self, Stream};
use crate::trace;

/// Flags by handle: cuFile distinguishes streams by handle alone, so the null streams of all devices are one.
static REGISTERED: Mutex<BTreeMap<usize, c_uint>> = Mutex::new(BTreeMap::new());

pub(crate) fn live_stream_registrations() -> usize {
    lock(&REGISTERED).len()
}

fn find(stream: CUstream) -> Result<Arc<Stream>, CUfileError_t> {
    stream::find(stream.addr()).map_err(cuda_failed)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileStreamRegister(stream: CUstream, flags: c_uint) -> CUfileError_t {
    trace::call("cuFileStreamRegister", |names| {
        format!("{} flags={flags}", names.of("stream", stream.addr()))
    });
    status::call("cuFileStreamRegister", || {
        driver::open_for_use()?;
        find(stream)?.wait();
        match lock(&REGISTERED).entry(stream.addr()) {
            Entry::Occupied(_) => Err(INVALID),
            Entry::Vacant(entry) => {
                entry.insert(flags);
                Ok(())
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileStreamDeregister(stream: CUstream) -> CUfileError_t {
    trace::call("cuFileStreamDeregister", |names| names.of("stream", stream.addr()));
    status::call("cuFileStreamDeregister", || {
        find(stream)?.wait();
        lock(&REGISTERED).remove(&stream.addr()).map(drop).ok_or(INVALID)
    })
}

/// An argument that is read at submission if the stream's flags fix it, otherwise when the transfer runs.
#[derive(Clone, Copy)]
enum Argument<T> {
    Fixed(T),
    Late(Carried<*const T>),
}

impl<T: Copy> Argument<T> {
    fn new(pointer: *const T, fixed: bool) -> Result<Self, CUfileError_t> {
        let now = c::get(pointer).ok_or(INVALID)?;
        Ok(if fixed { Self::Fixed(now) } else { Self::Late(Carried(pointer)) })
    }

    fn value(&self) -> Option<T> {
        match self {
            Self::Fixed(value) => Some(*value),
            Self::Late(pointer) => c::get(pointer.get()),
        }
    }
}

struct Operation {
    handle: CUfileHandle_t,
    base: *mut c_void,
    size: *const usize,
    file_offset: *const off_t,
    buffer_offset: *const off_t,
    bytes: *mut isize,
    write: bool,
}

impl Operation {
    fn trace(&self, function: &str, stream: CUstream) {
        trace::call(function, |names| {
            let number = |value: Option<i64>| value.map_or("null".to_owned(), |value| value.to_string());
            format!(
                "{} {} size={} file_offset={} buffer_offset={} {}",
                names.of("file", self.handle.addr()),
                names.memory(self.base.addr()),
                number(c::get(self.size).map(|size| size as i64)),
                number(c::get(self.file_offset)),
                number(c::get(self.buffer_offset)),
                names.of("stream", stream.addr())
            )
        });
    }
}

fn failure(code: c_int) -> isize {
    match code {
        BEYOND => -5016,
        libc::EINVAL => -22,
        5001.. => -(code as isize),
        _ => -1,
    }
}

fn perform(request: Request, hit: Hit) -> isize {
    let _transfer = status::Transfer::begin();
    hit.sleep();
    if let Some(bytes) = hit.bytes {
        return bytes as isize;
    }
    let moved = request.perform(hit.limit(usize::MAX));
    stats::count(
        |basic| if request.write { &mut basic.write_ops } else { &mut basic.read_ops },
        moved.is_ok(),
    );
    moved.map_or_else(failure, |bytes| bytes as isize)
}

fn submit(operation: Operation, stream: CUstream, hit: Hit) -> Result<(), CUfileError_t> {
    driver::open_for_use()?;
    let flags = lock(&REGISTERED).get(&stream.addr()).copied().unwrap_or(0);
    let stream = find(stream)?;
    let size = Argument::new(operation.size, flags & CU_FILE_STREAM_FIXED_FILE_SIZE != 0)?;
    let file_offset = Argument::new(operation.file_offset, flags & CU_FILE_STREAM_FIXED_FILE_OFFSET != 0)?;
    let buffer_offset = Argument::new(operation.buffer_offset, flags & CU_FILE_STREAM_FIXED_BUF_OFFSET != 0)?;
    c::get(operation.bytes).ok_or(INVALID)?;
    if operation.handle.is_null() || operation.base.is_null() {
        c::put(operation.bytes, -22);
        return Err(INVALID);
    }
    if flags & CU_FILE_STREAM_PAGE_ALIGNED_INPUTS != 0 && !operation.base.addr().is_multiple_of(4096) {
        return Err(INVALID);
    }
    let _submission = stream.begin_submission();
    // Memory of the host needs no preparation.
    if memory::find(operation.base.addr()).is_some_and(|found| found.kind == Kind::Device) {
        stream.prepare();
    }
    let (file, base) = (Carried(operation.handle), Carried(operation.base));
    let bytes = Carried(operation.bytes);
    let write = operation.write;
    stream.push(move || {
        let arguments = (size.value(), file_offset.value(), buffer_offset.value());
        let (Some(size), Some(file_offset), Some(buffer_offset)) = arguments else { return };
        // libcufile takes memory that is not registered to be as long as the transfer.
        if buffer_offset != 0 && handle::registered_length(base.get().addr()).is_none() {
            c::put(bytes.get(), -5);
            return;
        }
        let request =
            Request { handle: file.get(), base: base.get(), size, file_offset, buffer_offset, write };
        c::put(bytes.get(), perform(request, hit));
    });
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileReadAsync(
    fh: CUfileHandle_t,
    bufPtr_base: *mut c_void,
    size_p: *mut usize,
    file_offset_p: *mut off_t,
    bufPtr_offset_p: *mut off_t,
    bytes_read_p: *mut isize,
    stream: CUstream,
) -> CUfileError_t {
    let operation = Operation {
        handle: fh,
        base: bufPtr_base,
        size: size_p,
        file_offset: file_offset_p,
        buffer_offset: bufPtr_offset_p,
        bytes: bytes_read_p,
        write: false,
    };
    operation.trace("cuFileReadAsync", stream);
    status::queued("cuFileReadAsync", |hit| submit(operation, stream, hit))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileWriteAsync(
    fh: CUfileHandle_t,
    bufPtr_base: *mut c_void,
    size_p: *mut usize,
    file_offset_p: *mut off_t,
    bufPtr_offset_p: *mut off_t,
    bytes_written_p: *mut isize,
    stream: CUstream,
) -> CUfileError_t {
    let operation = Operation {
        handle: fh,
        base: bufPtr_base,
        size: size_p,
        file_offset: file_offset_p,
        buffer_offset: bufPtr_offset_p,
        bytes: bytes_written_p,
        write: true,
    };
    operation.trace("cuFileWriteAsync", stream);
    status::queued("cuFileWriteAsync", |hit| submit(operation, stream, hit))
}

declared! {
    cufile_sys::Functions:
    cuFileStreamRegister cuFileStreamDeregister cuFileReadAsync cuFileWriteAsync
}
