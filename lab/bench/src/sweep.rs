//! Sweeps: one or more settings, each over several values; and the place of a cell in a sweep, for
//! charts: the curve that it is on, and its point of the axis.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use dmtree_workload::{ScanLength, ValueSize};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::bytes::Bytes;
use crate::config::{Config, GivenOption};
use crate::failure::{Failure, Result};

/// A value of one setting: its label, and a function that sets it.
type Choice = (String, Box<dyn Fn(&mut Config)>);

/// The settings that a sweep can vary: type, field of [`Config`], usual values.
macro_rules! swept {
    ($($(#[$about:meta])* $field:ident: $type:ty = $usual:literal,)*) => {
        /// Settings over several values: one list, or with `cross` every combination of several
        /// lists.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, rename_all = "kebab-case")]
        pub struct Sweep {
            /// Every combination of the lists; otherwise only one list is permitted.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pub cross: bool,
            $($(#[$about])* #[serde(skip_serializing_if = "Vec::is_empty")] pub $field: Vec<$type>,)*
            /// Creation options of systems: `NAME.field`.
            #[serde(flatten, deserialize_with = "options")]
            pub options: BTreeMap<String, Vec<Value>>,
        }

        /// The usual values of each setting, as on the command line.
        const USUAL: &[(&str, &str)] = &[$((stringify!($field), $usual)),*];

        impl Sweep {
            /// The lists that are not empty.
            fn lists(&self) -> Vec<Vec<Choice>> {
                let mut all = vec![$(choices(stringify!($field), &self.$field, |c, v| c.$field = v.into())),*];
                all.extend(self.options.iter().map(|(name, values)| option_choices(name, values)));
                all.into_iter().filter(|list| !list.is_empty()).collect()
            }

            /// Sets the list of a field from texts.
            fn fill(&mut self, field: &str, values: &[&str]) -> Result<(), String> {
                $(if field == stringify!($field) {
                    self.$field = values.iter().map(parsed).collect::<Result<_, _>>()?;
                })*
                Ok(())
            }
        }
    };
}

swept! {
    /// Numbers of memory nodes.
    mns: u16 = "1,2,4,8",
    /// Numbers of compute nodes.
    cns: u16 = "1,2,4,8,16,32",
    /// Numbers of threads (on the simulated fabric: of each compute node).
    threads: u32 = "1,6,12,24,36,48,60,72",
    /// Numbers of coroutines per thread.
    coroutines: u32 = "1,2,4,8",
    /// Numbers of keys.
    keys: u64 = "100000,1000000,10000000",
    /// Lengths of values.
    value_size: ValueSize = "8,16,32,64,128",
    /// Lengths of scans.
    scan_length: ScanLength = "uniform(1..=10),uniform(1..=100),uniform(1..=1000)",
    /// Cache budgets of a compute node.
    cache_bytes: Bytes = "8MiB,4MiB,2MiB,1MiB,512KiB",
    /// Cache budgets of a compute node for 1e9 keys, scaled to the number of keys.
    cache_at_billion: Bytes = "20GB,15GB,10GB,7.5GB,5GB,2.5GB",
}

/// One choice per value of a list.
fn choices<T: Copy + Display + 'static>(
    field: &str,
    values: &[T],
    set: fn(&mut Config, T),
) -> Vec<Choice> {
    let name = field.replace('_', "-");
    let one = |v: &T| -> Choice {
        let (v, setting) = (*v, name.clone());
        let set = move |c: &mut Config| {
            c.overrule(&setting);
            set(c, v);
        };
        (format!("{name}={v}"), Box::new(set))
    };
    values.iter().map(one).collect()
}

/// One choice per value of a creation option.
fn option_choices(name: &str, values: &[Value]) -> Vec<Choice> {
    let one = |v: &Value| -> Choice {
        let (at, v) = (GivenOption::split(name), v.clone());
        let label = format!("{name}={}", v.as_str().map_or_else(|| v.to_string(), str::to_owned));
        let set = move |c: &mut Config| {
            if let Some((system, field)) = &at {
                c.options.entry(system.clone()).or_default().insert(field.clone(), v.clone());
            }
        };
        (label, Box::new(set))
    };
    values.iter().map(one).collect()
}

/// Whatever is no setting is an option of a system.
fn options<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, Vec<Value>>, D::Error> {
    let options = BTreeMap::<String, Vec<Value>>::deserialize(d)?;
    match options.keys().find(|name| GivenOption::split(name).is_none()) {
        Some(name) => Err(D::Error::custom(unknown(name))),
        None => Ok(options),
    }
}

fn parsed<T: FromStr<Err: Display>>(text: &&str) -> Result<T, String> {
    text.trim().parse().map_err(|e| format!("{text:?}: {e}"))
}

impl Sweep {
    /// The points: a label and the settings. One point without a label if nothing varies. Several
    /// lists without `cross` are refused.
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
}

fn names() -> impl Iterator<Item = String> {
    USUAL.iter().map(|(field, _)| field.replace('_', "-"))
}

fn unknown(name: &str) -> String {
    format!(
        "unknown setting {name:?} to sweep over: give one of {}, alone or with values such as threads=1,8,64; or an option of a system with values, such as dmtree.fanout=16,32",
        names().collect::<Vec<_>>().join(", ")
    )
}

/// As on the command line: `threads` (usual values) or `threads=1,8,64`.
impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, given) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        let values = |text| -> Vec<&str> { str::split(text, ';').flat_map(comma_values).collect() };
        let mut s = Self::default();
        if let (Some(_), Some(given)) = (GivenOption::split(name), given) {
            let values = values(given).into_iter().map(GivenOption::value).collect();
            s.options.insert(name.to_owned(), values);
            return Ok(s);
        }
        let at = names().position(|known| known == name).ok_or_else(|| unknown(name))?;
        let (field, usual) = USUAL[at];
        let values = values(given.unwrap_or(usual));
        s.fill(field, &values).map_err(|e| format!("--sweep {name}: {e}"))?;
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
    use crate::config::CellSettings;

    fn base() -> Config {
        Config { keys: 1000, ..Config::default() }
    }

    fn parse(text: &str) -> Result<Sweep, String> {
        text.parse()
    }

    #[test]
    fn every_usual_list_is_sound() {
        for (field, _) in USUAL {
            let name = field.replace('_', "-");
            let s = parse(&name).unwrap();
            let points = s.points(&base()).unwrap();
            assert!(points.len() >= 3, "{name}");
            assert!(points[0].0.as_ref().unwrap().starts_with(&name));
        }
        let threads = parse("threads").unwrap().threads;
        assert_eq!(threads, [1, 6, 12, 24, 36, 48, 60, 72]);
        assert_eq!(parse("threads=3,5").unwrap().threads, [3, 5]);
        let s = parse("scan-length=zipfian(1..=9, 0.5),4").unwrap();
        assert_eq!(s.scan_length.len(), 2);
        assert!(parse("size").unwrap_err().contains("value-size"));
        assert!(parse("threads=x").unwrap_err().contains("\"x\""));
    }

    /// A swept setting is the one in the label, whatever the experiment gives for single cells.
    #[test]
    fn a_swept_setting_overrules_those_of_cells() {
        let own = CellSettings {
            coroutines: Some(9),
            cache_at_billion: Some(Bytes(1 << 40)),
            ..CellSettings::default()
        };
        let cache_at_billion = Some(Bytes(1 << 39));
        let base = Config { cells: vec![own], cache_at_billion, ..base() };
        let search = "search".parse().unwrap();
        let cell = |sweep: &str| {
            let points = parse(sweep).unwrap().points(&base).unwrap();
            points[0].1.for_cell("dmtree", &search)
        };
        assert_eq!(cell("coroutines=3").coroutines, 3);
        assert_eq!(cell("cache-bytes=1MiB").cache_bytes, Bytes(1 << 20));
        assert_eq!(cell("cache-at-billion=1000GB").cache_bytes, Bytes(1_000_000));
        assert_eq!(cell("threads=2").coroutines, 9);
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
            let p = Place::of(variant).unwrap();
            assert_eq!((&p.besides[..], &p.setting[..], &p.label[..]), (besides, setting, label));
            assert_eq!(p.x, x, "{variant}");
        }
        assert_eq!(Place::of("nothing"), None);
    }
}
