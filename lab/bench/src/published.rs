//! Published figures, shipped as data, beside the figures measured here.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::offered::LoadShape;
use crate::registry::find;
use crate::results::distinct;

/// The tables: name and text.
const TABLES: [(&str, &str); 4] = [
    ("fast26-micro", include_str!("../../experiments/published/fast26-micro.csv")),
    ("fast26-threads", include_str!("../../experiments/published/fast26-threads.csv")),
    ("dlsm-readme", include_str!("../../experiments/published/dlsm-readme.csv")),
    ("sherman-slides", include_str!("../../experiments/published/sherman-slides.csv")),
];

/// A published table: by distribution, system and workload, million operations per second. A row
/// may hold under conditions of its own, `threads=N` or `OPTION=value` of its system, and say where
/// it comes from: `R` a text, `F` a figure, read off it.
pub type Table = Sheet<5>;

impl Table {
    /// A shipped table by name.
    ///
    /// # Errors
    /// An unknown name.
    pub fn named(name: &str) -> Result<Self> {
        Self::read("published table", &TABLES, name)
    }

    /// Systems of the table, each once, in its order.
    pub fn systems(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|([_, system, ..], _)| *system))
    }

    /// Systems of the table without a counterpart in these settings.
    pub fn without_counterpart(&self, c: &Config) -> Vec<String> {
        let row = |s: &String| c.published_rows.get(s).unwrap_or(s).clone();
        let have: Vec<String> = c.systems.iter().map(row).collect();
        self.systems().into_iter().map(str::to_owned).filter(|s| !have.contains(s)).collect()
    }

    /// The rows of a published figure, million operations per second, with their conditions and
    /// origins. Zipf laws of any form are the table's `zipfian`.
    pub fn rows(
        &self,
        [system, workload, distribution]: CellName<'_>,
    ) -> impl Iterator<Item = (&'static str, &'static str, f64)> {
        let law = if distribution.starts_with("zipfian") { "zipfian" } else { distribution };
        let of = move |([d, s, w, conditions, origin], mops): &([&'static str; 5], f64)| {
            ([*d, *s, *w] == [law, system, workload]).then_some((*conditions, *origin, *mops))
        };
        self.rows.iter().filter_map(of)
    }

    /// The published figure of a cell, and the ratio to it; `None` without a figure, or under other
    /// settings.
    pub fn reference(&self, c: &Config, cell: &CellName<'_>, mops: f64) -> Option<Reference> {
        let [system, workload, distribution] = *cell;
        let row = c.published_rows.get(system).map_or(system, String::as_str);
        let one_client = workload == "scan" && self.one_client_scans.iter().any(|s| s == row);
        // The figures of these scans hold for one client a thread; those of others for any number.
        let coroutines = if one_client { c.coroutines.max(self.setup[3]) } else { c.coroutines };
        let c = &Config { coroutines, ..c.clone() };
        let applies = |conditions| self.applies(c, system, conditions);
        let mut rows = self.rows([row, workload, distribution]);
        let (_, origin, published) = rows.find(|(conditions, ..)| applies(conditions))?;
        let bound = c.bounds.iter().rev().find(|b| b.covers(cell));
        let ratio = mops / published;
        Some(Reference {
            row: row.to_owned(),
            mops: published,
            digitized: origin == "F",
            ratio,
            bounds: bound.map(|b| b.ratio),
            outside: bound.is_some_and(|b| b.excludes(ratio)),
            reason: bound.filter(|b| b.excludes(ratio)).and_then(|b| b.reason.clone()),
        })
    }
}

