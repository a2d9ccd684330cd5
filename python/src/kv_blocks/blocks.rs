//! The blocks of a call, from arguments of Python: numbers of many pieces at once, without an object for each.

use std::fmt::Display;
use std::time::{Duration, Instant};

use gpufile::kv_blocks::{self, Block};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};

use crate::arguments::{self, Argument};
use crate::memory::{Memory, type_name};

use super::Region;

/// The blocks of a call. All have as many pieces.
pub struct Blocks {
    keys: Vec<u128>,
    deadlines: Vec<Option<Instant>>,
    /// One for all pieces, or one for each piece of a block.
    regions: Vec<kv_blocks::Region<Memory>>,
    /// One for each block, or one for each piece, block by block.
    offsets: Vec<u64>,
    /// One for all pieces, one for each piece of a block, or one for each piece, block by block.
    lens: Vec<u64>,
    pieces_per_block: usize,
    block_offset: usize,
}

impl Blocks {
    pub fn of(
        keys: &Bound<'_, PyAny>,
        regions: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        piece_bytes: &Bound<'_, PyAny>,
        block_offset: usize,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (keys, regions) = (keys_of(keys)?, regions_of(regions)?);
        let (offsets, lens) = (arguments::integers(offsets, "offsets")?, lens_of(piece_bytes)?);
        let deadlines = deadlines_of(timeout, keys.len())?;
        let pieces_per_block = match (keys.len(), regions.len(), offsets.len()) {
            (blocks, regions, offsets) if offsets == blocks || offsets == blocks * regions => regions,
            (blocks, 1, offsets) if offsets > 0 && blocks > 0 && offsets % blocks == 0 => offsets / blocks,
            (blocks, regions, offsets) => {
                return Err(PyValueError::new_err(format!(
                    "there are {offsets} offsets for {blocks} blocks and {regions} regions; pass one offset for each block, or one for each of its pieces"
                )));
            }
        };
        if ![1, pieces_per_block, keys.len() * pieces_per_block].contains(&lens.len()) {
            return Err(PyValueError::new_err(format!(
                "piece_bytes has {} lengths, and a block {pieces_per_block} pieces; pass one length for all, or one for each piece",
                lens.len()
            )));
        }
        Ok(Self { keys, deadlines, regions, offsets, lens, pieces_per_block, block_offset })
    }

    /// Calls a function with the blocks. Needs no lock of Python.
    pub fn pass_to<T>(&self, call: impl FnOnce(&[Block<'_>]) -> T) -> T {
        let Self { keys, regions, offsets, lens, pieces_per_block, .. } = self;
        let each = *pieces_per_block;
        let mut pieces = Vec::with_capacity(keys.len() * each);
        for block in 0..keys.len() {
            let mut block_offset = self.block_offset;
            for piece in 0..each {
                let number = block * each + piece;
                let region = &regions[if regions.len() == 1 { 0 } else { piece }];
                let offset = offsets[if offsets.len() == keys.len() { block } else { number }];
                let len_bytes = match lens.len() {
                    1 => lens[0],
                    len if len == each => lens[piece],
                    _ => lens[number],
                };
                pieces.push(region.piece(offset as usize, len_bytes as usize, block_offset));
                block_offset = block_offset.saturating_add(len_bytes as usize);
            }
        }
        let block = |number: usize| {
            let pieces = &pieces[number * each..][..each];
            Block::new(keys[number], pieces).until(self.deadlines[number])
        };
        call(&(0..keys.len()).map(block).collect::<Vec<_>>())
    }
}

/// Returns the keys of a list.
pub fn keys_of(keys: &Bound<'_, PyAny>) -> PyResult<Vec<u128>> {
    let is_one = keys.is_instance_of::<PyString>()
        || keys.is_instance_of::<PyBytes>()
        || keys.is_instance_of::<PyByteArray>();
    let Some(list) = (!is_one).then(|| keys.try_iter().ok()).flatten() else {
        let text = format!("keys: expected a list of integers or of 16 bytes each, not {}", type_name(keys));
        return Err(PyTypeError::new_err(text));
    };
    list.enumerate().map(|(number, key)| key_of(&key?, format_args!("keys[{number}]"))).collect()
}

fn key_of(key: &Bound<'_, PyAny>, name: impl Display) -> PyResult<u128> {
    let Ok(bytes) = key.cast::<PyBytes>() else { return u128::of(key, name) };
    let bytes = bytes.as_bytes();
    let wrong = |_| PyValueError::new_err(format!("{name} has {} bytes: expected 16", bytes.len()));
    Ok(u128::from_be_bytes(bytes.try_into().map_err(wrong)?))
}

fn regions_of(regions: &Bound<'_, PyAny>) -> PyResult<Vec<kv_blocks::Region<Memory>>> {
    let region = |one: &Bound<'_, PyAny>| Some(one.cast::<Region>().ok()?.get().0.clone());
    if let Some(only) = region(regions) {
        return Ok(vec![only]);
    }
    let expected = |what: &dyn Display, one: &Bound<'_, PyAny>| {
        let text = format!("{what}: expected gpufile.kv_blocks.Region, not {}", type_name(one));
        PyTypeError::new_err(text)
    };
    let Ok(list) = regions.try_iter() else { return Err(expected(&"regions", regions)) };
    let listed = list.enumerate().map(|(number, one)| {
        let one = one?;
        region(&one).ok_or_else(|| expected(&format_args!("regions[{number}]"), &one))
    });
    let listed: Vec<_> = listed.collect::<PyResult<_>>()?;
    match listed.is_empty() {
        true => Err(PyValueError::new_err("regions is empty: pass the region of each piece of a block")),
        false => Ok(listed),
    }
}

fn lens_of(piece_bytes: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    match piece_bytes.hasattr("__iter__")? {
        true => arguments::integers(piece_bytes, "piece_bytes"),
        false => Ok(vec![u64::of(piece_bytes, "piece_bytes")?]),
    }
}

/// Returns the deadline of each block.
fn deadlines_of(timeout: Option<&Bound<'_, PyAny>>, blocks: usize) -> PyResult<Vec<Option<Instant>>> {
    let Some(timeout) = timeout else { return Ok(vec![None; blocks]) };
    let now = Instant::now();
    // A time that the clock does not have never comes.
    let after = |time: Option<Duration>| time.and_then(|time| now.checked_add(time));
    let Ok(list) = timeout.try_iter() else {
        return Ok(vec![after(seconds_of(timeout, "timeout")?); blocks]);
    };
    let each = list.enumerate().map(|(number, one)| {
        let one = one?;
        Ok(after(seconds_of(&one, format_args!("timeout[{number}]"))?))
    });
    let each: Vec<_> = each.collect::<PyResult<_>>()?;
    match each.len() == blocks {
        true => Ok(each),
        false => Err(PyValueError::new_err(format!(
            "there are {} timeouts for {blocks} blocks; pass one for all, or one for each",
            each.len()
        ))),
    }
}

fn seconds_of(value: &Bound<'_, PyAny>, name: impl Display) -> PyResult<Option<Duration>> {
    if value.is_none() {
        return Ok(None);
    }
    let wrong = |_| PyTypeError::new_err(format!("{name}: expected seconds, not {}", type_name(value)));
    let seconds: f64 = value.extract().map_err(wrong)?;
    let time = Duration::try_from_secs_f64(seconds);
    time.map(Some)
        .map_err(|_| PyValueError::new_err(format!("{name} is {seconds}: expected seconds, or None")))
}
