//! Sizes in bytes, with units.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A size. As text: `4096`, `64KiB`, `1.5MiB`, `2GiB`; decimal units (`MB`) work too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("B", 1),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let t = text.trim();
        let lower = t.to_ascii_lowercase();
        let unit = UNITS.iter().find(|(name, _)| lower.ends_with(&name.to_ascii_lowercase()));
        let (number, factor) = unit.map_or((t, 1), |(n, f)| (&t[..t.len() - n.len()], *f));
        let number = number.trim().replace('_', "");
        if let Ok(n) = number.parse::<u64>() {
            return n.checked_mul(factor).map(Self).ok_or_else(|| format!("{text:?} is too large"));
        }
        match number.parse::<f64>() {
            Ok(n) if n >= 0.0 && n * (factor as f64) < 1e18 => Ok(Self((n * factor as f64) as u64)),
            _ => Err(format!(
                "{text:?} is no size: give bytes such as 4096, or with a unit such as 64MiB"
            )),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, factor) in &UNITS[..4] {
            if self.0 >= *factor && self.0.is_multiple_of(*factor) {
                return write!(f, "{}{name}", self.0 / factor);
            }
        }
        for (name, factor) in [("GB", 1_000_000_000), ("MB", 1_000_000)] {
            if self.0 > 0 && self.0.is_multiple_of(factor) {
                return write!(f, "{}{name}", self.0 / factor);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size such as 4096 or \"64MiB\"")]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(d)? {
            Form::Number(n) => Ok(Self(n)),
            Form::Text(t) => t.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        for (text, bytes) in
            [("4096", 4096), ("64KiB", 65536), ("1.5 mib", 3 << 19), ("2GB", 2_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!(Bytes(1 << 20).to_string(), "1MiB");
        for bad in ["", "x", "-1", "99999999999999999999", "20000000TiB"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }
}
