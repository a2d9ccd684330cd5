//! Tests of models with packed tensors: they are loaded as plain ones are, whole and in part, and damage is found.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::placements::expected;
use gpufile::formats::safetensors::{
    self, Checkpoint, Cut, Header, NewTensor, Placement, Share, TensorData, TensorInfo, Verify,
};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::storage::{self, Spans, Storage};
use gpufile::{Engine, File, OpenOptions};
use tempfile::{TempDir, tempdir};
use testkit::bed::Bed;
use testkit::random::Random;

type Tensor = (&'static str, Dtype, Vec<u64>, Vec<u8>);

/// Returns bytes of a type, as weights have them, with values that are no numbers among them.
fn weights(seed: u64, dtype: Dtype, shape: &[u64]) -> Tensor {
    let mut random = Random::new(seed);
    let elements = shape.iter().product::<u64>() as usize;
    let mut weight = || {
        let sum: f32 = (0..4).map(|_| random.below(1000) as f32 / 1000.0 - 0.5).sum();
        let bits = (sum * 0.05).to_bits();
        if random.one_in(500) { random.next_number() as u32 } else { bits }
    };
    let mut bytes = Vec::new();
    for _ in 0..elements {
        let bits = weight();
        match dtype {
            Dtype::F32 => bytes.extend_from_slice(&bits.to_le_bytes()),
            Dtype::F8E4M3 => bytes.push((bits >> 24) as u8),
            Dtype::F8E5M2 => bytes.push((bits >> 24) as u8 & 0x9f | 0x40),
            _ => bytes.extend_from_slice(&bits.to_le_bytes()[2..]),
        }
    }
    ("", dtype, shape.to_vec(), bytes)
}

/// Returns the tensors of a model. All but the last three can be packed.
fn model() -> Vec<Tensor> {
    let named = |name, (_, dtype, shape, bytes)| (name, dtype, shape, bytes);
    let random: Vec<u8> = (0..40_000_u64).map(|at| ((at * at * 0x9e37_79b9) >> 13) as u8).collect();
    vec![
        named("wide", weights(1, Dtype::BF16, &[301, 403])),
        named("long", weights(2, Dtype::F32, &[20_001])),
        named("deep", weights(3, Dtype::BF16, &[7, 64, 128])),
        named("small.type", weights(4, Dtype::F8E5M2, &[3, 9000])),
        named("half", weights(6, Dtype::F16, &[3, 5001])),
        named("eighth", weights(7, Dtype::F8E4M3, &[20_003])),
        ("random", Dtype::F16, vec![100, 200], random),
        named("norm", weights(5, Dtype::BF16, &[77])),
        ("step", Dtype::I64, vec![], 7_u64.to_le_bytes().to_vec()),
    ]
}

fn data(model: &[Tensor]) -> Vec<TensorData<'_>> {
    model.iter().map(|(name, dtype, shape, bytes)| TensorData::new(name, *dtype, shape, bytes)).collect()
}

fn options() -> SaveOptions {
    SaveOptions::new().sync(false)
}

struct Saved {
    folder: TempDir,
    plain: PathBuf,
    packed: PathBuf,
}

impl Saved {
    fn new(model: &[Tensor]) -> Self {
        let folder = TempDir::new_in("/dev/shm").unwrap_or_else(|_| tempdir().unwrap());
        let (plain, packed) = (folder.path().join("plain"), folder.path().join("packed"));
        let metadata = options().metadata([("format", "pt"), ("é\"", "\n")]);
        safetensors::save(&plain, &data(model), &metadata).unwrap();
        let saved = Checkpoint::open(&plain).unwrap().compress(&packed, &options()).unwrap();
        assert_eq!((saved.path, saved.len_bytes), (packed.clone(), fs::metadata(&packed).unwrap().len()));
        Self { folder, plain, packed }
    }
}

fn assert_equal(checkpoint: &Checkpoint, model: &[Tensor]) {
    let loaded = checkpoint.load().to_host().unwrap();
    assert_eq!(loaded.iter().len(), model.len());
    for (name, dtype, shape, bytes) in model {
        let view = loaded.tensor(name).unwrap();
        assert_eq!((view.info.dtype, view.info.shape), (*dtype, &shape[..]), "{name}");
        assert!(loaded.bytes(name) == Some(bytes), "{name}");
        assert!(&checkpoint.read_tensor(name).unwrap() == bytes, "{name}");
    }
}

