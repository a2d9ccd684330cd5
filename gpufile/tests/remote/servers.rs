//! Tests of objects on servers of others: nginx, and the S3 of moto.
//!
//! The tests of nginx run where it is installed. That of moto runs where `GPUFILE_TEST_PYTHON` names a Python with moto.

use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::keys::{assert_literal, keys};
use crate::real_servers::{Moto, Nginx, assert_saves};
use crate::support::{cause, engine, options};
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::zarr::{Array, FileStore};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::remote::{RemoteError, RemoteOptions};
use gpufile::{File, IoRange};
use testkit::bed::{Bed, pattern};
use testkit::python::Python;

const LONG: usize = (9 << 20) + 4321;

fn assert_reads(bed: &Bed, file: &File, bytes: &[u8]) {
    let mut device = bed.device.alloc(bytes.len()).unwrap();
    file.with_chunk_bytes(300_000).read_exact_at(&mut device, 0).unwrap();
    assert!(device.to_vec().unwrap() == bytes);
    let ranges: Vec<_> = (0..200)
        .map(|number| IoRange {
            file_offset: (199 - number) * 40_000 + 17,
            buffer_offset: number as usize * 1000,
            len_bytes: 1000,
        })
        .collect();
    let mut host = vec![0; 200_000];
    file.read_many(&mut host, &ranges).unwrap();
    for IoRange { file_offset, buffer_offset, len_bytes } in ranges {
        let at = file_offset as usize;
        assert!(host[buffer_offset..][..len_bytes] == bytes[at..][..len_bytes]);
    }
}

/// Saves a model in shards into a folder. Returns the bytes of each of its tensors.
fn save_model(path: &std::path::Path) -> Vec<u8> {
    let bytes = pattern(700_000);
    let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[700_000], &bytes));
    let save = SaveOptions::new().sync(false).shard_bytes(1 << 20);
    safetensors::save(path, &tensors, &save).unwrap();
    bytes
}

fn assert_loads(bed: &Bed, url: &str, options: &RemoteOptions, bytes: &[u8]) {
    let checkpoint = Checkpoint::open_url_with(url, options).unwrap();
    let loaded = checkpoint.load().to_device(&bed.device).unwrap();
    let found = loaded.buffer().to_vec().unwrap();
    for name in ["a", "b", "c"] {
        assert!(found[loaded.tensor(name).unwrap().range] == *bytes, "{name}");
    }
}

#[test]
fn nginx_sends_ranges_plain_and_encrypted() {
    let Some(nginx) = Nginx::start("gzip on; gzip_types *; gzip_min_length 1; keepalive_requests 7;") else {
        return;
    };
    let bytes = pattern(LONG);
    fs::write(nginx.path("a b%.bin"), &bytes).unwrap();
    Bed::each(|bed| {
        let options = options().engine(&engine(bed));
        assert_reads(bed, &options.open(&nginx.url("/a%20b%25.bin")).unwrap(), &bytes);
        let trusting = options.trust(nginx.certificate()).unwrap();
        assert_reads(bed, &trusting.open(&nginx.encrypted_url("/a%20b%25.bin")).unwrap(), &bytes);
    });
    let error = options().open(&nginx.encrypted_url("/a%20b%25.bin")).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Certificate { .. }), "{error}");
}

#[test]
fn models_are_loaded_from_nginx() {
    let Some(nginx) = Nginx::start("") else { return };
    let bytes = save_model(&nginx.path("model.safetensors"));
    Bed::each(|bed| {
        let options = options().engine(&engine(bed));
        assert_loads(bed, &nginx.url("/model.safetensors.index.json"), &options, &bytes);
    });
}

