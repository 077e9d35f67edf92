//! Experiments: data files, built in or given by the user.

use std::path::Path;

use dmtree_fabric::suggest::{self, unknown};

use crate::config::Config;
use crate::failure::{Failure, Result};

macro_rules! built_in {
    ($($name:literal,)*) => {
        &[$(($name, include_str!(concat!("../../experiments/", $name, ".toml")))),*]
    };
}

/// The built-in experiments: name and text.
pub const BUILTIN: &[(&str, &str)] = built_in! {
    "quick", "ycsb", "ablation", "cache", "scan", "quick-sim", "fast26", "fast26-threads", "fast26-ycsb", "clients",
    "breakdown", "ablation-published", "kv-size", "cache-budget", "scan-length", "resources",
    "scale", "sherman-slides", "smart-factors", "smart-clients", "smart-cache", "chime-factors",
    "chime-sweeps", "rolex-sweeps", "rolex-factors", "amplification", "rpc-cores", "beyond", "dlsm-readme", "dlsm-scale", "dlsm-compaction",
    "dlsm-budget", "images-use", "beyond-scale", "beyond-log",
};

/// An experiment: its name and its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// Its name; of a file, the name without `.toml`.
    pub name: String,
    /// Its settings, over the defaults.
    pub config: Config,
    /// The names of those that it gives.
    pub(crate) given: Vec<String>,
}

impl Experiment {
    /// Whether it gives a setting.
    pub fn gives(&self, name: &str) -> bool {
        self.given.iter().any(|given| given == name)
    }

    /// Reads the text form; `from` names it in messages, which name the malformed line.
    pub fn parse(name: &str, from: &str, text: &str) -> Result<Self> {
        let refuse = |e: toml::de::Error| {
            let line = e.span().map(|s| 1 + text[..s.start.min(text.len())].matches('\n').count());
            let at = line.map(|l| format!(", line {l}")).unwrap_or_default();
            Failure::input(format!("{from}{at}: {}", meant(e.message().trim())))
        };
        let config = toml::from_str(text).map_err(refuse)?;
        let given: toml::Table = toml::from_str(text).map_err(refuse)?;
        Ok(Self { name: name.to_owned(), config, given: given.into_iter().map(|g| g.0).collect() })
    }

    /// A built-in experiment by name, or a file (anything that ends with `.toml` or has a `/`).
    ///
    /// # Errors
    /// An unknown name, a file that cannot be read or is malformed.
    pub fn find(name: &str) -> Result<Self> {
        if name.ends_with(".toml") || name.contains('/') {
            let path = Path::new(name);
            let text = std::fs::read_to_string(path)
                .map_err(|e| Failure::file("read the experiment", path, &e))?;
            let stem = path.file_stem().map_or(name.into(), |s| s.to_string_lossy());
            return Self::parse(&stem, name, &text);
        }
        match BUILTIN.iter().find(|(n, _)| *n == name) {
            Some((n, text)) => Self::parse(n, &format!("built-in experiment {n}"), text),
            None => {
                let names: Vec<&str> = BUILTIN.iter().map(|(n, _)| *n).collect();
                let why = unknown("experiment", name, &names);
                Err(Failure::input(format!("{why}, or a file that ends with .toml")))
            }
        }
    }
}

/// The refusal of a field, as serde says it, with the field that was meant.
pub(crate) fn meant(refusal: &str) -> String {
    let mut names = refusal.split('`').skip(1).step_by(2);
    let (Some((what, expected)), Some(given)) = (refusal.split_once(", expected"), names.next())
    else {
        return refusal.to_owned();
    };
    match suggest::nearest(given, names).filter(|_| what.starts_with("unknown field")) {
        Some(near) => format!("{what}: do you mean {near}? Expected{expected}"),
        None => refusal.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Origin, resolve};
    use proptest::prelude::*;

    proptest! {
        /// Built-in experiments with a part cut out and another put in.
        #[test]
        fn texts_that_were_changed_are_resolved_or_refused(
            which in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            gone in 0usize..12,
            put in prop_oneof![
                "-?[0-9]{1,20}",
                "[0-9]e[0-9]{1,3}",
                "[\\PC\n]{0,12}",
                Just("nan".to_owned()),
                Just("inf".to_owned()),
                Just("18446744073709551615".to_owned()),
            ],
        ) {
            let text = which.get(BUILTIN).1.as_bytes();
            let at = at.index(text.len());
            let end = (at + gone).min(text.len());
            let text = [&text[..at], put.as_bytes(), &text[end..]].concat();
            if let Ok(e) = Experiment::parse("x", "x.toml", &String::from_utf8_lossy(&text)) {
                let _ = resolve(&e, &Flags::of::<&str>(&[]).unwrap());
            }
        }
    }

    #[test]
    fn the_built_in_ones_are_sound() {
        for (name, _) in BUILTIN.iter().copied() {
            let e = Experiment::find(name).unwrap();
            assert!(e.config.description.len() > 20, "{name}");
            let small = Flags::of(&["--keys=1000"]).unwrap();
            let r = resolve(&e, &small).unwrap();
            assert_eq!(r.config.keys, 1000);
            assert_eq!(r.origins["keys"], Origin::CommandLine);
            assert!(!r.config.sweep.points(&r.config).unwrap().is_empty());
        }
    }

    #[test]
    fn errors_have_lines() {
        let bad = |text: &str| Experiment::parse("x", "x.toml", text).unwrap_err().to_string();
        assert!(
            bad("keys = 5\nkeyz = 6\n")
                .starts_with("x.toml, line 2: unknown field `keyz`: do you mean keys?")
        );
        assert!(bad("[[where]]\ncoroutine = 3").contains("do you mean coroutines?"));
        assert!(bad("\n\nworkloads = [\"nope\"]").contains("line 3"));
        assert!(bad("keys = ").contains("line 1"));
        assert!(bad("[sweep]\nfoo = [1]").contains("unknown setting \"foo\""));
        assert!(Experiment::find("nope").unwrap_err().to_string().contains("quick, ycsb"));
        assert!(Experiment::find("/nowhere/x.toml").is_err());
    }

    #[test]
    fn the_command_line_wins_and_contradictions_are_refused() {
        let quick = Experiment::find("quick").unwrap();
        let with = |flags: &[&str]| resolve(&quick, &Flags::of(flags).unwrap());
        assert!(with(&[]).unwrap().config.budget.is_some());
        let r = with(&["--ops=5"]).unwrap();
        assert_eq!((r.config.budget, r.config.ops), (None, Some(5)));
        for (what, bad) in [
            ("--keys is 0", "--keys=0"),
            ("--cns is 0", "--cns=0"),
            ("--mns is 0", "--mns=0"),
            ("--threads is 0", "--threads=0"),
            ("--duration", "--duration=-1"),
            ("--fill", "--fill=1.5"),
            ("unknown fabric", "--fabric=ether"),
            ("unknown system", "--systems=x"),
            ("need about", "--keys=1099511627776"),
            // The bytes of a default cache overflowed.
            ("are more than", "--keys=18446744073709551615"),
            ("--nominal", "--nominal=1"),
            ("do not fit", "--memory-bytes=1MiB"),
        ] {
            let e = with(&[bad]).unwrap_err();
            assert!(e.to_string().contains(what) && e.exit_code() == 2, "{what}: {e}");
        }
        assert!(Flags::of(&["--keyz=1"]).unwrap_err().to_string().contains("--keys"));
    }
}
