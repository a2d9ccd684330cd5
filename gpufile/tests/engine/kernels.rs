//! Tests of modules and kernels: cufile's wrappers, and gpufile's kernels against a plain model.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, null_mut};
use std::thread;

use cuda_rt_sys::driver::{CUdevice_attribute, CUresult};
use cufile::cuda::{Device, DeviceBuffer, Kernel, KernelArgument, Module, PinnedBuffer, Stream};
use cufile::{ErrorKind, IoBuf, IoBufMut};
use testkit::bed::{Bed, pattern};
use testkit::random::Random;
use testkit::{Emulator, aborts};

fn ptx() -> CString {
    CString::new(include_str!("../../kernels/scatter_gather.ptx")).unwrap()
}

const CUBINS: [((i32, i32), &[u8]); 3] = [
    ((7, 5), include_bytes!("../../kernels/scatter_gather.sm_75.cubin")),
    ((8, 0), include_bytes!("../../kernels/scatter_gather.sm_80.cubin")),
    ((9, 0), include_bytes!("../../kernels/scatter_gather.sm_90.cubin")),
];

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    offset: u32,
    len: u32,
}

fn table(entries: &[Entry]) -> Vec<u8> {
    let bytes = |entry: &Entry| {
        let Entry { address, offset, len } = *entry;
        [address.to_le_bytes().as_slice(), &offset.to_le_bytes(), &len.to_le_bytes()].concat()
    };
    entries.iter().flat_map(bytes).collect()
}

fn kernels(device: &Device) -> [Kernel; 2] {
    kernels_of(&device.load_module(&ptx()).unwrap())
}

fn kernels_of(module: &Module) -> [Kernel; 2] {
    [module.kernel(c"gpufile_scatter").unwrap(), module.kernel(c"gpufile_gather").unwrap()]
}

/// Launches a kernel with a table of `count` entries.
///
/// # Safety
/// As for `Stream::launch`.
unsafe fn launch(
    stream: &Stream,
    kernel: &Kernel,
    (blocks, threads): (u32, u32),
    (table, count): (*const u8, usize),
    staging: *const u8,
) -> cufile::Result<()> {
    let arguments =
        [KernelArgument::Pointer(table), KernelArgument::U32(count as u32), KernelArgument::Pointer(staging)];
    // SAFETY: the caller's promise.
    unsafe { stream.launch(kernel, blocks, threads, arguments) }
}

fn filled(device: &Device, bytes: &[u8]) -> DeviceBuffer {
    let mut buffer = device.alloc(bytes.len()).unwrap();
    buffer.copy_from_host(0, bytes).unwrap();
    buffer
}

/// Returns places in an arena and in a staging buffer, none of which overlap.
fn draw_entries(random: &mut Random, base: usize, arena: usize, staging: usize) -> Vec<(usize, Entry)> {
    let (mut at, mut offset) = (random.below(40), random.below(40));
    let mut entries = Vec::new();
    loop {
        let limit = random.pick(&[1, 2, 17, 40, 600, 5000, 70_001]);
        let len = random.below(limit);
        if at + len > arena || offset + len > staging {
            break;
        }
        let entry = Entry { address: (base + at) as u64, offset: offset as u32, len: len as u32 };
        entries.push((at, entry));
        // Often without a gap, often aligned, and often neither.
        at += len + random.pick(&[0, 1, 3, 16]);
        at = at.next_multiple_of(random.pick(&[1, 1, 4, 16, 256]));
        offset += len + random.pick(&[0, 0, 5]);
        offset = offset.next_multiple_of(random.pick(&[1, 1, 4, 16]));
    }
    random.shuffle(&mut entries);
    entries
}

