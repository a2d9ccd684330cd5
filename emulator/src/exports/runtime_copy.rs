//! libcudart: copies and fills.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cuda_rt_sys::runtime::{
    cudaError_t, cudaMemcpy3DParms, cudaMemcpyAttributes, cudaMemcpyKind, cudaPitchedPtr, cudaPos,
    cudaStream_t,
};

use super::runtime::{INVALID, call, find_stream, queued};
use crate::c;
use crate::control::{self, Hit};
use crate::device;
use crate::memory::{self, Kind, Place};

#[derive(Clone, Copy)]
struct Strides {
    row: usize,
    layer: usize,
}

/// 1-dimensional copies have one row, 2-dimensional ones one layer.
#[derive(Clone, Copy)]
struct Extent {
    width: usize,
    rows: usize,
    layers: usize,
}

impl Extent {
    fn span(&self, strides: Strides) -> Option<usize> {
        let rows = (self.rows - 1).checked_mul(strides.row)?;
        let layers = (self.layers - 1).checked_mul(strides.layer)?;
        rows.checked_add(layers)?.checked_add(self.width)
    }
}

pub(super) struct Copy {
    to: Place,
    from: Place,
    extent: Extent,
    to_strides: Strides,
    from_strides: Strides,
}

struct Side {
    address: *mut c_void,
    strides: Strides,
}

const LINE: Strides = Strides { row: 0, layer: 0 };

fn place(side: &Side, extent: Extent, device_side: Option<bool>) -> Result<Place, cudaError_t> {
    let length = extent.span(side.strides).ok_or(INVALID)?;
    let place = memory::place(side.address.expose_provenance(), length).map_err(|_| INVALID)?;
    let fits = match device_side {
        None => true,
        Some(true) => place.kind.is_some(),
        Some(false) => place.kind != Some(Kind::Device),
    };
    if fits && !side.address.is_null() { Ok(place) } else { Err(INVALID) }
}

impl Copy {
    fn new(to: Side, from: Side, extent: Extent, kind: cudaMemcpyKind) -> Result<Option<Self>, cudaError_t> {
        let (to_device, from_device) = match kind {
            cudaMemcpyKind::cudaMemcpyHostToHost => (Some(false), Some(false)),
            cudaMemcpyKind::cudaMemcpyHostToDevice => (Some(true), Some(false)),
            cudaMemcpyKind::cudaMemcpyDeviceToHost => (Some(false), Some(true)),
            cudaMemcpyKind::cudaMemcpyDeviceToDevice => (Some(true), Some(true)),
            cudaMemcpyKind::cudaMemcpyDefault => (None, None),
            _ => return Err(cudaError_t::cudaErrorInvalidMemcpyDirection),
        };
        if extent.width == 0 || extent.rows == 0 || extent.layers == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            extent,
            to_strides: to.strides,
            from_strides: from.strides,
            to: place(&to, extent, to_device)?,
            from: place(&from, extent, from_device)?,
        }))
    }

    pub(super) fn line(
        to: *mut c_void,
        from: *const c_void,
        count: usize,
        kind: cudaMemcpyKind,
    ) -> Result<Option<Self>, cudaError_t> {
        let extent = Extent { width: count, rows: 1, layers: 1 };
        let from = Side { address: from.cast_mut(), strides: LINE };
        Self::new(Side { address: to, strides: LINE }, from, extent, kind)
    }

    fn run(&self) {
        for layer in 0..self.extent.layers {
            for row in 0..self.extent.rows {
                let offset = |strides: Strides| layer * strides.layer + row * strides.row;
                let to = self.to.pointer.wrapping_add(offset(self.to_strides));
                let from = self.from.pointer.wrapping_add(offset(self.from_strides));
                // SAFETY: both boxes were checked against their allocations; host memory that CUDA does not know is
                // valid by the C caller's promise.
                unsafe { ptr::copy(from, to, self.extent.width) };
            }
        }
    }

    /// Returns true for host memory unknown to CUDA, where even an asynchronous copy returns only when it is
    /// done.
    fn blocks(&self) -> bool {
        self.to.kind.is_none() || self.from.kind.is_none()
    }

    pub(super) fn submit(
        copy: Option<Self>,
        stream: cudaStream_t,
        wait: bool,
        hit: Hit,
    ) -> Result<(), cudaError_t> {
        let stream = find_stream(stream)?;
        let wait = wait || copy.as_ref().is_some_and(Self::blocks);
        stream.push(move || {
            hit.sleep();
            if let Some(copy) = copy {
                copy.run();
            }
        });
        if wait {
            stream.wait();
        }
        Ok(())
    }
}

