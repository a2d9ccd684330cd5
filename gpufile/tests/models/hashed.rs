use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use gpufile::formats::Error;
use gpufile::formats::safetensors::{Verify, Warning};
use sha2::{Digest, Sha256};
use testkit::zoo::safetensors;

fn hash(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_of_a_cache_have_the_hash_of_their_name() {
    let cache = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/c0ffee"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    let mut paths = Vec::new();
    for file in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        let new = blobs.join("new");
        fs::write(&new, safetensors(file, [file].into_iter())).unwrap();
        let blob = blobs.join(hash(&new));
        fs::rename(&new, &blob).unwrap();
        symlink(Path::new("../../blobs").join(blob.file_name().unwrap()), snapshot.join(file)).unwrap();
        paths.push(blob);
    }
    let verify = Verify::new().contents(true);
    let found = verify.run([cache.path()]);
    assert!(found.is_good() && found.warnings.is_empty(), "{found:?}");
    assert_eq!(found.hashed, 2);

    paths.iter().for_each(|path| damage(path));
    assert!(Verify::new().run([cache.path()]).is_good(), "only hashes detect this");
    let found = verify.run([cache.path()]);
    assert_eq!(found.problems.len(), 2, "{found:?}");
    assert!(
        matches!(&found.problems[1], Error::WrongContents { path, .. } if path.ends_with("model-00002-of-00002.safetensors"))
    );
}

#[test]
fn a_list_of_hashes_covers_index_and_shards() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    let (one, two) = (folder.path().join("1"), folder.path().join("2"));
    fs::write(&one, safetensors("1", ["a"].into_iter())).unwrap();
    fs::write(&two, safetensors("2", ["b"].into_iter())).unwrap();
    fs::write(&index, r#"{"weight_map":{"a":"1","b":"2"}}"#).unwrap();
    let list = folder.path().join("SHA256SUMS");
    let lines =
        [&one, &index].map(|path| format!("{} *{}\n", hash(path), path.file_name().unwrap().display()));
    fs::write(&list, lines.concat()).unwrap();
    let verify = Verify::new().hash_list(&list).unwrap();
    let found = verify.run([folder.path()]);
    assert!(found.is_good() && found.hashed == 2, "{found:?}");
    assert_eq!(found.warnings, [Warning::NoHash { file: two }]);
    fs::write(&index, r#"{"weight_map": {"a":"1","b":"2"}}"#).unwrap();
    let found = verify.run([folder.path()]);
    assert!(
        matches!(&found.problems[..], [Error::WrongContents { path, .. }] if *path == index),
        "{found:?}"
    );

    fs::write(&list, "no hash\n").unwrap();
    let error = Verify::new().hash_list(&list).unwrap_err();
    assert!(error.to_string().contains("at byte 0 of the hash list file"), "{error}");
}
