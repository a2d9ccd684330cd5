//! The options for objects of stores, and for writing them.

use std::path::PathBuf;

use super::super::folder::RemoteFolder;
use super::super::location::{Service, invalid, without_secrets};
use super::super::stores::destination::Destination;
use super::super::upload::{self, Upload};
use super::RemoteOptions;
use crate::engine::Engine;
#[cfg(doc)]
use crate::error::RemoteError;
use crate::error::{Cause, Error, Result};

impl RemoteOptions {
    /// Sets an option of S3, which overrides the environment variable of this name, for example `AWS_REGION` or
    /// `AWS_SECRET_ACCESS_KEY`. The names are those of object_store's `AmazonS3ConfigKey`, in any case.
    ///
    /// With any option, addresses with `http` and `https` are signed as objects of S3, without a query.
    ///
    /// Names elsewhere: `S3Endpoint`, `S3_PUBLIC`, `S3PublicEndpoint`, `parse_s3_url`, `url_from_bucket_and_object`
    /// (KvikIO).
    #[doc(alias = "S3")]
    #[doc(alias = "S3Endpoint")]
    #[doc(alias = "S3_PUBLIC")]
    #[doc(alias = "S3PublicEndpoint")]
    #[doc(alias = "parse_s3_url")]
    #[doc(alias = "url_from_bucket_and_object")]
    pub fn s3_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.policy.s3.push((name.into(), value.into()));
        self
    }

    /// Sets an option of Azure, which overrides the environment variable of this name, for example `AZURE_STORAGE_ACCOUNT_NAME`
    /// or `AZURE_STORAGE_ACCOUNT_KEY`. The names are those of object_store's `AzureConfigKey`, in any case.
    pub fn azure_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.policy.azure.push((name.into(), value.into()));
        self
    }

    /// Sets an option of Google Cloud Storage, which overrides the environment variable of this name, for example
    /// `GOOGLE_SERVICE_ACCOUNT`, the path of a service account's key, or `GOOGLE_SERVICE_ACCOUNT_KEY`, the key in JSON. The names
    /// are those of object_store's `GoogleConfigKey`, in any case.
    pub fn gcs_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.policy.gcs.push((name.into(), value.into()));
        self
    }

    /// Sets an option of the service that an address names: of Azure, Google Cloud Storage, or else S3.
    ///
    /// ```
    /// use gpufile::remote::RemoteOptions;
    ///
    /// let options = RemoteOptions::new().store_option("az://container/blob", "AZURE_STORAGE_ACCOUNT_NAME", "account");
    /// ```
    pub fn store_option(self, address: &str, name: impl Into<String>, value: impl Into<String>) -> Self {
        match Service::of(address) {
            Some(Service::Azure) => self.azure_option(name, value),
            Some(Service::Google) => self.gcs_option(name, value),
            Some(Service::S3) | None => self.s3_option(name, value),
        }
    }

    /// Begins an object of `len_bytes` bytes, which appears at this address when it is [finished](Upload::finish).
    /// The address is one with `s3`, `s3a`, `az`, `azure`, `abfs`, `abfss`, `gs` or `gcs`. Requests follow the
    /// timeout, the tries, the trust and the credentials of these options, and are repeated after broken connections
    /// and the statuses 408, 429 and 5xx.
    ///
    /// # Errors
    /// [`Error::File`] with [`Cause::Remote`]: [`RemoteError::Invalid`] for another address, and for options with a header or a
    /// [proxy](Self::proxy). Variables of the environment may name a proxy.
    pub fn upload(&self, address: &str, len_bytes: u64) -> Result<Upload> {
        let (destination, engine) = self.destination(address, "begin to write")?;
        Upload::begin(destination, len_bytes, engine, self.policy.timeout)
    }

    /// Removes an object, if there is one.
    ///
    /// # Errors
    /// As for [`upload`](Self::upload).
    pub(crate) fn remove(&self, address: &str) -> Result<()> {
        let (destination, engine) = self.destination(address, "remove")?;
        upload::remove(destination, engine, self.policy.timeout)
    }

    /// Returns the names of the objects in the folder of this one.
    fn names_beside(&self, address: &str) -> Result<Vec<String>> {
        let (destination, engine) = self.destination(address, "list the folder of")?;
        if destination.is_listed {
            return upload::names(destination, engine, self.policy.timeout);
        }
        let cause = invalid("only folders of a store are listed, whose names have no empty parts").into();
        Err(Error::File { operation: "list the folder of", path: destination.path, cause })
    }

    fn destination(&self, address: &str, operation: &'static str) -> Result<(Destination, Engine)> {
        let failed =
            |cause: Cause| Error::File { operation, path: PathBuf::from(without_secrets(address)), cause };
        let engine = self.engine_options().engine_or_global().map_err(failed)?.for_objects(false);
        match Destination::parse(address, &self.policy) {
            Ok(destination) => Ok((destination, engine)),
            Err(error) => Err(failed(error.into())),
        }
    }
}

impl RemoteFolder {
    /// Begins an object of this name, as [`RemoteOptions::upload`] does.
    ///
    /// # Errors
    /// Those of [`RemoteOptions::upload`].
    pub fn upload(&self, name: &str, len_bytes: u64) -> Result<Upload> {
        self.options.upload(&self.one.location().beside(name).text(), len_bytes)
    }

    /// Removes an object, if there is one.
    ///
    /// # Errors
    /// Those of [`RemoteOptions::upload`].
    pub fn remove(&self, name: &str) -> Result<()> {
        self.options.remove(&self.one.location().beside(name).text())
    }

    /// Asks the store for the names of all objects in the folder, except those in folders below it. Their order is the store's.
    ///
    /// # Errors
    /// Those of [`RemoteOptions::upload`]. [`RemoteError::Invalid`] for a web address, and for a key with empty parts.
    pub fn names(&self) -> Result<Vec<String>> {
        self.options.names_beside(&self.one.location().beside("object").text())
    }
}
