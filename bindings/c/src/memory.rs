//! Memory that crosses the interface.

use std::ffi::{CStr, c_char};

use dmtree::{Error, Result};

/// Bytes of the caller, or of a scan: `len` of them at `data`, which may be null when there are
/// none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Where they are.
    pub data: *const u8,
    /// How many.
    pub len: usize,
}

/// Bytes that the library has allocated, for the caller to give back with [`dmtree_bytes_free`].
/// `data` is null when there are none.
#[repr(C)]
#[derive(Debug)]
pub struct Bytes {
    /// Where they are.
    pub data: *mut u8,
    /// How many.
    pub len: usize,
}

impl Bytes {
    pub(crate) const NONE: Self = Self { data: std::ptr::null_mut(), len: 0 };

    /// The memory is the caller's from now on.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() {
            return Self::NONE;
        }
        let len = bytes.len();
        Self { data: Box::into_raw(bytes.into_boxed_slice()).cast(), len }
    }
}

impl Slice {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    /// The bytes.
    ///
    /// # Safety
    /// `len` bytes are readable at `data`, if it is not null, until the call of the library ends.
    pub(crate) unsafe fn bytes<'a>(self, what: &str) -> Result<&'a [u8]> {
        if self.len == 0 {
            return Ok(&[]);
        }
        if self.data.is_null() {
            return Err(Error::invalid(format!("{what} is null, with {} bytes", self.len)));
        }
        if isize::try_from(self.len).is_err() {
            return Err(Error::invalid(format!("{what} has {} bytes", self.len)));
        }
        // SAFETY: they are readable, by the contract of the call, and fit the address space.
        Ok(unsafe { std::slice::from_raw_parts(self.data, self.len) })
    }
}

/// An array of the caller.
///
/// # Safety
/// `len` items are readable at `data`, if it is not null, until the call of the library ends.
pub(crate) unsafe fn items<'a, T>(data: *const T, len: usize, what: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check_array(data, len, what)?;
    // SAFETY: they are readable, by the contract of the call, and fit the address space.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// An array of the caller for results.
///
/// # Safety
/// `len` items are writable at `data`, if it is not null, and nothing else uses them until the call
/// of the library ends.
pub(crate) unsafe fn results<'a, T>(data: *mut T, len: usize, what: &str) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check_array(data, len, what)?;
    // SAFETY: they are writable, by the contract of the call, and fit the address space.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
}

fn check_array<T>(data: *const T, len: usize, what: &str) -> Result<()> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    if data.is_null() || !data.is_aligned() || bytes.is_none() {
        return Err(Error::invalid(format!("{what} cannot have {len} items at {data:p}")));
    }
    Ok(())
}

/// Where a result goes.
///
/// # Safety
/// A `T` is writable at `to`, if it is not null, and nothing else uses it until the call of the
/// library ends.
pub(crate) unsafe fn result<'a, T>(to: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: it is one item, by the contract of the call.
    let results = unsafe { results(to, 1, what)? };
    Ok(&mut results[0])
}

/// Options of the caller; the defaults for a null pointer.
///
/// # Safety
/// A `T` is readable at `at`, if it is not null, until the call of the library ends.
pub(crate) unsafe fn given<T: Copy>(at: *const T, default: T) -> Result<T> {
    if at.is_null() {
        return Ok(default);
    }
    // SAFETY: it is one item, by the contract of the call.
    let one = unsafe { items(at, 1, "options")? };
    Ok(one[0])
}

/// A text of the caller; `None` for a null pointer.
///
/// # Safety
/// A text that ends with a zero byte is readable at `at`, if it is not null, until the call of the
/// library ends.
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: it ends with a zero byte, by the contract of the call.
    let text = unsafe { CStr::from_ptr(at) };
    let text = text.to_str().map_err(|_| Error::invalid(format!("{what} is no UTF-8")))?;
    Ok(Some(text))
}

/// A text that has to be there.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn needed<'a>(at: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: by the contract of the call.
    let text = unsafe { text(at, what)? };
    text.ok_or_else(|| Error::invalid(format!("{what} is null")))
}

/// Gives bytes back. Nothing happens for those without `data`.
///
/// # Safety
/// The library has allocated them, they are given back once, and nothing uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_bytes_free(bytes: Bytes) {
    if !bytes.data.is_null() {
        // SAFETY: they were made by `Bytes::of`, and are given back once, by the contract.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.len)) });
    }
}
