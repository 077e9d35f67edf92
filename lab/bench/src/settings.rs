//! Types of settings that are more than a number or a name.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use dmtree_parts::Fill;
use dmtree_pool::parse_count;
use dmtree_workload::KeyForm;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bytes::{Bytes, number_or_text};
use crate::config::Config;

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

/// Which keys a client draws.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// Any.
    #[default]
    Any,
    /// Those in its compute node's slice of the key space.
    Own,
}

impl Affinity {
    /// Whether it is the usual one.
    pub fn is_any(&self) -> bool {
        *self == Self::Any
    }
}

/// Settings of some cells: of a system, of a workload, or of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CellSettings {
    /// The system; every one by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The workload; every one by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Coroutines of a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coroutines: Option<u32>,
    /// The fill of leaves after a bulk load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<FillBy>,
    /// The form of keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_form: Option<KeyForm>,
    /// Cache budget of a compute node for 1e9 keys, scaled to the number of keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_at_billion: Option<Bytes>,
    /// Keys that a client draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
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
    /// Operations of a client between two calls of maintenance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintain_every: Option<u32>,
    /// Figures of every so many microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series_us: Option<u64>,
    /// Measure the time of operations step by step, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<bool>,
}

impl CellSettings {
    /// Whether a cell of this system and workload has these settings.
    pub fn covers(&self, system: &str, workload: &str) -> bool {
        self.system.as_ref().is_none_or(|s| s == system)
            && self.workload.as_ref().is_none_or(|w| w == workload)
    }

    /// Puts these settings in the place of those of a cell.
    pub fn apply(&self, c: &mut Config) {
        c.coroutines = self.coroutines.unwrap_or(c.coroutines);
        c.fill = self.fill.unwrap_or(c.fill);
        c.key_form = self.key_form.clone().unwrap_or_else(|| c.key_form.clone());
        c.cache_at_billion = self.cache_at_billion.or(c.cache_at_billion);
        c.affinity = self.affinity.unwrap_or(c.affinity);
        c.keys = self.keys.unwrap_or(c.keys);
        let share = self.ops_of_keys.map(|s| (c.keys as f64 * s) as u64);
        c.ops = share.or(self.ops).or(c.ops);
        c.measure = self.measure.unwrap_or(c.measure);
        c.maintain_every = self.maintain_every.unwrap_or(c.maintain_every);
        c.series_us = self.series_us.or(c.series_us);
        c.steps = self.steps.unwrap_or(c.steps);
    }

    /// Gives up what says the same as a setting.
    pub fn forget(&mut self, setting: &str) {
        match setting {
            "coroutines" => self.coroutines = None,
            "fill" => self.fill = None,
            "key-form" => self.key_form = None,
            "cache-bytes" | "cache-at-billion" => self.cache_at_billion = None,
            "affinity" => self.affinity = None,
            "keys" => self.keys = None,
            "series-us" => self.series_us = None,
            "steps" => self.steps = None,
            "ops" | "duration" => (self.ops, self.ops_of_keys) = (None, None),
            _ => {}
        }
    }

    /// All of it, in a line.
    pub fn described(&self) -> String {
        let own = serde_json::to_value(self).unwrap_or_default();
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        let all = own.as_object().into_iter().flatten().map(|(k, v)| format!("{k} {}", text(v)));
        format!("where {}", all.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for CellSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = |name: &Option<String>| name.clone().unwrap_or_else(|| "any".to_owned());
        write!(f, "[[where]] system {}, workload {}", any(&self.system), any(&self.workload))
    }
}

/// A creation option of one system: `NAME.field=value`, the value a number, JSON, or a text.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenOption {
    /// The system.
    pub system: String,
    /// The option.
    pub field: String,
    /// Its value.
    pub value: Value,
}

impl GivenOption {
    /// `NAME.field`.
    pub fn split(name: &str) -> Option<(String, String)> {
        let (system, field) = name.split_once('.')?;
        (!system.is_empty() && !field.is_empty()).then(|| (system.to_owned(), field.to_owned()))
    }

    /// A value: a number, also as 1e6, 1M or 1_000_000; as JSON; or as a text.
    pub fn value(text: &str) -> Value {
        let as_written = || serde_json::from_str(text).unwrap_or_else(|_| text.into());
        parse_count(text).map_or_else(|_| as_written(), Value::from)
    }
}

impl FromStr for GivenOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(name, value)| {
            let (system, field) = Self::split(name)?;
            Some(Self { system, field, value: Self::value(value) })
        });
        parts.ok_or_else(|| {
            format!("option {text:?}: give NAME.field=value, such as dmtree.fanout=32")
        })
    }
}
