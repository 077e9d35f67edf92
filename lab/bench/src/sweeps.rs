//! The sweeps of an experiment: `[sweep]`, or several `[[sweep]]`, each for cells of its own.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::sweep::Sweep;

/// Sweeps, one after the other. For systems that none is for nothing varies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweeps(pub Vec<Sweep>);

impl Sweeps {
    /// The sweeps that have cells under these settings, each with the settings of its cells.
    pub fn within(&self, base: &Config) -> impl Iterator<Item = (&Sweep, Config)> {
        self.0.iter().filter_map(|sweep| Some((sweep, sweep.within(base)?)))
    }

    /// The points of all sweeps: a label and the settings. Before them one point without a label,
    /// for systems of which nothing varies.
    ///
    /// # Errors
    /// A sweep that varies several settings without `cross`; two sweeps with one point.
    pub fn points(&self, base: &Config) -> Result<Vec<(Option<String>, Config)>> {
        let is_fixed = |system: &&String| {
            self.0.iter().all(|sweep| !sweep.systems.is_empty() && !sweep.systems.contains(system))
        };
        let fixed: Vec<String> = base.systems.iter().filter(is_fixed).cloned().collect();
        let mut all: Vec<(Option<String>, Config)> = Vec::new();
        if !fixed.is_empty() {
            all.push((None, Config { systems: fixed, ..base.clone() }));
        }
        for (sweep, c) in self.within(base) {
            for (label, point) in sweep.points(&c)? {
                let is_same = |(other, of): &&(Option<String>, Config)| {
                    *other == label
                        && of.systems.iter().any(|system| point.systems.contains(system))
                        && of.workloads.iter().any(|w| point.workloads.contains(w))
                        && of.distributions.iter().any(|d| point.distributions.contains(d))
                };
                if all.iter().any(|other| is_same(&other)) {
                    let point = label.unwrap_or_default();
                    return Err(Failure::input(format!(
                        "two sweeps have cells of one system and workload at {point:?}: leave it out of one, or name systems or workloads of each"
                    )));
                }
                all.push((label, point));
            }
        }
        Ok(all)
    }

    /// Refuses a sweep for what the experiment does not have.
    ///
    /// # Errors
    /// Names it.
    pub fn check_names(&self, systems: &[&str], base: &Config) -> Result<()> {
        for sweep in &self.0 {
            let system = sweep.systems.iter().find(|s| !systems.contains(&s.as_str()));
            let workload = sweep.workloads.iter().find(|w| !base.workloads.contains(w));
            let law = sweep.distributions.iter().find(|d| !base.distributions.contains(d));
            let missing = system.map(|s| format!("the system {s}"));
            let missing = missing.or_else(|| workload.map(|w| format!("the workload {w}")));
            let missing = missing.or_else(|| law.map(|d| format!("the distribution {d}")));
            if let Some(what) = missing {
                return Err(Failure::input(format!(
                    "a sweep is for {what}, which is not in the experiment: name it there, too"
                )));
            }
        }
        Ok(())
    }

    /// Gives up what cells of sweeps have of their own of a setting.
    pub(crate) fn forget(&mut self, setting: &str) {
        let cells = self.0.iter_mut().filter_map(|sweep| sweep.cells.as_mut());
        cells.for_each(|own| own.forget(setting));
    }
}

