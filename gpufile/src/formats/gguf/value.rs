use super::strings::Strings;

/// A value in the metadata of a GGUF file.
///
/// The `as_` methods return the value as a Rust type if it fits: [`as_u64`](Self::as_u64) takes integers of any width.
///
/// ```
/// use gpufile::formats::gguf::{Array, Value};
///
/// assert_eq!(Value::I16(32).as_u64(), Some(32));
/// assert_eq!((Value::I16(-1).as_u64(), Value::I16(-1).as_i64()), (None, Some(-1)));
/// assert_eq!(Value::from("llama").as_str(), Some("llama"));
/// let heads = Value::from(Array::U32(vec![8, 8, 4]));
/// assert_eq!(heads.as_array().map(Array::len), Some(3));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// IEEE 754 binary32.
    F32(f32),
    /// IEEE 754 binary64.
    F64(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    String(String),
    /// An array.
    Array(Array),
}

/// An array in the metadata of a GGUF file. All of its elements have one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned, 8 bits.
    U8(Vec<u8>),
    /// Signed, 8 bits.
    I8(Vec<i8>),
    /// Unsigned, 16 bits.
    U16(Vec<u16>),
    /// Signed, 16 bits.
    I16(Vec<i16>),
    /// Unsigned, 32 bits.
    U32(Vec<u32>),
    /// Signed, 32 bits.
    I32(Vec<i32>),
    /// Unsigned, 64 bits.
    U64(Vec<u64>),
    /// Signed, 64 bits.
    I64(Vec<i64>),
    /// IEEE 754 binary32.
    F32(Vec<f32>),
    /// IEEE 754 binary64.
    F64(Vec<f64>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Strings.
    Strings(Strings),
}

impl Value {
    /// Returns an integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U64(value) => Some(value),
            _ => self.as_i64().and_then(|value| value.try_into().ok()),
        }
    }

    /// Returns an integer.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::I8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U64(value) => value.try_into().ok(),
            Value::I64(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a floating-point number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(value) => Some(value.into()),
            Value::F64(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(value) => Some(value),
            _ => None,
        }
    }

    /// Returns an array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(value) => Some(value),
            _ => None,
        }
    }
}

impl Array {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(array) => array.len(),
            Array::I8(array) => array.len(),
            Array::U16(array) => array.len(),
            Array::I16(array) => array.len(),
            Array::U32(array) => array.len(),
            Array::I32(array) => array.len(),
            Array::U64(array) => array.len(),
            Array::I64(array) => array.len(),
            Array::F32(array) => array.len(),
            Array::F64(array) => array.len(),
            Array::Bool(array) => array.len(),
            Array::Strings(array) => array.len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an array of strings.
    pub fn as_strings(&self) -> Option<&Strings> {
        match self {
            Array::Strings(strings) => Some(strings),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),+ $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Value::$variant(value.into())
            }
        }
    )+};
}

from! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32,
    f64 => F64, bool => Bool, &str => String, String => String, Array => Array,
}
