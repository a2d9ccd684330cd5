use std::time::Duration;

use gpufile::remote::{RemoteError, RemoteFile, RemoteOptions};
use gpufile::{Cause, Engine, Error};
use testkit::bed::Bed;

pub fn engine(bed: &Bed) -> Engine {
    Engine::builder().driver(bed.driver.clone()).threads(3).build()
}

/// Returns options without long waits between tries, and without further requests if the machine is busy.
pub fn options() -> RemoteOptions {
    RemoteFile::options().wait(Duration::from_millis(1)).repeat_late(false)
}

#[track_caller]
pub fn cause(error: &Error) -> &RemoteError {
    match error.cause() {
        Cause::Remote(cause) => cause,
        other => panic!("{other}"),
    }
}