/// One is a table, several are an array of tables.
impl Serialize for Sweeps {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [] => Sweep::default().serialize(s),
            [one] => one.serialize(s),
            several => several.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Sweeps {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Sweeps;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sweep, or several")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Sweeps, A::Error> {
                let one = Sweep::deserialize(MapAccessDeserializer::new(map))?;
                let varies = one != Sweep::default();
                Ok(Sweeps(varies.then_some(one).into_iter().collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, all: A) -> Result<Sweeps, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(all)).map(Sweeps)
            }
        }
        d.deserialize_any(OneOrSeveral)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Resolved, resolve};
    use crate::experiment::Experiment;

    const SEVERAL: &str = r#"
        systems = ["dmtree", "fptree"]
        workloads = ["search", "update"]
        distributions = ["uniform"]
        keys = 1000
        [[sweep]]
        distribution = ["zipfian(0.5)", "zipfian(0.9)"]
        [[sweep]]
        systems = ["dmtree"]
        workloads = ["search"]
        where = { ops = 77 }
        "dmtree.fanout" = [8, 16]
    "#;

    fn given(text: &str, flags: &[&str]) -> Result<Resolved> {
        resolve(&Experiment::parse("x", "x.toml", text)?, &Flags::of(flags)?)
    }

    fn labels(c: &Config) -> Vec<String> {
        let points = c.sweep.points(c).unwrap();
        points.into_iter().map(|(label, _)| label.unwrap_or_default()).collect()
    }

    #[test]
    fn each_has_cells_of_its_own() {
        let c = given(SEVERAL, &[]).unwrap().config;
        let points = c.sweep.points(&c).unwrap();
        let cells: Vec<_> = points
            .iter()
            .map(|(_, c)| (c.systems.len(), c.workloads.len(), c.distributions[0].to_string()))
            .collect();
        let law = |theta| (2, 2, format!("zipfian-exact({theta})"));
        let own = || (1, 1, "uniform".to_owned());
        assert_eq!(cells, [law(0.5), law(0.9), own(), own()]);
        let ops = points.iter().map(|(_, c)| c.for_cell("dmtree", &c.workloads[0]).ops);
        assert_eq!(ops.filter(|ops| *ops == Some(77)).count(), 2);
        let read: Config = serde_json::from_value(serde_json::to_value(&c.sweep).unwrap())
            .map(|sweep| Config { sweep, ..c.clone() })
            .unwrap();
        assert!(read == c, "what is written reads back");
    }

    #[test]
    fn the_command_line_narrows_and_replaces() {
        let c = given(SEVERAL, &["--systems=fptree", "--ops=5"]).unwrap().config;
        assert_eq!(labels(&c).len(), 2, "nothing is left of the second");
        let c = given(SEVERAL, &["--ops=5"]).unwrap().config;
        let points = c.sweep.points(&c).unwrap();
        assert!(points.iter().all(|(_, c)| c.for_cell("dmtree", &c.workloads[0]).ops == Some(5)));
        let c = given(SEVERAL, &["--sweep=threads=1,2"]).unwrap().config;
        assert_eq!(labels(&c), ["threads=1", "threads=2"]);
        let crossed = ["--sweep=threads=1,2", "--sweep=seed=7", "--sweep=dmtree.fanout=8"];
        let c = given(SEVERAL, &crossed).unwrap().config;
        let first = "seed=7 threads=1 dmtree.fanout=8";
        assert_eq!(labels(&c), [first, "seed=7 threads=2 dmtree.fanout=8"]);
    }

    #[test]
    fn contradictions_are_named() {
        let more = |text: &str| given(&format!("{SEVERAL}\n[[sweep]]\n{text}"), &[]);
        for (text, what) in [
            ("systems = [\"smart\"]\nthreads = [1]", "for the system smart, which is not in"),
            ("workloads = [\"scan\"]\nthreads = [1]", "for the workload scan, which is not in"),
            ("distributions = [\"latest\"]\nthreads = [1]", "the distribution latest, which"),
            ("distribution = [\"zipfian(0.9)\"]", "two sweeps have cells of one system"),
            ("threads = [1]\ncns = [1]", "a sweep varies one setting"),
            ("\"smart.timeout_ms\" = [1]", "an option of smart, which is not in the run"),
        ] {
            let e = more(text).unwrap_err().to_string();
            assert!(e.contains(what), "{e}");
        }
    }

    #[test]
    fn of_other_systems_nothing_varies() {
        let of_one = SEVERAL.replacen("[[sweep]]", "[[sweep]]\nsystems = [\"dmtree\"]", 1);
        let c = given(&of_one, &["--systems=fptree"]).unwrap().config;
        assert_eq!(labels(&c), [""]);
        let c = given(&of_one, &[]).unwrap().config;
        assert_eq!(labels(&c).len(), 5);
        assert_eq!(c.sweep.points(&c).unwrap()[0].1.systems, ["fptree"]);
    }
}
