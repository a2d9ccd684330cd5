use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use gpufile::Engine;
use gpufile::formats::gguf::{self, GgmlType, Metadata};
use gpufile::formats::npy::{self, NpyFile};
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, Error, SaveOptions};
use gpufile::remote::{RemoteFile, RemoteOptions};
use tempfile::TempDir;
use testkit::bed::{Bed, pattern};
use testkit::web::{Fault, Server};

/// Saves a model in several shards. Returns its folder, and the bytes of its tensors.
fn saved() -> (TempDir, BTreeMap<String, Vec<u8>>) {
    let folder = tempfile::tempdir().unwrap();
    let contents: BTreeMap<_, _> = (0..9)
        .map(|number| (format!("layer.{number}"), pattern(400_000 + number).split_off(number)))
        .collect();
    let shape = [400_000];
    let tensors: Vec<_> =
        contents.iter().map(|(name, bytes)| TensorData::new(name, Dtype::U8, &shape, bytes)).collect();
    let options = SaveOptions::new().sync(false).shard_bytes(1 << 20);
    safetensors::save(folder.path().join("model.safetensors"), &tensors, &options).unwrap();
    (folder, contents)
}

/// Returns a server of the files in a folder, at `/m`.
fn serve(folder: &Path) -> Server {
    let server = Server::new(Vec::new());
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = files.filter(|entry| entry.file_type().unwrap().is_file());
    server.set_files(files.map(|entry| {
        let path = format!("/m/{}", entry.file_name().to_str().unwrap());
        (path, fs::read(entry.path()).unwrap())
    }));
    server
}

fn serve_encoded(folder: &Path) -> Server {
    let server = Server::new(Vec::new());
    server.set_files(fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().replace(' ', "%20");
        (format!("/m/{name}"), fs::read(entry.path()).unwrap())
    }));
    server
}

fn options() -> RemoteOptions {
    RemoteFile::options().wait(Duration::from_millis(1))
}

const INDEX: &str = "/m/model.safetensors.index.json?signature=secret";

#[test]
fn models_are_loaded_from_a_server() {
    let (folder, contents) = saved();
    let server = serve(folder.path());
    Bed::each(|bed| {
        let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
        let checkpoint = Checkpoint::open_url_with(&server.url(INDEX), &options().engine(&engine)).unwrap();
        assert_eq!(checkpoint.files().len(), 5);
        assert!(server.requests().iter().all(|request| request.target.ends_with("?signature=secret")));
        let loaded = checkpoint.load().to_device(&bed.device).unwrap();
        let read: u64 = server
            .requests()
            .iter()
            .map(|request| request.range.clone().unwrap())
            .map(|range| range.end - range.start)
            .sum();
        assert_eq!(read, 9 * 400_000, "each byte is fetched once");
        let bytes = loaded.buffer().to_vec().unwrap();
        let host = checkpoint.load().to_host().unwrap();
        for (name, expected) in &contents {
            let place = loaded.tensor(name).unwrap().range;
            assert!(bytes[place] == expected[..], "{name}");
            assert_eq!(host.bytes(name), Some(&expected[..]), "{name}");
            assert!(checkpoint.read_tensor(name).unwrap() == *expected);
        }
        server.requests();
    });
}

#[test]
fn single_files_are_models_too() {
    let (folder, contents) = saved();
    let server = serve(folder.path());
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let shard =
        names.iter().map(|name| name.to_str().unwrap()).find(|name| name.contains("00001-of")).unwrap();
    let checkpoint = Checkpoint::open_url(&server.url(&format!("/m/{shard}"))).unwrap();
    assert!(checkpoint.tensors().len() > 0);
    for tensor in checkpoint.tensors() {
        assert!(checkpoint.read_tensor(tensor.name).unwrap() == contents[tensor.name]);
    }
}

#[test]
fn missing_and_failing_shards_are_named() {
    let (folder, _) = saved();
    let shard = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let shard = shard.into_iter().find(|path| path.to_str().unwrap().contains("00002-of")).unwrap();
    fs::remove_file(&shard).unwrap();
    let server = serve(folder.path());
    let error = Checkpoint::open_url_with(&server.url(INDEX), &options()).unwrap_err();
    let Error::Incomplete { missing, .. } = &error else { panic!("{error}") };
    let text = missing[0].to_str().unwrap();
    assert!(
        text.starts_with("http://") && text.ends_with(shard.file_name().unwrap().to_str().unwrap()),
        "{text}"
    );
    assert!(!error.to_string().contains("secret"));
    let error = Checkpoint::open_url_with(&server.url("/m/other.safetensors"), &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    server.fail_always(Some(Fault::Status(403, None)));
    let error = Checkpoint::open_url_with(&server.url(INDEX), &options()).unwrap_err();
    assert!(matches!(error, Error::File(_)) && error.to_string().contains("status 403"), "{error}");
}

#[test]
fn arrays_are_read_from_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = pattern(4 * 30_000);
    npy::write(folder.path().join("a.npy"), "<f4", &[300, 100], &bytes[..], &SaveOptions::new()).unwrap();
    let server = serve(folder.path());
    Bed::each(|bed| {
        let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
        let file = NpyFile::open_url_with(&server.url("/m/a.npy?x=y"), &options().engine(&engine)).unwrap();
        assert_eq!(file.header().shape(), [300, 100]);
        assert!(file.read_to_device(&bed.device).unwrap().to_vec().unwrap() == bytes);
        let mut rows = vec![0; 800];
        file.read_rows_into(7..9, &mut rows).unwrap();
        assert!(rows == bytes[2800..3600]);
    });
    assert!(NpyFile::open_url(&server.url("/m/a.npy")).unwrap().read_to_host().unwrap() == bytes);
    let error = NpyFile::open_url(&server.url("/m/b.npy")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn split_gguf_models_are_loaded_from_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = pattern(4 * 50_000);
    let tensors =
        ["a", "b", "c"].map(|name| gguf::TensorData::new(name, GgmlType::F32, &[50_000], &bytes[..]));
    let options = SaveOptions::new().sync(false).shard_bytes(300_000);
    gguf::save_split(folder.path().join("a b.gguf"), &Metadata::new(), &tensors, &options).unwrap();
    let mut server = serve_encoded(folder.path());
    let url = |server: &Server| server.url("/m/a%20b-00002-of-00003.gguf?signature=secret");
    Bed::each(|bed| {
        let engine = Engine::builder().driver(bed.driver.clone()).threads(3).build();
        let model = gguf::Model::open_url_with(&url(&server), &self::options().engine(&engine)).unwrap();
        assert_eq!((model.files().len(), model.tensors().len()), (3, 3));
        assert!(server.requests().iter().all(|request| request.target.ends_with("?signature=secret")));
        let loaded = model.load().to_device(&bed.device).unwrap();
        let found = loaded.buffer().to_vec().unwrap();
        assert!(["a", "b", "c"].iter().all(|name| found[loaded.tensor(name).unwrap().range] == bytes));
        assert!(model.read_tensor("b").unwrap() == bytes);
    });
    fs::remove_file(folder.path().join("a b-00003-of-00003.gguf")).unwrap();
    server = serve_encoded(folder.path());
    let error = gguf::Model::open_url(&url(&server)).unwrap_err();
    let Error::Incomplete { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing[0].to_str(), Some(server.url("/m/a%20b-00003-of-00003.gguf").as_str()));
    assert!(!error.to_string().contains("secret"));
}
