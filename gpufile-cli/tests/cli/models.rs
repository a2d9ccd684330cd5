//! Tests of the program on the models of the zoo: each command opens each folder by the rule that tells which files are a model.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gpufile::formats::safetensors::{TensorData, save};
use gpufile::formats::{Dtype, SaveOptions};
use serde_json::Value;
use testkit::zoo::cases;

/// Requires that there are no lines without words.
fn assert_words(name: &str, words: &[String], lines: &[String]) {
    let text = lines.join("\n");
    assert_eq!(words.is_empty(), lines.is_empty(), "{name}: {text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{name}: {word:?} is not in {text}"));
    assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{name}: {text:?}");
}

fn run(arguments: &[&str], path: &Path) -> (bool, String, String) {
    let output = crate::program::command(arguments).arg(path).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn message(line: &str) -> String {
    let message: Value = serde_json::from_str(line).unwrap();
    let text = message.get("error").or(message.get("note"));
    text.unwrap().as_str().unwrap().to_owned()
}

#[test]
fn the_program_opens_each_folder_by_the_rule() {
    let lines = |text: &str| text.lines().map(message).collect::<Vec<_>>();
    for case in cases() {
        let made = case.make();
        for command in [&["ls", "--json"][..], &["load", "--host", "--json"], &["verify", "--json"]] {
            let name = format!("{}, by {command:?}", case.name);
            let (is_good, out, err) = run(command, &made.path);
            assert_eq!(is_good, case.wanted.is_ok(), "{name}: {out}{err}");
            if command[0] == "verify" {
                let found: Value = serde_json::from_str(&out).unwrap();
                let texts = |key: &str| {
                    found[key]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|text| text.as_str().unwrap().to_owned())
                        .collect::<Vec<_>>()
                };
                let words = case.wanted.as_ref().err().unwrap_or(&case.warn);
                assert_words(&name, words, &texts(if is_good { "warnings" } else { "problems" }));
                assert_eq!((&found["good"], err.as_str()), (&Value::Bool(is_good), ""), "{name}");
                continue;
            }
            assert_words(&name, case.wanted.as_ref().err().unwrap_or(&case.warn), &lines(&err));
            if let (Ok(want), "ls") = (&case.wanted, command[0]) {
                let found: Value = serde_json::from_str(&out).unwrap();
                let tensors = found["tensors"].as_array().unwrap();
                let names: BTreeMap<_, _> = tensors
                    .iter()
                    .map(|tensor| {
                        let file = std::fs::canonicalize(tensor["file"].as_str().unwrap()).unwrap();
                        (tensor["name"].as_str().unwrap().to_owned(), file)
                    })
                    .collect();
                let wanted = want.iter().map(|(tensor, file)| {
                    (tensor.clone(), made.root.path().join(file).canonicalize().unwrap())
                });
                assert_eq!(names, wanted.collect(), "{name}");
            }
        }
    }
}

#[test]
fn gguf_files_are_known_by_name_or_magic() {
    use gpufile::formats::SaveOptions;
    use gpufile::formats::gguf::{self, GgmlType, Metadata, TensorData};

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let bytes = [0_u8; 8];
    let tensors = ["a", "b"].map(|name| TensorData::new(name, GgmlType::F32, &[2], &bytes[..]));
    let options = SaveOptions::new().shard_bytes(8);
    gguf::save_split(path("m.gguf"), &Metadata::new(), &tensors, &options).unwrap();
    gguf::save(path("blob"), &Metadata::new(), &tensors[..1], &options).unwrap();
    for (name, count) in [("blob", 1), ("m-00002-of-00002.gguf", 2)] {
        for command in [&["ls", "--json"][..], &["load", "--host", "--json"], &["verify", "--json"]] {
            let (is_good, out, err) = run(command, &path(name));
            assert!(is_good, "{name} {command:?}: {err}");
            let found: Value = serde_json::from_str(&out).unwrap();
            match command[0] {
                "ls" => assert_eq!(found["tensors"].as_array().unwrap().len(), count, "{name}"),
                "load" => assert_eq!(found["bytes"], 8 * count, "{name}"),
                _ => assert_eq!((&found["good"], &found["tensors"]), (&true.into(), &count.into()), "{name}"),
            }
        }
    }
    // A file that is cut short, a missing one, and options that are for other formats.
    let (is_good, _, err) = run(&["verify", "--contents"], &path("blob"));
    assert!(!is_good && err.contains("is GGUF"), "{err}");
    std::fs::File::options().write(true).open(path("blob")).unwrap().set_len(70).unwrap();
    let (is_good, out, _) = run(&["verify"], &path("blob"));
    assert!(!is_good && out.starts_with("wrong: ") && out.contains("blob"), "{out}");
    std::fs::remove_file(path("m-00002-of-00002.gguf")).unwrap();
    let (is_good, out, _) = run(&["verify"], &path("m-00001-of-00002.gguf"));
    assert!(!is_good && out.contains("m-00002-of-00002.gguf"), "{out}");
    // A folder is opened by the rule for safetensors models, whose error says what to do.
    for command in ["ls", "load", "verify"] {
        let (is_good, out, err) = run(&[command], folder.path());
        assert!(!is_good && (out + &err).contains("GGUF of llama.cpp; open the file itself"));
    }
}

#[test]
fn packed_models_are_listed_verified_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, packed, again] = ["plain", "packed", "again"].map(|name| folder.path().join(name));
    let weight: Vec<u8> = (0..40_000_u32).flat_map(|value| (value as f32).sin().to_le_bytes()).collect();
    let tensors = [TensorData::new("weight", Dtype::F32, &[200, 200], &weight)];
    save(&plain, &tensors, &SaveOptions::new()).unwrap();
    let (is_good, out, err) = run(&["compress", plain.to_str().unwrap()], &packed);
    assert!(is_good && out.contains("tensors of 156.25 KiB in files of 1"), "{out}{err}");
    let (is_good, out, _) = run(&["ls"], &packed);
    assert!(is_good && out.contains("[200, 200]") && out.contains("packed in 1"), "{out}");
    let (_, out, _) = run(&["ls", "--json"], &packed);
    let found: Value = serde_json::from_str(&out).unwrap();
    let tensor = &found["tensors"][0];
    assert_eq!((&tensor["dtype"], &tensor["bytes"]), (&Value::from("F32"), &Value::from(160_000)));
    assert!(tensor["packed_bytes"].as_u64().unwrap() < 160_000 * 9 / 10);
    assert!(run(&["verify"], &packed).0 && run(&["load", "--host"], &packed).0);
    assert!(run(&["decompress", packed.to_str().unwrap()], &again).0);
    assert!(fs::read(&again).unwrap() == fs::read(&plain).unwrap());
    let mut damaged = fs::read(&packed).unwrap();
    let end = damaged.len();
    damaged[end - 100] ^= 1;
    fs::write(&packed, damaged).unwrap();
    for command in [&["load", "--host"][..], &["decompress", packed.to_str().unwrap()]] {
        let path = if command[0] == "load" { &packed } else { &again };
        let (is_good, _, err) = run(command, path);
        assert!(!is_good && err.contains("do not have their checksum"), "{err}");
    }
    assert!(fs::read(&again).unwrap() == fs::read(&plain).unwrap());
}
