use std::fmt::Write;
use std::ops::Range;

use super::descr::Descr;
use super::literal::{FORMAT, Literals};
use crate::formats::FormatError;
use crate::formats::clip::clip;
use crate::formats::dtype::array_bits;
use crate::formats::order::Order;

/// The number of bytes at the start of a file that hold the length of its header, in every version.
pub const PREFIX_LEN: usize = 12;

/// The most bytes that the dictionary of a header may have: room for tens of thousands of axes, where numpy has 64.
pub const MAX_HEADER_LEN: u64 = 1 << 20;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
const WHAT: &str = "an npy header";

/// The header of an npy file: checked when it was [parsed](Self::parse) or [built](Self::build).
///
/// ```
/// use gpufile::formats::npy::{NpyHeader, Order};
///
/// # fn main() -> Result<(), gpufile::formats::FormatError> {
/// let (header, start_of_file) = NpyHeader::build("<f4", Order::C, &[4, 8])?;
/// assert_eq!((header.data_start(), header.data_len_bytes()), (start_of_file.len() as u64, 128));
/// assert_eq!(header.slice_rows(1..3)?, 128 + 32..128 + 96);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyHeader {
    descr: Descr,
    order: Order,
    shape: Vec<u64>,
    data_start: u64,
    data_len: u64,
}

/// Returns the length of the header, in bytes from the start of the file. Takes at least the first [`PREFIX_LEN`]
/// bytes of the file, and the file's length in bytes.
///
/// # Errors
/// [`FormatError::OtherFormat`], [`FormatError::UnknownVersion`] for other versions than 1.0, 2.0 and 3.0,
/// [`FormatError::Truncated`] for fewer than [`PREFIX_LEN`] bytes or a header longer than the file,
/// [`FormatError::HeaderTooLarge`] beyond [`MAX_HEADER_LEN`].
pub fn head_len(start: &[u8], file_len: u64) -> Result<u64, FormatError> {
    Ok(dictionary(start, file_len)?.end)
}

/// Returns the range of the dictionary, in bytes from the start of the file.
fn dictionary(start: &[u8], file_len: u64) -> Result<Range<u64>, FormatError> {
    if !start.starts_with(&MAGIC[..start.len().min(MAGIC.len())]) {
        return Err(FormatError::OtherFormat { format: FORMAT, expected: "\\x93NUMPY" });
    }
    let Some(prefix) = start.first_chunk::<PREFIX_LEN>() else {
        let available_bytes = file_len.min(start.len() as u64);
        return Err(FormatError::Truncated { what: WHAT, needed_bytes: PREFIX_LEN as u64, available_bytes });
    };
    let &[_, _, _, _, _, _, major, minor, a, b, c, d] = prefix;
    let (begin, len_bytes) = match (major, minor) {
        (1, 0) => (10, u64::from(u16::from_le_bytes([a, b]))),
        (2 | 3, 0) => (12, u64::from(u32::from_le_bytes([a, b, c, d]))),
        version => return Err(FormatError::UnknownVersion { format: FORMAT, version }),
    };
    if len_bytes > MAX_HEADER_LEN {
        return Err(FormatError::HeaderTooLarge { format: FORMAT, len_bytes, limit_bytes: MAX_HEADER_LEN });
    }
    let end = begin + len_bytes;
    if end > file_len {
        return Err(FormatError::Truncated { what: WHAT, needed_bytes: end, available_bytes: file_len });
    }
    Ok(begin..end)
}

impl NpyHeader {
    /// Parses and checks a header. `head` is at least the first [`head_len`] bytes of the file, `file_len` the length
    /// of the whole file in bytes. Bytes after the array are allowed, as in numpy.
    ///
    /// # Errors
    /// [`FormatError`], with the offset. Records and Python objects are [`FormatError::UnsupportedDtype`].
    pub fn parse(head: &[u8], file_len: u64) -> Result<Self, FormatError> {
        let Range { start, end } = dictionary(head, file_len)?;
        let Some(text) = head.get(start as usize..end as usize) else {
            let available_bytes = head.len() as u64;
            return Err(FormatError::Truncated { what: WHAT, needed_bytes: end, available_bytes });
        };
        let (descr, order, shape) = parse_dictionary(&mut Literals::new(text, start))?;
        let header = Self::new(descr, order, shape, end)?;
        match header.data_start.checked_add(header.data_len) {
            Some(needed_bytes) if needed_bytes <= file_len => Ok(header),
            needed => Err(FormatError::Truncated {
                what: "the array of an npy file",
                needed_bytes: needed.unwrap_or(u64::MAX),
                available_bytes: file_len,
            }),
        }
    }

    /// Lays out a new file. Returns its header, and the bytes before the array, which are equal to numpy's.
    ///
    /// `descr` is parsed as a [`Descr`]; [`Dtype::npy_descr`](crate::formats::Dtype::npy_descr) returns it for most
    /// types. The array starts at a multiple of 64 bytes.
    ///
    /// # Errors
    /// [`FormatError::UnsupportedDtype`], [`FormatError::SizeOverflow`], [`FormatError::HeaderTooLarge`].
    pub fn build(descr: &str, order: Order, shape: &[u64]) -> Result<(Self, Vec<u8>), FormatError> {
        let descr: Descr = descr.parse()?;
        let head = write_head(&descr, order, shape)?;
        let header = Self::new(descr, order, shape.to_vec(), head.len() as u64)?;
        match header.data_start.checked_add(header.data_len) {
            Some(_) => Ok((header, head)),
            None => Err(FormatError::SizeOverflow { tensor: None }),
        }
    }

