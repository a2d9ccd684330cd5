//! Tests of the rule that tells which files are a model: each folder of the zoo, by each way to open it.

#[allow(dead_code, reason = "these tests need no root of a folder")]
mod zoo;

use std::collections::BTreeMap;

use gpufile::formats::Result;
use gpufile::formats::safetensors::{Checkpoint, Verification, Verify};
use zoo::{Case, bytes_of, cases};

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
    assert_eq!(counts.len(), 14);
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