#[test]
fn packed_models_load_as_plain_ones() {
    let model = model();
    let saved = Saved::new(&model);
    let checkpoint = Checkpoint::open(&saved.packed).unwrap();
    assert_equal(&checkpoint, &model);
    let packed: Vec<_> = model.iter().map(|(name, ..)| checkpoint.packed_len_bytes(name)).collect();
    assert_eq!(
        packed.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, true, true, true, true, true, false, false, false]
    );
    let (_, _, _, wide) = &model[0];
    assert!(packed[0].unwrap() < wide.len() as u64 * 3 / 4);
    assert_eq!(checkpoint.packed_len_bytes("none"), None);
    assert_eq!(checkpoint.files().next().unwrap().1.metadata()["é\""], "\n");
    let found = Verify::new().run([&saved.packed]);
    assert!(found.is_good() && found.tensors == model.len(), "{found:?}");
    assert_eq!(found.len_bytes, checkpoint.len_bytes());
}

#[test]
fn decompressed_files_are_the_saved_ones() {
    let saved = Saved::new(&model());
    let again = saved.folder.path().join("again");
    let checkpoint = Checkpoint::open(&saved.packed).unwrap();
    checkpoint.decompress(&again, &options()).unwrap();
    assert!(fs::read(&again).unwrap() == fs::read(&saved.plain).unwrap());
    // A packed model can be packed again, and the view reads as the plain file does.
    checkpoint.compress(&again, &options()).unwrap();
    assert!(fs::read(&again).unwrap() == fs::read(&saved.packed).unwrap());
    let (file, _) = checkpoint.files().next().unwrap();
    let plain = fs::read(&saved.plain).unwrap();
    let mut viewed = vec![0; plain.len() + 1];
    assert_eq!(file.read_at(&mut viewed, 0).unwrap(), plain.len());
    assert!(viewed[..plain.len()] == plain);
}

fn save_from_gpu(bed: &Bed, path: &Path, model: &[Tensor], options: &SaveOptions) {
    let buffers = model.iter().map(|(.., bytes)| {
        let mut buffer = bed.device.alloc(bytes.len()).unwrap();
        buffer.copy_from_host(0, bytes).unwrap();
        buffer
    });
    let buffers: Vec<_> = buffers.collect();
    let tensors: Vec<_> = std::iter::zip(model, &buffers)
        .map(|((name, dtype, shape, _), buffer)| TensorData::new(name, *dtype, shape, buffer))
        .collect();
    let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
    safetensors::save(path, &tensors, &options.clone().files(&OpenOptions::new().engine(&engine))).unwrap();
}

#[test]
fn saves_pack_tensors_of_hosts_and_gpus() {
    let model = model();
    let saved = Saved::new(&model);
    let expected = fs::read(&saved.packed).unwrap();
    let metadata = options().metadata([("format", "pt"), ("é\"", "\n")]).compress(true);
    let path = saved.folder.path().join("saved");
    // An empty tensor has the place of the next one.
    let mut more = data(&model);
    more.push(TensorData::new("a", Dtype::F32, &[0], &[][..]));
    safetensors::save(&path, &more, &metadata).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for (name, _, _, bytes) in &model {
        assert!(&checkpoint.read_tensor(name).unwrap() == bytes, "{name}");
    }
    let made = safetensors::save(&path, &data(&model), &metadata).unwrap();
    assert_eq!((made.path, made.len_bytes), (path.clone(), expected.len() as u64));
    assert!(fs::read(&path).unwrap() == expected);
    Bed::each(|bed| {
        save_from_gpu(bed, &path, &model, &metadata);
        assert!(fs::read(&path).unwrap() == expected);
    });
}

#[test]
fn gpus_that_do_not_pack_leave_it_to_the_host() {
    let (folder, options) = (tempdir().unwrap(), options().compress(true));
    let path = folder.path().join("model");
    let model = model();
    safetensors::save(&path, &data(&model), &options).unwrap();
    let expected = fs::read(&path).unwrap();
    let faults = [
        ("cuModuleLoadData", "err=209 times=1"),
        ("cuModuleLoadData", "err=209 times=all"),
        ("cuModuleGetFunction", "err=500 times=all"),
        ("cuLaunchKernel", "err=701"),
        ("cuLaunchKernel", "after=1 err=701"),
        ("cuLaunchKernel", "after=2 err=701"),
        ("cudaHostAlloc", "err=2"),
        ("cudaMalloc", "after=9 err=2"),
    ];
    for (function, values) in faults {
        let bed = Bed::emulated();
        let emulator = bed.emulator.as_ref().unwrap();
        emulator.fault(function, values);
        save_from_gpu(&bed, &path, &model, &options);
        assert!(emulator.calls(function) > 0, "{function} {values}");
        assert!(fs::read(&path).unwrap() == expected, "{function} {values}");
    }
}

