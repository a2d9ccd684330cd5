//! Memory of Python objects: the one place that turns an object into an address, a length and a GPU.
//!
//! An object offers its memory by the buffer protocol, by `__dlpack__`, by `__cuda_array_interface__` or by
//! `__array_interface__`, in this order of preference. `known` asks for them, for buffers of a list first as the one before.
//! `export` has the exports of the first, `dlpack` reads the capsules of the second, which `exchange` has from classes in C,
//! `array_interface` the dictionaries of the others. `registered` has the memory that cuFile knows, and `huge_pages` prepares
//! memory of the host. `parts` offers parts of memory to others, and `host_copies`
//! copies memory of the host.

mod array_interface;
mod dlpack;
mod exchange;
mod export;
mod host_copies;
mod huge_pages;
mod known;
mod parts;
mod registered;

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cufile::cuda::sys::driver::{CUcontext, CUpointer_attribute};
use cufile::cuda::sys::runtime::{cudaMemoryType, cudaPointerAttributes, cudaStream_t};
use cufile::cuda::{Context, Device, Stream};
use gpufile::{Engine, Error, IoBuf, IoBufMut, Location};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::{cuda_exception, exception};
use crate::interrupts::{self, BETWEEN_SIGNALS};
use crate::lost_pages::page_bytes;
use crate::release::Reference;

use export::Export;
pub use export::{Integers, integers_of};
pub use host_copies::{HostCopy, copy_all};
pub use huge_pages::prefer_huge_pages;
pub use known::Known;
use known::{Allocation, Offer};
pub use parts::dlpack_parts;
use registered::Registration;
pub use registered::{deregister, register};

/// Contiguous memory of a Python object, or of several that follow each other, on the host or on a GPU. It keeps the objects'
/// memory allocated.
///
/// While a transfer uses the memory, the Python program must leave the bytes alone. Python cannot enforce that.
pub struct Memory {
    address: usize,
    len_bytes: usize,
    place: Place,
    /// The stream with work that writes to the memory, if the object names one.
    stream: Option<usize>,
    registration: Option<Arc<Registration>>,
    _owner: Owner,
    /// Objects that must live as long, such as the stream of a transfer, and the owners of what was joined.
    kept: Vec<Held>,
}

#[derive(Clone)]
enum Place {
    Host,
    Device { device: Device, context: Context },
}

enum Owner {
    /// A buffer export, which also forbids the object to move its memory.
    Buffer { _export: Export },
    /// The object or its capsule.
    Object { _object: Held },
}

struct Held(Option<Py<PyAny>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.take().map(Reference::Object).into_iter().for_each(Reference::release);
    }
}

/// The reason why memory, or a transfer with it, was refused. It becomes an exception where Python's lock is held.
enum Refused {
    Gpufile(Error),
    Python(PyErr),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Gpufile(error)
    }
}

impl Refused {
    fn exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Gpufile(error) => exception(py, &error),
            Self::Python(error) => error,
        }
    }
}

fn offered<'py>(known: &mut Known<'py>, object: &Bound<'py, PyAny>, access: Access) -> PyResult<Offer> {
    known.offer(object, access)?.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{} has no memory: expected a buffer, or an object with __dlpack__, __cuda_array_interface__ or __array_interface__",
            type_name(object)
        ))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The transfer reads the memory, and writes it to a file.
    Read,
    /// The transfer reads a file, and writes to the memory.
    Write,
}

/// The memory that an object says it has, before this module has checked the address.
struct Claimed {
    address: usize,
    len_bytes: usize,
    is_on_gpu: bool,
    stream: Option<usize>,
}

impl Memory {
    /// Returns the memory of an object.
    ///
    /// # Errors
    /// `TypeError` for an object without memory, `ValueError` for memory that is not contiguous, or is read-only
    /// though a transfer shall write to it, `BufferError` for memory of other devices than CUDA's, and the error of
    /// CUDA.
    pub fn of(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        Self::beside(&mut Known::default(), object, access)
    }

