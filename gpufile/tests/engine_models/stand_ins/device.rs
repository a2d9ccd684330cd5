//! A stand-in for the engine's side of a GPU, which no lane uses here.

pub mod submitter {
    use std::sync::Arc;

    use crate::cuda::{Device, PinnedRegion};

    pub struct Submitter {
        pub pinned: Arc<PinnedRegion>,
    }

    impl Submitter {
        pub fn new(device: &Device, lane_bytes: usize, lanes: usize) -> cufile::Result<Self> {
            Ok(Self { pinned: Arc::new(device.reserve_pinned(lane_bytes, lanes)) })
        }

        pub fn staging_bytes(&self) -> usize {
            0
        }

        pub fn free_unused_staging(&self) {}
    }
}
