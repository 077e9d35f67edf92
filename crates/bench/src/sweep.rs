//! Sweeps: one or more settings, each over several values.

use dmtree_workload::{ScanLength, ValueSize};
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::config::Config;
use crate::failure::{Failure, Result};

/// Settings over several values: one list, or with `cross` every combination of several lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sweep {
    /// Every combination of the lists; otherwise only one list is permitted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cross: bool,
    /// Numbers of memory nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mns: Vec<u16>,
    /// Numbers of compute nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cns: Vec<u16>,
    /// Numbers of threads (on the simulated fabric: of each compute node).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
    /// Numbers of coroutines per thread.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub coroutines: Vec<u32>,
    /// Numbers of keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<u64>,
    /// Lengths of values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub value_size: Vec<ValueSize>,
    /// Lengths of scans.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scan_length: Vec<ScanLength>,
    /// Cache budgets of a compute node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cache_bytes: Vec<Bytes>,
    /// Cache budgets of a compute node for 1e9 keys, scaled to the number of keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cache_at_billion: Vec<Bytes>,
}

/// A value of one setting: its label, and a function that sets it.
type Choice = (String, Box<dyn Fn(&mut Config)>);

/// One choice per value of a list.
fn choices<T: Copy + std::fmt::Display + 'static>(
    name: &str,
    values: &[T],
    set: fn(&mut Config, T),
) -> Vec<Choice> {
    let one = |v: &T| -> Choice {
        let v = *v;
        (format!("{name}={v}"), Box::new(move |c: &mut Config| set(c, v)))
    };
    values.iter().map(one).collect()
}

impl Sweep {
    /// The lists that are not empty.
    fn lists(&self) -> Vec<Vec<Choice>> {
        let all = vec![
            choices("mns", &self.mns, |c, v| c.mns = v),
            choices("cns", &self.cns, |c, v| c.cns = v),
            choices("threads", &self.threads, |c, v| c.threads = v),
            choices("coroutines", &self.coroutines, |c, v| c.coroutines = v),
            choices("keys", &self.keys, |c, v| c.keys = v),
            choices("value-size", &self.value_size, |c, v| c.value_size = v),
            choices("scan-length", &self.scan_length, |c, v| c.scan_length = v),
            choices("cache-bytes", &self.cache_bytes, |c, v| {
                c.cache_bytes = v;
                c.per_system.clear();
            }),
            choices("cache-at-billion", &self.cache_at_billion, |c, v| {
                c.cache_at_billion = Some(v);
                c.per_system.clear();
            }),
        ];
        all.into_iter().filter(|list| !list.is_empty()).collect()
    }

    /// The points: a label and the settings. One point without a label if nothing varies.
    ///
    /// # Errors
    /// Several lists without `cross`.
    pub fn points(&self, base: &Config) -> Result<Vec<(Option<String>, Config)>> {
        let lists = self.lists();
        if lists.len() > 1 && !self.cross {
            return Err(Failure::input(
                "a sweep varies one setting: give one list only, or cross = true for every combination",
            ));
        }
        let mut points = vec![(None::<String>, base.clone())];
        for list in &lists {
            let longer = points.iter().flat_map(|(label, config)| {
                list.iter().map(move |(name, set)| {
                    let mut c = config.clone();
                    set(&mut c);
                    let label =
                        label.as_ref().map_or_else(|| name.clone(), |l| format!("{l} {name}"));
                    (Some(label), c)
                })
            });
            points = longer.collect();
        }
        Ok(points)
    }