fn compare_with_model(bed: &Bed, kernels: &[Kernel; 2], seed: u64) {
    let mut random = Random::new(seed);
    let stream = bed.device.stream().unwrap();
    let lens = [random.below(400_000) + 1, random.below(300_000) + 1];
    let (mut arena_model, mut staging_model) = (pattern(lens[0]), pattern(lens[1] + 64));
    let shift = random.pick(&[0, 0, 1, 4, 15, 16, 63]);
    let mut arena = filled(&bed.device, &arena_model);
    let mut staging = filled(&bed.device, &staging_model);
    let (base, staged) = (arena.as_mut_ptr(), staging.as_mut_ptr().wrapping_add(shift));
    // The tables live until the stream has ended its work.
    let mut in_host_memory: Vec<PinnedBuffer> = Vec::new();
    let mut in_device_memory: Vec<DeviceBuffer> = Vec::new();
    for _ in 0..random.below(4) + 1 {
        let is_gather = random.one_in(2);
        let entries = draw_entries(&mut random, base.expose_provenance(), lens[0], lens[1]);
        for (at, entry) in &entries {
            let place = &mut arena_model[*at..*at + entry.len as usize];
            let offset = shift + entry.offset as usize;
            let staged = &mut staging_model[offset..offset + entry.len as usize];
            if is_gather { staged.copy_from_slice(place) } else { place.copy_from_slice(staged) }
        }
        let bytes = table(&entries.iter().map(|(_, entry)| *entry).collect::<Vec<_>>());
        let address = if random.one_in(2) {
            let mut pinned = bed.device.alloc_pinned(bytes.len()).unwrap();
            pinned.copy_from_slice(&bytes);
            in_host_memory.push(pinned);
            in_host_memory.last().unwrap().as_ptr()
        } else {
            in_device_memory.push(filled(&bed.device, &bytes));
            in_device_memory.last().unwrap().as_ptr()
        };
        let shape = (random.pick(&[1, 2, 7, 64]), 32 * (random.below(16) as u32 + 1));
        let kernel = &kernels[usize::from(is_gather)];
        // SAFETY: the ranges lie in buffers that live until the stream is idle, and no targets overlap.
        unsafe { launch(&stream, kernel, shape, (address, entries.len()), staged) }.unwrap();
    }
    stream.synchronize().unwrap();
    assert!(arena.to_vec().unwrap() == arena_model, "the places differ with the seed {seed}");
    assert!(staging.to_vec().unwrap() == staging_model, "the staging buffer differs with the seed {seed}");
}

#[test]
fn random_tables_move_as_in_a_plain_model() {
    Bed::each(|bed| {
        let kernels = kernels(&bed.device);
        (0..60).for_each(|seed| compare_with_model(bed, &kernels, seed));
    });
}

fn compute_capability(device: &Device) -> (i32, i32) {
    let major = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let minor = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
    (device.attribute(major).unwrap(), device.attribute(minor).unwrap())
}

#[test]
fn cubins_load_on_the_gpus_that_they_are_for() {
    let mut loaded = 0;
    let mut load_all = |bed: &Bed| {
        let capability = compute_capability(&bed.device);
        for ((major, least), cubin) in CUBINS {
            // The image begins at an odd address.
            let bytes = [&[0], cubin].concat();
            // SAFETY: NVRTC made the cubin.
            let module = unsafe { bed.device.load_binary(&bytes[1..]) };
            if major != capability.0 || least > capability.1 {
                let error = module.unwrap_err().to_string();
                assert_eq!(error, "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU (209)", "{capability:?}");
                continue;
            }
            let kernels = kernels_of(&module.unwrap());
            (0..20).for_each(|seed| compare_with_model(bed, &kernels, seed));
            loaded += 1;
        }
    };
    let bed = Bed::emulated();
    assert_eq!(compute_capability(&bed.device), (9, 0));
    for capability in ["7 0", "7 5", "8 0", "8 9", "9 0", "12 0"] {
        bed.emulator.as_ref().unwrap().control(&format!("compute-capability {capability}"));
        load_all(&bed);
    }
    if let Some(bed) = Bed::real() {
        load_all(&bed);
    }
    assert!((4..=5).contains(&loaded), "{loaded} cubins");
}

