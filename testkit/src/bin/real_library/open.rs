//! Opening the driver through the crate `cufile` on a host without libcuda, where libcufile itself may never return.

use std::time::{Duration, Instant};

use crate::checks::{Checks, say};

pub fn run(checks: &mut Checks) {
    checks.check("opening without libcuda says so in under a second", || {
        let start = Instant::now();
        let opened = cufile::Driver::open();
        let took = start.elapsed();
        say(&format!("took {}", took.as_micros()));
        match opened {
            Ok(_) => Err("the driver opened".to_owned()),
            Err(error) if !error.to_string().contains("libcuda") => Err(format!("the error is: {error}")),
            Err(_) if took > Duration::from_secs(1) => Err(format!("it took {took:?}")),
            Err(_) => Ok(()),
        }
    });
}