    /// Returns the memory of an object of a list. Its allocation may be that of an object before it, whose memory the caller
    /// still has.
    pub fn beside<'py>(known: &mut Known<'py>, object: &Bound<'py, PyAny>, access: Access) -> PyResult<Self> {
        match offered(known, object, access)? {
            Offer::Export(export) => Self::of_export(export, access),
            Offer::Claim(claimed, owner) => Self::new(claimed, Held(Some(owner)), &mut known.allocation)
                .map_err(|refused| refused.exception(object.py())),
        }
    }

    /// Reads into the memory of an object on a thread other than the main one. Lets other threads run before it asks
    /// CUDA about the memory, because such calls wait for the threads that submit copies to a busy GPU.
    pub fn read_beside(
        object: &Bound<'_, PyAny>,
        len_bytes: usize,
        read: impl Send + FnOnce(&mut Self) -> gpufile::Result<()>,
    ) -> PyResult<()> {
        let py = object.py();
        let (claimed, owner) = match offered(&mut Known::default(), object, Access::Write)? {
            Offer::Export(export) => {
                let mut memory = Self::of_export(export, Access::Write)?.part(0, Some(len_bytes))?;
                return py.detach(|| read(&mut memory)).map_err(|error| exception(py, &error));
            }
            Offer::Claim(claimed, owner) => (claimed, Held(Some(owner))),
        };
        let read = || {
            let mut memory =
                Self::new(claimed, owner, &mut None)?.part(0, Some(len_bytes)).map_err(Refused::Python)?;
            if let Some(stream) = memory.named_stream() {
                stream.synchronize().map_err(Error::from)?;
            }
            // Its owner is released when Python is back.
            Ok(read(&mut memory).map(|()| memory)?)
        };
        py.detach(read).map(drop).map_err(|refused: Refused| refused.exception(py))
    }

    fn of_export(export: Export, access: Access) -> PyResult<Self> {
        if access == Access::Write && export.is_read_only() {
            return Err(read_only());
        }
        if export.has_objects() {
            return Err(objects());
        }
        if !export.is_contiguous() {
            return Err(not_contiguous());
        }
        Ok(Self {
            address: export.address(),
            len_bytes: export.len_bytes(),
            place: Place::Host,
            stream: None,
            registration: None,
            _owner: Owner::Buffer { _export: export },
            kept: Vec::new(),
        })
    }

    /// Checks what an object claims. Needs no lock of Python.
    fn new(claimed: Claimed, owner: Held, known: &mut Option<Allocation>) -> Result<Self, Refused> {
        let Claimed { address, len_bytes, is_on_gpu, stream } = claimed;
        let place = match (is_on_gpu, len_bytes, &*known) {
            // Arrays of no elements have any address, often null.
            (_, 0, _) => Place::Host,
            (true, _, Some(known)) if known.has(address, len_bytes) => known.place.clone(),
            _ => {
                let place = if is_on_gpu { Place::of(address)? } else { Place::Host };
                let Some(addresses) = place.allocated(address, len_bytes) else {
                    return Err(Refused::Python(PyValueError::new_err(format!(
                        "the array claims {len_bytes} bytes at {address:#x}, but the memory there is shorter"
                    ))));
                };
                *known = is_on_gpu.then(|| Allocation { place: place.clone(), addresses });
                place
            }
        };
        let registration = match &place {
            Place::Host => None,
            Place::Device { .. } => registered::covering(address, len_bytes),
        };
        Ok(Self {
            address,
            len_bytes,
            place,
            stream,
            registration,
            _owner: Owner::Object { _object: owner },
            kept: Vec::new(),
        })
    }

    /// Returns the memory from `offset_bytes` on: `len_bytes` of it, or the rest.
    pub fn part(self, offset_bytes: usize, len_bytes: Option<usize>) -> PyResult<Self> {
        let rest = self.len_bytes.checked_sub(offset_bytes);
        let part = rest.and_then(|rest| Some(len_bytes.unwrap_or(rest)).filter(|len| *len <= rest));
        let Some(part) = part else {
            let asked = len_bytes.map_or_else(|| "the bytes".to_owned(), |len| format!("{len} bytes"));
            return Err(PyValueError::new_err(format!(
                "{asked} from byte {offset_bytes} exceed the buffer of {} bytes",
                self.len_bytes
            )));
        };
        Ok(Self { address: self.address + offset_bytes, len_bytes: part, ..self })
    }

    /// Returns the GPU of the memory. `None` for memory of the host.
    pub fn device(&self) -> Option<&Device> {
        match &self.place {
            Place::Host => None,
            Place::Device { device, .. } => Some(device),
        }
    }

    fn named_stream(&self) -> Option<Stream> {
        let (device, stream) = (self.device()?, self.stream?);
        let raw: cudaStream_t = std::ptr::without_provenance_mut(stream);
        // SAFETY: the object named this stream for those that use its memory, and the caller holds the object. CUDA
        // accepts its reserved handles here.
        Some(unsafe { Stream::from_raw(device, raw) })
    }

    pub fn keep(&mut self, object: Py<PyAny>) {
        self.kept.push(Held(Some(object)));
    }

    /// Appends the memory of the next object of a list, if it begins where this one ends and both lie in one allocation, so that
    /// one copy fills both. Returns it if not.
    pub fn join(&mut self, next: Self, known: &Known<'_>) -> Option<Self> {
        let joined = self.len_bytes.saturating_add(next.len_bytes);
        let is_one = matches!(self.place, Place::Device { .. })
            && self.address.checked_add(self.len_bytes) == Some(next.address)
            && known.allocation.as_ref().is_some_and(|known| known.has(self.address, joined))
            && self.stream == next.stream
            && self.registration.is_none()
            && next.registration.is_none();
        match next {
            Self { _owner: Owner::Object { _object: owner }, place: Place::Device { .. }, kept, .. }
                if is_one =>
            {
                self.len_bytes = joined;
                self.kept.push(owner);
                self.kept.extend(kept);
                None
            }
            next => Some(next),
        }
    }
}

