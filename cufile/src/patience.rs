//! Waits with a time limit.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::Result;

/// The longest time that dropping waits for transfers in flight; slower ones are leaked or kept.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Polls `is_done`, because CUDA has no wait with a time limit. Returns whether it became true before `timeout`
/// passed.
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
