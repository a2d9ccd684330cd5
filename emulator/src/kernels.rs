//! Loaded modules, and the kernels that the emulator knows: those of gpufile/kernels.
//!
//! A kernel runs on the host, whole and in its turn of the stream. It aborts where the real one would damage memory.

use std::collections::HashMap;
use std::ffi::c_int;
use std::process::abort;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_rt_sys::driver::CUresult;

use crate::control::{self, lock};
use crate::cubin::{self, Declared};
use crate::device;
use crate::memory::{self, Kind, Place};
use crate::pack::{Entry as Entry16, Job};
use crate::stream::fresh_handle;
use crate::unpack::Group;

struct Module {
    device: c_int,
    kernels: Vec<Arc<Kernel>>,
}

pub(crate) struct Kernel {
    pub handle: usize,
    pub device: c_int,
    pub declared: Declared,
    /// Launches that have not ended.
    in_flight: AtomicUsize,
}

static MODULES: Mutex<Option<HashMap<usize, Module>>> = Mutex::new(None);

pub(crate) fn load_ptx(ptx: &str, device: c_int) -> Result<usize, CUresult> {
    let version = directive(ptx, ".version").and_then(|version| version.split_once('.'));
    let (major, minor) = version.ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    let number = |text: &str| text.parse::<c_int>().map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX);
    // CUDA 11.8 brought PTX 7.8, and CUDA 13.0 brought PTX 9.0.
    if 1000 * (number(major)? + 4) + 10 * number(minor)? > control::driver_version() {
        return Err(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    }
    directive(ptx, ".target").ok_or(CUresult::CUDA_ERROR_INVALID_PTX)?;
    let kernels: Option<Vec<_>> = ptx.split(".entry").skip(1).map(declared).collect();
    Ok(insert(kernels.ok_or(CUresult::CUDA_ERROR_INVALID_PTX)?, device))
}

pub(crate) fn load_cubin(image: &[u8], device: c_int) -> Result<usize, CUresult> {
    let ((major, minor), kernels) = cubin::read(image).ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    let capability = control::compute_capability();
    if capability.0 != major || capability.1 < minor {
        return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    Ok(insert(kernels, device))
}

fn insert(kernels: Vec<Declared>, device: c_int) -> usize {
    let kernel = |declared| {
        Arc::new(Kernel { handle: fresh_handle(), device, declared, in_flight: AtomicUsize::new(0) })
    };
    let module = Module { device, kernels: kernels.into_iter().map(kernel).collect() };
    let handle = fresh_handle();
    lock(&MODULES).get_or_insert_default().insert(handle, module);
    handle
}

/// Returns the word after a directive of the PTX.
fn directive<'a>(ptx: &'a str, name: &str) -> Option<&'a str> {
    ptx.lines().find_map(|line| line.trim().strip_prefix(name)?.split_whitespace().next())
}

fn declared(entry: &str) -> Option<Declared> {
    let (name, rest) = entry.split_once('(')?;
    let (parameters, rest) = rest.split_once(')')?;
    let (bounds, _) = rest.split_once('{')?;
    // The bits are in the type, such as `.u64`.
    let bytes = |parameter: &str| {
        let name = parameter.trim().strip_prefix(".param")?.split_whitespace().next()?;
        let bits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        Some(bits.parse::<u64>().unwrap_or(0) / 8)
    };
    let most_threads = match directive(bounds, ".maxntid") {
        Some(bound) => bound.trim_end_matches(',').parse().ok()?,
        None => 1024,
    };
    let parameter_bytes = parameters.split(',').map(bytes).collect::<Option<_>>()?;
    Some(Declared { name: name.trim().to_owned(), parameter_bytes, most_threads })
}

pub(crate) fn unload(handle: usize) -> Result<(), CUresult> {
    let gone = lock(&MODULES).get_or_insert_default().remove(&handle);
    let module = gone.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    for kernel in &module.kernels {
        if kernel.in_flight.load(Ordering::SeqCst) > 0 {
            violated(&kernel.declared.name, "its module is unloaded before the kernel has ended");
        }
    }
    Ok(())
}

