//! Waits that end.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::Result;

/// The longest that dropping waits for transfers in flight. Those that take longer are leaked or kept.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again, as CUDA has no wait that ends. Returns whether it was done before `timeout` had passed.
pub(crate) fn wait_until(timeout: Duration, is_done: impl Fn() -> Result<bool>) -> Result<bool> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(10);
    loop {
        if is_done()? {
            return Ok(true);
        }
        let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(false);
        };
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}