#[test]
fn changed_files_of_nginx_are_an_error() {
    let Some(nginx) = Nginx::start("") else { return };
    fs::write(nginx.path("a"), pattern(LONG)).unwrap();
    let file = options().open(&nginx.url("/a")).unwrap();
    file.read_exact_at(&mut vec![0; LONG], 0).unwrap();
    // nginx makes ETags of the length and the second of the last change.
    let changed = fs::File::options().write(true).open(nginx.path("a")).unwrap();
    changed.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let error = file.read_exact_at(&mut vec![0; LONG], 0).unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Changed), "{error}");
    assert_eq!(options().open(&nginx.url("/b")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn reads_go_on_after_a_restart_of_nginx() {
    let Some(mut nginx) = Nginx::start("") else { return };
    let bytes = pattern(LONG);
    fs::write(nginx.path("a"), &bytes).unwrap();
    let file = options().open(&nginx.url("/a")).unwrap();
    for _ in 0..3 {
        let mut found = vec![0; LONG];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes);
        nginx.restart();
    }
    let options = options().trust(nginx.certificate()).unwrap();
    let file = options.open(&nginx.encrypted_url("/a")).unwrap();
    for _ in 0..3 {
        let mut found = vec![0; LONG];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes);
        nginx.restart();
    }
}

#[test]
fn nginx_redirects_and_refuses_as_other_servers() {
    let lines =
        "location /old { return 302 /a?signed=secret; } location /whole { max_ranges 0; alias files/a; }
        location /busy { return 503; } location /private { return 403; }";
    let Some(nginx) = Nginx::start(lines) else { return };
    let bytes = pattern(LONG);
    fs::write(nginx.path("a"), &bytes).unwrap();
    let mut found = vec![0; LONG];
    options().open(&nginx.url("/old")).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes);
    for (path, reason) in [("/whole", "sends no ranges"), ("/busy", "status 503"), ("/private", "status 403")]
    {
        let error = options().open(&nginx.url(path)).unwrap_err();
        assert!(cause(&error).to_string().contains(reason), "{error}");
    }
}

/// Lets zarr-python write arrays into `arrays.zarr` in a folder, and their bytes beside it.
fn save_arrays(python: &Python, folder: &std::path::Path) {
    let program = "import numpy as np, zarr\n\
        zarr.open_group('arrays.zarr', mode='w')\n\
        def save(name, **more):\n    \
            a = np.arange(90000, dtype='<u4').reshape(300, 300)\n    \
            z = zarr.create_array('arrays.zarr/' + name, shape=a.shape, dtype=a.dtype, fill_value=5, **more)\n    \
            z[:250] = a[:250]\n    \
            z[:].tofile(name + '.raw')\n\
        save('raw', chunks=(50, 300), compressors=None)\n\
        save('zstd', chunks=(50, 70))\n\
        save('shards', chunks=(10, 30), shards=(100, 90))\n\
        save('version 2', chunks=(50, 100), zarr_format=2)\n";
    python.run(folder, program);
}

fn assert_arrays(bed: &Bed, store: FileStore, folder: &std::path::Path) {
    let store = Arc::new(store);
    for name in ["raw", "zstd", "shards", "version 2"] {
        let array = Array::open(&store, name).unwrap();
        let bytes = fs::read(folder.join(format!("{name}.raw"))).unwrap();
        assert!(array.read_to_device(&bed.device).unwrap().to_vec().unwrap() == bytes, "{name}");
        let mut rows = vec![0; 2 * 1200];
        array.read_region_into(&[249..251, 0..300], &mut rows).unwrap();
        assert!(rows == bytes[249 * 1200..251 * 1200], "{name}");
    }
}

#[test]
fn arrays_of_zarr_python_are_read_from_nginx() {
    let (Some(nginx), Some(python)) = (Nginx::start(""), Python::find()) else { return };
    save_arrays(&python, &nginx.path(""));
    Bed::each(|bed| {
        let options = options().engine(&engine(bed));
        let store = FileStore::at_url(&nginx.url("/arrays.zarr/"), &options).unwrap();
        assert_arrays(bed, store, &nginx.path(""));
        let trusting = options.trust(nginx.certificate()).unwrap();
        let store = FileStore::at_url(&nginx.encrypted_url("/arrays.zarr"), &trusting).unwrap();
        assert_arrays(bed, store, &nginx.path(""));
    });
}

