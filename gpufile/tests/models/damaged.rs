//! Tests of models with random damage: bytes flipped in headers and indexes, files cut, exchanged, renamed and linked. Verifying
//! and loading agree, and a load gives the author's tensors or fails.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use gpufile::formats::safetensors::{Checkpoint, Verify};
use serde_json::json;
use testkit::random::Random;
use testkit::zoo::safetensors;

const ROUNDS: usize = 1000;

const SHARDS: [(&str, &[&str]); 3] = [
    ("model-00001-of-00003.safetensors", &["embed", "layers.0.weight"]),
    ("model-00002-of-00003.safetensors", &["layers.1.weight", "layers.1.bias"]),
    ("model-00003-of-00003.safetensors", &["norm"]),
];
const INDEX: &str = "model.safetensors.index.json";

/// Type, shape and bytes of each tensor.
type Tensors = BTreeMap<String, (String, Vec<u64>, Vec<u8>)>;

fn write(folder: &Path) {
    let mut map = BTreeMap::new();
    for (file, names) in SHARDS {
        fs::write(folder.join(file), safetensors(file, names.iter().copied())).unwrap();
        map.extend(names.iter().map(|name| (*name, file)));
    }
    fs::write(folder.join(INDEX), json!({ "weight_map": map }).to_string()).unwrap();
}

fn load(checkpoint: &Checkpoint) -> Tensors {
    let loaded = checkpoint.load().to_host().unwrap();
    let one = |info: gpufile::formats::safetensors::TensorInfo<'_>| {
        let bytes = loaded.bytes(info.name).unwrap().to_vec();
        (info.name.to_owned(), (info.dtype.to_string(), info.shape.to_vec(), bytes))
    };
    loaded.iter().map(|tensor| one(tensor.info)).collect()
}

fn flip(random: &mut Random, path: &Path, within: usize) {
    let mut bytes = fs::read(path).unwrap();
    let end = within.min(bytes.len());
    let at = random.below(end);
    bytes[at] ^= 1 << random.below(8);
    fs::write(path, bytes).unwrap();
}

/// Damages the model once. Returns whether the damage may be one that only hashes detect.
fn damage(random: &mut Random, folder: &Path) -> bool {
    let files: Vec<PathBuf> = SHARDS.iter().map(|(file, _)| folder.join(file)).collect();
    let (file, other) = (&files[random.below(3)], &files[random.below(3)]);
    match random.below(9) {
        0..=2 => {
            let bytes = fs::read(file).unwrap();
            let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            flip(random, file, head);
            return true;
        }
        3 => flip(random, &folder.join(INDEX), usize::MAX),
        4 => {
            let len = fs::metadata(file).unwrap().len();
            fs::File::options().write(true).open(file).unwrap().set_len(random.next_number() % len).unwrap();
        }
        5 => {
            let (one, two) = (fs::read(file).unwrap(), fs::read(other).unwrap());
            fs::write(file, two).unwrap();
            fs::write(other, one).unwrap();
        }
        6 => fs::rename(file, folder.join("renamed.safetensors")).unwrap(),
        7 => {
            fs::remove_file(file).unwrap();
            let target = [other.as_path(), Path::new("nowhere"), file.as_path()][random.below(3)];
            symlink(target.file_name().unwrap(), file).unwrap();
        }
        _ => {
            let bytes = fs::read(file).unwrap();
            let padding = 1 + random.below(64);
            fs::write(file, [bytes, vec![0; padding]].concat()).unwrap();
        }
    }
    false
}

/// Returns whether a damaged header gives the author's names and bytes. It cannot prove its types and the order of
/// axes.
fn has_the_bytes_of(found: &Tensors, author: &Tensors) -> bool {
    let bytes = |tensors: &Tensors| -> BTreeMap<String, Vec<u8>> {
        tensors.iter().map(|(name, (_, _, bytes))| (name.clone(), bytes.clone())).collect()
    };
    bytes(found) == bytes(author)
}

#[test]
fn damaged_models_load_the_tensors_of_their_author_or_fail() {
    let mut random = Random::new(0x5851_f42d_4c95_7f2d);
    let folder = tempfile::tempdir().unwrap();
    let (mut good, mut types) = (0, 0);
    for round in 0..ROUNDS {
        fs::read_dir(folder.path())
            .unwrap()
            .for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
        write(folder.path());
        let author = load(&Checkpoint::open(folder.path()).unwrap());
        let in_header = damage(&mut random, folder.path());
        let files = SHARDS.map(|(file, _)| folder.path().join(file));
        let opened = [
            (Checkpoint::open(folder.path()), Verify::new().run([folder.path()])),
            (Checkpoint::open(folder.path().join(INDEX)), Verify::new().run([folder.path().join(INDEX)])),
            (Checkpoint::open_with(&files, &gpufile::OpenOptions::new()), Verify::new().run(&files)),
        ];
        for (opened, found) in opened {
            assert_eq!(opened.is_ok(), found.is_good(), "round {round}: {:?}", found.problems);
            let checkpoint = match opened {
                Ok(checkpoint) => checkpoint,
                Err(error) => {
                    assert_eq!(error.to_string(), found.problems[0].to_string(), "round {round}");
                    continue;
                }
            };
            good += 1;
            assert_eq!(checkpoint.warnings(), &found.warnings[..], "round {round}");
            let loaded = load(&checkpoint);
            assert!(has_the_bytes_of(&loaded, &author), "round {round}: {loaded:?}");
            assert!(loaded == author || in_header, "round {round}: {loaded:?}");
            types += usize::from(loaded != author);
        }
    }
    assert!(good > 20 && good < 3 * ROUNDS / 2, "{good} models opened");
    assert!(types < ROUNDS / 20, "{types} models opened with other types or axes");
}
