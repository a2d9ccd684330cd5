//! Tests of the program, run as a user runs it, on emulated machines and without libraries.

mod bench_failures;
mod check;
mod check_causes;
mod check_mounts;
mod checked;
mod commands;
mod cp_failures;
mod faults;
mod machines;
mod models;
mod objects;
mod objects_options;
mod objects_speed;
mod program;
mod report;
mod schema;
mod schemas;
mod signals;
