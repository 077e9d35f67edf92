//! The place of a cell in a sweep, for charts: the curve that it is on, and its point of the axis.

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// The place of a cell. If several settings vary, the last one is the axis, the others name the
/// curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The settings besides the axis, with their values; empty if only one varies.
    pub besides: String,
    /// The setting of the axis.
    pub setting: String,
    /// Its value as it stands at the axis: the range `uniform(1..=100)` as `1-100`.
    pub label: String,
    /// The position along the axis: a size, or the last number in the value.
    pub x: f64,
}

impl Place {
    /// The place of a point of a sweep, such as `mns=2 threads=12`.
    pub fn of(variant: &str) -> Option<Self> {
        // A value may have spaces, so only a word that begins with `name=` begins a setting.
        let begins = |at: &usize| {
            let name = variant[at + 1..].split_once('=').map_or("", |(name, _)| name);
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        };
        let last = variant.rmatch_indices(' ').map(|(at, _)| at).find(begins);
        let (besides, last) = last.map_or(("", variant), |at| (&variant[..at], &variant[at + 1..]));
        let (setting, value) = last.split_once('=')?;
        let inner = value.strip_prefix("uniform(").and_then(|v| v.strip_suffix(')'));
        Some(Self {
            besides: besides.to_owned(),
            setting: setting.to_owned(),
            label: inner.map_or_else(|| value.to_owned(), |v| v.replace("..=", "-")),
            x: position(value),
        })
    }
}

fn position(value: &str) -> f64 {
    if let Ok(bytes) = value.parse::<Bytes>() {
        return bytes.0 as f64;
    }
    let digits = |c: char| !(c.is_ascii_digit() || c == '.');
    value.split(digits).filter_map(|n| n.trim_matches('.').parse().ok()).next_back().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_places() {
        for (variant, besides, setting, label, x) in [
            ("threads=12", "", "threads", "12", 12.0),
            ("mns=2 cns=3 threads=8", "mns=2 cns=3", "threads", "8", 8.0),
            ("scan-length=uniform(1..=100)", "", "scan-length", "1-100", 100.0),
            (
                "keys=9 scan-length=zipfian(1..=9, 0.5)",
                "keys=9",
                "scan-length",
                "zipfian(1..=9, 0.5)",
                0.5,
            ),
            ("cns=2 cache-at-billion=7.5GB", "cns=2", "cache-at-billion", "7.5GB", 7.5e9),
        ] {
            let due = Place {
                besides: besides.to_owned(),
                setting: setting.to_owned(),
                label: label.to_owned(),
                x,
            };
            assert_eq!(Place::of(variant), Some(due));
        }
        assert_eq!(Place::of("nothing"), None);
    }
}
