//! The place of a cell in a sweep, for charts: the curve that it is on, and its point of the axis.

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// The setting that names the distribution.
pub const DISTRIBUTION: &str = "distribution";
/// The setting that names the exponent of the distribution.
pub const THETA: &str = "theta";
/// The setting of which cells differ by chance alone: it is no axis if another setting varies.
pub const SEED: &str = "seed";

/// The place of a cell. If several settings vary, the last one besides the seed is the axis, the
/// others name the curve. Cells that differ in the seed have one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The settings besides the axis and the seed, with their values; empty if only one varies.
    pub besides: String,
    /// The setting of the axis.
    pub setting: String,
    /// Its value as it stands at the axis: `uniform(1..=100)` as `1-100`, `random(16..=16)` as
    /// `16`, `zipfian(0.9)` as `0.9`.
    pub label: String,
    /// The position along the axis: a size, or the last number in the value.
    pub x: f64,
    /// Every setting that varies, with its value in full.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub swept: Vec<(String, String)>,
}

impl Place {
    /// The place of a point of a sweep, such as `mns=2 threads=12`.
    pub fn of(variant: &str) -> Option<Self> {
        let swept = settings(variant);
        let axis = swept.iter().rposition(|(name, _)| *name != SEED);
        let axis = axis.or(swept.len().checked_sub(1))?;
        let (setting, value) = swept[axis];
        let others = swept[..axis].iter().filter(|(name, _)| *name != SEED);
        let besides: Vec<String> = others.map(|(name, value)| format!("{name}={value}")).collect();
        Some(Self {
            besides: besides.join(" "),
            setting: setting.to_owned(),
            label: label(value),
            x: position(value),
            swept: swept.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        })
    }
}

/// The settings of a point of a sweep, with their values.
fn settings(variant: &str) -> Vec<(&str, &str)> {
    // A value may have spaces, so only a word that begins with `name=` begins a setting.
    let begins = |at: usize| {
        let name = variant[at..].split_once('=').map_or("", |(name, _)| name);
        let of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(of_name)
    };
    let mut starts = vec![0];
    let words = variant.match_indices(' ').map(|(at, _)| at + 1);
    starts.extend(words.filter(|at| begins(*at)));
    let ends = starts[1..].iter().map(|at| at - 1).chain([variant.len()]);
    let parts = starts.iter().zip(ends).map(|(from, to)| &variant[*from..to]);
    parts.filter_map(|part| part.split_once('=')).collect()
}

/// Of a value with one argument that argument; of parts that shift the last one.
fn label(value: &str) -> String {
    if let Some(parts) = value.strip_prefix("shifting(").and_then(|v| v.strip_suffix(')')) {
        return parts.rsplit(',').next().unwrap_or(parts).trim().to_owned();
    }
    if let Some(rate) = value.strip_prefix("open:").and_then(|rate| rate.parse::<f64>().ok()) {
        return short(rate);
    }
    let inner = value.strip_suffix(')').and_then(|v| v.split_once('(')).map(|(_, inner)| inner);
    match inner.filter(|inner| !inner.contains(',')) {
        None => value.to_owned(),
        Some(inner) => match inner.split_once("..=") {
            Some((from, to)) if from == to => from.to_owned(),
            Some((from, to)) => format!("{from}-{to}"),
            None => inner.to_owned(),
        },
    }
}

/// A rate with a unit: `1.5M`.
fn short(rate: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (unit, name) = units.into_iter().find(|(unit, _)| rate >= *unit).unwrap_or((1.0, ""));
    format!("{}{name}", rate / unit)
}

fn position(value: &str) -> f64 {
    // A plain number first: a share is no whole number of bytes.
    if let Ok(x) = value.parse().or_else(|_| value.parse::<Bytes>().map(|bytes| bytes.0 as f64)) {
        return x;
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
            ("chime.hotspot_share=0.0263", "", "chime.hotspot_share", "0.0263", 0.0263),
            ("key-form=random(16..=16)", "", "key-form", "16", 16.0),
            ("key-form=shifting(9:1, 0.01)", "", "key-form", "0.01", 0.01),
            ("distribution=zipfian-exact(0.9)", "", DISTRIBUTION, "0.9", 0.9),
            (
                "chime-published.neighbourhood=4 chime-published.span=8",
                "chime-published.neighbourhood=4",
                "chime-published.span",
                "8",
                8.0,
            ),
            ("cns=2 cache-at-billion=7.5GB", "cns=2", "cache-at-billion", "7.5GB", 7.5e9),
            ("load=open:1500000", "", "load", "1.5M", 1.5e6),
            ("profile.responder_ns.read=22", "", "profile.responder_ns.read", "22", 22.0),
            ("theta=0.9", "", THETA, "0.9", 0.9),
            ("seed=3", "", SEED, "3", 3.0),
            ("threads=8 seed=3", "", "threads", "8", 8.0),
            ("cns=2 seed=3 threads=8", "cns=2", "threads", "8", 8.0),
        ] {
            let p = Place::of(variant).unwrap();
            assert_eq!((&p.besides[..], &p.setting[..], &p.label[..]), (besides, setting, label));
            assert_eq!(p.x, x, "{variant}");
        }
        assert_eq!(Place::of("nothing"), None);
        let all = Place::of("keys=9 scan-length=zipfian(1..=9, 0.5) seed=3").unwrap().swept;
        let due = [("keys", "9"), ("scan-length", "zipfian(1..=9, 0.5)"), ("seed", "3")];
        assert_eq!(all, due.map(|(n, v)| (n.to_owned(), v.to_owned())));
    }
}
