//! Runs a program with a time limit and keeps what it prints.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What a program came to.
pub struct Run {
    /// `None` if it was killed at the limit.
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

/// Runs the program to its end, or until the limit.
pub fn run(command: &mut Command, limit: Duration) -> Result<Run> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let stdout = keep(child.stdout.take().context("no pipe")?);
    let stderr = keep(child.stderr.take().context("no pipe")?);
    let status = loop {
        match child.try_wait()? {
            None if start.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => thread::sleep(Duration::from_millis(2)),
            status => break status,
        }
    };
    let took = start.elapsed();
    let text = |reader: thread::JoinHandle<_>| reader.join().expect("reading does not panic");
    Ok(Run { status, stdout: text(stdout), stderr: text(stderr), took })
}

/// Reads to the end in a thread, so that the program never waits for room in the pipe.
fn keep(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
