//! The contract of [`Destination`].

#![allow(clippy::disallowed_methods, reason = "a test calls the suite, and not in a forked child")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use super::super::{Destination, Error, NewObject, text_of};
use super::rule::{Breach, Rule};

/// The lengths of the objects in bytes. The last is long enough for several parts of an upload.
const LENS: [usize; 4] = [0, 1, 4097, (17 << 20) + 5];
const THREADS: usize = 8;

/// Returns the rules of the contract that a destination breaks. `read` returns the bytes of an object; `None` if there is none.
///
/// It writes objects of up to 17 MiB whose names begin with `conformance`, and removes them: new ones, replaced, abandoned and
/// incomplete ones, and several at once.
///
/// # Panics
/// If the process can make no thread, and if `read` panics.
pub fn destination_breaches(
    destination: &dyn Destination,
    read: &(dyn Fn(&str) -> Option<Vec<u8>> + Sync),
) -> Vec<Breach> {
    let mut found = Vec::new();
    for (name, len) in ["conformance", "conformance/of/a folder.bin"].into_iter().cycle().zip(LENS) {
        let checked = catch_unwind(AssertUnwindSafe(|| of_one(destination, read, name, len)));
        found.extend(match checked {
            Ok(checked) => checked.err(),
            Err(panic) => {
                Some(Breach { rule: Rule::Panics, found: format!("{len} bytes: {}", text_of(&*panic)) })
            }
        });
    }
    found.extend(at_once(destination, read).err());
    found
}

fn breach<T>(rule: Rule, found: impl Into<String>) -> Result<T, Breach> {
    Err(Breach { rule, found: found.into() })
}

fn bytes_of(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}

fn written(
    destination: &dyn Destination,
    name: &str,
    len_bytes: usize,
    bytes: &[u8],
) -> Result<Box<dyn NewObject>, Error> {
    let mut object = destination.begin(name, len_bytes as u64)?;
    // Parts of many lengths.
    let mut left = bytes;
    while !left.is_empty() {
        let (part, rest) = left.split_at(left.len().min(left.len() / 3 + 1000));
        object.write(part)?;
        left = rest;
    }
    Ok(object)
}

fn of_one(
    destination: &dyn Destination,
    read: &dyn Fn(&str) -> Option<Vec<u8>>,
    name: &str,
    len: usize,
) -> Result<(), Breach> {
    let note = |rule, what: &str, is_kept: bool| match is_kept {
        true => Ok(()),
        false => breach(rule, format!("{name}, {len} bytes: {what}")),
    };
    let succeeds = |what: &str, result: Result<(), Error>| {
        result.or_else(|error| breach(Rule::Errors, format!("{name}, {len} bytes: {what} failed: {error}")))
    };
    let (old, new) = (bytes_of(len, 1), bytes_of(len, 2));
    let make = |bytes: &[u8]| written(destination, name, len, bytes)?.finish();
    let begin = |bytes: &[u8], what| {
        let object = written(destination, name, len, bytes);
        object.or_else(|error| breach(Rule::Errors, format!("{name}, {len} bytes: {what} failed: {error}")))
    };

    succeeds("the removal of no object", destination.remove(name))?;
    let object = begin(&old, "a new object")?;
    note(Rule::WholeObjects, "it appeared before it was finished", read(name).is_none())?;
    succeeds("the end of a new object", object.finish())?;
    note(Rule::Bytes, "it has other bytes than were written", read(name).as_ref() == Some(&old))?;

    let object = begin(&new, "a second object")?;
    note(Rule::WholeObjects, "one that was not finished replaced it", read(name).as_ref() == Some(&old))?;
    drop(object);
    note(Rule::WholeObjects, "one that was dropped replaced it", read(name).as_ref() == Some(&old))?;
    succeeds("a replacement", make(&new))?;
    note(Rule::Bytes, "a replacement has other bytes", read(name).as_ref() == Some(&new))?;

    if len > 0 {
        let short = written(destination, name, len, &old[1..]).and_then(|object| object.finish());
        note(Rule::Errors, "one of which a byte was missing was finished", short.is_err())?;
        let more = written(destination, name, len - 1, &old).and_then(|object| object.finish());
        note(Rule::Errors, "one with a byte too many was finished", more.is_err())?;
        note(Rule::WholeObjects, "one that failed replaced it", read(name).as_ref() == Some(&new))?;
    }
    let (one, other) = (begin(&old, "one of two objects")?, begin(&new, "the other of two objects")?);
    succeeds("the end of one of two", one.finish())?;
    succeeds("the end of the other of two", other.finish())?;
    let is_one = read(name).is_some_and(|found| found == old || found == new);
    note(Rule::WholeObjects, "two at once became one of their bytes", is_one)?;

    succeeds("a removal", destination.remove(name))?;
    note(Rule::Removal, "it was not removed", read(name).is_none())
}

/// Writes objects on several threads.
fn at_once(
    destination: &dyn Destination,
    read: &(dyn Fn(&str) -> Option<Vec<u8>> + Sync),
) -> Result<(), Breach> {
    let of_thread = |number: usize| {
        let (name, bytes) = (format!("conformance/{number}"), bytes_of(100_000 + number, number));
        let made = catch_unwind(AssertUnwindSafe(|| {
            written(destination, &name, bytes.len(), &bytes)?.finish()?;
            let is_right = read(&name) == Some(bytes);
            destination.remove(&name).map(|()| is_right)
        }));
        match made {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => {
                breach(Rule::Threads, "an object has other bytes if several are written at once")
            }
            Ok(Err(error)) => breach(Rule::Threads, format!("several at once: {error}")),
            Err(panic) => breach(Rule::Panics, format!("several at once: {}", text_of(&*panic))),
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || of_thread(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it catches panics"))
    })
}