#[test]
fn packed_saves_of_several_files_load() {
    let folder = tempdir().unwrap();
    let model = model();
    let data = data(&model);
    let shards: Vec<&[TensorData<'_>]> = data.chunks(4).collect();
    let path = folder.path().join("model.safetensors");
    let saved = safetensors::save_shards(&path, &shards, &options().compress(true)).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_equal(&checkpoint, &model);
    let len = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().metadata().unwrap().len();
    let all = fs::read_dir(folder.path()).unwrap().map(len).sum::<u64>();
    assert_eq!(saved.len_bytes + fs::metadata(&saved.path).unwrap().len(), all);
    assert!(saved.len_bytes < checkpoint.len_bytes());
}

#[test]
fn failed_packed_saves_keep_the_old_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, "old").unwrap();
    let model = long(false);
    let reserved = options().compress(true).metadata([("gpufile.packed.x", "1")]);
    let error = safetensors::save(&path, &data(&model), &reserved).unwrap_err().to_string();
    assert!(error.contains("gpufile.packed.x"), "{error}");
    // A copy from the GPU fails.
    let bed = Bed::emulated();
    let buffer = bed.device.alloc(model[0].3.len()).unwrap();
    let tensors = [TensorData::new("long", model[0].1, &model[0].2, &buffer)];
    let engine = Engine::builder().driver(bed.driver.clone()).build();
    let options = options().compress(true).files(&OpenOptions::new().engine(&engine));
    bed.emulator.as_ref().unwrap().fault("cudaMemcpy", "err=700");
    let error = safetensors::save(&path, &tensors, &options).unwrap_err().to_string();
    assert!(error.contains("cudaMemcpy"), "{error}");
    assert!(fs::read(&path).unwrap() == b"old" && fs::read_dir(folder.path()).unwrap().count() == 1);
}

#[test]
fn parts_of_packed_tensors_are_read() {
    let model = model();
    let saved = Saved::new(&model);
    let checkpoint = Checkpoint::open(&saved.packed).unwrap();
    let (plain, viewed) = (File::open(&saved.plain).unwrap(), checkpoint.files().next().unwrap().0);
    let len = plain.len_bytes().unwrap() as usize;
    let mut random = Random::new(3);
    for _ in 0..300 {
        let start = random.below(len);
        let end = start + random.below((len - start).min(60_000) + 1);
        let (mut expected, mut found) = (vec![0; end - start], vec![1; end - start]);
        plain.read_exact_at(&mut expected, start as u64).unwrap();
        viewed.read_exact_at(&mut found, start as u64).unwrap();
        assert!(expected == found, "{start} to {end}");
    }
    // Columns are short runs, of which several lie in one group.
    let (_, _, _, wide) = &model[0];
    let mut columns = vec![0; 301 * 50 * 2];
    checkpoint.read_slice_into("wide", 1, 100..150, &mut columns).unwrap();
    for (row, found) in columns.chunks(100).enumerate() {
        assert!(found == &wide[(row * 403 + 100) * 2..(row * 403 + 150) * 2], "row {row}");
    }
}

fn open(bed: &Bed, path: &Path) -> Checkpoint {
    let engine = Engine::builder().driver(bed.driver.clone()).threads(4).bounce_buffer_bytes(1 << 18).build();
    Checkpoint::open_with([path], &OpenOptions::new().engine(&engine)).unwrap()
}

#[test]
fn packed_models_load_to_gpus() {
    Bed::each(|bed| {
        let model = model();
        let saved = Saved::new(&model);
        let checkpoint = open(bed, &saved.packed);
        let loaded = checkpoint.load().to_device(&bed.device).unwrap();
        if let Some(emulator) = &bed.emulator {
            assert!(emulator.calls("cuLaunchKernel") > 0);
        }
        let found = loaded.buffer().to_vec().unwrap();
        for (name, _, _, bytes) in &model {
            assert!(found[loaded.tensor(name).unwrap().range] == bytes[..], "{name}");
        }
    });
}

