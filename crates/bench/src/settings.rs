//! Types of settings that are more than a number or a name.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use dmtree_parts::Fill;
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// How the index is filled before a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadBy {
    /// Whole leaves at once, keys ascending.
    #[default]
    Bulk,
    /// One put per key, in random order, by all clients.
    Put,
}

/// The fill of leaves after a bulk load: a share of their slots, or `random`, as after insertions
/// in random order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FillBy {
    /// The same share for all leaves.
    Share(f64),
    /// The fill after insertions in random order.
    Random,
}

impl FillBy {
    /// The fill as an index takes it.
    pub fn fill(self, seed: u64) -> Fill {
        match self {
            Self::Share(share) => Fill::Even(share),
            Self::Random => Fill::RandomInserts { seed },
        }
    }
}

impl fmt::Display for FillBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => write!(f, "{share}"),
            Self::Random => f.write_str("random"),
        }
    }
}

impl FromStr for FillBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "random" {
            return Ok(Self::Random);
        }
        text.parse().map(Self::Share).map_err(|_| {
            format!("fill {text:?}: give a share above 0, 1 at most, or random (as after insertions in random order)")
        })
    }
}

impl Serialize for FillBy {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Share(share) => s.serialize_f64(*share),
            Self::Random => s.serialize_str("random"),
        }
    }
}

impl<'de> Deserialize<'de> for FillBy {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        number_or_text(d, Self::Share)
    }
}

/// Reads a setting that is a number or a text.
pub(crate) fn number_or_text<'de, D, N, T>(d: D, number: fn(N) -> T) -> Result<T, D::Error>
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

/// The operations of a cell that the figures cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Operations that end in the measuring window, which begins after the ramp-up and ends before
    /// the ramp-down.
    #[default]
    Window,
    /// All operations; only the throughput is that of the window.
    All,
}

/// The settings that a workload overrides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkloadSettings {
    /// Keys loaded before a cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<u64>,
    /// Operations of a cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<u64>,
    /// Operations of a cell as a share of the keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops_of_keys: Option<f64>,
    /// The operations that the figures cover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
}

/// The settings that a system overrides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SystemSettings {
    /// Cache budget of a compute node for 1e9 keys, scaled to the number of keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_at_billion: Option<Bytes>,
}
