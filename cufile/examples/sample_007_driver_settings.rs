//! Makes the settings of C's four setters, opens the driver, and prints its properties.
//!
//! Differs from C: C sets on an open driver. Most versions of libcufile ignore that, so this sample sets before it opens.
//!
//! usage: sample_007_driver_settings

mod common;

use std::process::ExitCode;

use common::KIB;
use cufile::Driver;

const POLL_THRESHOLD: u64 = 32_768 * KIB as u64;
const MAX_PINNED: u64 = 512 * KIB as u64;
const MAX_DIRECT_IO: u64 = 64 * KIB as u64;
const MAX_CACHE: u64 = 64 * KIB as u64;

fn main() -> ExitCode {
    common::run("none", |_| {
        let driver = Driver::builder()
            .poll_mode(true, POLL_THRESHOLD)
            .max_pinned_memory(MAX_PINNED)
            .max_direct_io_size(MAX_DIRECT_IO)
            .max_cache_size(MAX_CACHE)
            .open()?;
        println!("{:#?}", driver.properties()?);
        let properties = driver.properties()?;
        // Versions up to 1.16 accept most of these settings and keep their own.
        for (name, found, set) in [
            ("poll_threshold", properties.poll_threshold_bytes, POLL_THRESHOLD),
            ("max_direct_io", properties.max_direct_io_bytes, MAX_DIRECT_IO),
            ("max_device_cache", properties.max_device_cache_bytes, MAX_CACHE),
            ("max_device_pinned", properties.max_device_pinned_bytes, MAX_PINNED),
        ] {
            println!("{name} was set to {set} bytes and is {found}");
        }
        driver.close()?;
        Ok(())
    })
}
