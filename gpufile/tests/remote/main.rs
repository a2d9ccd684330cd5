//! Tests of objects of servers, on servers of the test kit and on real ones.

mod azure;
mod cache;
mod delays;
mod faults;
mod gcs;
mod keys;
mod late;
mod lists;
mod models;
mod objects;
mod proxies;
mod real_servers;
mod s3;
mod servers;
mod support;
mod uploads;
mod zarr;
