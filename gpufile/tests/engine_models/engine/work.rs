//! The engine's jobs, queues, workers and lanes.

#[path = "../../../src/engine/work/file_side.rs"]
mod file_side;
#[path = "../../../src/engine/work/hand_out.rs"]
mod hand_out;
#[path = "../../../src/engine/work/job.rs"]
pub mod job;
#[path = "../../../src/engine/work/lane.rs"]
mod lane;
#[path = "../../../src/engine/work/lanes.rs"]
pub mod lanes;
#[path = "../../../src/engine/work/queue.rs"]
mod queue;
#[path = "../../../src/engine/work/workers.rs"]
pub mod workers;