/// Returns a BF16 tensor whose last sixteenth, or none of it, has random bits.
fn long(ends_randomly: bool) -> [Tensor; 1] {
    let (_, dtype, shape, mut bytes) = weights(8, Dtype::BF16, &[1024, 8192]);
    if ends_randomly {
        let mut random = Random::new(5);
        let start = bytes.len() / 16 * 15;
        bytes[start..].fill_with(|| random.next_number() as u8);
    }
    [("long", dtype, shape, bytes)]
}

#[test]
fn chunks_of_gpus_have_the_length_of_buffers_in_files() {
    let bed = Bed::emulated();
    let saved = Saved::new(&long(false));
    let checkpoint = open(&bed, &saved.packed);
    let emulator = bed.emulator.as_ref().unwrap();
    let before = emulator.calls("cuLaunchKernel");
    checkpoint.load().to_device(&bed.device).unwrap();
    let launches = emulator.calls("cuLaunchKernel") - before;
    // The 16 MiB fill 64 buffers as they are.
    let packed_bytes = checkpoint.packed_len_bytes("long").unwrap();
    let most = packed_bytes.div_ceil(256 << 10) + 2;
    assert!(most < 50 && launches as u64 <= most, "{launches} launches, {packed_bytes} bytes");
}

#[test]
fn chunks_longer_than_buffers_are_decoded_in_parts() {
    let bed = Bed::emulated();
    let model = long(true);
    let saved = Saved::new(&model);
    let checkpoint = open(&bed, &saved.packed);
    let whole = checkpoint.packed_len_bytes("long").unwrap();
    assert!(whole < (model[0].3.len() * 9 / 10) as u64, "{whole}");
    let loaded = checkpoint.load().to_device(&bed.device).unwrap();
    assert!(loaded.buffer().to_vec().unwrap()[loaded.tensor("long").unwrap().range] == model[0].3[..]);
    // A failed copy of a part fails the load, and the next one succeeds.
    let emulator = bed.emulator.as_ref().unwrap();
    emulator.fault("cudaMemcpyAsync", "err=719");
    let error = checkpoint.load().to_device(&bed.device).unwrap_err().to_string();
    assert!(error.contains("cudaMemcpyAsync"), "{error}");
    let loaded = checkpoint.load().to_device(&bed.device).unwrap();
    assert!(loaded.buffer().to_vec().unwrap()[loaded.tensor("long").unwrap().range] == model[0].3[..]);
}

/// A storage that counts the bytes of its reads.
#[derive(Debug)]
struct Counting {
    bytes: Vec<u8>,
    read: Arc<AtomicU64>,
}

impl Storage for Counting {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, spans: &mut Spans<'_>) -> Result<(), storage::Error> {
        while let Some(range) = spans.next_range() {
            self.read.fetch_add(range.end - range.start, Ordering::Relaxed);
            spans.put(&self.bytes[range.start as usize..range.end as usize])?;
        }
        Ok(())
    }
}

#[test]
fn slices_of_rows_read_their_share() {
    let (_, dtype, shape, bytes) = weights(9, Dtype::BF16, &[2048, 8192]);
    let model = [("w", dtype, shape, bytes)];
    let saved = Saved::new(&model);
    for (parts, most) in [(8, 1.02), (4, 1.01)] {
        let read = Arc::new(AtomicU64::new(0));
        let storage = Counting { bytes: fs::read(&saved.packed).unwrap(), read: read.clone() };
        let file = File::from_storage("w.safetensors", Arc::new(storage)).unwrap();
        let checkpoint = Checkpoint::from_files([file]).unwrap();
        let packed = checkpoint.packed_len_bytes("w").unwrap();
        read.store(0, Ordering::Relaxed);
        let rows = 2048 / parts;
        let mut slice = vec![0; rows as usize * 8192 * 2];
        checkpoint.read_slice_into("w", 0, rows..2 * rows, &mut slice).unwrap();
        assert!(slice == model[0].3[slice.len()..2 * slice.len()]);
        let ratio = read.load(Ordering::Relaxed) as f64 / (packed as f64 / parts as f64);
        assert!((1.0..most).contains(&ratio), "1/{parts}: {ratio}");
    }
}