/// Each byte is one that an entry has for it. Bytes that no entry has stay as they were.
#[test]
fn scattered_targets_may_overlap_each_other() {
    const LEN: usize = 20_011;
    Bed::each(|bed| {
        let stream = bed.device.stream().unwrap();
        let [scatter, _] = kernels(&bed.device);
        let mut random = Random::new(1);
        let bytes = pattern(LEN);
        let (mut arena, staging) = (bed.device.alloc(LEN).unwrap(), filled(&bed.device, &bytes));
        arena.fill(0xA5).unwrap();
        let base = arena.as_mut_ptr().expose_provenance();
        let draw = |_| {
            let len = random.below(1500);
            // The last bytes of the arena are in no target.
            let at = random.below(LEN - 1000 - len);
            let offset = random.below(LEN - len) as u32;
            (at, Entry { address: (base + at) as u64, offset, len: len as u32 })
        };
        let entries: Vec<(usize, Entry)> = (0..200).map(draw).collect();
        let table = filled(&bed.device, &table(&entries.iter().map(|(_, entry)| *entry).collect::<Vec<_>>()));
        // SAFETY: the places lie in the arena and in the staging buffer, which live until the stream is idle.
        unsafe { launch(&stream, &scatter, (8, 128), (table.as_ptr(), entries.len()), staging.as_ptr()) }
            .unwrap();
        stream.synchronize().unwrap();
        let mut choices = vec![Vec::new(); LEN];
        for (at, entry) in &entries {
            let staged = &bytes[entry.offset as usize..][..entry.len as usize];
            choices[*at..].iter_mut().zip(staged).for_each(|(choices, byte)| choices.push(*byte));
        }
        assert!(choices.iter().any(|choices| choices.len() > 1) && choices[LEN - 1].is_empty());
        for (index, (byte, choices)) in arena.to_vec().unwrap().iter().zip(choices).enumerate() {
            let is_right = if choices.is_empty() { *byte == 0xA5 } else { choices.contains(byte) };
            assert!(is_right, "the byte {index} is {byte}, none of {choices:?}");
        }
    });
}

/// Every alignment of source and target, with lengths around the widths that the kernels treat apart.
#[test]
fn every_alignment_moves_exactly_its_bytes() {
    const LENS: [usize; 14] = [0, 1, 3, 4, 15, 16, 17, 31, 33, 48, 511, 512, 2048, 2085];
    const SLOT: usize = 2112;
    Bed::each(|bed| {
        let stream = bed.device.stream().unwrap();
        let kernels = kernels(&bed.device);
        let count = 16 * 16 * LENS.len();
        let bytes = pattern(count * SLOT);
        let (mut arena, mut staging) = (filled(&bed.device, &bytes), filled(&bed.device, &bytes));
        let mut model = vec![0; bytes.len()];
        let entries: Vec<Entry> = (0..count)
            .map(|number| {
                let slot = number * SLOT;
                let (to, from, len) = (slot + number % 16, slot + number / 16 % 16, LENS[number / 256]);
                model[to..to + len].copy_from_slice(&bytes[from..from + len]);
                let address = (arena.as_mut_ptr().expose_provenance() + to) as u64;
                Entry { address, offset: from as u32, len: len as u32 }
            })
            .collect();
        let table = filled(&bed.device, &table(&entries));
        arena.fill(0).unwrap();
        // SAFETY: each entry lies in its slot of both buffers, which live until the stream is idle.
        unsafe { launch(&stream, &kernels[0], (16, 256), (table.as_ptr(), count), staging.as_ptr()) }
            .unwrap();
        stream.synchronize().unwrap();
        assert!(arena.to_vec().unwrap() == model);
        // And back.
        staging.fill(0).unwrap();
        // SAFETY: as above.
        unsafe { launch(&stream, &kernels[1], (16, 256), (table.as_ptr(), count), staging.as_ptr()) }
            .unwrap();
        stream.synchronize().unwrap();
        let mut model = vec![0; bytes.len()];
        for entry in &entries {
            let range = entry.offset as usize..(entry.offset + entry.len) as usize;
            model[range.clone()].copy_from_slice(&bytes[range]);
        }
        assert!(staging.to_vec().unwrap() == model);
    });
}

#[test]
fn launches_run_later_and_in_order() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let stream = bed.device.stream().unwrap();
    let [scatter, gather] = kernels(&bed.device);
    let (mut place, staging) = (filled(&bed.device, b"....."), filled(&bed.device, b"hello....."));
    let address = place.as_mut_ptr().expose_provenance() as u64;
    let entries = [Entry { address, offset: 0, len: 5 }, Entry { address, offset: 5, len: 5 }];
    let table = filled(&bed.device, &table(&entries));
    let held = emulator.hold("cuLaunchKernel", "");
    // SAFETY: all buffers live until the stream is idle; the second launch reads what the first wrote.
    unsafe {
        launch(&stream, &scatter, (1, 32), (table.as_ptr(), 1), staging.as_ptr()).unwrap();
        launch(&stream, &gather, (1, 32), (table.as_ptr().wrapping_add(16), 1), staging.as_ptr()).unwrap();
    }
    let event = stream.record().unwrap();
    held.wait_for(1);
    assert!(!event.is_done().unwrap() && !stream.is_idle().unwrap());
    held.release();
    event.wait().unwrap();
    assert_eq!(staging.to_vec().unwrap(), b"hellohello");
}