pub(crate) fn unload_all(device: c_int) {
    lock(&MODULES).get_or_insert_default().retain(|_, module| module.device != device);
}

pub(crate) fn live_modules() -> usize {
    lock(&MODULES).get_or_insert_default().len()
}

pub(crate) fn find(module: usize, name: &str) -> Result<usize, CUresult> {
    let mut modules = lock(&MODULES);
    let module = modules.get_or_insert_default().get(&module).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let kernel = module.kernels.iter().find(|kernel| kernel.declared.name == name);
    kernel.map(|kernel| kernel.handle).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

pub(crate) fn of_handle(handle: usize) -> Option<Arc<Kernel>> {
    let mut modules = lock(&MODULES);
    let mut kernels = modules.get_or_insert_default().values().flat_map(|module| &module.kernels);
    kernels.find(|kernel| kernel.handle == handle).cloned()
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    offset: u32,
    len: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Scatter,
    Gather,
    Unpack,
    Sum,
    PackCount,
    Pack,
}

/// A part of a block for the kernel that sums.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Part {
    address: u64,
    start: u64,
    len: u64,
}

pub(crate) struct Launch {
    kernel: Arc<Kernel>,
    work: Work,
    entries: usize,
    count: usize,
    staging: usize,
}

impl Launch {
    /// Returns `None` if the emulator does not know the kernel.
    pub(crate) fn new(kernel: Arc<Kernel>, entries: u64, count: u32, staging: u64) -> Option<Self> {
        let work = match kernel.declared.name.as_str() {
            "gpufile_scatter" => Work::Scatter,
            "gpufile_gather" => Work::Gather,
            "gpufile_unpack" => Work::Unpack,
            "gpufile_sum" => Work::Sum,
            "gpufile_pack_count" => Work::PackCount,
            "gpufile_pack" => Work::Pack,
            _ => return None,
        };
        kernel.in_flight.fetch_add(1, Ordering::SeqCst);
        let (entries, staging) = (entries as usize, staging as usize);
        Some(Self { kernel, work, entries, count: count as usize, staging })
    }

    pub(crate) fn check_shape(&self, grid: [u32; 3], block: [u32; 3]) {
        let is_wrong = match self.work {
            Work::Unpack | Work::Sum | Work::PackCount | Work::Pack => block[0] != 256,
            Work::Scatter | Work::Gather => !block[0].is_multiple_of(32),
        };
        if grid[1..] != [1, 1] || block[1..] != [1, 1] || is_wrong {
            self.violated(&format!("a grid of {grid:?} blocks of {block:?} threads"));
        }
    }

    fn violated(&self, why: &str) -> ! {
        violated(&self.kernel.declared.name, why)
    }

    pub(crate) fn run(&self) {
        memory::note_staging(self.staging);
        match self.work {
            Work::Unpack => self.unpack(),
            Work::Sum => self.sum(),
            Work::PackCount | Work::Pack => self.pack(),
            Work::Scatter | Work::Gather => self.copy(),
        }
    }

    fn unpack(&self) {
        let groups: Vec<Group> = self.table();
        let (mut targets, mut sources) = (Vec::new(), Vec::new());
        for (index, group) in groups.iter().enumerate() {
            let (offset, len) = (group.offset as usize, group.len as usize);
            if !offset.is_multiple_of(16)
                || !len.is_multiple_of(16)
                || group.from >= group.to
                || group.to > group.values
            {
                self.violated(&format!("group {index} has no such block or values: {group:?}"));
            }
            let what = format!("group {index}, {len} bytes at {offset} of the staging buffer");
            let staging = self.place(&what, self.staging, offset + len, &EVERY_KIND);
            let mut block = vec![0; len];
            // SAFETY: the place covers these bytes and keeps them mapped.
            unsafe { ptr::copy(staging.pointer.wrapping_add(offset), block.as_mut_ptr(), len) };
            let (address, wanted) =
                (group.address as usize, (group.to - group.from) as usize * group.value_bytes());
            let what = format!("group {index}, {wanted} bytes at {address:#x}");
            let place = self.place(&what, address, wanted, &[Kind::Device, Kind::Managed]);
            if !address.is_multiple_of(group.value_bytes()) {
                self.violated(&format!("{what}, is not aligned to its values"));
            }
            targets.push((address, wanted));
            sources.push((self.staging + offset, len));
            match group.unpack(&block) {
                // SAFETY: the place covers as many bytes and keeps them mapped.
                Some(values) => unsafe { ptr::copy(values.as_ptr(), place.pointer, values.len()) },
                None => {
                    let status = self.place("the status", group.status as usize, 4, &EVERY_KIND);
                    // SAFETY: the place covers the word.
                    unsafe { status.pointer.cast::<u32>().write_unaligned(group.number) };
                }
            }
        }
        self.check_overlaps(targets, sources);
    }

