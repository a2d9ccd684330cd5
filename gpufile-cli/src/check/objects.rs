//! Objects of servers: if they can be read by ranges, the steps to the first byte, and the speed.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use gpufile::Settings;
use gpufile::remote::without_secrets;
use gpufile::remote::{Probe, RemoteOptions};
use serde_json::{Value, json};

use super::limit::{Limit, enough};
use crate::failure::Failure;
use crate::findings::Page;
use crate::object::{LARGE_BYTES, Object, Reads, SMALL_BYTES};
use crate::progress::Bar;
use crate::table::{print, print_json};
use crate::target::Place;
use crate::units::{Bytes, Time, gbps};

const CONNECTIONS: [usize; 4] = [1, 4, 16, 64];

struct Checked {
    len_bytes: u64,
    etag: Option<String>,
    probe: Probe,
    /// Reads on an open connection.
    small: Reads,
    runs: Vec<(usize, Reads)>,
    limit: Option<Limit>,
}

/// Returns the exit status 1 if an object cannot be read.
pub fn run(urls: &[&str], options: &RemoteOptions, is_json: bool) -> Result<ExitCode, Failure> {
    let settings = Settings::from_env().map_err(|error| Failure::Other(error.to_string()))?;
    let bar = Bar::of_steps((urls.len() * CONNECTIONS.len()) as u64, "measuring");
    let outcomes: Vec<_> =
        urls.iter().map(|url| (without_secrets(url), check(url, options, &settings, &bar))).collect();
    drop(bar);
    let status = u8::from(outcomes.iter().any(|(_, outcome)| outcome.is_err()));
    if is_json {
        let objects: Vec<_> = outcomes.iter().map(as_json).collect();
        print_json(&json!({
            "gpufile": env!("CARGO_PKG_VERSION"),
            "exit_status": status,
            "objects": objects,
        }))?;
    } else {
        let mut page = Page::default();
        outcomes.iter().for_each(|(url, outcome)| as_text(&mut page, url, outcome));
        print(&page.text)?;
    }
    Ok(ExitCode::from(status))
}

fn check(url: &str, options: &RemoteOptions, settings: &Settings, bar: &Bar) -> Result<Checked, Failure> {
    let object = Object::new(url, options.clone(), settings.clone());
    let file = object.open(1)?;
    let (len_bytes, etag) = (file.len_bytes()?, file.etag().map(str::to_owned));
    let probe = file.probe()?;
    let memory = |most: u64| Place::Host.alloc(len_bytes.min(most) as usize);
    // The calling thread waits for an answer without others.
    let small = Reads::long_enough(&file.inline(), &mut memory(SMALL_BYTES)?)?;
    let mut large = memory(LARGE_BYTES)?;
    let mut runs = Vec::new();
    for connections in CONNECTIONS {
        bar.say(format!("{connections} connections"));
        runs.push((connections, Reads::long_enough(&*object.open(connections)?, &mut large)?));
        bar.add(1);
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let limit = Limit::of(&runs, len_bytes, processors);
    Ok(Checked { len_bytes, etag, probe, small, runs, limit })
}

fn as_json((url, outcome): &(String, Result<Checked, Failure>)) -> Value {
    let checked = match outcome {
        Ok(checked) => checked,
        Err(error) => return json!({ "url": url, "error": error.to_string() }),
    };
    let Checked { len_bytes, etag, probe, small, runs, limit } = checked;
    let runs = runs.iter().map(|(connections, reads)| {
        json!({
            "connections": connections,
            "bytes": reads.bytes(),
            "seconds": reads.seconds,
            "cpu_seconds": reads.cpu_seconds,
            "gbps": gbps(reads.bytes(), reads.seconds),
        })
    });
    json!({
        "url": url,
        "bytes": len_bytes,
        "etag": etag,
        "modified": probe.modified,
        "server": probe.server,
        "resolve_seconds": probe.resolve.as_secs_f64(),
        "connect_seconds": probe.connect.as_secs_f64(),
        "encrypt_seconds": probe.encrypt.map(|time| time.as_secs_f64()),
        "latency_seconds": small.latency(),
        "runs": runs.collect::<Vec<_>>(),
        "limit": limit.map(Limit::word),
    })
}

fn as_text(page: &mut Page, url: &str, outcome: &Result<Checked, Failure>) {
    let checked = match outcome {
        Ok(checked) => checked,
        Err(error) => return page.wrapped(&format!("{url}: FAILED: "), &error.to_string()),
    };
    let Checked { len_bytes, etag, probe, small, runs, limit } = checked;
    let headline = format!("{} in ranges from {}", Bytes(*len_bytes), probe.server);
    page.wrapped(&format!("{url}: READABLE: "), &headline);
    let version = match (etag, &probe.modified) {
        (Some(etag), _) => format!("ETag {etag}"),
        (None, Some(time)) => format!("the time of the last change, {time}; the server sends no ETag"),
        (None, None) => "none: only a change of the length would be noticed".to_owned(),
    };
    page.line("version", &version);
    let tls = match probe.encrypt {
        Some(time) => format!("TLS {}", Time(time)),
        None => "no TLS".to_owned(),
    };
    let steps = format!("name {}, TCP {}, {tls}", Time(probe.resolve), Time(probe.connect));
    page.line("connecting", &steps);
    let latency = Time(Duration::from_secs_f64(small.latency()));
    page.line("latency", &format!("{latency} for {} on an open connection", Bytes(small.size as u64)));
    let speeds = runs.iter().map(|(connections, reads)| {
        let plural = if *connections == 1 { "" } else { "s" };
        let speed = gbps(reads.bytes(), reads.seconds);
        let busy = reads.cpu_seconds / reads.seconds;
        format!("{speed:.2} GB/s with {connections} connection{plural}, {busy:.1} processors busy\n")
    });
    page.line("bandwidth", &speeds.collect::<String>());
    let words = limit.map(|limit| limit.words(enough(runs)));
    page.line("limit", words.as_deref().unwrap_or("unknown: the object is too short to tell"));
}
