//! Experiments: data files, built in or given by the user.

use std::path::Path;

use crate::config::Layer;
use crate::failure::{Failure, Result};

/// The built-in experiments: name and text.
pub const BUILTIN: &[(&str, &str)] = &[
    ("quick", include_str!("../experiments/quick.toml")),
    ("ycsb", include_str!("../experiments/ycsb.toml")),
    ("ablation", include_str!("../experiments/ablation.toml")),
    ("cache", include_str!("../experiments/cache.toml")),
    ("scan", include_str!("../experiments/scan.toml")),
    ("quick-sim", include_str!("../experiments/quick-sim.toml")),
    ("fast26", include_str!("../experiments/fast26.toml")),
    ("fast26-ycsb", include_str!("../experiments/fast26-ycsb.toml")),
    ("clients", include_str!("../experiments/clients.toml")),
    ("breakdown", include_str!("../experiments/breakdown.toml")),
    ("ablation-published", include_str!("../experiments/ablation-published.toml")),
    ("kv-size", include_str!("../experiments/kv-size.toml")),
    ("cache-budget", include_str!("../experiments/cache-budget.toml")),
    ("scan-length", include_str!("../experiments/scan-length.toml")),
    ("resources", include_str!("../experiments/resources.toml")),
    ("scale", include_str!("../experiments/scale.toml")),
    ("sherman-slides", include_str!("../experiments/sherman-slides.toml")),
    ("smart-factors", include_str!("../experiments/smart-factors.toml")),
    ("smart-clients", include_str!("../experiments/smart-clients.toml")),
    ("smart-cache", include_str!("../experiments/smart-cache.toml")),
    ("amplification", include_str!("../experiments/amplification.toml")),
];

/// An experiment: its name and its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// Its name; of a file, the name without `.toml`.
    pub name: String,
    /// Its settings.
    pub layer: Layer,
}

impl Experiment {
    /// Reads the text form; `from` names it in messages.
    ///
    /// # Errors
    /// The malformed line.
    pub fn parse(name: &str, from: &str, text: &str) -> Result<Self> {
        let layer: Layer = toml::from_str(text).map_err(|e| {
            let line = e.span().map(|s| 1 + text[..s.start.min(text.len())].matches('\n').count());
            let at = line.map(|l| format!(", line {l}")).unwrap_or_default();
            Failure::input(format!("{from}{at}: {}", e.message().trim()))
        })?;
        Ok(Self { name: name.to_owned(), layer })
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
            None => Err(Failure::input(format!(
                "unknown experiment {name:?}: give one of {}, or a file that ends with .toml",
                BUILTIN.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ")
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Origin, resolve};
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
                let _ = resolve("x", &e.layer, &Layer::default());
            }
        }
    }

    #[test]
    fn the_built_in_ones_are_sound() {
        for (name, _) in BUILTIN.iter().copied() {
            let e = Experiment::find(name).unwrap();
            assert!(e.layer.description.as_ref().is_some_and(|d| d.len() > 20), "{name}");
            // Some systems of an experiment may not be built yet.
            let systems = Some(vec!["dmtree".to_owned()]);
            let small = Layer { keys: Some(1000), systems, ..Layer::default() };
            let r = resolve(name, &e.layer, &small).unwrap();
            assert_eq!(r.config.keys, 1000);
            assert_eq!(r.origins["keys"], Origin::CommandLine);
            assert!(!r.config.sweep.points(&r.config).unwrap().is_empty());
        }
    }

    #[test]
    fn errors_have_lines() {
        let bad = |text: &str| Experiment::parse("x", "x.toml", text).unwrap_err().to_string();
        assert!(bad("keys = 5\nkeyz = 6\n").starts_with("x.toml, line 2: unknown field `keyz`"));
        assert!(bad("\n\nworkloads = [\"nope\"]").contains("line 3"));
        assert!(bad("keys = ").contains("line 1"));
        assert!(bad("[sweep]\nfoo = [1]").contains("line 2"));
        assert!(Experiment::find("nope").unwrap_err().to_string().contains("quick, ycsb"));
        assert!(Experiment::find("/nowhere/x.toml").is_err());
    }

    #[test]
    fn the_command_line_wins_and_contradictions_are_refused() {
        let quick = Experiment::find("quick").unwrap().layer;
        let none = Layer::default();
        assert!(resolve("quick", &quick, &none).unwrap().config.budget.is_some());
        let by_ops = Layer { ops: Some(5), ..none.clone() };
        let r = resolve("quick", &quick, &by_ops).unwrap();
        assert_eq!((r.config.budget, r.config.ops), (None, Some(5)));
        for (what, bad) in [
            ("--keys is 0", Layer { keys: Some(0), ..none.clone() }),
            ("--cns is 0", Layer { cns: Some(0), ..none.clone() }),
            ("--mns is 0", Layer { mns: Some(0), ..none.clone() }),
            ("--threads is 0", Layer { threads: Some(0), ..none.clone() }),
            ("--duration", Layer { duration: Some(-1.0), ..none.clone() }),
            ("--fill", Layer { fill: Some("1.5".parse().unwrap()), ..none.clone() }),
            ("unknown fabric", Layer { fabric: Some("ether".into()), ..none.clone() }),
            ("unknown system", Layer { systems: Some(vec!["x".into()]), ..none.clone() }),
            ("need about", Layer { keys: Some(1 << 40), ..none.clone() }),
            // The bytes of a default cache overflowed.
            ("need about", Layer { keys: Some(u64::MAX), ..none.clone() }),
            ("--nominal", Layer { nominal: Some(1), ..none.clone() }),
            ("do not fit", Layer { memory_bytes: Some(crate::bytes::Bytes(1 << 20)), ..none }),
        ] {
            let e = resolve("quick", &quick, &bad).unwrap_err();
            assert!(e.to_string().contains(what) && e.exit_code() == 2, "{what}: {e}");
        }
    }
}
