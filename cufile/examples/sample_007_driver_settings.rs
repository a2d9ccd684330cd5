//! Makes the settings of C's four setters, opens the driver, and prints its properties.
//!
//! The settings come first, because an open driver ignores them.
//!
//! usage: sample_007_driver_settings

mod common;

use std::process::ExitCode;

use cufile::Driver;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    common::run("none", |_| {
        let driver = Driver::builder()
            .poll_mode(true, 4 * KIB)
            .max_direct_io_size(8 * MIB)
            .max_cache_size(64 * MIB)
            .max_pinned_memory(256 * MIB)
            .open()?;
        let properties = driver.properties()?;
        println!("{properties:#?}");

        for (name, found, expected) in [
            ("poll_threshold", properties.poll_threshold_bytes, 4 * KIB),
            ("max_direct_io", properties.max_direct_io_bytes, 8 * MIB),
            ("max_device_cache", properties.max_device_cache_bytes, 64 * MIB),
            ("max_device_pinned", properties.max_device_pinned_bytes, 256 * MIB),
        ] {
            if found != expected {
                return Err(format!("{name} was set to {expected} bytes and is {found}").into());
            }
        }
        driver.close()?;
        println!("all four settings hold");
        Ok(())
    })
}