/// Waits until the streams that objects named for their memory have done their work so far.
///
/// The calling thread waits itself, because the null stream of a thread is another stream on each. The main thread looks
/// at the stream again and again, and for signals.
///
/// # Errors
/// CUDA's error, which may be the failure of earlier work; the exception of a signal's handler.
pub fn wait_for_streams<'a>(py: Python<'_>, memories: impl IntoIterator<Item = &'a Memory>) -> PyResult<()> {
    let mut last = None;
    for memory in memories {
        let Some(stream) = memory.named_stream() else { continue };
        let this = memory.device().map(|device| (device.ordinal(), memory.stream));
        if this == last {
            continue;
        }
        last = this;
        // Most streams are idle. A thread that lets others run waits for its next turn.
        if stream.is_idle().map_err(|error| cuda_exception(py, error))? {
            continue;
        }
        match interrupts::is_main_thread(py) {
            true => wait_by_looking(py, &stream)?,
            false => py.detach(|| stream.synchronize()).map_err(|error| cuda_exception(py, error))?,
        }
    }
    Ok(())
}

/// Waits for a stream. A signal whose handler raises ends the wait.
fn wait_by_looking(py: Python<'_>, stream: &Stream) -> PyResult<()> {
    /// The first and the longest time between two polls of the stream.
    const SHORTEST: Duration = Duration::from_micros(10);
    const LONGEST: Duration = Duration::from_millis(1);
    loop {
        let look = || {
            let (start, mut pause) = (Instant::now(), SHORTEST);
            while !stream.is_idle()? {
                if start.elapsed() > BETWEEN_SIGNALS {
                    return Ok(false);
                }
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
            Ok(true)
        };
        if py.detach(look).map_err(|error| cuda_exception(py, error))? {
            return Ok(());
        }
        py.check_signals()?;
    }
}

impl Place {
    /// Returns the addresses of the allocation that has the bytes that an object claims. `None` if not all of them are
    /// allocated. For the host, looks at the first and the last only.
    fn allocated(&self, address: usize, len_bytes: usize) -> Option<Range<usize>> {
        let end = address.checked_add(len_bytes).filter(|_| isize::try_from(len_bytes).is_ok())?;
        let Self::Device { device, .. } = self else {
            let is_short = address / page_bytes() == (end - 1) / page_bytes();
            return (is_mapped(address) && (is_short || is_mapped(end - 1))).then_some(address..end);
        };
        // CUDA knows no allocation of memory of pools.
        let Some(mut all) = registered::allocation(device, address) else { return Some(address..end) };
        // Memory that was mapped by parts has several, which follow each other.
        while all.end < end {
            let next = registered::allocation(device, all.end).filter(|next| next.end > all.end)?;
            all.end = next.end;
        }
        Some(all)
    }

    /// Finds the place of an address that an object declares as memory of a GPU.
    fn of(address: usize) -> Result<Self, Refused> {
        let cuda = Engine::global().cuda()?;
        // Initialises CUDA, and fails in a forked child.
        cuda.device_count().map_err(Error::from)?;
        let pointer: *const c_void = std::ptr::without_provenance(address);
        // SAFETY: zeros are valid for a structure of integers and pointers.
        let mut attributes: cudaPointerAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: `attributes` outlives the call, which does not use the memory.
        let result = unsafe { (cuda.runtime().cudaPointerGetAttributes)(&mut attributes, pointer) };
        let kind = attributes.type_;
        match (result.0, kind) {
            (0, cudaMemoryType::cudaMemoryTypeHost) => return Ok(Self::Host),
            (0, cudaMemoryType::cudaMemoryTypeDevice | cudaMemoryType::cudaMemoryTypeManaged) => {}
            _ => {
                return Err(Refused::Python(PyBufferError::new_err(format!(
                    "this process has no CUDA memory at the address {address:#x}"
                ))));
            }
        }
        let device = cuda.device(attributes.device.unsigned_abs()).map_err(Error::from)?;
        let mut raw: CUcontext = std::ptr::null_mut();
        // SAFETY: `raw` outlives the call, which writes a context there. It fails without effect for memory of pools,
        // which belongs to no context.
        unsafe {
            (cuda.driver().cuPointerGetAttribute)(
                (&raw mut raw).cast(),
                CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
                address as u64,
            )
        };
        let primary = device.context();
        let context = match raw.is_null() || raw == primary.as_raw() {
            true => primary,
            // SAFETY: CUDA named the context of this memory. It lives as long as the memory.
            false => unsafe { Context::from_raw(raw) },
        };
        Ok(Self::Device { device, context })
    }
}

fn is_mapped(address: usize) -> bool {
    let page = std::ptr::without_provenance_mut(address - address % page_bytes());
    let mut residency = 0;
    // SAFETY: `residency` outlives the call, which writes one byte for one page. The call uses no memory at the address.
    unsafe { libc::mincore(page, 1, &mut residency) == 0 }
}

// SAFETY: the owner, and the owners of what was joined, keep the memory allocated, at one address, until the value is dropped.
// `Place::of` asked CUDA for the kind of memory and its context, for this memory or for another part of its allocation; `join`
// leaves no allocation. A registration covers the memory, and lives as long as the value. Python cannot keep other threads from
// the bytes; the docs of the package leave that to its users.
unsafe impl IoBuf for Memory {
    fn as_ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.address)
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn location(&self) -> Location {
        let location = match &self.place {
            Place::Host => Location::HOST,
            Place::Device { context, .. } => Location::device(*context),
        };
        let registration = self.registration.as_ref();
        Location {
            is_registered: registration.is_some(),
            base_offset: registration.map_or(0, |registration| registration.offset_of(self.address)),
            ..location
        }
    }
}

