//! The layers of settings: defaults, the experiment, the command line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::config::{Config, GivenOption};
use crate::experiment::Experiment;
use crate::failure::{Failure, Result};
use crate::profile::ProfileText;
use crate::sweep::Sweep;
use crate::sweeps::Sweeps;
use crate::{registry, sizing};

/// Operations of a simulated cell by default.
const SIM_OPS: u64 = 50_000;

const REUSE: &str = "cells of one system that load the same keys and do not change which keys exist share one loaded pool, reads before updates; others get a fresh one";
const LOCAL_WARMUP: &str = "every compute node reads every 8th key in key order (every key, where a leaf holds one), once, within the warm-up time";
const SIM_WARMUP: &str = "a direct fill, equal in content to every compute node reading every key: every compute node reads every 8th key in key order (every key, where a leaf holds one), untimed";
const MEMORY_RULE: &str = "computed from the keys, the longest inserts and their lengths; reserved, used only as far as it is filled";

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// No source gives the value.
    Default,
    /// Derived from other values.
    Derived,
    /// The experiment of this name.
    Experiment(String),
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived => f.write_str("derived"),
            Self::Experiment(name) => write!(f, "experiment {name}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// Origins by the name of the setting.
pub type Origins = BTreeMap<String, Origin>;

/// The settings of a command line.
#[derive(Clone, Debug)]
pub struct Flags(ArgMatches);

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        Config::augment_args_for_update(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Config::augment_args_for_update(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.clone_from(matches);
        Ok(())
    }
}

impl Flags {
    /// The settings of these words.
    ///
    /// # Errors
    /// A word that is no setting, or has an impossible value.
    pub fn of<T: AsRef<OsStr>>(words: &[T]) -> Result<Self> {
        Self::augment_args(Command::new("settings").no_binary_name(true))
            .try_get_matches_from(words.iter().map(AsRef::as_ref))
            .map(Self)
            .map_err(|e| Failure::input(e.to_string()))
    }

    fn given(&self) -> Vec<Arg> {
        let all = Config::augment_args(Command::new("settings"));
        let given =
            |a: &&Arg| self.0.value_source(a.get_id().as_str()) == Some(ValueSource::CommandLine);
        all.get_arguments().filter(given).cloned().collect()
    }

    /// Whether a flag is given.
    pub fn has(&self, flag: &str) -> bool {
        self.given().iter().any(|a| a.get_long() == Some(flag))
    }

    /// The words that give the flags that are `wanted`.
    pub fn words(&self, wanted: impl Fn(&str) -> bool) -> Vec<OsString> {
        let mut words = Vec::new();
        for a in self.given() {
            let flag = a.get_long().unwrap_or_default();
            let word = OsString::from(format!("--{flag}"));
            if !wanted(flag) {
                continue;
            }
            if !a.get_action().takes_values() {
                words.push(word);
                continue;
            }
            for value in self.0.get_raw(a.get_id().as_str()).into_iter().flatten() {
                words.push([word.as_os_str(), OsStr::new("="), value].into_iter().collect());
            }
        }
        words
    }

    /// Puts what is given in the place of what is there.
    fn apply(&self, c: &mut Config) -> Result<()> {
        // A switch that is not given reads as false.
        let (steps, insecure) = (c.steps, c.insecure);
        c.update_from_arg_matches(&self.0).map_err(|e| Failure::input(e.to_string()))?;
        c.steps |= steps;
        c.insecure |= insecure;
        Ok(())
    }
}

/// Settings with their origins.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The experiment's name.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// The settings in effect.
    pub config: Config,
    /// The origin of each setting.
    pub origins: Origins,
    /// An experiment that runs before this one.
    pub led_by: Option<String>,
}

/// The number of cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Applies the settings of the experiment, and then those of the command line, over the defaults.
/// Refuses contradictory settings, and unknown names.
pub fn resolve(e: &Experiment, flags: &Flags) -> Result<Resolved> {
    let mut c = e.config.clone();
    let mut origins = Origins::new();
    origins.extend(e.given.iter().map(|key| (key.clone(), Origin::Experiment(e.name.clone()))));
    e.config.check_cells_exist()?;
    flags.apply(&mut c)?;
    for GivenOption { system, field, value } in std::mem::take(&mut c.given_options) {
        c.options.entry(system).or_default().insert(field, value);
    }
    let sweeps = std::mem::take(&mut c.given_sweeps);
    if !sweeps.is_empty() {
        c.sweep = Sweeps(vec![Sweep::crossed(sweeps)]);
    }
    let keys = flags.given().into_iter().map(|a| a.get_id().as_str().replace('_', "-"));
    origins.extend(keys.map(|key| (key, Origin::CommandLine)));
    limits(&mut c, &mut origins)?;
    derive(&mut c, &origins)?;
    for key in ["threads", "coroutines", "cache-bytes", "memory-bytes", "duration"] {
        origins.entry(key.to_owned()).or_insert(Origin::Derived);
    }
    c.check()?;
    Ok(Resolved {
        name: e.name.clone(),
        description: std::mem::take(&mut c.description),
        led_by: c.led_by.take(),
        config: c,
        origins,
    })
}

