//! The cases of an object on a server: the latency of a small range, and the speed with several numbers of connections.

use std::process::ExitCode;

use gpufile::remote::RemoteFile;
use gpufile::{File, Settings};

use super::lines::Lines;
use super::timing::{Lap, Measured};
use super::workload::WorkloadArgs;
use super::{Args, Result, note_settings};
use crate::failure::Failure;
use crate::object::{LARGE_BYTES, Object, Reads, SMALL_BYTES};
use crate::progress::Bar;
use crate::stderr::complain;
use crate::target::{Memory, Place, host_bytes};

/// The numbers of connections for the speed. Each is an engine's number of threads.
const CONNECTIONS: &[usize] = &[1, 4, 16, 64];

pub fn run(url: &str, arguments: &Args) -> Result<ExitCode, Failure> {
    let memory = &arguments.workload.memory;
    let is_plain = WorkloadArgs { memory: memory.clone(), ..WorkloadArgs::default() } == arguments.workload;
    if !is_plain || !arguments.cases.is_empty() || arguments.overwrite {
        let text = "a URL takes only --threads, --repeats, --gpu, --host, --json and the options for URLs; all cases run, so it takes no names of cases";
        return Err(Failure::Usage(text.to_owned()));
    }
    let settings = Settings::from_env().map_err(|error| Failure::Other(error.to_string()))?;
    note_settings(&settings);
    let object = Object::new(url, arguments.requests.options()?, settings);
    let threads = arguments.threads.map(usize::from);
    let mut expected = Expected::new(object.open(threads.unwrap_or(0))?)?;
    let (mut places, why_host) = memory.places()?;
    if let Some(why) = why_host {
        complain(&format!("{why}; measuring host memory alone"));
    } else if memory.gpu.is_empty() && !memory.host {
        places.insert(0, Place::Host);
    }
    let threads = threads.as_ref().map_or(CONNECTIONS, std::slice::from_ref);
    let cases = places.iter().flat_map(|place| {
        let case = move |threads| Case { place, threads };
        [case(None)].into_iter().chain(threads.iter().map(move |threads| case(Some(*threads))))
    });
    let cases: Vec<_> = cases.collect();
    let mut out = Lines::new(arguments.json);
    let bar = Bar::of_steps(cases.len() as u64, "measuring");
    let mut status = ExitCode::SUCCESS;
    for case in cases {
        bar.say(case.name());
        let outcome = case.run(&object, &mut expected, usize::from(arguments.repeats.unwrap_or(3)));
        if outcome.is_err() {
            status = ExitCode::FAILURE;
        }
        bar.hidden(|| out.line("gpufile", &case.name(), case.threads.unwrap_or(1), outcome))?;
        bar.add(1);
    }
    drop(bar);
    out.end()?;
    Ok(status)
}

struct Case<'a> {
    place: &'a Place,
    threads: Option<usize>,
}

impl Case<'_> {
    fn name(&self) -> String {
        let place = match self.place {
            Place::Host => "host".to_owned(),
            Place::Gpu(device) => format!("gpu{}", device.ordinal()),
        };
        format!("{place}-url-{}", if self.threads.is_none() { "latency-4k" } else { "read" })
    }

    fn run(&self, object: &Object<'_>, expected: &mut Expected, repeats: usize) -> Result<Measured> {
        let file = object.open(self.threads.unwrap_or(1))?;
        // The calling thread waits for an answer without others.
        let (file, most) = match self.threads {
            None => (file.inline(), SMALL_BYTES),
            Some(_) => (File::from(file), LARGE_BYTES),
        };
        let mut memory = self.place.alloc(expected.len_bytes.min(most) as usize)?;
        let Reads { size, ops, .. } = Reads::long_enough(&file, &mut memory)?;
        let lap = |_| {
            let reads = Reads::measure(&file, &mut memory, size, ops)?;
            Ok(Lap::new(reads.seconds, reads.cpu_seconds))
        };
        let laps = (0..repeats).map(lap).collect::<Result<_, Failure>>()?;
        expected.compare(&memory, size)?;
        Ok(Measured { size, ops, laps })
    }
}

struct Expected {
    file: RemoteFile,
    len_bytes: u64,
    bytes: Vec<u8>,
}

impl Expected {
    fn new(file: RemoteFile) -> Result<Self, Failure> {
        match file.len_bytes()? {
            0 => Err(Failure::Other(format!("{:?} is empty: there is nothing to measure", file.path()))),
            len_bytes => Ok(Self { file, len_bytes, bytes: Vec::new() }),
        }
    }

    fn compare(&mut self, memory: &Memory, size: usize) -> Result<()> {
        if self.bytes.len() < size {
            self.bytes = host_bytes(size)?;
            self.file.read_exact_at(&mut self.bytes, 0)?;
        }
        let copied;
        let found = match memory {
            Memory::Host(bytes) => bytes,
            Memory::Gpu(buffer) => {
                copied = buffer.to_vec()?;
                &copied
            }
        };
        match found.iter().zip(&self.bytes[..size]).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} is wrong").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::web::Server;

    use super::*;

    #[test]
    fn wrong_bytes_are_found() {
        let server = Server::new(b"0123456789".to_vec());
        let url = server.url("/");
        let object = Object::new(&url, RemoteFile::options(), Settings::default());
        let mut expected = Expected::new(object.open(1).unwrap()).unwrap();
        expected.compare(&Memory::Host(b"012".to_vec()), 3).unwrap();
        expected.compare(&Memory::Host(b"01234?".to_vec()), 5).unwrap();
        let error = expected.compare(&Memory::Host(b"01234?".to_vec()), 6).unwrap_err();
        assert_eq!(error.to_string(), "byte 5 is wrong");
    }
}