fn of_moto(moto: &Moto) -> RemoteOptions {
    options()
        .s3_option("AWS_ENDPOINT", moto.endpoint())
        .s3_option("AWS_ALLOW_HTTP", "true")
        .s3_option("AWS_REGION", "us-east-1")
        .s3_option("AWS_ACCESS_KEY_ID", "KEY")
        .s3_option("AWS_SECRET_ACCESS_KEY", "hidden")
}

#[test]
fn arrays_of_zarr_python_are_read_from_s3() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    save_arrays(&python, folder.path());
    let moto = Moto::start(python.command(), folder.path());
    Bed::each(|bed| {
        let options = of_moto(&moto).engine(&engine(bed));
        let store = FileStore::at_url("s3://bucket/m/arrays.zarr", &options).unwrap();
        assert_arrays(bed, store, folder.path());
    });
}

#[test]
fn models_are_loaded_from_the_s3_of_moto() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let bytes = save_model(&folder.path().join("model.safetensors"));
    let long = pattern(LONG);
    fs::write(folder.path().join("a b"), &long).unwrap();
    let moto = Moto::start(python.command(), folder.path());
    let options = of_moto(&moto);
    Bed::each(|bed| {
        let options = options.clone().engine(&engine(bed));
        assert_reads(bed, &options.open("s3://bucket/m/a b").unwrap(), &long);
        assert_loads(bed, "s3://bucket/m/model.safetensors.index.json", &options, &bytes);
    });
    let error = options.open("s3://bucket/m/missing").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

/// Fails if an upload to the bucket was neither completed nor aborted.
const NO_UPLOADS: &str = "
import boto3
store = boto3.client('s3', endpoint_url='ENDPOINT', region_name='us-east-1', aws_access_key_id='KEY', aws_secret_access_key='hidden')
assert 'Uploads' not in store.list_multipart_uploads(Bucket='bucket')
names = sorted(entry['Key'] for entry in store.list_objects_v2(Bucket='bucket')['Contents'])
assert len(names) == 4, names
";

#[test]
fn keys_of_moto_are_written_and_read_as_they_are() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let moto = Moto::start(python.command(), folder.path());
    // moto has no objects with line breaks.
    let keys = keys(&['\n']);
    assert_literal(&of_moto(&moto), "s3://bucket/", &keys);
    fs::write(folder.path().join("keys.json"), serde_json::to_vec(&keys).unwrap()).unwrap();
    python.run(folder.path(), &SAME_KEYS.replace("ENDPOINT", &moto.endpoint()));
}

/// Fails unless the bucket has these keys.
const SAME_KEYS: &str = "
import boto3, json
store = boto3.client('s3', endpoint_url='ENDPOINT', region_name='us-east-1', aws_access_key_id='KEY', aws_secret_access_key='hidden')
pages = store.get_paginator('list_objects_v2').paginate(Bucket='bucket')
found = {entry['Key'] for page in pages for entry in page['Contents']}
wanted = set(json.load(open('keys.json')))
assert found == wanted, (found - wanted, wanted - found)
";

#[test]
fn models_are_saved_to_the_s3_of_moto() {
    let Some(python) = Python::find() else { return };
    Bed::each(|bed| {
        let folder = tempfile::tempdir().unwrap();
        let moto = Moto::start(python.command(), folder.path());
        let options = of_moto(&moto).engine(&engine(bed));
        assert_saves(bed, &options, &|name| format!("s3://bucket/a%20b c?/{name}"));
        python.run(folder.path(), &NO_UPLOADS.replace("ENDPOINT", &moto.endpoint()));
        let error = options.upload("s3://missing/a", 20 << 20).unwrap_err();
        assert_eq!(cause(&error).status(), Some(404), "{error}");
        assert!(error.to_string().contains("\"s3://missing/a\""), "{error}");
    });
}
