//! Sizes as people write them.

use dmtree_fabric::{Error, Result};

/// Something that says how many bytes: a number, or a text such as `"64MiB"`.
///
/// Texts are a whole number and a unit: none or `B`, `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024),
/// or `kB`, `MB`, `GB`, `TB` (powers of 1000). Case does not matter, nor does a space or an
/// underscore.
pub trait ByteSize {
    /// How many bytes.
    ///
    /// # Errors
    /// `InvalidArgument`, quoting a text that is no size.
    fn to_bytes(&self) -> Result<u64>;
}

impl ByteSize for u64 {
    fn to_bytes(&self) -> Result<u64> {
        Ok(*self)
    }
}

impl ByteSize for u32 {
    fn to_bytes(&self) -> Result<u64> {
        Ok(u64::from(*self))
    }
}

impl ByteSize for usize {
    fn to_bytes(&self) -> Result<u64> {
        Ok(*self as u64)
    }
}

impl ByteSize for &str {
    fn to_bytes(&self) -> Result<u64> {
        parse(self)
    }
}

impl ByteSize for String {
    fn to_bytes(&self) -> Result<u64> {
        parse(self)
    }
}

fn parse(text: &str) -> Result<u64> {
    let refuse = |why: &str| {
        Err(Error::invalid(format!(
            "{text:?} is not a size: {why}; write a whole number and a unit, such as 64MiB or 2GiB"
        )))
    };
    let plain: String = text.chars().filter(|c| !matches!(c, ' ' | '_')).collect();
    let digits = plain.find(|c: char| !c.is_ascii_digit()).unwrap_or(plain.len());
    let (number, unit) = plain.split_at(digits);
    if number.is_empty() {
        return refuse("it does not begin with a number");
    }
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return refuse(&format!("the unit {unit:?} is unknown")),
    };
    match number.parse::<u64>().ok().and_then(|n| n.checked_mul(scale)) {
        Some(bytes) => Ok(bytes),
        None => refuse("it is too large"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_forms() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("1_000kB", 1_000_000),
            ("2GiB", 2 << 30),
            ("3b", 3),
        ] {
            assert_eq!(text.to_bytes().expect(text), bytes, "{text}");
        }
        assert_eq!(7u64.to_bytes().expect("a number"), 7);
    }

    #[test]
    fn what_is_no_size_is_quoted() {
        for text in ["", "MiB", "1.5GiB", "-1", "12 parsecs", "99999999TiB", "٣MiB"] {
            let e = text.to_bytes().expect_err(text);
            assert_eq!(e.kind(), crate::ErrorKind::InvalidArgument);
            assert!(e.to_string().contains("64MiB"), "{e}");
        }
    }
}
