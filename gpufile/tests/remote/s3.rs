//! Tests of objects of S3, which a server on loopback has.

use std::env;
use std::time::Duration;

use gpufile::Cause;
use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::remote::{RemoteError, RemoteFile, RemoteOptions};
use testkit::alone;
use testkit::bed::pattern;
use testkit::web::{Fault, Server};

const LONG: usize = (3 << 20) + 4321;

fn options() -> RemoteOptions {
    RemoteFile::options().wait(Duration::from_millis(1))
}

/// Sets the variables of a user of this server. The process has no other thread that reads variables.
fn use_server(server: &Server) {
    for (name, value) in [
        ("AWS_ENDPOINT", server.url("").as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "eu-north-1"),
        ("AWS_ACCESS_KEY_ID", "KEY"),
        ("AWS_SECRET_ACCESS_KEY", "hidden"),
    ] {
        // SAFETY: the threads of the server read no variables.
        unsafe { env::set_var(name, value) };
    }
}

#[test]
fn objects_are_read_by_signed_addresses() {
    alone(|| {
        let bytes = pattern(LONG);
        let server = Server::new(Vec::new());
        server.set_files([("/bucket/folder/a%20b".to_owned(), bytes.clone())]);
        use_server(&server);
        let file = options().open("s3://bucket/folder/a b").unwrap();
        let mut host = vec![0; LONG];
        file.read_exact_at(&mut host, 0).unwrap();
        assert!(host == bytes);
        for request in server.requests() {
            let target = &request.target;
            assert!(
                target.contains("X-Amz-Signature=") && target.contains("X-Amz-Credential=KEY%2F"),
                "{target}"
            );
            assert!(target.contains("X-Amz-Expires=3600") && target.contains("eu-north-1"), "{target}");
            assert!(!target.contains("hidden"));
        }
        assert_eq!(file.path().to_str(), Some("s3://bucket/folder/a b"));
        // An address that has expired is signed again, once.
        server.fail([Fault::Status(403, None)]);
        file.read_exact_at(&mut host, 0).unwrap();
        server.fail_always(Some(Fault::Status(403, None)));
        let error = file.read_exact_at(&mut host, 0).unwrap_err();
        let Cause::Remote(cause) = error.cause() else { panic!("{error}") };
        assert_eq!(cause.status(), Some(403));
        let text = format!("{error} {error:?} {file:?}");
        assert!(!text.contains("X-Amz") && !text.contains("hidden") && !text.contains("KEY"), "{text}");
    });
}

#[test]
fn variables_are_read_when_options_are_made() {
    alone(|| {
        let server = Server::new(Vec::new());
        server.set_files([("/bucket/a".to_owned(), pattern(100))]);
        use_server(&server);
        let options = options();
        // SAFETY: as in `use_server`.
        unsafe { env::set_var("AWS_ENDPOINT", "http://127.0.0.1:1") };
        // SAFETY: as in `use_server`.
        unsafe { env::set_var("http_proxy", "http://127.0.0.1:1") };
        let mut host = [0; 100];
        options.open("s3://bucket/a").unwrap().read_exact_at(&mut host[..], 0).unwrap();
        assert!(host == pattern(100)[..]);
    });
}

#[test]
fn caches_tell_servers_with_the_same_names_apart() {
    let folder = tempfile::tempdir().unwrap();
    for first in [1, 2] {
        let bytes = vec![first; 5000];
        let server = Server::new(Vec::new());
        server.set_files([("/bucket/a".to_owned(), bytes.clone())]);
        let options = options().cache(folder.path(), 1 << 20).s3_option("AWS_ENDPOINT", server.url(""));
        let options = [("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "a"), ("AWS_ACCESS_KEY_ID", "K")]
            .into_iter()
            .fold(options, |options, (name, value)| options.s3_option(name, value))
            .s3_option("AWS_SECRET_ACCESS_KEY", "hidden");
        let mut host = vec![0; 5000];
        options.open("s3://bucket/a").unwrap().read_exact_at(&mut host, 0).unwrap();
        assert!(host == bytes);
    }
}

#[test]
fn options_come_before_the_environment() {
    alone(|| {
        let bytes = pattern(LONG);
        let server = Server::new(Vec::new());
        server.set_files([("/bucket/a%20b".to_owned(), bytes.clone())]);
        use_server(&server);
        // SAFETY: as in `use_server`.
        unsafe { env::set_var("AWS_SESSION_TOKEN", "TOKEN") };
        options().open("s3://bucket/a b").unwrap();
        assert!(server.requests().iter().all(|request| request.target.contains("=TOKEN")));
        let options = options()
            .s3_option("AWS_ACCESS_KEY_ID", "OTHER")
            .s3_option("aws_secret_access_key", "concealed")
            .s3_option("AWS_REGION", "us-west-9");
        // The second one is an address, and signed as it is.
        for name in ["s3://bucket/a b", &server.url("/bucket/a%20b")] {
            let file = options.open(name).unwrap();
            let mut host = vec![0; LONG];
            file.read_exact_at(&mut host, 0).unwrap();
            assert!(host == bytes);
            for request in server.requests() {
                let target = &request.target;
                assert!(target.starts_with("/bucket/a%20b?") && !target.contains("TOKEN"), "{target}");
                assert!(
                    target.contains("X-Amz-Credential=OTHER%2F") && target.contains("us-west-9"),
                    "{target}"
                );
            }
            assert_eq!(file.path().to_str(), Some(name));
        }
        let text = format!("{options:?}");
        assert!(text.contains("aws_secret_access_key") && !text.contains("concealed"), "{text}");
        let error = options.clone().s3_option("AWS_NOTHING", "hidden").open("s3://bucket/key").unwrap_err();
        assert!(error.to_string().contains("\"AWS_NOTHING\" is no option of S3"), "{error}");
        let error = options.open(&server.url("/bucket/key?hidden")).unwrap_err();
        assert!(error.to_string().contains("an address without a query"), "{error}");
        assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
    });
}

#[test]
fn models_are_opened_by_the_name_of_their_index() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let bytes = pattern(700_000);
        let tensors = ["a", "b", "c"].map(|name| TensorData::new(name, Dtype::U8, &[700_000], &bytes));
        let save = SaveOptions::new().sync(false).shard_bytes(1 << 20);
        safetensors::save(folder.path().join("model.safetensors"), &tensors, &save).unwrap();
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let server = Server::new(Vec::new());
        server.set_files(files.filter(|path| path.is_file()).map(|path| {
            let name = format!("/bucket/m/{}", path.file_name().unwrap().to_str().unwrap());
            (name, std::fs::read(path).unwrap())
        }));
        use_server(&server);
        for address in ["s3://bucket/m/model.safetensors.index.json", "s3://bucket/m/"] {
            let checkpoint = Checkpoint::open_url(address).unwrap();
            let loaded = checkpoint.load().to_host().unwrap();
            assert!(["a", "b", "c"].iter().all(|name| loaded.bytes(name) == Some(&bytes[..])), "{address}");
        }
    });
}

