//! The text form of every setting: `name`, `name(a, b)`, `7`, `1..=100`. A command line, an
//! experiment file and a result all write a setting in the same way, and the text in a result is
//! valid input.

use dmtree_pool::{parse_bytes, parse_count};

use crate::error::{Error, Result};

/// Splits `name(a, b)` into the name and its arguments; a bare name has none.
pub(crate) fn call(text: &str) -> Result<(&str, Vec<&str>)> {
    let text = text.trim();
    let Some((name, rest)) = text.split_once('(') else {
        return Ok((text, Vec::new()));
    };
    let Some(inner) = rest.strip_suffix(')') else {
        return Err(Error::new(format!("{text:?} has no closing parenthesis: add one")));
    };
    let args = if inner.trim().is_empty() {
        Vec::new()
    } else {
        inner.split(',').map(str::trim).collect()
    };
    Ok((name.trim(), args))
}

/// A whole number, also as `1_000_000`, `1e6` or `1M`.
pub(crate) fn number(what: &str, text: &str) -> Result<u64> {
    parse_count(text.trim()).map_err(|_| {
        Error::new(format!("{what} {text:?} is not a number: give one from 0 to 2^64-1"))
    })
}

/// A number of bytes, also as `64KiB` or `1M`.
pub(crate) fn bytes32(what: &str, text: &str) -> Result<u32> {
    let wide = parse_bytes(text.trim()).or_else(|_| number(what, text))?;
    at_most_u32(what, wide)
}

/// A whole number below 2^32.
pub(crate) fn number32(what: &str, text: &str) -> Result<u32> {
    at_most_u32(what, number(what, text)?)
}

fn at_most_u32(what: &str, wide: u64) -> Result<u32> {
    u32::try_from(wide)
        .map_err(|_| Error::new(format!("{what} {wide} is too large: give at most {}", u32::MAX)))
}

/// `a..=b`, or one number for both ends.
pub(crate) fn range32(what: &str, text: &str) -> Result<(u32, u32)> {
    range(what, text, number32)
}

/// The same of bytes.
pub(crate) fn byte_range32(what: &str, text: &str) -> Result<(u32, u32)> {
    range(what, text, bytes32)
}

fn range(what: &str, text: &str, end: fn(&str, &str) -> Result<u32>) -> Result<(u32, u32)> {
    let (min, max) = match text.split_once("..=") {
        Some((a, b)) => (end(what, a)?, end(what, b)?),
        None => {
            let one = end(what, text)?;
            (one, one)
        }
    };
    if min > max {
        return Err(Error::new(format!(
            "{what} {min}..={max} is an empty range: give the smaller end first"
        )));
    }
    Ok((min, max))
}

/// The exponent of a zipf law: above 0, at most 10.
pub(crate) fn theta(text: &str) -> Result<f64> {
    text.trim().parse::<f64>().ok().filter(|t| *t > 0.0 && *t <= 10.0).ok_or_else(|| {
        Error::new(format!("theta {text:?} is not usable: give a number above 0, up to 10"))
    })
}

/// Serde for a setting through its text form (`Display` and `FromStr`); a whole number is accepted
/// for its text.
#[macro_export]
macro_rules! serde_by_text {
    ($type:ty, $expecting:literal) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(
                &self,
                serializer: S,
            ) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> std::result::Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(
                        self,
                        text: &str,
                    ) -> std::result::Result<Self::Value, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(
                        self,
                        number: u64,
                    ) -> std::result::Result<Self::Value, E> {
                        self.visit_str(&number.to_string())
                    }
                    fn visit_i64<E: serde::de::Error>(
                        self,
                        number: i64,
                    ) -> std::result::Result<Self::Value, E> {
                        self.visit_str(&number.to_string())
                    }
                }
                deserializer.deserialize_any(Text)
            }
        }
    };
}
pub(crate) use serde_by_text;
