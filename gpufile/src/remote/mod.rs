//! Files on servers: ranges of objects, read into GPU or host memory.
//!
//! A [`RemoteFile`] is a [`File`] whose bytes come from a server of HTTP, also with TLS, by all calls that read.
//!
//! ```no_run
//! use gpufile::remote::RemoteFile;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = RemoteFile::open("http://example.org/data.bin")?;
//! let mut bytes = vec![0; file.len_bytes()? as usize]; // or device memory
//! file.read_exact_at(&mut bytes, 0)?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it reads
//! The engine cuts a read into chunks. Each of its [threads](crate::EngineBuilder::threads) has a connection, and receives the
//! bytes of a chunk directly into the caller's memory, or a pinned buffer from which the GPU copies them. If their number was not
//! chosen, it is 32 for near servers, which answer within 0.4 ms, and 64 for others: threads that wait for a server need no
//! processor. All files of the process share the connections that wait for their next request.
//!
//! Ranges of a list that follow each other become one request, also with [small gaps](RemoteOptions::gap_bytes) between them. The
//! requests of a chunk are sent one behind the other, before the answers arrive. A server that closes connections after an answer
//! gets one request at a time. Chunks from near servers have at most 2 MiB: longer ones would displace each other from the
//! processor's caches.
//!
//! If an answer takes four times as long as most others of its length, and at least 50 ms, a second connection asks for the
//! missing bytes. The first of the two that goes on wins ([`repeat_late`](RemoteOptions::repeat_late)).
//! [Cancelling](crate::IoFuture::cancel) or dropping a read closes its connections.
//!
//! The variables that curl reads choose a [proxy](RemoteOptions::proxy). Encrypted connections pass through it by `CONNECT`.
//!
//! A [cache](RemoteOptions::cache) keeps whole objects on a local disk.
//!
//! # Right bytes or an error
//! The object's length and its version when opened (the ETag, or else the time of its last change) hold for all later answers: a
//! request asks for this version only, and each answer is compared. If the server sends neither, only a change of the length is
//! noticed. The ETags `W/"a"` and `"a"` are the same, because caches weaken ETags. Up to 8 MiB before a range may come with it,
//! so shorter objects are read from servers without ranges, too.
//!
//! Answers that do not have the bytes of the range, broken connections
//! and busy servers lead to another try, up to a [limit](RemoteOptions::tries). A later try asks only for the bytes that
//! did not arrive.
//!
//! Errors name the address, without its query, and the range. Their cause, a [`RemoteError`], quotes the server about a refusal.
//!
//! # Names of objects
//! A key of any store is literal, for reads and uploads: in `s3://bucket/a%20b?c`, it is `a%20b?c`, byte for byte, and so are
//! slashes, dots and control characters. If there is no such object, but one with each `%XX` decoded, the error says so. Stores
//! refuse some keys: Azure takes a backslash for a slash, which is an error before a request. A web address follows the rules of
//! URLs.
//!
//! # S3
//! With the feature `s3`, `s3://bucket/key` names an object. The crate object_store signs its address for an hour at a time, with
//! credentials and settings from the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
//! `AWS_REGION`, `AWS_ENDPOINT` and `AWS_ALLOW_HTTP` for other servers, web identities, and the roles of containers and
//! instances. It does not read the files of `~/.aws`. Public objects have an address with `https`. `AWS_SKIP_SIGNATURE` is for
//! uploads to stores that ask for no credentials, and an error for reads.
//!
//! # Azure
//! Likewise, `az://container/blob` and `abfss://container@account.dfs.core.windows.net/blob` name objects of Azure Blob Storage,
//! as do the schemes `azure` and `abfs`. The environment has `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`, the
//! variables of a service principal or of a workload identity, or else the machine an identity. To read with a token of shared
//! access (SAS), the address is `https://account.blob.core.windows.net/container/blob?token`. Uploads take the token from
//! `AZURE_STORAGE_SAS_TOKEN`. Without an account's key, names with characters that an address escapes, such as spaces, cannot be
//! signed: reads of them need the key or a token.
//!
//! # Google Cloud Storage
//! Likewise, `gs://bucket/object` names an object of Google Cloud Storage, as does `gcs://`, signed with the key of a service
//! account. The environment names its file, `GOOGLE_SERVICE_ACCOUNT` or `GOOGLE_APPLICATION_CREDENTIALS`, or has the key in JSON,
//! `GOOGLE_SERVICE_ACCOUNT_KEY`. Without them, the user of `gcloud auth application-default login` or else the machine is the
//! identity, and Google's service `signBlob` signs each address. Public objects have an address with `https`. A key with
//! `disable_oauth`, for servers that stand for Google's, signs nothing: objects are read by the server's address. Tests have not
//! run with Google's servers.
//!
//! # Writing
//! With the feature `s3`, `RemoteOptions::upload` writes an object of S3, Azure or Google Cloud Storage: in parts, several at a
//! time, which appear as a whole or not at all. `formats::safetensors::save_url` saves a model so. A [`RemoteFolder`] lists and
//! removes objects of a store, too.
//!
//! # What it does not do
//! Objects of other servers are not written, and [`File::map`] fails. The descriptor of such a file is that of `/dev/null`.
//!
//! ```text
//!  RemoteFolder: objects with one client
//!       │
//!  RemoteOptions ── RemoteFile: a File whose OpenFile has an Object, or a file of the cache
//!                       │
//!                     http: tries, redirects ── stores: addresses, and requests signed for S3, Azure and Google
//!                       │
//!                   exchange: requests on one connection, on two if an answer is late ── batch (the memory)
//!                       │
//!                   connection: HTTP/1.1, TLS, the head of an answer, the end of time
//!
//!  Upload: parts of an object ── stores: the client of object_store
//! ```

