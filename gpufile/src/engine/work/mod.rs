//! The execution of planned transfers: jobs, queues, workers and lanes.

mod file_side;
mod hand_out;
pub(super) mod in_flight;
pub(super) mod job;
mod lane;
pub(super) mod lanes;
mod queue;
mod windows;
pub(super) mod workers;

// These tests lie outside the modules that they test, because the models of interleavings compile those
// modules again.
#[cfg(test)]
mod hand_out_tests;
#[cfg(test)]
mod job_tests;
#[cfg(test)]
mod lanes_tests;
#[cfg(test)]
mod queue_tests;