    fn new(descr: Descr, order: Order, shape: Vec<u64>, data_start: u64) -> Result<Self, FormatError> {
        let bits = array_bits(&shape, u128::from(descr.item_bytes()) * 8);
        let data_len = (bits.ok_or(FormatError::SizeOverflow { tensor: None })? / 8) as u64;
        Ok(Self { descr, order, shape, data_start, data_len })
    }

    /// Returns the type of the elements.
    pub fn descr(&self) -> &Descr {
        &self.descr
    }

    /// Returns the order of the elements in the file.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the length of each axis, in elements. Empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the start of the array, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Returns the number of bytes of the array.
    pub fn data_len_bytes(&self) -> u64 {
        self.data_len
    }

    /// Returns the range of `rows`, in bytes from the start of the file. `rows` are indices along the first axis.
    ///
    /// # Errors
    /// [`FormatError::NoSuchSlice`], also for a scalar, which has no first axis; [`FormatError::FortranRows`]
    /// for an array in Fortran order with more than one axis.
    pub fn slice_rows(&self, rows: Range<u64>) -> Result<Range<u64>, FormatError> {
        if self.order == Order::Fortran && self.shape.len() > 1 {
            return Err(FormatError::FortranRows);
        }
        let Some(&available) = self.shape.first().filter(|&&axis| rows.start <= rows.end && rows.end <= axis)
        else {
            let available = self.shape.first().copied().unwrap_or(0);
            return Err(FormatError::NoSuchSlice { tensor: None, axis: 0, range: rows, available });
        };
        // Both products are at most the length of the array.
        let row_bytes = self.data_len / available.max(1);
        Ok(self.data_start + rows.start * row_bytes..self.data_start + rows.end * row_bytes)
    }

    /// Returns the end of the array, in bytes from the start of the file. The parsed file may be longer.
    pub fn file_len_bytes(&self) -> u64 {
        self.data_start + self.data_len
    }
}

fn parse_dictionary(literals: &mut Literals<'_>) -> Result<(Descr, Order, Vec<u64>), FormatError> {
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    literals.expect(b'{')?;
    while !literals.take(b'}') {
        literals.peek();
        let offset = literals.offset();
        let key = literals.string()?;
        literals.expect(b':')?;
        let twice = match key {
            "descr" => descr.replace(parse_descr(literals)?).is_some(),
            "fortran_order" => fortran_order.replace(literals.truth()?).is_some(),
            "shape" => shape.replace(literals.tuple()?).is_some(),
            _ => {
                let message = format!("{:?} is not a key of npy headers", clip(key));
                return Err(FormatError::Syntax { format: FORMAT, tensor: None, offset, message });
            }
        };
        if twice {
            return Err(FormatError::Duplicate { key: key.to_owned(), tensor: None, offset: Some(offset) });
        }
        if !literals.take(b',') && literals.peek() != Some(b'}') {
            return Err(literals.error("a ',' was expected"));
        }
    }
    let missing = |key| FormatError::Missing { key, tensor: None, offset: Some(literals.offset()) };
    let descr = descr.ok_or_else(|| missing("descr"))?;
    let is_fortran = fortran_order.ok_or_else(|| missing("fortran_order"))?;
    let order = if is_fortran { Order::Fortran } else { Order::C };
    let shape = shape.ok_or_else(|| missing("shape"))?;
    literals.end()?;
    Ok((descr, order, shape))
}

fn parse_descr(literals: &mut Literals<'_>) -> Result<Descr, FormatError> {
    let next = literals.peek();
    let offset = Some(literals.offset());
    if let Some(b'[' | b'(') = next {
        let (dtype, problem) =
            ("[...]".to_owned(), "describes records or subarrays, which are not supported");
        return Err(FormatError::UnsupportedDtype { tensor: None, dtype, problem, offset });
    }
    let text = literals.string()?;
    Descr::parse(text).map_err(|problem| FormatError::UnsupportedDtype {
        tensor: None,
        dtype: clip(text),
        problem,
        offset,
    })
}

fn write_head(descr: &Descr, order: Order, shape: &[u64]) -> Result<Vec<u8>, FormatError> {
    // numpy leaves room for the axis that grows, so that data can be appended without moving any.
    const GROWTH_DIGITS: usize = 21;
    const ALIGN: usize = 64;

    let is_fortran = if order == Order::Fortran { "True" } else { "False" };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': {is_fortran}, 'shape': (");
    for axis in shape {
        let _ = write!(text, "{axis}, ");
    }
    match shape.len() {
        0 => {}
        1 => drop(text.pop()),
        _ => text.truncate(text.len() - 2),
    }
    text.push_str("), }");
    let slowest = match order {
        Order::C => shape.first(),
        Order::Fortran => shape.last(),
    };
    if let Some(axis) = slowest {
        text.extend(std::iter::repeat_n(' ', GROWTH_DIGITS.saturating_sub(axis.to_string().len())));
    }

    let padded = |prefix: usize| {
        let len = text.len() + 1;
        len + ALIGN - (prefix + len) % ALIGN
    };
    let mut head = MAGIC.to_vec();
    let len = match u16::try_from(padded(10)) {
        Ok(len) => {
            head.extend_from_slice(&[1, 0]);
            head.extend_from_slice(&len.to_le_bytes());
            len.into()
        }
        Err(_) => {
            let len = padded(12);
            if len as u64 > MAX_HEADER_LEN {
                let (len_bytes, limit_bytes) = (len as u64, MAX_HEADER_LEN);
                return Err(FormatError::HeaderTooLarge { format: FORMAT, len_bytes, limit_bytes });
            }
            head.extend_from_slice(&[2, 0]);
            head.extend_from_slice(&(len as u32).to_le_bytes());
            len
        }
    };
    let end = head.len() + len;
    head.extend_from_slice(text.as_bytes());
    head.resize(end - 1, b' ');
    head.push(b'\n');
    Ok(head)
}
