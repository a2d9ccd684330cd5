//! A bar on the standard error output, if that is a terminal.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::units::Bytes;

const BYTES: &str = "{prefix} [{bar:30}] {done} of {total}, {speed}, {left} left";
const STEPS: &str = "{prefix} [{bar:30}] {pos} of {len}, {passed}: {msg}";

/// A bar of bytes. Dropping it clears its line.
pub struct Bar(ProgressBar);

impl Bar {
    /// Returns the bar of a transfer with this many bytes, with a word in front. It shows sizes and speeds in the units of
    /// the results, and seconds.
    pub fn of_bytes(total_bytes: u64, word: &str) -> Self {
        Self::new(Some(total_bytes), BYTES, word, ProgressDrawTarget::stderr())
    }

    pub fn of_steps(steps: u64, word: &str) -> Self {
        Self::new(Some(steps), STEPS, word, ProgressDrawTarget::stderr())
    }

    fn new(total: Option<u64>, template: &str, word: &str, target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(total, target);
        // A template that indicatif does not accept leaves its default.
        if let Ok(style) = ProgressStyle::with_template(template) {
            let style = style
                .with_key("done", |state: &ProgressState, to: &mut dyn Write| {
                    let _ = write!(to, "{}", Bytes(state.pos()));
                })
                .with_key("total", |state: &ProgressState, to: &mut dyn Write| {
                    let _ = write!(to, "{}", Bytes(state.len().unwrap_or_default()));
                })
                .with_key("speed", |state: &ProgressState, to: &mut dyn Write| {
                    let _ = write!(to, "{:.2} GB/s", state.per_sec() / 1e9);
                })
                .with_key("left", |state: &ProgressState, to: &mut dyn Write| {
                    let _ = write!(to, "{} s", state.eta().as_secs());
                })
                .with_key("passed", |state: &ProgressState, to: &mut dyn Write| {
                    let _ = write!(to, "{} s", state.elapsed().as_secs());
                });
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(word.to_owned());
        if !bar.is_hidden() {
            keep_moving(&bar);
        }
        Self(bar)
    }

    pub fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }

    pub fn add(&self, more: u64) {
        self.0.inc(more);
    }

    pub fn say(&self, words: String) {
        self.0.set_message(words);
    }

    pub fn hidden<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

/// Draws a bar again from time to time, so that its clock goes on. Without a thread it moves with the work alone, while
/// `enable_steady_tick` would panic.
fn keep_moving(bar: &ProgressBar) {
    let bar = bar.downgrade();
    let tick = move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            thread::sleep(Duration::from_millis(200));
        }
    };
    let _ = thread::Builder::new().name("progress".to_owned()).spawn(tick);
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;

    fn shown(total: u64, template: &str, use_bar: impl FnOnce(&Bar)) -> String {
        let terminal = InMemoryTerm::new(3, 120);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = Bar::new(Some(total), template, "reading", target);
        use_bar(&bar);
        bar.0.force_draw();
        terminal.contents()
    }

    #[test]
    fn bars_show_the_units_of_results() {
        let text = shown(3 << 30, BYTES, |bar| bar.add(3 << 29));
        let (_, figures) = text.split_once("] ").unwrap();
        let [sizes, speed, left] = figures.split(", ").collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!(sizes, format!("{} of {}", Bytes(3 << 29), Bytes(3 << 30)));
        assert!(speed.strip_suffix(" GB/s").unwrap().parse::<f64>().is_ok(), "{text}");
        assert!(left.strip_suffix(" s left").unwrap().parse::<u64>().is_ok(), "{text}");
        assert!(text.starts_with("reading [=============="), "{text}");
    }

    #[test]
    fn steps_show_their_number_time_and_words() {
        let text = shown(7, STEPS, |bar| {
            bar.add(2);
            bar.say("read-default".to_owned());
        });
        let (_, figures) = text.split_once("] ").unwrap();
        let seconds = figures.strip_prefix("2 of 7, ").and_then(|rest| rest.strip_suffix(" s: read-default"));
        assert!(seconds.is_some_and(|seconds| seconds.parse::<u64>().is_ok()), "{text}");
    }
}