// SAFETY: `Memory::of` refused memory that is read-only, where a transfer writes to it.
unsafe impl IoBufMut for Memory {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

/// Returns the length of a buffer in bytes, and its GPU. None stands for the host.
///
/// Raises what a transfer from the buffer would raise, or a transfer into it if ``writable`` is true.
#[pyfunction]
#[pyo3(signature = (buffer, writable = false))]
pub fn memory_of(buffer: &Bound<'_, PyAny>, writable: bool) -> PyResult<(usize, Option<u32>)> {
    let memory = Memory::of(buffer, if writable { Access::Write } else { Access::Read })?;
    Ok((memory.len_bytes(), memory.device().map(Device::ordinal)))
}

/// Returns the number of bytes of an array, if its elements lie without gaps in C's order. In another order, the bytes in
/// the file would be another array.
fn contiguous_bytes(shape: &[usize], strides: Option<&[isize]>, item_bytes: usize) -> PyResult<usize> {
    let len_bytes = shape.iter().try_fold(item_bytes, |bytes, extent| bytes.checked_mul(*extent));
    let len_bytes = len_bytes.ok_or_else(|| PyValueError::new_err("the shape of the array is too large"))?;
    let Some(strides) = strides else { return Ok(len_bytes) };
    if strides.len() != shape.len() {
        return Err(PyValueError::new_err("the array has a different number of strides than dimensions"));
    }
    let dimensions = || shape.iter().copied().zip(strides.iter().copied());
    match len_bytes == 0 || is_dense(dimensions().rev(), item_bytes) {
        true => Ok(len_bytes),
        false => Err(not_contiguous()),
    }
}

/// Returns whether elements lie without gaps. The dimensions have extents and strides in bytes, the fastest first.
fn is_dense(mut dimensions: impl Iterator<Item = (usize, isize)>, item_bytes: usize) -> bool {
    let mut expected = item_bytes;
    dimensions.all(|(extent, stride)| {
        let fits = extent == 1 || usize::try_from(stride) == Ok(expected);
        expected *= extent;
        fits
    })
}

fn not_contiguous() -> PyErr {
    PyValueError::new_err("the array is not contiguous in C's order: pass a contiguous copy")
}

fn read_only() -> PyErr {
    PyValueError::new_err("the memory is read-only, so a file cannot be read into it")
}

fn objects() -> PyErr {
    PyValueError::new_err("the elements are references to Python objects, which a file cannot store")
}

pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().qualname().map(|name| name.to_string());
    name.unwrap_or_else(|_| "the object".to_owned())
}
