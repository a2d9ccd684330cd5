//! A trace of the calls of cuFile with their arguments, in the file that `CUFILE_EMULATOR_TRACE` names.
//!
//! A line has the number of the thread, the function and its arguments. Threads, handles, batches and memory have numbers, by
//! their first use, so that two programs that make the same calls write the same lines.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::{LazyLock, Mutex};
use std::thread::{self, ThreadId};

use crate::control::lock;
use crate::memory;

static TRACE: LazyLock<Option<Mutex<Trace>>> = LazyLock::new(|| {
    let path = std::env::var_os("CUFILE_EMULATOR_TRACE")?;
    match File::create(&path) {
        Ok(file) => Some(Mutex::new(Trace { file, threads: HashMap::new(), names: Names::default() })),
        Err(error) => {
            eprintln!("CUFILE_EMULATOR_TRACE: {}: {error}", path.display());
            std::process::abort();
        }
    }
});

struct Trace {
    file: File,
    threads: HashMap<ThreadId, usize>,
    names: Names,
}

#[derive(Default)]
pub(crate) struct Names {
    numbers: HashMap<(&'static str, usize), usize>,
    used: HashMap<&'static str, usize>,
}

impl Names {
    pub(crate) fn of(&mut self, kind: &'static str, value: usize) -> String {
        let used = self.used.entry(kind).or_default();
        let number = *self.numbers.entry((kind, value)).or_insert_with(|| {
            *used += 1;
            *used
        });
        format!("{kind}{number}")
    }

    /// Forgets a value that another object may get.
    pub(crate) fn forget(&mut self, kind: &'static str, value: usize) {
        self.numbers.remove(&(kind, value));
    }

    /// Returns the name of the allocation, and the distance from there. Other memory is the program's own.
    pub(crate) fn memory(&mut self, address: usize) -> String {
        match memory::find(address) {
            Some(found) => {
                let name = self.of("memory", found.id as usize);
                let distance = address - found.base;
                if distance == 0 { name } else { format!("{name}+{distance}") }
            }
            None => self.of("host", address),
        }
    }
}

pub(crate) fn call(function: &str, arguments: impl FnOnce(&mut Names) -> String) {
    let Some(trace) = &*TRACE else { return };
    let trace = &mut *lock(trace);
    let next = trace.threads.len();
    let thread = *trace.threads.entry(thread::current().id()).or_insert(next);
    let arguments = arguments(&mut trace.names);
    if let Err(error) = writeln!(trace.file, "{thread} {function} {arguments}") {
        eprintln!("CUFILE_EMULATOR_TRACE: {error}");
        std::process::abort();
    }
}
