//! The entries of `__metadata__` about packed tensors.

use std::collections::BTreeMap;

use super::super::headers::header::{Header, TensorInfo};
use super::super::headers::write::NewTensor;
use crate::formats::clip::clip;
use crate::formats::dtype::array_bits;
use crate::formats::packed::{Kind, VERSION};
use crate::formats::{Dtype, FormatError};

const VERSION_KEY: &str = "gpufile.packed";
/// The key of the oldest version of this crate that reads the file.
const NEEDS_KEY: &str = "gpufile.packed.needs";
/// The key of the number of packed tensors. It shows that no entry about one is missing or has a changed name.
const COUNT_KEY: &str = "gpufile.packed.tensors";
/// The start of the key of a packed tensor. Its name follows.
const TENSOR_KEY: &str = "gpufile.packed:";
/// The first version of this crate that reads version 1 of the format.
const NEEDS: &str = "0.1.0";

/// Returns the kind of a type of elements that can be packed.
pub fn kind_of(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::BF16 => Kind::Bf16,
        Dtype::F16 => Kind::F16,
        Dtype::F32 => Kind::F32,
        Dtype::F8E4M3 => Kind::F8E4M3,
        Dtype::F8E5M2 => Kind::F8E5M2,
        _ => return None,
    })
}

/// A tensor as the metadata of a file with packed tensors describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described<'a> {
    /// The tensor as the header has it.
    pub stored: TensorInfo<'a>,
    /// The type and the shape of the tensor, and its kind, if it is packed.
    pub packed: Option<(Dtype, Vec<u64>, Kind)>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Contents<'a> {
    /// In the order of the file.
    pub tensors: Vec<Described<'a>>,
    /// The metadata without the entries about packed tensors.
    pub metadata: BTreeMap<String, String>,
}

/// Returns the tensors of a header with packed tensors. Returns `None` for a header without entries about them.
///
/// # Errors
/// [`FormatError::Packed`] for another version of the format, and for entries that contradict the header.
pub fn described(header: &Header) -> Result<Option<Contents<'_>>, FormatError> {
    let mut metadata = header.metadata().clone();
    let keys: Vec<_> = metadata.keys().filter(|key| key.starts_with(VERSION_KEY)).cloned().collect();
    let entries: BTreeMap<_, _> = keys.iter().filter_map(|key| metadata.remove_entry(key)).collect();
    if entries.is_empty() {
        return Ok(None);
    }
    check_version(&entries)?;
    let shapes: BTreeMap<&str, &str> = entries
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(TENSOR_KEY)?, value.as_str())))
        .collect();
    if entries.get(COUNT_KEY).is_none_or(|count| *count != shapes.len().to_string()) {
        let problem = format!(
            "the metadata have {} entries about packed tensors, and another number in {COUNT_KEY:?}",
            shapes.len()
        );
        return Err(FormatError::Packed { tensor: None, problem });
    }
    if let Some(name) = shapes.keys().find(|name| header.get(name).is_none()) {
        return Err(wrong(name, "its metadata say that it is packed, but the file has no such tensor"));
    }
    let describe = |number| {
        let stored = header.nth(number);
        let packed = match shapes.get(stored.name) {
            None => None,
            Some(_) if stored.dtype != Dtype::U8 || stored.shape.len() != 1 => {
                return Err(wrong(
                    stored.name,
                    "its metadata say that it is packed, but it is not U8 of one axis",
                ));
            }
            Some(text) => Some(parse(text).ok_or_else(|| {
                wrong(stored.name, "its metadata have no type and shape of a packed tensor")
            })?),
        };
        Ok(Described { stored, packed })
    };
    let tensors = (0..header.len() as u32).map(describe);
    Ok(Some(Contents { tensors: tensors.collect::<Result<_, _>>()?, metadata }))
}

fn check_version(entries: &BTreeMap<String, String>) -> Result<(), FormatError> {
    match entries.get(VERSION_KEY) {
        Some(version) if *version == VERSION.to_string() => Ok(()),
        Some(version) => {
            let needs = entries.get(NEEDS_KEY).map(|needs| format!(" {}", clip(needs)));
            let needs = needs.as_deref().unwrap_or(" of another version");
            Err(FormatError::Packed {
                tensor: None,
                problem: format!(
                    "the file has version {:?} of the packed format and needs gpufile{needs} or newer; this one, {}, \
                     reads version {VERSION}",
                    clip(version),
                    env!("CARGO_PKG_VERSION"),
                ),
            })
        }
        None => {
            let problem = format!("the metadata have entries about packed tensors, but not {VERSION_KEY:?}");
            Err(FormatError::Packed { tensor: None, problem })
        }
    }
}

