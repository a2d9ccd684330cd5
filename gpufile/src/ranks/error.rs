//! The errors of a group of ranks.

use std::time::Duration;

use cuda_rt_sys::LoadError;

use crate::error::Cause;

/// The reason why ranks could not do something together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// libnccl is missing, or older than 2.14.
    #[error("{0}; install NCCL 2.14 or newer")]
    Load(#[from] LoadError),
    /// NCCL returned an error. The group has ended.
    #[error("{operation}: {message} (NCCL's code {code})")]
    #[non_exhaustive]
    Nccl {
        /// The call of NCCL.
        operation: &'static str,
        /// NCCL's code.
        code: u32,
        /// NCCL's words for the code. They may name a setting that makes NCCL print the cause.
        message: String,
    },
    /// CUDA returned an error. The group has ended.
    #[error("rank {rank}: {cause}")]
    #[non_exhaustive]
    Cuda {
        /// This rank.
        rank: usize,
        /// The error that CUDA returned.
        #[source]
        cause: Cause,
    },
    /// Other ranks did not take part in time. The group has ended.
    #[error(
        "rank {rank} of {ranks} waited {timeout:?} for the other ranks; see which of them ended or stopped, and start all \
         again"
    )]
    #[non_exhaustive]
    TimedOut {
        /// This rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
        /// The most time to wait.
        timeout: Duration,
    },
    /// Another rank failed and ended the operation of all. The group can be used again.
    #[error("rank {rank} failed: {message}")]
    #[non_exhaustive]
    Failed {
        /// The rank that failed.
        rank: usize,
        /// The start of its error.
        message: String,
    },
    /// Another rank loads other tensors, or places them otherwise. The group can be used again.
    #[error(
        "rank {rank} asked for other tensors or another placement than rank 0; all ranks must pass the same"
    )]
    #[non_exhaustive]
    Differs {
        /// The lowest rank that differs from rank 0.
        rank: usize,
    },
    /// An earlier error closed the group.
    #[error("an earlier error closed the rank group; make a new id and join again")]
    Ended,
}