#[test]
fn folders_of_buckets_have_models_of_usual_names() {
    alone(|| {
        let bytes = pattern(1000);
        let folder = tempfile::tempdir().unwrap();
        let saved = |name: &str| {
            let path = folder.path().join(name);
            let tensors = [TensorData::new(name, Dtype::U8, &[1000], &bytes)];
            safetensors::save(&path, &tensors, &SaveOptions::new().sync(false)).unwrap();
            std::fs::read(path).unwrap()
        };
        let (usual, other) = (saved("usual"), saved("other"));
        let index = |file: &str| format!(r#"{{"weight_map": {{"usual": "{file}"}}}}"#).into_bytes();
        let server = Server::new(Vec::new());
        use_server(&server);
        let first_of = |address: &str, files: &[(&str, &Vec<u8>)]| {
            let files = files.iter().map(|(name, bytes)| (format!("/bucket/{name}"), bytes.to_vec()));
            server.set_files(files);
            let checkpoint = Checkpoint::open_url(address).map_err(|error| error.to_string())?;
            Ok::<_, String>(checkpoint.tensors().next().unwrap().name.to_owned())
        };
        let (whole, adapter) = ("m/model.safetensors", "m/adapter_model.safetensors");
        let index_of = "m/model.safetensors.index.json";
        assert_eq!(first_of("s3://bucket/m/", &[(whole, &usual), (adapter, &other)]).unwrap(), "usual");
        assert_eq!(first_of("s3://bucket/m/", &[(adapter, &other)]).unwrap(), "other");
        for address in ["s3://bucket", "s3://bucket/"] {
            assert_eq!(first_of(address, &[("model.safetensors", &usual)]).unwrap(), "usual");
        }
        let named = [(index_of, &index("model.safetensors")), (whole, &usual)];
        assert_eq!(first_of("s3://bucket/m/", &named).unwrap(), "usual");
        let shards = [(index_of, &index("1.safetensors")), ("m/1.safetensors", &usual), (whole, &other)];
        let error = first_of("s3://bucket/m/", &shards).unwrap_err();
        assert!(error.contains(index_of) && error.contains("\"s3://bucket/m/model.safetensors\""), "{error}");
        let error = first_of("s3://bucket/m/", &[("m/weights.safetensors", &usual)]).unwrap_err();
        assert!(error.contains("s3://bucket/m/") && error.contains("buckets are not listed"), "{error}");
        // A folder that the server refuses is not one without a model.
        server.fail_always(Some(Fault::Status(403, None)));
        let error = first_of("s3://bucket/m/", &[(whole, &usual)]).unwrap_err();
        assert!(error.contains("status 403"), "{error}");
    });
}

#[test]
fn missing_credentials_are_an_error_within_seconds() {
    alone(|| {
        let server = Server::new(Vec::new());
        use_server(&server);
        // SAFETY: as in `use_server`.
        unsafe {
            env::remove_var("AWS_ACCESS_KEY_ID");
            env::remove_var("AWS_SECRET_ACCESS_KEY");
            env::set_var("AWS_METADATA_ENDPOINT", server.url("/metadata"));
        }
        server.fail_always(Some(Fault::Status(404, None)));
        let of_read = options().open("s3://bucket/key").unwrap_err();
        let of_upload = options().tries(1).upload("s3://bucket/key", 20 << 20).unwrap_err();
        for error in [of_read, of_upload] {
            let Cause::Remote(cause) = error.cause() else { panic!("{error}") };
            assert!(matches!(**cause, RemoteError::Signature { .. }), "{error}");
            let text = error.to_string();
            for word in ["\"s3://bucket/key\"", "AWS_ACCESS_KEY_ID is not set", "~/.aws", "AWS_PROFILE"] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    });
}