    fn sum(&self) {
        let parts: Vec<Part> = self.table();
        let sums = self.place("the sums", self.staging, 8 * parts.len(), &EVERY_KIND);
        for (index, part) in parts.iter().enumerate() {
            let (address, len) = (part.address as usize, part.len as usize);
            let what = format!("part {index}, {len} bytes at {address:#x}");
            let place = self.place(&what, address, len, &[Kind::Device, Kind::Managed]);
            // SAFETY: the place covers these bytes and keeps them mapped.
            let byte = |at: usize| unsafe { place.pointer.wrapping_add(at).read() };
            let sum = (0..len).fold(0, |sum: u64, at| {
                let at_block = part.start + at as u64;
                let word = u64::from(byte(at)) << (8 * (at_block % 4));
                let (row, of_row) = (at_block / 4 / 1024, at_block / 4 % 1024);
                sum.wrapping_add(word.wrapping_mul(odd(1024 + row)).wrapping_mul(odd(of_row) & 0xffff_ffff))
            });
            // SAFETY: the place covers as many sums.
            unsafe { sums.pointer.cast::<u64>().wrapping_add(index).write_unaligned(sum) };
        }
    }

    fn pack(&self) {
        let length = size_of::<Job>() + self.count * size_of::<Entry16>();
        let place = self.place("the job", self.entries, length, &EVERY_KIND);
        // SAFETY: the place covers the job, which may have any values.
        let job = unsafe { place.pointer.cast::<Job>().read_unaligned() };
        let groups = (job.count as usize).div_ceil(8192);
        if groups != self.count || !(job.values as usize).is_multiple_of(job.value_bytes()) {
            self.violated(&format!("{} groups, {job:?}", self.count));
        }
        let len = job.group(groups - 1).end;
        let values = self.place("the values", job.values as usize, len, &[Kind::Device, Kind::Managed]);
        // SAFETY: the place covers these bytes and keeps them mapped.
        let values = unsafe { std::slice::from_raw_parts(values.pointer, len) };
        let mut start = 0;
        for number in 0..groups {
            let at = place.pointer.wrapping_add(size_of::<Job>()).cast::<Entry16>().wrapping_add(number);
            let group = &values[job.group(number)];
            // SAFETY: the place covers the entries.
            let mut entry = unsafe { at.read_unaligned() };
            if self.work == Work::PackCount {
                (entry.escapes, entry.patches) = job.counts(group);
            } else {
                let (block, sum) = job.block(group, entry);
                if (start + block.len()) != entry.end as usize * 16 {
                    self.violated(&format!(
                        "the block of group {number} has {} bytes: {entry:?}",
                        block.len()
                    ));
                }
                let what = format!("the block of group {number}");
                let out = self.place(&what, self.staging + start, block.len(), &[Kind::Device]);
                // SAFETY: the place covers as many bytes and keeps them mapped.
                unsafe { ptr::copy(block.as_ptr(), out.pointer, block.len()) };
                (start, entry.sum) = (start + block.len(), sum);
            }
            // SAFETY: as above.
            unsafe { at.write_unaligned(entry) };
        }
    }

