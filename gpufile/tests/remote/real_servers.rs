//! Servers of others, each started by a test on loopback: nginx, the S3 of Python's package moto, and azurite.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use gpufile::formats::safetensors::{self, Checkpoint, TensorData};
use gpufile::formats::{Dtype, SaveOptions};
use gpufile::remote::{RemoteFolder, RemoteOptions};
use tempfile::TempDir;
use testkit::bed::{Bed, pattern};
use testkit::web::certificate;

/// nginx, which sends the files of a folder, plain and with TLS.
pub struct Nginx {
    folder: TempDir,
    ports: [u16; 2],
    certificate: String,
    child: Child,
}

impl Nginx {
    /// Starts nginx with these lines in the part about its server. Returns `None`, and says so, where it is not installed.
    pub fn start(lines: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("files")).unwrap();
        let (certificate, key) = certificate();
        fs::write(folder.path().join("certificate.pem"), &certificate).unwrap();
        fs::write(folder.path().join("key.pem"), key).unwrap();
        // Another program may take a free port before nginx does.
        for _ in 0..5 {
            let ports = [free_port(), free_port()];
            fs::write(folder.path().join("nginx.conf"), configuration(ports, lines)).unwrap();
            let mut child = match run(folder.path()).spawn() {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let required = env::var_os("GPUFILE_REQUIRE_NGINX").is_some_and(|value| value == "1");
                    assert!(!required, "GPUFILE_REQUIRE_NGINX=1, but there is no nginx");
                    eprintln!("skipped: there is no nginx");
                    return None;
                }
                child => child.unwrap(),
            };
            if accepts(ports, &mut child) {
                return Some(Self { folder, ports, certificate, child });
            }
        }
        panic!("nginx ends: {}", fs::read_to_string(folder.path().join("error.log")).unwrap_or_default());
    }

    pub fn restart(&mut self) {
        self.stop();
        self.child = run(self.folder.path()).spawn().unwrap();
        assert!(accepts(self.ports, &mut self.child), "nginx ended");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("files").join(name)
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.ports[0])
    }

    /// Returns the address of a path with TLS, for which the [certificate](Self::certificate) must be trusted.
    pub fn encrypted_url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.ports[1])
    }

    pub fn certificate(&self) -> &[u8] {
        self.certificate.as_bytes()
    }

    fn stop(&mut self) {
        // SAFETY: takes integers; the child was not waited for, so the process is nginx.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        self.child.wait().unwrap();
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits until nginx accepts connections at both ports. Returns false if it ended.
fn accepts(ports: [u16; 2], child: &mut Child) -> bool {
    for _ in 0..2000 {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()) {
            return true;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("nginx does not accept connections");
}

fn run(folder: &Path) -> Command {
    let mut command = Command::new("nginx");
    // Where it is installed, but not for users without root.
    let path = env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin")).arg("-p").arg(folder).args(["-c", "nginx.conf"]);
    command.stderr(Stdio::null());
    command
}

fn configuration([plain, encrypted]: [u16; 2], lines: &str) -> String {
    // As root, nginx's workers would be another user, who must not read the folder.
    // SAFETY: takes nothing.
    let user = if unsafe { libc::geteuid() } == 0 { "user root;" } else { "" };
    format!(
        "{user} daemon off; worker_processes 1; pid nginx.pid; error_log error.log;
        events {{}}
        http {{
            access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;
            uwsgi_temp_path t4; scgi_temp_path t5;
            server {{
                listen 127.0.0.1:{plain}; listen 127.0.0.1:{encrypted} ssl http2; root files;
                ssl_certificate certificate.pem; ssl_certificate_key key.pem;
                {lines}
            }}
        }}"
    )
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The S3 of the package moto.
pub struct Moto {
    port: String,
    child: Child,
    _stdin: ChildStdin,
}

/// Starts the server, copies the files of a folder into a bucket, below `m/`, and prints the port.
const PROGRAM: &str = r"
import logging, os, sys
import boto3
from moto.server import ThreadedMotoServer
logging.getLogger('werkzeug').setLevel(logging.ERROR)
server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
store = boto3.client('s3', endpoint_url=f'http://{host}:{port}', region_name='us-east-1',
                     aws_access_key_id='KEY', aws_secret_access_key='hidden')
store.create_bucket(Bucket='bucket')
for folder, _, names in os.walk('.'):
    for name in names:
        path = os.path.relpath(os.path.join(folder, name))
        store.upload_file(path, 'bucket', 'm/' + path)
print(port, flush=True)
sys.stdin.read()
";

impl Moto {
    /// Starts moto by the command of a Python, with the files of a folder in the bucket `bucket`.
    pub fn start(mut command: Command, folder: &Path) -> Self {
        command.args(["-c", PROGRAM]).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, mut port) = (child.stdin.take().unwrap(), String::new());
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        assert!(port.trim().parse::<u16>().is_ok(), "moto did not start: {port:?}");
        Self { port: port.trim().to_owned(), child, _stdin: stdin }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It has nothing to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Azure Blob Storage of the package azurite.
pub struct Azurite {
    port: u16,
    child: Child,
    token: String,
}

/// The key of azurite's account, which everybody knows.
pub const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Copies the files of a folder into a container, below `m/`, and prints a token that permits to read them.
const AZURE_PROGRAM: &str = r"
import datetime, os, sys
from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas
port, key = sys.argv[1:]
service = BlobServiceClient(f'http://127.0.0.1:{port}/devstoreaccount1', credential=key)
container = service.create_container('box')
for folder, _, names in os.walk('.'):
    for name in names:
        path = os.path.relpath(os.path.join(folder, name))
        with open(path, 'rb') as file:
            container.upload_blob('m/' + path, file)
now = datetime.datetime.now(datetime.timezone.utc)
print(generate_container_sas('devstoreaccount1', 'box', account_key=key, permission=ContainerSasPermissions(read=True),
                             expiry=now + datetime.timedelta(hours=1)))
";

impl Azurite {
    /// Starts the program that `GPUFILE_TEST_AZURITE` names, with the files of a folder in the container `box`. Returns `None`,
    /// and says so, without that variable.
    pub fn start(mut python: Command, folder: &Path) -> Option<Self> {
        let Some(program) = env::var_os("GPUFILE_TEST_AZURITE") else {
            eprintln!("skipped: GPUFILE_TEST_AZURITE names no program");
            return None;
        };
        let port = free_port();
        let mut child = Command::new(program)
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--inMemoryPersistence"])
            .args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        assert!(accepts([port; 2], &mut child), "azurite ended");
        let mut azurite = Self { port, child, token: String::new() };
        let filled = python.args(["-c", AZURE_PROGRAM, &port.to_string(), AZURITE_KEY]).current_dir(folder);
        let filled = filled.output().unwrap();
        assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
        azurite.token = String::from_utf8(filled.stdout).unwrap().trim().to_owned();
        Some(azurite)
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/devstoreaccount1", self.port)
    }

    /// Returns a token of shared access, which reads the container.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // It has nothing to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Saves models to a store, of which `address` names the objects, and loads them from there.
pub fn assert_saves(bed: &Bed, options: &RemoteOptions, address: &dyn Fn(&str) -> String) {
    const LONG: usize = (10 << 20) + 4321;
    let host = pattern(LONG);
    let mut device = bed.device.alloc(LONG).unwrap();
    device.copy_from_host(0, &host).unwrap();
    let shape = [LONG as u64];
    let long = [
        TensorData::new("device", Dtype::U8, &shape, &device),
        TensorData::new("host", Dtype::U8, &shape, &host),
    ];
    let short = [TensorData::new("short", Dtype::U8, &[4], &[1_u8, 2, 3, 4][..])];
    let save = SaveOptions::new();
    let names = |url: &str| -> Vec<String> {
        let checkpoint = Checkpoint::open_url_with(url, options).unwrap();
        checkpoint.tensors().map(|tensor| tensor.name.to_owned()).collect()
    };
    let url = address("saved.safetensors");
    for (tensors, save) in [(&long[..], &save), (&short, &save), (&long, &save)] {
        safetensors::save_url_with(&url, tensors, save, options).unwrap();
        assert_eq!(names(&url).len(), tensors.len());
        // What is not finished does not appear.
        let mut unfinished = options.upload(&url, LONG as u64).unwrap();
        unfinished.write(&host[1..]).unwrap();
        drop(unfinished);
        assert_eq!(names(&url).len(), tensors.len());
    }
    let save = save.shard_bytes(LONG as u64);
    let shards = safetensors::save_url_with(&address("several.safetensors"), &long, &save, options).unwrap();
    for url in [url, shards.path.to_str().unwrap().to_owned()] {
        let loaded = Checkpoint::open_url_with(&url, options).unwrap().load().to_host().unwrap();
        assert!(["device", "host"].iter().all(|name| loaded.bytes(name) == Some(&host[..])), "{url}");
    }
    let folder = RemoteFolder::new(&address(""), options).unwrap();
    let names = || {
        let mut names = folder.names().unwrap();
        names.sort();
        names
    };
    let expected = names();
    assert!(expected.contains(&"saved.safetensors".to_owned()) && expected.len() == 4, "{expected:?}");
    folder.upload("extra", 0).unwrap().finish().unwrap();
    assert_eq!(names().len(), 5);
    for _ in 0..2 {
        folder.remove("extra").unwrap();
        assert_eq!(names(), expected);
    }
}