/// Shipped figures: a text of comment lines, of which `# source:` and `# setup:` are kept, a head,
/// and rows of so many names and a number.
#[derive(Clone, Debug)]
pub struct Sheet<const NAMES: usize> {
    /// Its name.
    pub name: &'static str,
    /// The source, as text.
    pub source: String,
    /// Compute nodes, memory nodes, threads and coroutines that the figures hold for.
    pub(crate) setup: [u32; 4],
    /// Systems with scans by one client a thread, whatever the setup says.
    one_client_scans: Vec<String>,
    pub(crate) rows: Vec<([&'static str; NAMES], f64)>,
}

impl<const NAMES: usize> Sheet<NAMES> {
    /// A sheet of this kind by name.
    pub(crate) fn read(
        kind: &str,
        all: &[(&'static str, &'static str)],
        name: &str,
    ) -> Result<Self> {
        let Some((name, text)) = all.iter().find(|(n, _)| *n == name) else {
            let names: Vec<&str> = all.iter().map(|(n, _)| *n).collect();
            return Err(Failure::input(format!(
                "unknown {kind} {name:?}: give one of {}",
                names.join(", ")
            )));
        };
        let comment = |key: &str| {
            let lines = text.lines().filter_map(|l| l.strip_prefix("# ")?.strip_prefix(key));
            lines.map(str::trim).collect::<Vec<_>>().join(" ")
        };
        let (source, setup) = (comment("source:"), comment("setup:"));
        let one_client_scans = comment("scans by one client a thread:");
        let one_client_scans = one_client_scans.split_whitespace().map(str::to_owned).collect();
        let number = |key: &str| {
            let words = setup.split_whitespace().filter_map(|w| w.split_once('='));
            let found = words.filter(|(k, _)| *k == key).find_map(|(_, v)| v.parse::<u32>().ok());
            found.ok_or_else(|| Failure::input(format!("{kind} {name}: its setup has no {key}")))
        };
        let setup = [number("cns")?, number("mns")?, number("threads")?, number("coroutines")?];
        let mut lines = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
        // Names that the head does not have are empty.
        let width = lines.next().map_or(0, |head| head.split(',').count());
        let row = |line: &'static str| {
            let (names, number) = line.rsplit_once(',')?;
            let mut names: Vec<&str> = names.split(',').collect();
            if names.len() + 1 != width {
                return None;
            }
            names.resize(NAMES.max(names.len()), "");
            Some((names.try_into().ok()?, number.parse().ok()?))
        };
        let bad = |line| Failure::input(format!("{kind} {name}: {line}"));
        let rows = lines.map(|line| row(line).ok_or_else(|| bad(line))).collect::<Result<_>>()?;
        Ok(Self { name, source, setup, one_client_scans, rows })
    }

    /// Whether figures hold for these settings of a system: the same nodes, threads and coroutines,
    /// a closed load, and the conditions of a row. The number of keys may be smaller, because the
    /// settings that depend on it are scaled.
    pub fn applies(&self, c: &Config, system: &str, conditions: &str) -> bool {
        let conditions: Vec<_> =
            conditions.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let threads = conditions.iter().find(|(name, _)| *name == "threads");
        let threads = threads.and_then(|(_, n)| n.parse().ok()).unwrap_or(self.setup[2]);
        let [cns, mns, _, coroutines] = self.setup;
        let here = [c.cns.into(), c.mns.into(), c.threads, c.coroutines];
        let option = |name: &str| {
            let given = c.options.get(system).and_then(|options| options.get(name)).cloned();
            given.or_else(|| find(system).ok()?.options.get(name).cloned())
        };
        let holds = |(name, value): &(&str, &str)| {
            *name == "threads" || option(name).map(|v| v.to_string()).as_deref() == Some(*value)
        };
        c.simulated()
            && here == [cns, mns, threads, coroutines]
            && c.load == LoadShape::Closed
            && conditions.iter().all(holds)
    }
}

/// The name of a cell: system, workload, distribution.
pub type CellName<'a> = [&'a str; 3];

/// A published figure beside a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// The row of the published table.
    pub row: String,
    /// Million operations per second, published.
    pub mops: f64,
    /// Whether it was read off a figure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub digitized: bool,
    /// Measured here by published.
    pub ratio: f64,
    /// The bounds of the ratio, if the experiment has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<[f64; 2]>,
    /// Whether the ratio lies outside of the bounds.
    pub outside: bool,
    /// The reason, if the experiment has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Reference {
    /// The ratio as text, with a mark and the bounds if it lies outside.
    pub fn text(&self) -> String {
        match self.bounds {
            Some([low, high]) if self.outside => {
                format!("{:.3} OUTSIDE {low:.2}..{high:.2}", self.ratio)
            }
            _ => format!("{:.3}", self.ratio),
        }
    }

    /// The known reason why it lies outside.
    pub fn why(&self) -> &str {
        self.reason.as_deref().unwrap_or("no reason is known")
    }
}