#![cfg_attr(not(feature = "s3"), allow(dead_code, reason = "only the stores use it"))]

mod address;
mod batch;
mod cache;
mod connection;
mod environment;
mod exchange;
pub(crate) mod folder;
mod http;
pub(crate) mod location;
mod options;
mod policy;
mod probe;
mod proxy;
mod said;
mod source;
#[cfg_attr(not(feature = "s3"), path = "no_stores.rs")]
mod stores;
#[cfg(feature = "s3")]
mod upload;

use std::ops::Deref;
use std::sync::Arc;

pub use crate::error::RemoteError;
pub use folder::RemoteFolder;
pub use location::{last_in, without_secrets};
pub use options::RemoteOptions;
pub use probe::Probe;
#[cfg(feature = "s3")]
pub use upload::Upload;

use crate::error::{Error, Result};
use crate::file::File;
use http::HttpObject;

/// An object on a server, with all calls of a [`File`] that read. Clones refer to the same open object.
///
/// It dereferences to the `File`: [`Engine::read_many`](crate::Engine::read_many) reads ranges of objects and local files alike.
///
/// Names elsewhere: `RemoteHandle` (KvikIO). KvikIO's `WebHdfsEndpoint` (`WEBHDFS`) has no counterpart.
#[derive(Debug, Clone)]
#[doc(alias = "RemoteHandle")]
#[doc(alias = "WebHdfsEndpoint")]
#[doc(alias = "WEBHDFS")]
pub struct RemoteFile {
    file: File,
    object: Arc<HttpObject>,
}

impl RemoteFile {
    /// Opens the object at an address, such as `http://example.org/data.bin`.
    ///
    /// Names elsewhere: `HTTP`, `HttpEndpoint`, `RemoteEndpoint`, `RemoteEndpointType`, `S3_PRESIGNED_URL`,
    /// `S3EndpointWithPresignedUrl`, `endpoint`, `infer_remote_endpoint_type`, `is_url_valid`, `remote_endpoint_type`
    /// (KvikIO).
    ///
    /// # Errors
    /// [`Error::Open`] with [`Cause::Remote`](crate::Cause::Remote).
    #[doc(alias = "HTTP")]
    #[doc(alias = "HttpEndpoint")]
    #[doc(alias = "RemoteEndpoint")]
    #[doc(alias = "RemoteEndpointType")]
    #[doc(alias = "S3_PRESIGNED_URL")]
    #[doc(alias = "S3EndpointWithPresignedUrl")]
    #[doc(alias = "endpoint")]
    #[doc(alias = "infer_remote_endpoint_type")]
    #[doc(alias = "is_url_valid")]
    #[doc(alias = "remote_endpoint_type")]
    pub fn open(address: &str) -> Result<Self> {
        RemoteOptions::new().open(address)
    }

    /// Returns options for opening an object with another engine, headers or timeouts.
    pub fn options() -> RemoteOptions {
        RemoteOptions::new()
    }

    pub(crate) fn location(&self) -> location::Location {
        self.object.source().location()
    }

    /// Makes a new connection to the server, and measures its steps.
    ///
    /// # Errors
    /// [`Error::File`] with [`Cause::Remote`](crate::Cause::Remote).
    pub fn probe(&self) -> Result<Probe> {
        self.object.probe().map_err(|error| Error::File {
            operation: "connect to the server of",
            path: self.path().to_owned(),
            cause: error.into(),
        })
    }

    /// Returns the version of the object that this file reads, if the server named one.
    pub fn etag(&self) -> Option<&str> {
        self.object.etag()
    }
}

impl Deref for RemoteFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// Returns the file, which still reads from the server.
impl From<RemoteFile> for File {
    fn from(remote: RemoteFile) -> Self {
        remote.file
    }
}