const NULL_STREAM: cudaStream_t = ptr::null_mut();

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy(
    dst: *mut c_void,
    src: *const c_void,
    count: usize,
    kind: cudaMemcpyKind,
) -> cudaError_t {
    queued("cudaMemcpy", |hit| {
        device::current()?;
        Copy::submit(Copy::line(dst, src, count, kind)?, NULL_STREAM, true, hit)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyAsync(
    dst: *mut c_void,
    src: *const c_void,
    count: usize,
    kind: cudaMemcpyKind,
    stream: cudaStream_t,
) -> cudaError_t {
    queued("cudaMemcpyAsync", |hit| Copy::submit(Copy::line(dst, src, count, kind)?, stream, false, hit))
}

fn peer(
    to: (*mut c_void, c_int),
    from: (*const c_void, c_int),
    count: usize,
) -> Result<Option<Copy>, cudaError_t> {
    if !device::exists(to.1) || !device::exists(from.1) {
        return Err(cudaError_t::cudaErrorInvalidDevice);
    }
    Copy::line(to.0, from.0, count, cudaMemcpyKind::cudaMemcpyDeviceToDevice)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyPeer(
    dst: *mut c_void,
    dstDevice: c_int,
    src: *const c_void,
    srcDevice: c_int,
    count: usize,
) -> cudaError_t {
    queued("cudaMemcpyPeer", |hit| {
        Copy::submit(peer((dst, dstDevice), (src, srcDevice), count)?, NULL_STREAM, true, hit)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyPeerAsync(
    dst: *mut c_void,
    dstDevice: c_int,
    src: *const c_void,
    srcDevice: c_int,
    count: usize,
    stream: cudaStream_t,
) -> cudaError_t {
    queued("cudaMemcpyPeerAsync", |hit| {
        Copy::submit(peer((dst, dstDevice), (src, srcDevice), count)?, stream, false, hit)
    })
}

/// Returns the box, whose rows must be at least as far apart as they are wide.
fn plane(
    (to, to_pitch): (*mut c_void, usize),
    (from, from_pitch): (*const c_void, usize),
    (width, rows): (usize, usize),
    kind: cudaMemcpyKind,
) -> Result<Option<Copy>, cudaError_t> {
    if width > to_pitch || width > from_pitch {
        return Err(cudaError_t::cudaErrorInvalidPitchValue);
    }
    let strides = |row| Strides { row, layer: 0 };
    let to = Side { address: to, strides: strides(to_pitch) };
    let from = Side { address: from.cast_mut(), strides: strides(from_pitch) };
    Copy::new(to, from, Extent { width, rows, layers: 1 }, kind)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy2D(
    dst: *mut c_void,
    dpitch: usize,
    src: *const c_void,
    spitch: usize,
    width: usize,
    height: usize,
    kind: cudaMemcpyKind,
) -> cudaError_t {
    queued("cudaMemcpy2D", |hit| {
        Copy::submit(plane((dst, dpitch), (src, spitch), (width, height), kind)?, NULL_STREAM, true, hit)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy2DAsync(
    dst: *mut c_void,
    dpitch: usize,
    src: *const c_void,
    spitch: usize,
    width: usize,
    height: usize,
    kind: cudaMemcpyKind,
    stream: cudaStream_t,
) -> cudaError_t {
    queued("cudaMemcpy2DAsync", |hit| {
        Copy::submit(plane((dst, dpitch), (src, spitch), (width, height), kind)?, stream, false, hit)
    })
}

/// Returns one side of a 3-dimensional copy: without arrays, positions count bytes along a row.
fn solid(pitched: cudaPitchedPtr, position: cudaPos) -> Option<Side> {
    let strides = Strides { row: pitched.pitch, layer: pitched.pitch.checked_mul(pitched.ysize)? };
    let offset = position
        .x
        .checked_add(position.y.checked_mul(strides.row)?)?
        .checked_add(position.z.checked_mul(strides.layer)?)?;
    Some(Side { address: pitched.ptr.wrapping_byte_add(offset), strides })
}

fn boxed(parameters: *const cudaMemcpy3DParms) -> Result<Option<Copy>, cudaError_t> {
    let parameters = c::get(parameters).ok_or(INVALID)?;
    if !parameters.srcArray.is_null() || !parameters.dstArray.is_null() {
        return Err(cudaError_t::cudaErrorNotSupported);
    }
    let cudaMemcpy3DParms { srcPtr, srcPos, dstPtr, dstPos, extent, kind, .. } = parameters;
    let several = extent.height > 1 || extent.depth > 1;
    if several && (extent.width > dstPtr.pitch || extent.width > srcPtr.pitch) {
        return Err(cudaError_t::cudaErrorInvalidPitchValue);
    }
    let to = solid(dstPtr, dstPos).ok_or(INVALID)?;
    let from = solid(srcPtr, srcPos).ok_or(INVALID)?;
    let extent = Extent { width: extent.width, rows: extent.height, layers: extent.depth };
    Copy::new(to, from, extent, kind)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy3D(p: *const cudaMemcpy3DParms) -> cudaError_t {
    queued("cudaMemcpy3D", |hit| Copy::submit(boxed(p)?, NULL_STREAM, true, hit))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpy3DAsync(p: *const cudaMemcpy3DParms, stream: cudaStream_t) -> cudaError_t {
    queued("cudaMemcpy3DAsync", |hit| Copy::submit(boxed(p)?, stream, false, hit))
}

/// libcuda crashes, or corrupts the GPU's push buffer, when a process makes two batch copies at once.
struct Alone;

impl Alone {
    fn enter() -> Self {
        if BATCHING.swap(true, Ordering::SeqCst) {
            eprintln!(
                "cufile-emulator: aborting: two cudaMemcpyBatchAsync at once in one process crash libcuda; make one at a time"
            );
            std::process::abort();
        }
        // Long enough for another thread to make such a call.
        thread::sleep(Duration::from_micros(20));
        Self
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        BATCHING.store(false, Ordering::SeqCst);
    }
}

static BATCHING: AtomicBool = AtomicBool::new(false);

/// Takes the arguments of both declarations. From 13.0 the eighth is the stream; before, it is the index of the
/// failed copy, and the ninth is the stream. A caller of eight leaves the ninth undefined, so this reads it only for
/// the older version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyBatchAsync(
    dsts: *const *mut c_void,
    srcs: *const *const c_void,
    sizes: *const usize,
    count: usize,
    attrs: *mut cudaMemcpyAttributes,
    attrsIdxs: *mut usize,
    numAttrs: usize,
    eighth: *mut c_void,
    ninth: *mut c_void,
) -> cudaError_t {
    queued("cudaMemcpyBatchAsync", |hit| {
        let _alone = Alone::enter();
        let (failed, stream): (*mut usize, cudaStream_t) = match control::runtime_version() {
            ..13000 => (eighth.cast(), ninth.cast()),
            _ => (ptr::null_mut(), eighth.cast()),
        };
        c::put(failed, usize::MAX);
        let attributes = c::array(attrs, numAttrs).ok_or(INVALID)?;
        let indices = c::array(attrsIdxs, numAttrs).ok_or(INVALID)?;
        let ordered = indices.first() == Some(&0) && indices.is_sorted_by(|one, next| one < next);
        let known = attributes.iter().all(|attribute| (1..=3).contains(&attribute.srcAccessOrder.as_raw()));
        // The null stream is not allowed here.
        if count == 0 || numAttrs > count || !ordered || !known || stream.is_null() {
            return Err(INVALID);
        }
        let copies = c::array(dsts, count)
            .zip(c::array(srcs, count))
            .zip(c::array(sizes, count))
            .map(|((to, from), sizes)| to.into_iter().zip(from).zip(sizes))
            .ok_or(INVALID)?;
        let mut planned = Vec::with_capacity(count);
        for (index, ((to, from), size)) in copies.enumerate() {
            let copy = Copy::line(to, from, size, cudaMemcpyKind::cudaMemcpyDefault);
            if copy.is_err() {
                c::put(failed, index);
            }
            planned.extend(copy?);
        }
        let stream = find_stream(stream)?;
        let wait = planned.iter().any(Copy::blocks);
        stream.push(move || {
            hit.sleep();
            planned.iter().for_each(Copy::run);
        });
        if wait {
            stream.wait();
        }
        Ok(())
    })
}

pub(super) fn fill(
    pointer: *mut c_void,
    value: u8,
    count: usize,
    stream: cudaStream_t,
    hit: Hit,
) -> Result<(), cudaError_t> {
    let stream = find_stream(stream)?;
    if count == 0 {
        return Ok(());
    }
    let place = memory::place(pointer.expose_provenance(), count).map_err(|_| INVALID)?;
    if place.kind.is_none() {
        return Err(INVALID);
    }
    stream.push(move || {
        hit.sleep();
        let whole = place;
        // SAFETY: the range was checked against its allocation, which `whole` keeps.
        unsafe { whole.pointer.write_bytes(value, count) };
    });
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemset(devPtr: *mut c_void, value: c_int, count: usize) -> cudaError_t {
    call("cudaMemset", || {
        fill(devPtr, value as u8, count, NULL_STREAM, Hit::default())?;
        find_stream(NULL_STREAM)?.wait();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemsetAsync(
    devPtr: *mut c_void,
    value: c_int,
    count: usize,
    stream: cudaStream_t,
) -> cudaError_t {
    queued("cudaMemsetAsync", |hit| fill(devPtr, value as u8, count, stream, hit))
}

declared! {
    cuda_rt_sys::runtime::Functions:
    cudaMemcpy cudaMemcpyAsync cudaMemcpyPeer cudaMemcpyPeerAsync cudaMemcpy2D cudaMemcpy2DAsync cudaMemcpy3D
    cudaMemcpy3DAsync cudaMemset cudaMemsetAsync
}