    fn copy(&self) {
        let is_gather = self.work == Work::Gather;
        let entries: Vec<Entry> = self.table();
        let mut places = Vec::with_capacity(entries.len());
        let (mut in_place, mut staged) = (Vec::new(), Vec::new());
        for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.len > 0) {
            let (address, len) = (entry.address as usize, entry.len as usize);
            let what = format!("entry {index}, {len} bytes at {address:#x}");
            let place = self.place(&what, address, len, &[Kind::Device, Kind::Managed]);
            // From the start of the buffer, so that an entry cannot lie in another allocation.
            let offset = entry.offset as usize;
            let what = format!("entry {index}, {len} bytes at {offset} of the staging buffer");
            let staging = self.place(&what, self.staging, offset + len, &EVERY_KIND);
            in_place.push((address, len));
            staged.push((self.staging + offset, len));
            places.push((place, staging, offset, len));
        }
        let (targets, sources) = if is_gather { (staged, in_place) } else { (in_place, staged) };
        self.check_overlaps(targets, sources);
        for (place, staging, offset, len) in places {
            let staged = staging.pointer.wrapping_add(offset);
            let (target, source) = if is_gather { (staged, place.pointer) } else { (place.pointer, staged) };
            // SAFETY: the places cover these bytes and keep them mapped.
            unsafe { ptr::copy(source, target, len) };
        }
    }

    fn table<T>(&self) -> Vec<T> {
        if self.count == 0 {
            return Vec::new();
        }
        if !self.entries.is_multiple_of(align_of::<T>()) {
            self.violated("the table of entries is not aligned to 8 bytes");
        }
        let length = self.count * size_of::<T>();
        let place = self.place("the table of entries", self.entries, length, &EVERY_KIND);
        // The memory behind device memory may be aligned to less than its address.
        let table = place.pointer.cast::<T>();
        // SAFETY: the place covers all entries or groups, whose fields may have any value.
        (0..self.count).map(|index| unsafe { table.wrapping_add(index).read_unaligned() }).collect()
    }

    fn place(&self, what: &str, address: usize, length: usize, kinds: &[Kind]) -> Place {
        let place = memory::place(address, length)
            .unwrap_or_else(|_| self.violated(&format!("{what}, is not in one live allocation")));
        let found = match place.kind {
            None => "memory that CUDA does not know",
            Some(Kind::Device) if !device::can_use(self.kernel.device, place.device) => {
                "memory of another GPU without peer access"
            }
            Some(kind) if kinds.contains(&kind) => return place,
            Some(_) => "host memory",
        };
        self.violated(&format!("{what}, is {found}"))
    }

    /// Lets only targets of a scatter overlap each other.
    fn check_overlaps(&self, mut targets: Vec<(usize, usize)>, sources: Vec<(usize, usize)>) {
        targets.sort_unstable();
        // The start and the end of memory that targets cover, without gaps.
        let mut covered: Vec<(usize, usize)> = Vec::new();
        for (target, len) in targets {
            match covered.last_mut() {
                Some((start, end)) if *end > target => {
                    if self.work == Work::Gather {
                        self.violated(&format!("the targets at {start:#x} and {target:#x} overlap"));
                    }
                    *end = (*end).max(target + len);
                }
                _ => covered.push((target, target + len)),
            }
        }
        for (source, len) in sources {
            // Only the last that begins before the end of the source can reach into it.
            let before = covered.partition_point(|(start, _)| *start < source + len);
            let last = before.checked_sub(1).map(|last| covered[last]);
            if last.is_some_and(|(_, end)| end > source) {
                self.violated(&format!("a target overlaps the source at {source:#x}"));
            }
        }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        self.kernel.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns a factor of those by which the kernel sums words.
fn odd(number: u64) -> u64 {
    let number = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (number ^ number >> 32) | 1
}

/// Memory that a GPU reads and writes by its address. Host memory is portable.
const EVERY_KIND: [Kind; 4] = [Kind::Device, Kind::Managed, Kind::Pinned, Kind::Registered];

fn violated(kernel: &str, why: &str) -> ! {
    eprintln!("cufile-emulator: aborting in {kernel}: {why}");
    abort();
}
