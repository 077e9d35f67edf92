//! Sizes in bytes, with units.

use std::fmt;
use std::str::FromStr;

use bytesize::{GB, GIB, KIB, MB, MIB, TIB};
use dmtree_pool::parse_bytes;
use serde::{Deserialize, Deserializer, Serialize};

/// A size. As text: `4096`, `64KiB`, `1.5MiB`, `2GiB`; decimal units (`MB`) work too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_bytes(text).map(Self)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("GB", GB), ("MB", MB)];
        for (unit, factor) in units {
            if self.0 > 0 && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        number_or_text(d, Self)
    }
}

/// Reads a setting that is a number or a text.
///
/// # Errors
/// Neither, or a text that does not parse.
pub fn number_or_text<'de, D, N, T>(d: D, number: fn(N) -> T) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    N: Deserialize<'de>,
    T: FromStr<Err: fmt::Display>,
{
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number or a text")]
    enum Form<N> {
        Number(N),
        Text(String),
    }
    match Form::deserialize(d)? {
        Form::Number(n) => Ok(number(n)),
        Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        for text in ["0", "1", "4096B", "64KiB", "3MiB", "2GB", "1500MB", "5TiB", "1234567"] {
            let bytes: Bytes = text.parse().unwrap();
            assert_eq!(bytes.to_string().parse(), Ok(bytes), "{text}");
        }
        assert_eq!(Bytes(1 << 20).to_string(), "1MiB");
        assert_eq!(Bytes(4096).to_string(), "4KiB");
        assert_eq!(Bytes(7_500_000_000).to_string(), "7500MB");
        assert_eq!(Bytes(1000).to_string(), "1000");
    }
}
