//! Tests of objects of Azure Blob Storage, which azurite has.
//!
//! Those with azurite run where `GPUFILE_TEST_PYTHON` names a Python with azure-storage-blob, and `GPUFILE_TEST_AZURITE` its program.

use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;

use crate::keys::{assert_literal, keys};
use crate::real_servers::{AZURITE_KEY, Azurite, assert_saves};
use crate::support::{cause, engine, options};
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::zarr::zarrs::array::{ArrayBuilder, DataType};
use gpufile::formats::zarr::{Array, FileStore};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::remote::{RemoteError, RemoteOptions};
use testkit::bed::{Bed, pattern};
use testkit::bucket::{Bucket, Step};
use testkit::python::Python;
use testkit::web::{Fault, Server};

const LONG: usize = (9 << 20) + 4321;

fn of(azurite: &Azurite, key: &str) -> RemoteOptions {
    options()
        .azure_option("AZURE_STORAGE_ENDPOINT", azurite.endpoint())
        .azure_option("AZURE_ALLOW_HTTP", "true")
        .azure_option("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
        .azure_option("AZURE_STORAGE_ACCOUNT_KEY", key)
}

#[test]
fn tokens_of_shared_access_write_objects() {
    let (bed, bucket) = (Bed::emulated(), Bucket::new());
    let [(_, endpoint), ..] = bucket.variables();
    let options = options()
        .engine(&engine(&bed))
        .azure_option("AZURE_STORAGE_ENDPOINT", endpoint)
        .azure_option("AZURE_ALLOW_HTTP", "true")
        .azure_option("AZURE_STORAGE_ACCOUNT_NAME", "account")
        .azure_option("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=secret");
    let write = || {
        let mut upload = options.upload("az://box/a", 3)?;
        upload.write(&b"abc"[..])?;
        upload.finish()
    };
    write().unwrap();
    assert_eq!(bucket.object("box/a").as_deref(), Some(&b"abc"[..]));
    bucket.fail(Step::Put, 403, 1);
    let error = write().unwrap_err();
    assert_eq!(cause(&error).status(), Some(403), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    // Reads need a signed address.
    let error = options.open("az://box/a").unwrap_err();
    assert!(matches!(cause(&error), RemoteError::Invalid { .. }), "{error}");
}

#[test]
fn objects_models_and_arrays_are_read_from_azurite() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let long = pattern(LONG);
    fs::write(folder.path().join("a.bin"), &long).unwrap();
    fs::write(folder.path().join("a b%+.bin"), &long).unwrap();
    let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[700_000], &long[..700_000]));
    let save = SaveOptions::new().sync(false).shard_bytes(1 << 20);
    safetensors::save(folder.path().join("model.safetensors"), &tensors, &save).unwrap();
    let store = Arc::new(FileStore::new(folder.path().join("arrays")));
    let new = ArrayBuilder::new(vec![100, 300], vec![30, 70], DataType::UInt8, 0u8);
    let new = new.build(store.clone(), "/a").unwrap();
    new.store_metadata().unwrap();
    Array::new(new).unwrap().write_from(&long[..30_000]).unwrap();
    let Some(azurite) = Azurite::start(python.command(), folder.path()) else { return };
    let read = |bed: &Bed, options: &RemoteOptions, address: &dyn Fn(&str) -> String| {
        let file = options.open(&address("a.bin")).unwrap();
        let mut device = bed.device.alloc(LONG).unwrap();
        file.read_exact_at(&mut device, 0).unwrap();
        assert!(device.to_vec().unwrap() == long);
        let url = address("model.safetensors.index.json");
        let loaded = Checkpoint::open_url_with(&url, options).unwrap().load().to_device(&bed.device).unwrap();
        let found = loaded.buffer().to_vec().unwrap();
        assert!(found[loaded.tensor("b").unwrap().range] == long[..700_000]);
        let store = Arc::new(FileStore::at_url(&address("arrays"), options).unwrap());
        assert!(Array::open(&store, "a").unwrap().read_to_host().unwrap() == long[..30_000]);
        let error = options.open(&address("missing")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(!format!("{error} {error:?}").contains("sig="), "{error}");
    };
    Bed::each(|bed| {
        let options = of(&azurite, AZURITE_KEY).engine(&engine(bed));
        read(bed, &options, &|name| format!("az://box/m/{name}"));
        read(bed, &options, &|name| format!("abfs://box/m/{name}"));
        // A token of shared access is the query of a plain address.
        let plain = crate::support::options().engine(&engine(bed));
        let of_token = |name: &str| format!("{}/box/m/{name}?{}", azurite.endpoint(), azurite.token());
        read(bed, &plain, &of_token);
        let escaped = plain.open(&of_token("a%20b%25+.bin")).unwrap();
        assert_eq!(escaped.len_bytes().unwrap(), LONG as u64);
        assert_saves(bed, &options, &|name| format!("az://box/saved/{name}"));
        let mut upload = options.upload("az://box/m/c d%+.bin", LONG as u64).unwrap();
        upload.write(&long).unwrap();
        upload.finish().unwrap();
        let mut host = vec![0; LONG];
        plain.open(&of_token("c%20d%25+.bin")).unwrap().read_exact_at(&mut host, 0).unwrap();
        assert!(host == long);
        options.open("az://box/m/c d%+.bin").unwrap().read_exact_at(&mut host, 0).unwrap();
        assert!(host == long);
    });
    let wrong = of(&azurite, "c2VjcmV0").open("az://box/m/model.safetensors.index.json").unwrap_err();
    assert_eq!(cause(&wrong).status(), Some(403), "{wrong}");
    assert!(!format!("{wrong} {wrong:?}").contains("c2VjcmV0"));
    let wrong = of(&azurite, "c2VjcmV0").upload("az://box/m/a", LONG as u64).map(|mut upload| {
        let written = upload.write(&long);
        written.and_then(|()| upload.finish())
    });
    let wrong = wrong.and_then(|written| written).unwrap_err();
    assert_eq!(cause(&wrong).status(), Some(403), "{wrong}");
    assert!(!format!("{wrong} {wrong:?}").contains("c2VjcmV0"));
}

#[test]
fn keys_of_azurite_are_written_and_read_as_they_are() {
    let Some(python) = Python::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(azurite) = Azurite::start(python.command(), folder.path()) else { return };
    // Azure takes a backslash for a slash.
    let keys = keys(&['\\']);
    assert_literal(&of(&azurite, AZURITE_KEY), "az://box/", &keys);
}

#[test]
fn missing_credentials_are_named() {
    let server = Server::new(Vec::new());
    server.fail_always(Some(Fault::Status(404, None)));
    let options = options()
        .azure_option("AZURE_STORAGE_ACCOUNT_NAME", "account")
        .azure_option("AZURE_MSI_ENDPOINT", server.url("/metadata/identity/oauth2/token"));
    let of_read = options.open("az://box/a").unwrap_err();
    let of_upload = options.tries(1).upload("az://box/a", 0).unwrap().finish().unwrap_err();
    for error in [of_read, of_upload] {
        assert!(matches!(cause(&error), RemoteError::Signature { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("AZURE_STORAGE_ACCOUNT_KEY") && text.contains("az login"), "{text}");
    }
}
