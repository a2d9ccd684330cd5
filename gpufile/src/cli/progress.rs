//! A bar on the standard error output, if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of bytes. Dropping it clears its line.
pub struct Bar(ProgressBar);

impl Bar {
    /// Returns the bar of a transfer with this many bytes, with a word in front.
    pub fn of_bytes(total_bytes: u64, word: &str) -> Self {
        let template = "{prefix} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        Self::new(Some(total_bytes), template, word)
    }

    fn new(total: Option<u64>, template: &str, word: &str) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        // A template that indicatif does not accept leaves its default.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(word.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Adds to how much is done.
    pub fn add(&self, more: u64) {
        self.0.inc(more);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