/// Settings that follow from others where no source gives them.
fn derive(c: &mut Config, origins: &Origins) -> Result<()> {
    let simulated = c.simulated();
    let missing = |key: &str| !origins.contains_key(key);
    if missing("threads") {
        c.threads = if simulated { 72 } else { cores() };
    }
    if missing("coroutines") {
        let enough = || u32::from(c.cns).div_ceil(c.threads.max(1)).clamp(1, 64);
        c.coroutines = if simulated { 4 } else { enough() };
    }
    if missing("cache-bytes") {
        c.cache_bytes = sizing::default_cache(c.keys, &c.key_form);
    }
    c.systems = registry::select(&c.systems)?.iter().map(|s| s.name.to_owned()).collect();
    if c.ops.is_none() && c.budget.is_none() && c.duration.is_none() {
        (c.ops, c.duration) = if simulated { (Some(SIM_OPS), None) } else { (None, Some(10.0)) };
    }
    let (profile, set) = (c.profile_name.take(), std::mem::take(&mut c.profile_set));
    if simulated {
        c.profile = Some(ProfileText::find(profile.as_deref(), &set)?);
    } else if !(missing("profile") && missing("profile-set")) {
        return Err(Failure::input(
            "a profile says how the simulated fabric behaves: give --fabric sim too",
        ));
    }
    REUSE.clone_into(&mut c.reuse);
    if simulated { SIM_WARMUP } else { LOCAL_WARMUP }.clone_into(&mut c.warmup_method);
    MEMORY_RULE.clone_into(&mut c.memory_rule);
    Ok(())
}

/// Settings of the command line replace settings of the experiment that say the same in another
/// form: the length of cells, and single settings.
fn limits(c: &mut Config, origins: &mut Origins) -> Result<()> {
    let mine = |key: &str| origins.get(key) == Some(&Origin::CommandLine);
    let (has_ops, has_duration, has_budget) = (mine("ops"), mine("duration"), mine("budget"));
    let simulated = c.simulated();
    if simulated && has_budget {
        return Err(Failure::input(
            "--budget limits real time, which the simulated fabric does not go by: give --ops or --duration",
        ));
    }
    let given = origins.iter().filter(|(_, origin)| **origin == Origin::CommandLine);
    given.for_each(|(setting, _)| c.overrule(setting));
    // Seconds that an experiment gives for another fabric have another meaning on this one.
    if !has_duration && (has_budget || simulated && mine("fabric")) {
        c.duration = None;
        origins.remove("duration");
    }
    if has_budget && !has_ops {
        c.ops = None;
        origins.remove("ops");
    }
    if !has_budget && (has_ops || has_duration || simulated) {
        c.budget = None;
        origins.remove("budget");
    }
    Ok(())
}

impl Resolved {
    /// Every setting: name, value, origin.
    pub fn rows(&self) -> Vec<(String, String, Origin)> {
        let value = serde_json::to_value(&self.config).unwrap_or_default();
        let Some(map) = value.as_object() else { return Vec::new() };
        let mut rows = Vec::new();
        for (key, v) in map {
            let text = match v {
                serde_json::Value::String(s) => s.clone(),
                serde_json::Value::Null => "(not limited by this)".to_owned(),
                serde_json::Value::Array(a) => a
                    .iter()
                    .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                    .collect::<Vec<_>>()
                    .join(", "),
                other => other.to_string(),
            };
            let text = match key.as_str() {
                "cache-bytes" => self.config.cache_bytes.to_string(),
                "profile" => {
                    self.config.profile.as_ref().map_or_else(String::new, ProfileText::title)
                }
                "memory-bytes" if self.config.memory_bytes.is_none() => {
                    format!("{} (largest cell)", Bytes(sizing::largest(&self.config)))
                }
                "nominal" if v.is_null() => self.config.keys.to_string(),
                _ => text,
            };
            let origin = self.origins.get(key).cloned().unwrap_or(Origin::Default);
            rows.push((key.clone(), text, origin));
        }
        rows
    }
}