#[test]
fn modules_are_unloaded_with_their_last_kernel() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let module = bed.device.load_module(&ptx()).unwrap();
    let kernel = module.kernel(c"gpufile_gather").unwrap();
    drop(module);
    let clone = kernel.clone();
    drop(kernel);
    assert_eq!(emulator.live("modules"), 1);
    // No thread needs a context, and a capture of another stream does no harm.
    emulator.control("capturing 1");
    let module = bed.device.load_module(&ptx()).unwrap();
    assert!(module.kernel(c"gpufile_gather").is_ok());
    thread::spawn(move || drop((clone, module))).join().unwrap();
    assert_eq!(emulator.live("modules"), 0);
}

#[test]
fn failures_to_load_name_their_reason() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let load = |ptx: &CStr| bed.device.load_module(ptx).unwrap_err().to_string();
    assert_eq!(load(c""), "cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE (200)");
    assert_eq!(load(c".version 7.8\n.entry f("), "cuModuleLoadData: CUDA_ERROR_INVALID_PTX (218)");
    assert_eq!(load(c".version 9.1"), "cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)");
    let mut no_cubin = CUBINS[2].1.to_vec();
    // The machine of the ELF file.
    no_cubin[0x12] = 62;
    // SAFETY: the emulator reads only what the headers name, and they are those of the cubin.
    let error = unsafe { bed.device.load_binary(&no_cubin) }.unwrap_err().to_string();
    assert_eq!(error, "cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE (200)");
    emulator.control("driver-version 11070");
    assert_eq!(load(&ptx()), "cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)");
    emulator.control("driver-version 11080");
    emulator.fault("cuModuleLoadData", "err=2");
    assert_eq!(bed.device.load_module(&ptx()).unwrap_err().kind(), ErrorKind::OutOfMemory);
    let module = bed.device.load_module(&ptx()).unwrap();
    let unknown = module.kernel(c"gpufile").unwrap_err().to_string();
    assert_eq!(unknown, "cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500)");
    drop(module);
    assert_eq!(emulator.live("modules"), 0);
}

#[test]
fn refused_and_failed_launches_do_nothing() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let [scatter, _] = kernels(&bed.device);
    let stream = bed.driver.cuda().device(1).unwrap().stream().unwrap();
    // SAFETY: there are no entries.
    let error = unsafe { launch(&stream, &scatter, (1, 32), (ptr::null(), 0), ptr::null()) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("loaded on Device(0)"), "{error}");
    assert_eq!(emulator.calls("cuLaunchKernel"), 0);

    let stream = bed.device.stream().unwrap();
    let (mut place, staging) = (filled(&bed.device, &[1; 8]), filled(&bed.device, &[2; 8]));
    let address = place.as_mut_ptr().expose_provenance() as u64;
    let table = filled(&bed.device, &table(&[Entry { address, offset: 0, len: 8 }]));
    let run = || {
        // SAFETY: all buffers live until the stream is idle.
        unsafe { launch(&stream, &scatter, (1, 32), (table.as_ptr(), 1), staging.as_ptr()) }
    };
    emulator.fault("cuLaunchKernel", "err=701");
    let error = run().unwrap_err();
    assert_eq!(error.to_string(), "cuLaunchKernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)");
    stream.synchronize().unwrap();
    assert_eq!(place.to_vec().unwrap(), [1; 8]);
    run().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(place.to_vec().unwrap(), [2; 8]);
}

