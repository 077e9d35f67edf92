//! A sweep: one or more settings, each over several values, for all cells of an experiment or for
//! some.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use dmtree_fabric::suggest;
use dmtree_pool::parse_count;
use dmtree_workload::{Distribution, KeyForm, ScanLength, ValueSize, Workload};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::bytes::Bytes;
use crate::config::{CellSettings, Config, GivenOption};
use crate::failure::{Failure, Result};
use crate::offered::LoadShape;

/// A value of one setting: its label, and a function that sets it.
type Choice = (String, Box<dyn Fn(&mut Config) -> Result<()>>);
/// What stands before a field of the profile, as a system before its creation option.
const PROFILE: &str = "profile";

/// The settings that a sweep can vary: type, usual values, what a value sets.
macro_rules! swept {
    ($($(#[$about:meta])* $field:ident: $type:ty = $usual:literal => $set:expr,)*) => {
        /// Settings over several values: one list, or with `cross` every combination of several
        /// lists.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, rename_all = "kebab-case")]
        pub struct Sweep {
            /// Every combination of the lists; otherwise only one list is permitted.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            pub cross: bool,
            /// The systems that it is for; without it all of the experiment.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub systems: Vec<String>,
            /// The workloads that it is for.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub workloads: Vec<Workload>,
            /// The distributions that it is for.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub distributions: Vec<Distribution>,
            /// Settings of its cells.
            #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
            pub cells: Option<CellSettings>,
            $($(#[$about])* #[serde(skip_serializing_if = "Vec::is_empty")] pub $field: Vec<$type>,)*
            /// Creation options of systems, `NAME.field`, and fields of the profile,
            /// `profile.FIELD`.
            #[serde(flatten, deserialize_with = "options")]
            pub options: BTreeMap<String, Vec<Value>>,
        }

        /// The usual values of each setting, as on the command line.
        const USUAL: &[(&str, &str)] = &[$((stringify!($field), $usual)),*];

        impl Sweep {
            /// The lists that are not empty.
            fn lists(&self) -> Vec<Vec<Choice>> {
                let mut all = vec![$(choices(stringify!($field), &self.$field, $set)),*];
                all.extend(self.options.iter().map(|(name, values)| option_choices(name, values)));
                all.into_iter().filter(|list| !list.is_empty()).collect()
            }

            /// Adds the lists of another sweep.
            fn join(&mut self, other: Self) {
                $(self.$field.extend(other.$field);)*
                other.options.into_iter().for_each(|(name, values)| {
                    self.options.entry(name).or_default().extend(values);
                });
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
    /// Seeds: cells that differ by chance alone. Charts show them as one with an error bar.
    seed: u64 = "1,2,3,4,5" => |c, v| c.seed = v,
    /// Numbers of memory nodes.
    mns: u16 = "1,2,4,8" => |c, v| c.mns = v,
    /// Numbers of cores of a memory node that run data services.
    mn_cores: u32 = "1,2,4,8,16,32,64" => |c, v| c.mn_cores = Some(v),
    /// Numbers of compute nodes.
    cns: u16 = "1,2,4,8,16,32" => |c, v| c.cns = v,
    /// Numbers of threads (on the simulated fabric: of each compute node).
    threads: u32 = "1,6,12,24,36,48,60,72" => |c, v| c.threads = v,
    /// Numbers of coroutines per thread.
    coroutines: u32 = "1,2,4,8" => |c, v| c.coroutines = v,
    /// Numbers of keys.
    keys: u64 = "100000,1000000,10000000" => |c, v| c.keys = v,
    /// Forms of keys.
    key_form: KeyForm = "random(8..=8),random(16..=16),random(64..=64)" => |c, v| c.key_form = v,
    /// Distributions.
    distribution: Distribution = "zipfian(0.5),zipfian(0.9),zipfian(0.99)" => |c, v| c.distributions = vec![v],
    /// Exponents of the zipf laws among the distributions, or of `zipfian-exact` if there is none.
    theta: f64 = "0.5,0.9,0.99" => |c, v| c.distributions = with_theta(&c.distributions, v),
    /// How operations are offered: a rate after each other.
    load: LoadShape = "open:500k,open:1M,open:2M,open:4M" => |c, v| c.load = v,
    /// Lengths of values.
    value_size: ValueSize = "8,16,32,64,128" => |c, v| c.value_size = v,
    /// Lengths of scans.
    scan_length: ScanLength = "uniform(1..=10),uniform(1..=100),uniform(1..=1000)" => |c, v| c.scan_length = v,
    /// Cache budgets of a compute node.
    cache_bytes: Bytes = "8MiB,4MiB,2MiB,1MiB,512KiB" => |c, v| c.cache_bytes = v,
    /// Cache budgets of a compute node for 1e9 keys, scaled to the number of keys.
    cache_at_billion: Bytes = "20GB,15GB,10GB,7.5GB,5GB,2.5GB" => |c, v| c.cache_at_billion = Some(v),
}

/// One choice per value of a list.
fn choices<T: Clone + Display + 'static>(
    field: &str,
    values: &[T],
    set: fn(&mut Config, T),
) -> Vec<Choice> {
    let name = field.replace('_', "-");
    let one = |v: &T| -> Choice {
        let (value, setting) = (v.clone(), name.clone());
        let set = move |c: &mut Config| {
            c.overrule(&setting);
            set(c, value.clone());
            Ok(())
        };
        (format!("{name}={v}"), Box::new(set))
    };
    values.iter().map(one).collect()
}

/// One choice per value of a creation option, or of a field of the profile.
fn option_choices(name: &str, values: &[Value]) -> Vec<Choice> {
    let one = |v: &Value| -> Choice {
        let (at, v) = (GivenOption::split(name), v.clone());
        let text = v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        let label = format!("{name}={text}");
        let set = move |c: &mut Config| {
            let Some((system, field)) = &at else { return Ok(()) };
            if system != PROFILE {
                c.options.entry(system.clone()).or_default().insert(field.clone(), v.clone());
                return Ok(());
            }
            let Some(profile) = &c.profile else {
                return Err(Failure::input(
                    "a sweep over a field of the profile is of simulated hardware: give --fabric sim, too",
                ));
            };
            c.profile = Some(profile.with(field, &text)?);
            Ok(())
        };
        (label, Box::new(set))
    };
    values.iter().map(one).collect()
}

/// The zipf laws of these distributions with another exponent.
fn with_theta(all: &[Distribution], theta: f64) -> Vec<Distribution> {
    let zipf = all.iter().filter_map(|d| match d {
        Distribution::ZipfExact { .. } => Some(Distribution::ZipfExact { theta }),
        Distribution::ZipfYcsb { .. } => Some(Distribution::ZipfYcsb { theta }),
        Distribution::Latest { .. } => Some(Distribution::Latest { theta }),
        _ => None,
    });
    let mut laws: Vec<Distribution> = zipf.collect();
    laws.dedup();
    if laws.is_empty() { vec![Distribution::ZipfExact { theta }] } else { laws }
}

/// Whatever is no setting is an option of a system.
fn options<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, Vec<Value>>, D::Error> {
    let options = BTreeMap::<String, Vec<Value>>::deserialize(d)?;
    match options.keys().find(|name| GivenOption::split(name).is_none()) {
        Some(name) => Err(D::Error::custom(unknown(name))),
        None => Ok(options),
    }
}

/// A value; a number may be given as 1e6, 1M or 1_000_000.
fn parsed<T: FromStr<Err: Display>>(text: &&str) -> Result<T, String> {
    let text = text.trim();
    let count = || parse_count(text).ok()?.to_string().parse().ok();
    text.parse().or_else(|e| count().ok_or(e)).map_err(|e| format!("{text:?}: {e}"))
}

/// Those of `all` that are in `some`, or all if that is empty.
fn narrowed<T: Clone + PartialEq>(all: &[T], some: &[T]) -> Vec<T> {
    all.iter().filter(|one| some.is_empty() || some.contains(one)).cloned().collect()
}

impl Sweep {
    /// Every combination of several sweeps, as the command line gives them.
    pub fn crossed(given: Vec<Self>) -> Self {
        let mut all = Self::default();
        given.into_iter().for_each(|one| all.join(one));
        all.cross = all.lists().len() > 1;
        all
    }

    /// The systems with creation options that vary.
    pub fn systems_with_options(&self) -> impl Iterator<Item = String> {
        let named = self.options.keys().filter_map(|name| GivenOption::split(name));
        named.map(|(system, _)| system).filter(|system| system != PROFILE)
    }

    /// The settings of an experiment for the cells of this sweep; `None` if it has none of them.
    pub fn within(&self, base: &Config) -> Option<Config> {
        let mut c = base.clone();
        c.systems = narrowed(&base.systems, &self.systems);
        c.workloads = narrowed(&base.workloads, &self.workloads);
        c.distributions = narrowed(&base.distributions, &self.distributions);
        c.cells.extend(self.cells.clone());
        let is_empty = c.systems.is_empty() || c.workloads.is_empty() || c.distributions.is_empty();
        (!is_empty).then_some(c)
    }

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
                    set(&mut c)?;
                    let label =
                        label.as_ref().map_or_else(|| name.clone(), |l| format!("{l} {name}"));
                    Ok((Some(label), c))
                })
            });
            points = longer.collect::<Result<_>>()?;
        }
        Ok(points)
    }
}