#[test]
fn gpus_find_damaged_blocks() {
    let bed = Bed::emulated();
    let model = model();
    let saved = Saved::new(&model);
    let file = fs::File::options().read(true).write(true).open(&saved.packed).unwrap();
    let mut byte = [0];
    // The packed tensors come first, and this is within the second group of the first.
    let at = fs::metadata(&saved.packed).unwrap().len() / 20;
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let checkpoint = open(&bed, &saved.packed);
    let error = checkpoint.load().to_device(&bed.device).unwrap_err().to_string();
    assert!(error.contains("is packed wrongly: the GPU found damage in its group"), "{error}");
    // The same buffers find nothing afterwards.
    file.write_all_at(&byte, at).unwrap();
    checkpoint.load().to_device(&bed.device).unwrap();
}

#[test]
fn loads_succeed_after_decoding_could_not_start() {
    let bed = Bed::emulated();
    let model = model();
    let saved = Saved::new(&model);
    let checkpoint = open(&bed, &saved.packed);
    checkpoint.load().to_device(&bed.device).unwrap();
    for function in ["cuLaunchKernel", "cudaStreamWaitEvent", "cudaEventRecord"] {
        bed.emulator.as_ref().unwrap().fault(function, "err=701");
        let error = checkpoint.load().to_device(&bed.device).unwrap_err().to_string();
        assert!(error.contains(function), "{error}");
        let loaded = checkpoint.load().to_device(&bed.device).unwrap();
        let found = loaded.buffer().to_vec().unwrap();
        for (name, _, _, bytes) in &model {
            assert!(found[loaded.tensor(name).unwrap().range] == bytes[..], "{function}: {name}");
        }
    }
}

/// Slices and copies for several GPUs come from packed tensors as from plain ones.
#[test]
fn packed_models_are_placed_on_several_gpus() {
    let bed = Bed::emulated();
    bed.emulator.as_ref().unwrap().control("gpus 2");
    let devices = [bed.device.clone(), bed.driver.cuda().device(1).unwrap()];
    let model = model();
    let saved = Saved::new(&model);
    for (path, axis) in [(&saved.plain, 0), (&saved.packed, 0), (&saved.packed, 1)] {
        let checkpoint = open(&bed, path);
        let placement = Placement::by(move |tensor: &TensorInfo<'_>| match tensor.shape {
            [_, _, ..] => Share::Slice { axis, cut: Cut::Even },
            _ => Share::All,
        });
        for on_gpu in checkpoint.load().placed(&placement).to_devices(&devices).unwrap() {
            let found = on_gpu.buffer().to_vec().unwrap();
            for part in on_gpu.iter() {
                let (.., bytes) = model.iter().find(|(name, ..)| *name == part.info.name).unwrap();
                assert!(found[part.range.clone()] == expected(&part, bytes), "{}", part.info.name);
            }
        }
    }
}

#[test]
fn packed_models_of_several_files_keep_their_index() {
    let folder = tempdir().unwrap();
    let model = model();
    let plain = folder.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let data = data(&model);
    let shards: Vec<&[TensorData<'_>]> = data.chunks(3).collect();
    safetensors::save_shards(plain.join("model.safetensors"), &shards, &options()).unwrap();
    let packed = folder.path().join("new/packed");
    let saved = Checkpoint::open(&plain).unwrap().compress(&packed, &options()).unwrap();
    assert_eq!(saved.path, packed.join("model.safetensors.index.json"));
    let checkpoint = Checkpoint::open(&packed).unwrap();
    assert!(checkpoint.files().len() == 3 && checkpoint.warnings().is_empty());
    assert_equal(&checkpoint, &model);
    // A folder gets the file of a model that has one.
    let one = Saved::new(&model);
    let saved = Checkpoint::open(&one.packed).unwrap().decompress(folder.path(), &options()).unwrap();
    assert_eq!(saved.path, folder.path().join("packed"));
    assert!(fs::read(saved.path).unwrap() == fs::read(one.plain).unwrap());
}

/// Other loaders read the header alone: no tensor has its type or shape.
#[test]
fn other_loaders_find_bytes_of_one_axis() {
    let model = model();
    let file = fs::read(Saved::new(&model).packed).unwrap();
    let header = Header::parse(&file, file.len() as u64).unwrap();
    for (name, dtype, shape, bytes) in &model[..6] {
        let found = header.get(name).unwrap();
        assert_eq!((found.dtype, found.shape.len()), (Dtype::U8, 1), "{name}");
        assert!(found.len_bytes() < bytes.len() as u64 && (found.dtype, found.shape) != (*dtype, &shape[..]));
    }
    assert_eq!(header.metadata()["gpufile.packed:wide"], "BF16[301,403]");
}

#[test]
fn files_of_newer_versions_name_what_they_need() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x");
    let metadata = [("gpufile.packed", "2"), ("gpufile.packed.needs", "9.1.0")];
    let tensor = TensorData::new("w", Dtype::U8, &[2], &[1, 2][..]);
    safetensors::save(&path, &[tensor], &options().metadata(metadata)).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("needs gpufile 9.1.0 or newer"), "{error}");
    assert!(!Verify::new().run([&path]).is_good());
}

