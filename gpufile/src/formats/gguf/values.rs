use super::cursor::{Cursor, syntax};
use super::strings::Strings;
use super::value::{Array, Value};
use crate::formats::FormatError;

const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Reads the type of a value and the value.
pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Value, FormatError> {
    let offset = cursor.offset();
    Ok(match cursor.u32()? {
        0 => Value::U8(u8::from_le_bytes(cursor.number()?)),
        1 => Value::I8(i8::from_le_bytes(cursor.number()?)),
        2 => Value::U16(u16::from_le_bytes(cursor.number()?)),
        3 => Value::I16(i16::from_le_bytes(cursor.number()?)),
        4 => Value::U32(u32::from_le_bytes(cursor.number()?)),
        5 => Value::I32(i32::from_le_bytes(cursor.number()?)),
        6 => Value::F32(f32::from_le_bytes(cursor.number()?)),
        BOOL => Value::Bool(truths(cursor, 1)?[0]),
        STRING => Value::String(cursor.string()?.to_owned()),
        ARRAY => Value::Array(read_array(cursor)?),
        10 => Value::U64(u64::from_le_bytes(cursor.number()?)),
        11 => Value::I64(i64::from_le_bytes(cursor.number()?)),
        12 => Value::F64(f64::from_le_bytes(cursor.number()?)),
        other => return Err(unknown(offset, other)),
    })
}

fn read_array(cursor: &mut Cursor<'_>) -> Result<Array, FormatError> {
    let offset = cursor.offset();
    let (item, len) = (cursor.u32()?, cursor.u64()?);
    Ok(match item {
        0 => Array::U8(numbers(cursor, len, u8::from_le_bytes)?),
        1 => Array::I8(numbers(cursor, len, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, len, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, len, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, len, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, len, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, len, f32::from_le_bytes)?),
        BOOL => Array::Bool(truths(cursor, len)?),
        STRING => Array::Strings(strings(cursor, len)?),
        ARRAY => {
            return Err(syntax(offset, "an array has arrays as elements, which ggml refuses".to_owned()));
        }
        10 => Array::U64(numbers(cursor, len, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, len, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, len, f64::from_le_bytes)?),
        other => return Err(unknown(offset, other)),
    })
}

fn unknown(offset: u64, number: u32) -> FormatError {
    syntax(offset, format!("{number} is not the type of a value"))
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    len: u64,
    number: fn([u8; N]) -> T,
) -> Result<Vec<T>, FormatError> {
    let bytes = cursor.take(len.saturating_mul(N as u64))?;
    Ok(bytes.as_chunks().0.iter().map(|chunk| number(*chunk)).collect())
}

fn truths(cursor: &mut Cursor<'_>, len: u64) -> Result<Vec<bool>, FormatError> {
    let offset = cursor.offset();
    let bytes = cursor.take(len)?;
    match bytes.iter().position(|byte| *byte > 1) {
        Some(at) => {
            let message = format!("a truth value is {} instead of 0 or 1", bytes[at]);
            Err(syntax(offset + at as u64, message))
        }
        None => Ok(bytes.iter().map(|byte| *byte == 1).collect()),
    }
}

fn strings(cursor: &mut Cursor<'_>, len: u64) -> Result<Strings, FormatError> {
    // Each has at least its length.
    cursor.expect(len.saturating_mul(8))?;
    (0..len).map(|_| cursor.string()).collect()
}

/// Appends the type of a value and the value.
pub(super) fn write(head: &mut Vec<u8>, value: &Value) {
    let mut put = |number: u32, bytes: &[u8]| {
        head.extend(number.to_le_bytes());
        head.extend(bytes);
    };
    match value {
        Value::U8(value) => put(0, &value.to_le_bytes()),
        Value::I8(value) => put(1, &value.to_le_bytes()),
        Value::U16(value) => put(2, &value.to_le_bytes()),
        Value::I16(value) => put(3, &value.to_le_bytes()),
        Value::U32(value) => put(4, &value.to_le_bytes()),
        Value::I32(value) => put(5, &value.to_le_bytes()),
        Value::F32(value) => put(6, &value.to_le_bytes()),
        Value::Bool(value) => put(BOOL, &[u8::from(*value)]),
        Value::String(value) => {
            put(STRING, &[]);
            write_string(head, value);
        }
        Value::Array(array) => {
            put(ARRAY, &[]);
            write_array(head, array);
        }
        Value::U64(value) => put(10, &value.to_le_bytes()),
        Value::I64(value) => put(11, &value.to_le_bytes()),
        Value::F64(value) => put(12, &value.to_le_bytes()),
    }
}

/// Appends the length of a string and its bytes.
pub(super) fn write_string(head: &mut Vec<u8>, string: &str) {
    head.extend((string.len() as u64).to_le_bytes());
    head.extend(string.as_bytes());
}

fn write_array(head: &mut Vec<u8>, array: &Array) {
    match array {
        Array::U8(array) => put_all(head, 0, array, u8::to_le_bytes),
        Array::I8(array) => put_all(head, 1, array, i8::to_le_bytes),
        Array::U16(array) => put_all(head, 2, array, u16::to_le_bytes),
        Array::I16(array) => put_all(head, 3, array, i16::to_le_bytes),
        Array::U32(array) => put_all(head, 4, array, u32::to_le_bytes),
        Array::I32(array) => put_all(head, 5, array, i32::to_le_bytes),
        Array::F32(array) => put_all(head, 6, array, f32::to_le_bytes),
        Array::Bool(array) => put_all(head, BOOL, array, |value| [u8::from(value)]),
        Array::Strings(array) => {
            put_start(head, STRING, array.len());
            array.iter().for_each(|string| write_string(head, string));
        }
        Array::U64(array) => put_all(head, 10, array, u64::to_le_bytes),
        Array::I64(array) => put_all(head, 11, array, i64::to_le_bytes),
        Array::F64(array) => put_all(head, 12, array, f64::to_le_bytes),
    }
}

/// Appends the type of an array's elements and their number.
fn put_start(head: &mut Vec<u8>, item: u32, len: usize) {
    head.extend(item.to_le_bytes());
    head.extend((len as u64).to_le_bytes());
}

fn put_all<T: Copy, const N: usize>(head: &mut Vec<u8>, item: u32, array: &[T], bytes: fn(T) -> [u8; N]) {
    put_start(head, item, array.len());
    head.extend(array.iter().flat_map(|value| bytes(*value)));
}