fn names() -> impl Iterator<Item = String> {
    USUAL.iter().map(|(field, _)| field.replace('_', "-"))
}

fn unknown(name: &str) -> String {
    let names: Vec<String> = names().collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let which = suggest::unknown("setting", name, &names);
    format!(
        "{which}, alone or with values such as threads=1,8,64; or with values an option of a system (dmtree.fanout=16,32), or a field of the profile (profile.responder_ns.read=20,40)"
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CellSettings;
    use crate::profile::ProfileText;

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
        let keys = parse("keys=1e3,2k,1_000,4000").unwrap().keys;
        assert_eq!(keys, [1000, 2000, 1000, 4000]);
        let threads = parse("threads").unwrap().threads;
        assert_eq!(threads, [1, 6, 12, 24, 36, 48, 60, 72]);
        assert_eq!(parse("threads=3,5").unwrap().threads, [3, 5]);
        let s = parse("scan-length=zipfian(1..=9, 0.5),4").unwrap();
        assert_eq!(s.scan_length.len(), 2);
        assert!(parse("size").unwrap_err().contains("value-size"));
        let misspelt = parse("thread=1").unwrap_err();
        assert!(misspelt.contains("do you mean threads?") && misspelt.contains("profile."));
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
        let given =
            ["seed=1,2", "load=open:1M,closed", "theta=0.5"].map(|text| parse(text).unwrap());
        let points = Sweep::crossed(given.to_vec()).points(&base()).unwrap();
        assert_eq!(points[3].0.as_deref(), Some("seed=2 theta=0.5 load=closed"));
        assert_eq!((points.len(), points[3].1.seed), (4, 2));
        let law = points[0].1.distributions.iter().map(ToString::to_string);
        assert_eq!(law.collect::<Vec<_>>(), ["zipfian-exact(0.5)"], "no other law has an exponent");
        assert!(!Sweep::crossed(given[..1].to_vec()).cross);
    }

    #[test]
    fn fields_of_the_profile_vary() {
        let sim = ProfileText::find(None, &["link.gbps=50".to_owned()]).unwrap();
        let base = Config { profile: Some(sim.clone()), ..base() };
        let points = parse("profile.responder_ns.read=20,40").unwrap().points(&base).unwrap();
        let read =
            |c: &Config| c.profile.as_ref().unwrap().profile().unwrap().get("responder_ns.read");
        let at: Vec<_> = points.iter().map(|(_, c)| read(c)).collect();
        assert_eq!(at, [Some(20.0), Some(40.0)]);
        let set = &points[0].1.profile.as_ref().unwrap().set;
        assert_eq!(set[..], ["link.gbps=50", "responder_ns.read=20"]);
        assert_eq!(points[1].0.as_deref(), Some("profile.responder_ns.read=40"));
        for (text, what) in [
            ("profile.responder_ns.reed=20", "do you mean responder_ns.read?"),
            ("profile.responder_ns.read=-1", "responder_ns.read"),
        ] {
            let e = parse(text).unwrap().points(&base).unwrap_err().to_string();
            assert!(e.contains(what), "{e}");
        }
        let e = parse("profile.responder_ns.read=1").unwrap().points(&self::base()).unwrap_err();
        assert!(e.to_string().contains("--fabric sim"), "{e}");
    }
}