    /// A sweep as on the command line: `threads` (usual values) or `threads=1,8,64`.
    ///
    /// # Errors
    /// An unknown setting, or impossible values.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, given) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        let usual = USUAL.iter().find(|(n, _)| *n == name).ok_or_else(|| {
            let names: Vec<&str> = USUAL.iter().map(|u| u.0).collect();
            Failure::input(format!(
                "unknown setting {name:?} to sweep over: give one of {}, alone or with values such as threads=1,8,64",
                names.join(", ")
            ))
        })?;
        let bad = |v: &str, e: String| Failure::input(format!("--sweep {name}: {v:?}: {e}"));
        let values: Vec<&str> =
            given.unwrap_or(usual.1).split(';').flat_map(comma_values).collect();
        fn all<T: std::str::FromStr>(
            values: &[&str],
            bad: impl Fn(&str, String) -> Failure,
        ) -> Result<Vec<T>>
        where
            T::Err: std::fmt::Display,
        {
            values
                .iter()
                .map(|v| v.trim().parse::<T>().map_err(|e| bad(v, e.to_string())))
                .collect()
        }
        let mut s = Self::default();
        match name {
            "mns" => s.mns = all(&values, bad)?,
            "cns" => s.cns = all(&values, bad)?,
            "threads" => s.threads = all(&values, bad)?,
            "coroutines" => s.coroutines = all(&values, bad)?,
            "keys" => s.keys = all(&values, bad)?,
            "value-size" => s.value_size = all(&values, bad)?,
            "scan-length" => s.scan_length = all(&values, bad)?,
            "cache-bytes" => s.cache_bytes = all(&values, bad)?,
            _ => s.cache_at_billion = all(&values, bad)?,
        }
        Ok(s)
    }
}

/// Values between commas; a comma inside parentheses belongs to a value.
fn comma_values(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0i32, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

/// The default values of a sweep.
const USUAL: [(&str, &str); 9] = [
    ("threads", "1,6,12,24,36,48,60,72"),
    ("coroutines", "1,2,4,8"),
    ("mns", "1,2,4,8"),
    ("cns", "1,2,4,8,16,32"),
    ("keys", "100000,1000000,10000000"),
    ("value-size", "8,16,32,64,128"),
    ("scan-length", "uniform(1..=10),uniform(1..=100),uniform(1..=1000)"),
    ("cache-bytes", "8MiB,4MiB,2MiB,1MiB,512KiB"),
    ("cache-at-billion", "20GB,15GB,10GB,7.5GB,5GB,2.5GB"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};

    fn base() -> Config {
        let layer = Layer { keys: Some(1000), ..Layer::default() };
        resolve("x", &Layer::default(), &layer).unwrap().config
    }

    #[test]
    fn every_usual_list_is_sound() {
        for (name, _) in USUAL {
            let s = Sweep::parse(name).unwrap();
            let points = s.points(&base()).unwrap();
            assert!(points.len() >= 3, "{name}");
            assert!(points[0].0.as_ref().unwrap().starts_with(name));
        }
        let threads = Sweep::parse("threads").unwrap().threads;
        assert_eq!(threads, [1, 6, 12, 24, 36, 48, 60, 72]);
        assert_eq!(Sweep::parse("threads=3,5").unwrap().threads, [3, 5]);
        let s = Sweep::parse("scan-length=zipfian(1..=9, 0.5),4").unwrap();
        assert_eq!(s.scan_length.len(), 2);
        assert!(Sweep::parse("size").unwrap_err().to_string().contains("value-size"));
        assert!(Sweep::parse("threads=x").unwrap_err().to_string().contains("\"x\""));
    }

    #[test]
    fn lists_cross_only_when_asked() {
        let mut s = Sweep { mns: vec![1, 2], cns: vec![1, 2, 3], ..Sweep::default() };
        assert!(s.points(&base()).unwrap_err().to_string().contains("cross"));
        s.cross = true;
        let points = s.points(&base()).unwrap();
        let labels: Vec<_> = points.iter().map(|p| p.0.clone().unwrap()).collect();
        assert_eq!(labels.len(), 6);
        assert_eq!((labels[0].as_str(), labels[5].as_str()), ("mns=1 cns=1", "mns=2 cns=3"));
        assert_eq!((points[4].1.mns, points[4].1.cns), (2, 2));
        assert_eq!(Sweep::default().points(&base()).unwrap().len(), 1);
    }
}