/// Adds the entries that a file with these packed tensors has.
pub fn describe<'a>(
    metadata: &mut BTreeMap<String, String>,
    packed: impl Iterator<Item = NewTensor<'a>>,
) -> Result<(), FormatError> {
    if let Some(key) = metadata.keys().find(|key| key.starts_with(VERSION_KEY)) {
        return Err(FormatError::ReservedName { name: clip(key) });
    }
    let mut count = 0;
    for tensor in packed {
        count += 1;
        let axes: Vec<_> = tensor.shape.iter().map(u64::to_string).collect();
        let text = format!("{}[{}]", tensor.dtype, axes.join(","));
        metadata.insert(format!("{TENSOR_KEY}{}", tensor.name), text);
    }
    if count == 0 {
        return Ok(());
    }
    metadata.insert(COUNT_KEY.to_owned(), count.to_string());
    metadata.insert(VERSION_KEY.to_owned(), VERSION.to_string());
    metadata.insert(NEEDS_KEY.to_owned(), NEEDS.to_owned());
    Ok(())
}

/// Parses a type and a shape, such as `BF16[4096,512]`.
fn parse(text: &str) -> Option<(Dtype, Vec<u64>, Kind)> {
    let (dtype, shape) = text.strip_suffix(']')?.split_once('[')?;
    let dtype = Dtype::from_safetensors(dtype)?;
    let is_number = |axis: &str| !axis.is_empty() && axis.bytes().all(|byte| byte.is_ascii_digit());
    let axes = shape.split(',').filter(|_| !shape.is_empty());
    let shape: Vec<u64> =
        axes.map(|axis| axis.parse().ok().filter(|_| is_number(axis))).collect::<Option<_>>()?;
    array_bits(&shape, dtype.size_bits().into())?;
    Some((dtype, shape, kind_of(dtype)?))
}

pub fn wrong(tensor: &str, problem: &str) -> FormatError {
    FormatError::Packed { tensor: Some(clip(tensor)), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(entries: &[(&str, &str)]) -> Header {
        let tensors = [
            NewTensor { name: "plain", dtype: Dtype::F32, shape: &[2] },
            NewTensor { name: "w", dtype: Dtype::U8, shape: &[160] },
        ];
        let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Header::build(&tensors, entries.collect()).unwrap().0
    }

    fn problem(entries: &[(&str, &str)]) -> String {
        described(&header(entries)).unwrap_err().to_string()
    }

    #[test]
    fn described_tensors_are_found_again() {
        let mut metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let before = metadata.clone();
        describe(&mut metadata, [NewTensor { name: "w", dtype: Dtype::BF16, shape: &[8, 5] }].into_iter())
            .unwrap();
        let entries: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let header = header(&entries);
        let Contents { tensors, metadata } = described(&header).unwrap().unwrap();
        assert_eq!(metadata, before);
        assert_eq!(tensors[0].packed, None);
        assert_eq!(tensors[1].packed, Some((Dtype::BF16, vec![8, 5], Kind::Bf16)));
        assert_eq!(tensors[1].stored.shape, [160]);
    }

    #[test]
    fn headers_without_entries_are_plain() {
        assert_eq!(described(&header(&[("format", "pt")])).unwrap(), None);
        let mut metadata = BTreeMap::new();
        describe(&mut metadata, [].into_iter()).unwrap();
        assert!(metadata.is_empty());
    }

    #[test]
    fn newer_files_name_the_version_they_need() {
        let newer = problem(&[(VERSION_KEY, "2"), (NEEDS_KEY, "3.1")]);
        assert!(
            newer.contains("version \"2\" of the packed format and needs gpufile 3.1 or newer"),
            "{newer}"
        );
        let unknown = problem(&[(VERSION_KEY, "")]);
        assert!(unknown.contains("of another version"), "{unknown}");
    }

    #[test]
    fn wrong_entries_are_refused() {
        let one = (VERSION_KEY, "1");
        let entry = |key, value| problem(&[one, (COUNT_KEY, "1"), (key, value)]);
        assert!(problem(&[one, (COUNT_KEY, "2"), ("gpufile.packed:w", "F16[2]")]).contains("another number"));
        assert!(problem(&[one, ("gpufile.packed:w", "F16[2]")]).contains("another number"));
        assert!(problem(&[("gpufile.packed:w", "F16[2]")]).contains("but not"));
        assert!(entry("gpufile.packed:v", "F16[2]").contains("no such tensor"));
        assert!(entry("gpufile.packed:plain", "F16[2]").contains("not U8"));
        for text in [
            "",
            "BF16",
            "BF16[2",
            "BF16[+2]",
            "BF16[2,]",
            "BF16[ 2]",
            "I32[2]",
            "X[2]",
            "BF16[99999999999999999999]",
        ] {
            assert!(entry("gpufile.packed:w", text).contains("type and shape"), "{text}");
        }
        assert_eq!(parse("F32[]"), Some((Dtype::F32, vec![], Kind::F32)));
    }
}
