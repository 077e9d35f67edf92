//! Order-preserving encodings: keys made of integers, floats, texts, and tuples of them.
//!
//! An index orders keys by their bytes. [`encode`] turns a value into bytes that order as the value
//! does; [`decode`] turns them back. The encoding of a tuple begins with the encodings of its first
//! elements, so that these make a prefix to scan by:
//!
//! ```
//! use dmtree::keys::{decode, encode};
//! # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
//! # let index = pool.open_or_create("orders", dmtree::Options::default())?;
//! for (customer, day) in [("ada", -3i32), ("ada", 12), ("alan", 5)] {
//!     index.put(encode(&(customer, day)), "")?;
//! }
//! let mut days = Vec::new();
//! for pair in index.scan_prefix(encode(&("ada",))) {
//!     let (_, day): (String, i32) = decode(&pair?.0)?;
//!     days.push(day);
//! }
//! assert_eq!(days, [-3, 12]);
//! # Ok::<(), dmtree::Error>(())
//! ```
//!
//! | type | bytes |
//! | --- | --- |
//! | `u8` to `u128` | big endian |
//! | `i8` to `i128` | big endian, sign bit flipped |
//! | `f32`, `f64` | IEEE 754 total order: positive: sign bit flipped, negative: all bits flipped |
//! | `bool` | 0 or 1 |
//! | `char` | as `u32` |
//! | `str`, `String`, `[u8]`, `Vec<u8>` | the bytes, each 0x00 as 0x00 0xff, then 0x00 0x00 |
//! | `[u8; N]` | the bytes |
//! | `Option` | 0, or 1 and the value: `None` is below all others |
//! | tuples of 1 to 8 | their elements, one after the other |
//!
//! Order is kept between values of one type, not across types, and nothing in the bytes says which
//! type it was. The floats that are no numbers are below (sign bit set) or above all others, and
//! -0.0 is below 0.0. Mind that the integers of a tuple have one width in all keys: `(1u8,)` is no
//! prefix of `(1u16, 2u8)`.

mod scalars;
mod texts;
mod tuples;

use dmtree_fabric::{Error, Result};

/// A value with an order-preserving encoding.
pub trait EncodeKey {
    /// Appends the encoding.
    fn encode_to(&self, out: &mut Vec<u8>);
}

/// A value that can be had back from its encoding.
pub trait DecodeKey: Sized {
    /// Takes the value off the front of `input`.
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that no value of this type is encoded as.
    fn decode_from(input: &mut &[u8]) -> Result<Self>;
}

/// The bytes that order as `value` does among the values of its type.
pub fn encode<T: EncodeKey + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode_to(&mut out);
    out
}

/// The value that was encoded as these bytes, all of them.
///
/// # Errors
/// `InvalidArgument` for bytes that no value of this type is encoded as.
pub fn decode<T: DecodeKey>(bytes: &[u8]) -> Result<T> {
    let mut rest = bytes;
    let value = T::decode_from(&mut rest)?;
    if rest.is_empty() {
        return Ok(value);
    }
    Err(Error::invalid(format!(
        "a key of {} bytes has {} too many for the type it is decoded as",
        bytes.len(),
        rest.len()
    )))
}

impl<T: EncodeKey + ?Sized> EncodeKey for &T {
    fn encode_to(&self, out: &mut Vec<u8>) {
        (**self).encode_to(out);
    }
}

impl<T: EncodeKey> EncodeKey for Option<T> {
    fn encode_to(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.encode_to(out);
        }
    }
}

impl<T: DecodeKey> DecodeKey for Option<T> {
    fn decode_from(input: &mut &[u8]) -> Result<Self> {
        match bool::decode_from(input)? {
            true => T::decode_from(input).map(Some),
            false => Ok(None),
        }
    }
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(input: &mut &[u8], what: &str) -> Result<[u8; N]> {
    match input.split_first_chunk::<N>() {
        Some((head, rest)) => {
            *input = rest;
            Ok(*head)
        }
        None => Err(Error::invalid(format!(
            "a key ends within {what}: {} bytes are there, {N} are needed",
            input.len()
        ))),
    }
}