fn fails(path: &Path, model: &[Tensor]) -> bool {
    let Ok(checkpoint) = Checkpoint::open(path) else { return true };
    let mut failed = false;
    for (name, dtype, shape, bytes) in model {
        // Nothing detects another name or type of a plain tensor.
        match checkpoint.read_tensor(name) {
            Ok(found) => {
                let info = checkpoint.tensor(name).unwrap();
                assert_eq!((info.dtype, info.shape), (*dtype, &shape[..]), "{name}");
                assert!(&found == bytes, "{name}: wrong bytes without an error");
            }
            Err(_) => failed = true,
        }
    }
    failed
}

/// Changes each byte of a file in some way, until there were 10,000 changes.
#[test]
fn damage_of_each_byte_is_found() {
    let (_, dtype, shape, bytes) = weights(1, Dtype::BF16, &[4, 2100]);
    let model = [("w", dtype, shape, bytes)];
    let saved = Saved::new(&model);
    let whole = fs::read(&saved.packed).unwrap();
    let file = fs::File::options().write(true).open(&saved.packed).unwrap();
    let mut random = Random::new(9);
    let mut harmless = 0;
    for case in 0..10_000 {
        let at = if case < whole.len() { case } else { random.below(whole.len()) };
        let changed = whole[at] ^ (1 + random.below(255) as u8);
        file.write_all_at(&[changed], at as u64).unwrap();
        harmless += usize::from(!fails(&saved.packed, &model));
        file.write_all_at(&whole[at..=at], at as u64).unwrap();
    }
    // Those in the values of other metadata, and in white space behind the header.
    assert!(harmless < 200, "{harmless}");
}

#[test]
fn cut_and_swapped_tensors_are_errors() {
    let model = [("a", 1), ("b", 2)].map(|(name, seed)| {
        let (_, dtype, shape, bytes) = weights(seed, Dtype::BF16, &[2, 9000]);
        (name, dtype, shape, bytes)
    });
    let saved = Saved::new(&model);
    let file = fs::read(&saved.packed).unwrap();
    let header = Header::parse(&file, file.len() as u64).unwrap();
    let block = header.in_file(header.get("a").unwrap().offsets);
    let path = saved.folder.path().join("damaged");
    // The blocks of the two groups of one tensor.
    let mut swapped = file.clone();
    let first = block.start as usize + 64 + 3 * 16;
    swapped[first..first + 22_528].rotate_left(11_264);
    fs::write(&path, &swapped).unwrap();
    let error = Checkpoint::open(&path).unwrap().read_tensor("a").unwrap_err().to_string();
    assert!(error.contains("tensor \"a\" is packed wrongly: the bytes of group 0"), "{error}");
    assert!(Checkpoint::open(&path).unwrap().read_tensor("b").is_ok());
    // An index that is wrong is found by a verification too.
    let mut wrong = file.clone();
    wrong[block.start as usize + 70] ^= 1;
    fs::write(&path, &wrong).unwrap();
    let found = Verify::new().run([&path]);
    assert!(
        found.problems[0].to_string().contains("its head and index do not have their checksum"),
        "{found:?}"
    );
    // Too few bytes for the index.
    let tensors = [NewTensor { name: "w", dtype: Dtype::U8, shape: &[70] }];
    let metadata =
        [("gpufile.packed", "1"), ("gpufile.packed.tensors", "1"), ("gpufile.packed:w", "BF16[8193]")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let (_, mut short) = Header::build(&tensors, metadata.into()).unwrap();
    short.resize(short.len() + 70, 0);
    fs::write(&path, short).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("fewer bytes than the index"), "{error}");
}