/// Bounds of the ratio of some cells. If several cover a cell, the last one counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Bound {
    /// The system; any when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The workload; any when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The distribution, or the beginning of its name; any when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// The lowest and the highest ratio of what is measured here to what was published.
    pub ratio: [f64; 2],
    /// The known reason of a cell that lies outside. The cell still counts as outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Bound {
    fn excludes(&self, ratio: f64) -> bool {
        !(self.ratio[0]..=self.ratio[1]).contains(&ratio)
    }

    fn covers(&self, [system, workload, distribution]: &CellName<'_>) -> bool {
        self.system.as_ref().is_none_or(|s| s == system)
            && self.workload.as_ref().is_none_or(|w| w == workload)
            && self.distribution.as_ref().is_none_or(|d| distribution.starts_with(d.as_str()))
    }

    /// Refuses impossible bounds.
    ///
    /// # Errors
    /// Names the bounds.
    pub fn check(&self) -> Result<()> {
        let [low, high] = self.ratio;
        if low.is_finite() && high.is_finite() && 0.0 <= low && low <= high {
            return Ok(());
        }
        Err(Failure::input(format!(
            "bounds: ratio = [{low}, {high}]: give the smaller end first, both 0 or more"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, resolve};
    use crate::experiment::Experiment;

    #[test]
    fn the_table_is_whole() {
        let t = Table::named("fast26-micro").unwrap();
        assert_eq!(t.systems(), ["dmtree", "fptree", "sherman", "smart", "rolex", "dlsm", "chime"]);
        assert_eq!(t.rows.len(), 7 * 4 * 2);
        let mops = |name| t.rows(name).map(|(.., mops)| mops).next();
        assert_eq!(mops(["fptree", "scan", "zipfian-exact(0.99)"]), Some(2.659991));
        assert_eq!(mops(["dmtree", "search", "uniform"]), Some(49.69586));
        assert_eq!(mops(["dmtree", "search", "latest"]), None);
        assert!(t.source.contains("FAST'26"));
        assert!(Table::named("x").unwrap_err().to_string().contains("fast26-micro"));
    }

    /// Rows that hold for so many threads, and for options of their system.
    #[test]
    fn rows_have_conditions() {
        let t = Table::named("dlsm-readme").unwrap();
        assert_eq!(t.rows.len(), 130);
        let of = |threads: u32, options: &[(&str, u64)]| {
            let mut c = sim(&["--cns=1", "--coroutines=1", &format!("--threads={threads}")]);
            c.published_rows.insert("dlsm-published".into(), "dlsm".into());
            let own = options.iter().map(|(name, v)| ((*name).to_owned(), (*v).into()));
            c.options.insert("dlsm-published".to_owned(), own.collect());
            t.reference(&c, &["dlsm-published", "fillrandom", "uniform"], 1.0)
        };
        assert_eq!(of(4, &[]).map(|r| (r.mops, r.digitized)), Some((2.29, false)));
        assert_eq!(of(4, &[("level0_stop", 1 << 20)]).map(|r| r.mops), Some(2.91));
        assert_eq!(of(3, &[]), None);
        assert_eq!(of(4, &[("shards", 2)]), None);
    }

    fn sim(flags: &[&str]) -> Config {
        let e = Experiment::parse("x", "x", "fabric = \"sim\"\nkeys = 1000").unwrap();
        resolve(&e, &Flags::of(flags).unwrap()).unwrap().config
    }

    #[test]
    fn a_cell_is_joined_with_its_row_and_judged() {
        let t = Table::named("fast26-micro").unwrap();
        let any =
            |ratio| Bound { system: None, workload: None, distribution: None, ratio, reason: None };
        let mut c = sim(&[]);
        c.published_rows.insert("mine".into(), "dmtree".into());
        c.bounds =
            vec![any([0.9, 1.1]), Bound { workload: Some("insert".into()), ..any([0.5, 1.5]) }];
        let cell = ["mine", "search", "uniform"];
        let r = t.reference(&c, &cell, 49.69586 * 1.05).unwrap();
        assert!((r.ratio - 1.05).abs() < 1e-9 && !r.outside && r.row == "dmtree");
        let r = t.reference(&c, &cell, 49.69586 * 1.2).unwrap();
        assert!(r.outside && r.text() == "1.200 OUTSIDE 0.90..1.10", "{}", r.text());
        c.bounds[0].reason = Some("looked at".into());
        let reason = |mops| t.reference(&c, &cell, mops).unwrap().reason;
        assert_eq!(reason(49.69586 * 1.2).as_deref(), Some("looked at"));
        assert_eq!(reason(49.69586), None, "there is nothing to explain");
        let insert = ["mine", "insert", "uniform"];
        assert!(
            !t.reference(&c, &insert, 26.37274 * 0.6).unwrap().outside,
            "the later bound counts"
        );
        assert!(t.reference(&c, &["other", "search", "uniform"], 1.0).is_none());
        let fewer = sim(&["--threads=71"]);
        assert!(t.reference(&fewer, &cell, 1.0).is_none(), "published for 72 threads");
        assert!(!t.applies(&sim(&["--load=open:1M"]), "mine", ""));
        assert!(any([2.0, 1.0]).check().is_err());
    }
}
