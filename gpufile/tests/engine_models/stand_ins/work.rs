//! The engine's jobs, queues and workers, with a stand-in for its lane.

#[path = "../../../src/engine/work/hand_out.rs"]
pub mod hand_out;
#[path = "../../../src/engine/work/job.rs"]
pub mod job;
#[path = "../../../src/engine/work/lanes.rs"]
pub mod lanes;
#[path = "../../../src/engine/work/queue.rs"]
pub mod queue;
#[path = "../../../src/engine/work/workers.rs"]
pub mod workers;

pub mod lane {
    pub use crate::stand_ins::Lane;
}