#[test]
fn a_failed_kernel_fails_later_calls_on_its_device() {
    let bed = Bed::emulated();
    let emulator = bed.emulator.as_ref().unwrap();
    let [scatter, _] = kernels(&bed.device);
    let stream = bed.device.stream().unwrap();
    let held = emulator.hold("cuLaunchKernel", "status=700");
    // SAFETY: there are no entries.
    unsafe { launch(&stream, &scatter, (1, 32), (ptr::null(), 0), ptr::null()) }.unwrap();
    let event = stream.record().unwrap();
    held.release();
    assert_eq!(event.wait().unwrap_err().raw_code(), Some(700));
    assert_eq!(event.is_done().unwrap_err().raw_code(), Some(700));
    assert_eq!(stream.synchronize().unwrap_err().raw_code(), Some(700));
    assert_eq!(bed.device.alloc(8).unwrap_err().raw_code(), Some(700));
    // SAFETY: as above.
    let again = unsafe { launch(&stream, &scatter, (1, 32), (ptr::null(), 0), ptr::null()) };
    assert_eq!(again.unwrap_err().raw_code(), Some(700));
    let other = bed.driver.cuda().device(1).unwrap();
    other.alloc(8).unwrap().fill(1).unwrap();
    kernels(&other);
}

#[test]
fn libcuda_refuses_launches_that_no_gpu_takes() {
    let bed = Bed::emulated();
    let [scatter, _] = kernels(&bed.device);
    let driver = bed.driver.cuda().driver();
    let _entered = bed.device.enter().unwrap();
    let mut values = [0u64; 3];
    let mut arguments: [*mut c_void; 3] = values.each_mut().map(|value| ptr::from_mut(value).cast());
    let mut call = |grid: [u32; 3], block: [u32; 3], shared_bytes, stream: usize, has_arguments: bool| {
        let ([x, y, z], [i, j, k]) = (grid, block);
        let stream = ptr::without_provenance_mut(stream);
        let arguments = if has_arguments { arguments.as_mut_ptr() } else { null_mut() };
        let kernel = scatter.as_raw();
        // SAFETY: the arguments mean no entries.
        unsafe {
            (driver.cuLaunchKernel)(kernel, x, y, z, i, j, k, shared_bytes, stream, arguments, null_mut())
        }
    };
    let (one, warp) = ([1, 1, 1], [32, 1, 1]);
    let elsewhere = bed.driver.cuda().device(1).unwrap().stream().unwrap();
    let cases = [
        (one, warp, 0, 0, true, CUresult::CUDA_SUCCESS),
        ([0, 1, 1], warp, 0, 0, true, CUresult::CUDA_ERROR_INVALID_VALUE),
        ([1, 65_536, 1], warp, 0, 0, true, CUresult::CUDA_ERROR_INVALID_VALUE),
        (one, [0, 1, 1], 0, 0, true, CUresult::CUDA_ERROR_INVALID_VALUE),
        (one, [1056, 1, 1], 0, 0, true, CUresult::CUDA_ERROR_INVALID_VALUE),
        (one, [32, 32, 2], 0, 0, true, CUresult::CUDA_ERROR_INVALID_VALUE),
        (one, [544, 1, 1], 0, 0, true, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
        (one, warp, 49_153, 0, true, CUresult::CUDA_ERROR_INVALID_VALUE),
        (one, warp, 0, 12345, true, CUresult::CUDA_ERROR_INVALID_HANDLE),
        (one, warp, 0, elsewhere.as_raw().addr(), true, CUresult::CUDA_ERROR_INVALID_HANDLE),
        (one, warp, 0, 0, false, CUresult::CUDA_ERROR_INVALID_VALUE),
    ];
    for (grid, block, shared_bytes, stream, has_arguments, expected) in cases {
        let found = call(grid, block, shared_bytes, stream, has_arguments);
        assert_eq!(found, expected, "{grid:?} {block:?} {shared_bytes} {stream} {has_arguments}");
    }
    bed.device.synchronize().unwrap();
    let foreign = c".version 7.0\n.target sm_52\n.visible .entry f(\n.param .u64 f_param_0\n)\n{ret;}";
    let foreign = bed.device.load_module(foreign).unwrap().kernel(c"f").unwrap();
    let arguments = [KernelArgument::U64(0)];
    // SAFETY: the kernel does nothing.
    let unknown = unsafe { bed.device.default_stream().launch(&foreign, 1, 32, arguments) };
    assert_eq!(unknown.unwrap_err().raw_code(), Some(801));
}

/// A place, a staging buffer and a table, for launches that the emulator must not survive.
struct Launches {
    bed: Bed,
    stream: Stream,
    kernels: [Kernel; 2],
}

impl Launches {
    fn new() -> Self {
        let bed = Bed::on(Emulator::start());
        Self { stream: bed.device.stream().unwrap(), kernels: kernels(&bed.device), bed }
    }

    fn run(&self, kernel: usize, shape: (u32, u32), entries: &[Entry], staging: *const u8) {
        let table = filled(&self.bed.device, &table(entries));
        // SAFETY: the emulator aborts instead of using what is not there.
        unsafe {
            launch(&self.stream, &self.kernels[kernel], shape, (table.as_ptr(), entries.len()), staging)
        }
        .unwrap();
        self.stream.synchronize().unwrap();
    }
}

#[test]
fn the_emulator_aborts_where_a_kernel_would_damage_memory() {
    const LEN: u32 = 100;
    let violation = |why: &str, body: &dyn Fn(&Launches, u64, *const u8)| {
        aborts(why, || {
            let launches = Launches::new();
            let (mut place, staging) =
                (filled(&launches.bed.device, &[1; 100]), filled(&launches.bed.device, &[2; 100]));
            body(&launches, place.as_mut_ptr().expose_provenance() as u64, staging.as_ptr());
        });
    };
    let entry = |address, offset, len| Entry { address, offset, len };
    violation("entry 1, 2 bytes at", &|launches, place, staging| {
        launches.run(0, (1, 32), &[entry(place, 0, 1), entry(place + 99, 1, 2)], staging);
    });
    violation("2 bytes at 99 of the staging buffer, is not in one live", &|launches, place, staging| {
        launches.run(1, (1, 32), &[entry(place, 99, 2)], staging);
    });
    violation("60 bytes at", &|launches, place, staging| {
        let second = staging.wrapping_add(50);
        launches.run(0, (1, 32), &[entry(place, 0, 50)], second);
        // The first buffer of the allocation ends where the second begins.
        launches.run(0, (1, 32), &[entry(place, 0, 50)], staging);
        launches.run(0, (1, 32), &[entry(place, 40, 20)], staging);
    });
    violation("run into the next staging buffer", &|launches, place, staging| {
        launches.run(0, (1, 32), &[entry(place, 0, 1)], staging.wrapping_add(50));
        launches.run(0, (1, 32), &[entry(place, 0, 1)], staging);
        let mut bytes = [0; 51];
        // SAFETY: the allocation has as many bytes; the emulator aborts.
        let _ = unsafe { launches.stream.copy_from_device(&mut bytes, staging) };
    });
    violation("is memory of another GPU without peer access", &|launches, _, staging| {
        let mut other = launches.bed.driver.cuda().device(1).unwrap().alloc(8).unwrap();
        launches.run(0, (1, 32), &[entry(other.as_mut_ptr().expose_provenance() as u64, 0, 8)], staging);
    });
    violation("is host memory", &|launches, _, staging| {
        let mut pinned = launches.bed.device.alloc_pinned(8).unwrap();
        let address = IoBufMut::as_mut_ptr(&mut pinned).expose_provenance() as u64;
        launches.run(0, (1, 32), &[entry(address, 0, 8)], staging);
    });
    violation("is memory that CUDA does not know", &|launches, place, _| {
        let staging = [0; 100];
        launches.run(0, (1, 32), &[entry(place, 0, 8)], staging.as_ptr());
    });
    violation("the targets at", &|launches, place, staging| {
        launches.run(1, (1, 32), &[entry(place, 3, 4), entry(place + 50, 0, 4)], staging);
    });
    violation("a target overlaps the source", &|launches, place, _| {
        // The longer of two targets that overlap reaches into the second source.
        let entries = [entry(place, 50, 40), entry(place + 10, 20, 5)];
        launches.run(0, (1, 32), &entries, place as *const u8);
    });
    violation("a target overlaps the source", &|launches, place, _| {
        launches.run(1, (1, 32), &[entry(place, 50, 10), entry(place + 59, 70, 5)], place as *const u8);
    });
    violation("blocks of [48, 1, 1] threads", &|launches, place, staging| {
        launches.run(0, (1, 48), &[entry(place, 0, LEN)], staging);
    });
    violation("before the kernel has ended", &|launches, _, _| {
        launches.bed.emulator.as_ref().unwrap().fault("cuLaunchKernel", "hold=1");
        let [kernel, _] = kernels(&launches.bed.device);
        // SAFETY: there are no entries; the emulator aborts when the module is unloaded.
        unsafe { launch(&launches.stream, &kernel, (1, 32), (ptr::null(), 0), ptr::null()) }.unwrap();
    });
}
