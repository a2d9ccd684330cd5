//! Pointers from C callers.
//!
//! The C caller promises that a pointer is null or valid for its C declaration, so each exported function is
//! `unsafe`. Only this module relies on that.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Mutex;

use crate::control::lock;
use crate::cubin;

pub(crate) fn put<T>(pointer: *mut T, value: T) -> Option<()> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: an out-parameter that is not null is valid for a write, by the C caller's promise.
    unsafe { pointer.write(value) };
    Some(())
}

pub(crate) fn get<T: Copy>(pointer: *const T) -> Option<T> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: an in-parameter that is not null is valid for a read, by the C caller's promise.
    Some(unsafe { pointer.read() })
}

pub(crate) fn array<T: Copy>(pointer: *const T, length: usize) -> Option<Vec<T>> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: an array that is not null has the length given with it, by the C caller's promise.
    Some(unsafe { std::slice::from_raw_parts(pointer, length) }.to_vec())
}

pub(crate) fn put_array<T: Copy>(pointer: *mut T, values: &[T]) -> Option<()> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: an array that is not null has room for the length given with it, by the C caller's promise.
    unsafe { pointer.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Some(())
}

pub(crate) fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: a string that is not null ends with a NUL, by the C caller's promise.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// Copies an ELF file, as far as its own header says; `None` if the memory contains no such file.
pub(crate) fn elf(pointer: *const u8) -> Option<Vec<u8>> {
    // One by one: a text may be shorter.
    let is_elf = b"\x7fELF".iter().enumerate().all(|(at, byte)| get(pointer.wrapping_add(at)) == Some(*byte));
    let header = is_elf.then(|| get(pointer.cast::<[u8; 64]>()))??;
    array(pointer, cubin::len_bytes(&header))
}

/// Returns `None` if the text and its NUL do not fit.
pub(crate) fn put_text(pointer: *mut c_char, length: c_int, value: &str) -> Option<()> {
    let bytes: Vec<c_char> = value.bytes().chain([0]).map(|byte| byte as c_char).collect();
    if usize::try_from(length).ok()? < bytes.len() {
        return None;
    }
    put_array(pointer, &bytes)
}

/// Returns a C string that lasts as long as the process.
pub(crate) fn lasting(text: &str) -> *const c_char {
    static TEXTS: Mutex<BTreeMap<String, CString>> = Mutex::new(BTreeMap::new());
    let mut texts = lock(&TEXTS);
    let entry = texts.entry(text.to_owned());
    // The map only grows, and the bytes of a string stay where they are when the map moves the string.
    entry.or_insert_with(|| CString::new(text).unwrap_or_default()).as_ptr()
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the location is valid for as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(code: c_int) {
    // SAFETY: as for `errno`.
    unsafe { *libc::__errno_location() = code };
}

/// A raw pointer that a queued job carries to its thread.
#[derive(Clone, Copy)]
pub(crate) struct Carried<T>(pub T);

// SAFETY: queued work, on any thread, uses the pointer only while the C caller must keep it valid.
unsafe impl<T> Send for Carried<T> {}

impl<T: Copy> Carried<T> {
    /// Returns the pointer; a method, so that a closure captures the whole rather than the field, which is
    /// not `Send`.
    pub(crate) fn get(&self) -> T {
        self.0
    }
}
