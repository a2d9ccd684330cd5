//! Tests of the rule that tells which files are a model: each folder of the zoo, by each way to open it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::random_folders::{Answer, Folder, answer, folder};
use gpufile::formats::safetensors::{Checkpoint, Verification, Verify};
use gpufile::formats::{Error, Result};
use testkit::random::{self, Random};
use testkit::zoo::{self, Case, bytes_of, cases};

/// Fails unless a model is what the case wants: each tensor from its file, and the warnings; or the error.
fn assert_opened(case: &Case, opened: Result<Checkpoint>, way: &str) {
    let name = format!("{}, by {way}", case.name);
    match (&case.wanted, opened) {
        (Ok(want), Ok(checkpoint)) => {
            let loaded = checkpoint.load().to_host().unwrap();
            let found: BTreeMap<_, _> = loaded
                .iter()
                .map(|tensor| tensor.info.name)
                .map(|name| (name, loaded.bytes(name).unwrap().to_vec()))
                .collect();
            let wanted = want.iter().map(|(name, file)| (name.as_str(), bytes_of(file, name))).collect();
            assert_eq!(found, wanted, "{name}");
            let bytes: usize = found.values().map(Vec::len).sum();
            assert_eq!(
                (checkpoint.tensors().len(), checkpoint.len_bytes()),
                (want.len(), bytes as u64),
                "{name}"
            );
            let headers: usize = checkpoint.files().map(|(_, header)| header.tensors().len()).sum();
            assert_eq!(headers, want.len(), "{name}");
            for tensor in want.keys() {
                assert_eq!(checkpoint.read_tensor(tensor).unwrap(), found[tensor.as_str()], "{name}");
            }
            let warnings: Vec<_> = checkpoint.warnings().iter().map(ToString::to_string).collect();
            assert_words(&name, &case.warn, &warnings);
        }
        (Err(words), Err(error)) => assert_words(&name, words, &[error.to_string()]),
        (_, Ok(checkpoint)) => panic!("{name}: {checkpoint:?}"),
        (_, Err(error)) => panic!("{name}: {error}"),
    }
}

/// Fails unless all words are in the lines. Without words, there must be no lines.
fn assert_words(name: &str, words: &[String], lines: &[String]) {
    let text = lines.join("\n");
    assert_eq!(words.is_empty(), lines.is_empty(), "{name}: {text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{name}: {word:?} is not in {text}"));
    assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{name}: {text:?}");
}

fn texts(items: &[impl ToString]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn assert_verified(case: &Case, found: &Verification, way: &str) {
    let name = format!("{}, verified by {way}", case.name);
    assert_eq!(found.is_good(), case.wanted.is_ok(), "{name}: {:?}", found.problems);
    match &case.wanted {
        Ok(want) => {
            assert_eq!(found.tensors, want.len(), "{name}");
            assert_words(&name, &case.warn, &texts(&found.warnings));
        }
        Err(words) => {
            assert_words(&name, words, &texts(&found.problems));
        }
    }
}

#[test]
fn every_clause_has_its_folders() {
    let mut counts = BTreeMap::<_, usize>::new();
    cases().iter().for_each(|case| *counts.entry(case.clause.clone()).or_default() += 1);
    assert_eq!(counts.len(), 16);
    assert!(counts["pairs"] >= 20 && counts.values().all(|count| *count >= 6), "{counts:?}");
}

#[test]
fn checkpoints_open_each_folder_by_the_rule() {
    for case in cases() {
        let made = case.make();
        assert_opened(&case, Checkpoint::open(&made.path), "path");
        assert_verified(&case, &Verify::new().run([&made.path]), "path");
        if let Some(list) = &made.list {
            assert_opened(&case, Checkpoint::open_with(list, &gpufile::OpenOptions::new()), "list");
            assert_verified(&case, &Verify::new().run(list), "list");
        }
    }
}

/// Makes a folder, its files in a random order. Each has a tensor with its name.
fn make(folder: &Folder, random: &mut Random) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let mut files: Vec<_> = folder.iter().collect();
    while !files.is_empty() {
        let (file, index) = files.swap_remove(random.below(files.len()));
        let bytes = match index {
            None => zoo::safetensors(file, [file.as_str()].into_iter()),
            Some(named) => {
                let map: BTreeMap<_, _> = named.iter().map(|file| (file, file)).collect();
                serde_json::to_vec(&serde_json::json!({ "weight_map": map })).unwrap()
            }
        };
        fs::write(root.path().join(file), bytes).unwrap();
    }
    root
}

fn answer_to(root: &Path) -> Answer {
    let opened = Checkpoint::open(root);
    let verified = Verify::new().run([root]);
    assert_eq!(verified.is_good(), opened.is_ok(), "{:?}", verified.problems);
    match opened {
        Ok(checkpoint) => {
            let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            let files = checkpoint.files().map(|(file, _)| name(file.path())).collect();
            assert_eq!(verified.warnings, checkpoint.warnings());
            Answer::Model(files, !checkpoint.warnings().is_empty())
        }
        Err(Error::SeveralModels { models, .. }) => {
            assert!(models.len() > 1 && models.iter().all(|path| path.exists()), "{models:?}");
            Answer::Several
        }
        Err(Error::Incomplete { missing, count, .. }) => {
            assert!(
                count == missing.len() as u64 && missing.iter().all(|path| !path.exists()),
                "{missing:?}"
            );
            Answer::Missing
        }
        Err(Error::NoModel { .. }) => Answer::Nothing,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn random_folders_have_the_answer_of_the_rule() {
    let (seed, mut counts) = (random::seed(), [0; 4]);
    for case in 0..random::cases(2000) {
        let mut random = Random::new(seed.wrapping_add(case));
        let folder = folder(&mut random);
        let expected = answer(&folder);
        let root = make(&folder, &mut random);
        let found = answer_to(root.path());
        let seed = seed.wrapping_add(case);
        assert_eq!(found, expected, "CUFILE_TEST_CASES=1 CUFILE_TEST_SEED={seed}: {folder:#?}");
        counts[match expected {
            Answer::Model(..) => 0,
            Answer::Several => 1,
            Answer::Missing => 2,
            Answer::Nothing => 3,
        }] += 1;
    }
    eprintln!("models, several, missing, nothing: {counts:?}");
}
