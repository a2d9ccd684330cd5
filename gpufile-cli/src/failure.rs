//! The reasons why commands end early.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Usage(String),
    /// A file, a variable or a GPU cannot be used.
    #[error("{0}")]
    Other(String),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl From<gpufile::Error> for Failure {
    fn from(error: gpufile::Error) -> Self {
        Failure::Other(error.to_string())
    }
}

impl From<cufile::Error> for Failure {
    fn from(error: cufile::Error) -> Self {
        Failure::Other(error.to_string())
    }
}

impl From<gpufile::formats::Error> for Failure {
    fn from(error: gpufile::formats::Error) -> Self {
        Failure::Other(error.to_string())
    }
}
