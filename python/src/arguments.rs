//! Numbers and words that calls take, with errors that name the argument.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyString};

use crate::memory::{Integers, integers_of, type_name};
use crate::opening::path_of;

pub trait Argument: Sized {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self>;
}

/// Defines a function for each argument: its name here, its name in Python, and its type.
macro_rules! arguments {
    ($($function:ident = $name:literal: $type:ty,)*) => {
        $(pub fn $function(value: &Bound<'_, PyAny>) -> PyResult<$type> {
            <$type>::of(value, $name)
        })*
    };
}

arguments! {
    offset = "offset": u64,
    offsets = "offsets": Vec<u64>,
    length = "length": Option<usize>,
    buffer_offset = "buffer_offset": usize,
    size = "size": u64,
    chunk_bytes_of_file = "chunk_bytes": usize,
    devices = "devices": Vec<u32>,
    threshold_bytes = "threshold_bytes": u64,
    bytes = "bytes": u64,
    block_bytes = "block_bytes": usize,
    block_offset = "block_offset": usize,
    limit_bytes = "limit_bytes": Option<u64>,
    blocks_per_file = "blocks_per_file": Option<u32>,
    url = "url": String,
    headers = "headers": Option<Vec<(String, String)>>,
    timeout = "timeout": Option<Duration>,
    tries = "tries": Option<u32>,
    statuses = "statuses": Option<Vec<u16>>,
    storage_options = "storage_options": Option<Vec<(String, String)>>,
    cache = "cache": Option<(PathBuf, u64)>,
    proxy = "proxy": Option<String>,
}

/// Returns the integers of an array, of any shape, or of a list.
pub fn integers(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<u64>> {
    let signed = match integers_of(value) {
        None => return Vec::of(value, name),
        Some(Integers::Unsigned(integers)) => return Ok(integers),
        Some(Integers::Signed(integers)) => integers,
    };
    match signed.iter().position(|integer| *integer < 0) {
        Some(number) => {
            let text = format!("{name}[{number}] is {}: it cannot be negative", signed[number]);
            Err(PyValueError::new_err(text))
        }
        None => Ok(signed.into_iter().map(i64::unsigned_abs).collect()),
    }
}

pub fn metadata(value: &Bound<'_, PyAny>) -> PyResult<Option<BTreeMap<String, String>>> {
    let pairs = Option::<Vec<(String, String)>>::of(value, "metadata")?;
    Ok(pairs.map(BTreeMap::from_iter))
}

macro_rules! integers {
    ($($type:ty)*) => {
        $(impl Argument for $type {
            fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
                value.extract().map_err(|error: PyErr| {
                    let py = value.py();
                    if error.is_instance_of::<PyTypeError>(py) {
                        PyTypeError::new_err(format!("{name}: expected an integer, not {}", type_name(value)))
                    } else if !error.is_instance_of::<PyOverflowError>(py) {
                        error
                    } else if value.lt(0).unwrap_or(false) {
                        PyValueError::new_err(format!("{name} is {value}: it cannot be negative"))
                    } else {
                        PyValueError::new_err(format!("{name} is {value}: it can be at most {}", <$type>::MAX))
                    }
                })
            }
        })*
    };
}

integers!(u16 u32 u64 u128 usize);

impl Argument for String {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
        let wrong = |_| PyTypeError::new_err(format!("{name}: expected a string, not {}", type_name(value)));
        Ok(value.cast::<PyString>().map_err(wrong)?.to_str()?.to_owned())
    }
}

impl Argument for Vec<(String, String)> {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
        let Ok(mapping) = value.cast::<PyMapping>() else {
            let text = format!("{name}: expected a dict of strings, not {}", type_name(value));
            return Err(PyTypeError::new_err(text));
        };
        let pair = |item: Bound<'_, PyAny>| {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let key = String::of(&key, format_args!("a name in {name}"))?;
            let value = String::of(&value, format_args!("{name}[{key:?}]"))?;
            Ok((key, value))
        };
        mapping.items()?.iter().map(pair).collect()
    }
}

impl Argument for (PathBuf, u64) {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
        let wrong = |_| {
            let text = format!("{name}: expected a folder and a number of bytes, not {}", type_name(value));
            PyTypeError::new_err(text)
        };
        let (path, bytes): (Bound<'_, PyAny>, Bound<'_, PyAny>) = value.extract().map_err(wrong)?;
        let folder = path_of(&path, format_args!("{name}[0]"))?;
        Ok((folder, u64::of(&bytes, format_args!("{name}[1]"))?))
    }
}

/// A time in seconds, longer than none.
impl Argument for Duration {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
        let wrong = |_| PyTypeError::new_err(format!("{name}: expected seconds, not {}", type_name(value)));
        let seconds: f64 = value.extract().map_err(wrong)?;
        let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
        time.ok_or_else(|| {
            PyValueError::new_err(format!("{name} is {seconds}: expected more than 0 seconds"))
        })
    }
}

impl<T: Argument> Argument for Option<T> {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
        if value.is_none() { Ok(None) } else { T::of(value, name).map(Some) }
    }
}

impl<T: Argument> Argument for Vec<T> {
    fn of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Self> {
        let Ok(items) = value.try_iter() else {
            let text = format!("{name}: expected integers in a list, not {}", type_name(value));
            return Err(PyTypeError::new_err(text));
        };
        items.enumerate().map(|(number, item)| T::of(&item?, format_args!("{name}[{number}]"))).collect()
    }
}

pub fn value_of<T: Copy>(
    name: impl Display,
    words: &[(&'static str, T)],
    value: &Bound<'_, PyAny>,
) -> PyResult<T> {
    let word = value.extract::<&str>().ok();
    let found = words.iter().find(|(known, _)| Some(*known) == word).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let known = known.join(", ");
        match word {
            Some(word) => PyValueError::new_err(format!("{name} is {word:?}: use {known}")),
            None => {
                PyTypeError::new_err(format!("{name}: expected one of {known}, not {}", type_name(value)))
            }
        }
    })
}
