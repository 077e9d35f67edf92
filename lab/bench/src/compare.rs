//! Compares results: cell by cell, event by event, and with the settings of a run to be resumed.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Resolved;
use crate::failure::{Failure, Result};
use crate::results::{Cell, Results};
use crate::table::Table;

/// Ratios of one cell, second by first; `None` where the first is 0 and the second is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratios {
    /// The cell.
    pub cell: String,
    /// Throughput.
    pub mops: Option<f64>,
    /// 99th percentile latency.
    pub p99: Option<f64>,
    /// Counters, which do not depend on the machine's speed: name, first, second.
    pub counters: Vec<(&'static str, f64, f64)>,
    /// Whether a counter differs by more than the tolerance.
    pub differs: bool,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Cells of both results.
    pub rows: Vec<Ratios>,
    /// Cells of the first only.
    pub only_first: Vec<String>,
    /// Cells of the second only.
    pub only_second: Vec<String>,
}

/// Compares two results; `tolerance` is a share (0.03 is 3 %).
pub fn compare(a: &Results, b: &Results, tolerance: f64) -> Comparison {
    let mut out = Comparison::default();
    for ca in &a.cells {
        match b.cells.iter().find(|cb| cb.key() == ca.key()) {
            Some(cb) => out.rows.push(ratios(ca, cb, tolerance)),
            None => out.only_first.push(ca.key()),
        }
    }
    for cb in &b.cells {
        if a.cells.iter().all(|ca| ca.key() != cb.key()) {
            out.only_second.push(cb.key());
        }
    }
    out
}

fn ratio(a: f64, b: f64) -> Option<f64> {
    match a {
        _ if a == b => Some(1.0),
        0.0 => None,
        _ => Some(b / a),
    }
}

fn ratios(a: &Cell, b: &Cell, tolerance: f64) -> Ratios {
    let verbs = |c: &Cell| c.mn.verbs() + c.cn.verbs();
    let bytes = |c: &Cell| c.mn.bytes() + c.cn.bytes();
    let counters = vec![
        ("round trips", a.round_trips, b.round_trips),
        ("verbs", verbs(a), verbs(b)),
        ("bytes", bytes(a), bytes(b)),
    ];
    // Values near zero on both sides count as equal.
    let off = |x: f64, y: f64| (x - y).abs() > tolerance * x.abs().max(y.abs()) && x.max(y) > 1e-3;
    let differs = counters.iter().any(|(_, x, y)| off(*x, *y));
    let p99 = ratio(a.latency.p99_ns as f64, b.latency.p99_ns as f64);
    Ratios { cell: a.key(), mops: ratio(a.mops, b.mops), p99, counters, differs }
}

impl Comparison {
    /// Whether any counters differ, or the results have no common cell.
    pub fn differs(&self) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|r| r.differs)
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut t = Table::new(&["cell", "Mops", "p99", "round trips", "verbs", "bytes", ""], 1);
        let shown = |r: Option<f64>| r.map_or_else(|| "from 0".to_owned(), |r| format!("{r:.3}"));
        for r in &self.rows {
            let mut row = vec![r.cell.clone(), shown(r.mops), shown(r.p99)];
            row.extend(r.counters.iter().map(|(_, a, b)| shown(ratio(*a, *b))));
            row.push(if r.differs { "counters differ" } else { "" }.to_owned());
            t.row(row);
        }
        let mut out = format!("ratios, second by first\n{}", t.text());
        for (which, cells) in [("first", &self.only_first), ("second", &self.only_second)] {
            for c in cells {
                out += &format!("only in the {which}: {c}\n");
            }
        }
        out
    }
}

/// The cells of earlier results that need not run again: those with all their rounds. Results of
/// other settings are refused, because their cells are not comparable.
pub fn resumable(have: &Results, r: &Resolved) -> Result<Vec<Cell>> {
    let due = r.config.hash();
    if have.config_hash != due || have.experiment != r.name {
        return Err(Failure::input(format!(
            "holds results of experiment {} with config {}, and this is {} with config {due}: resume with the same settings, or write to another directory",
            have.experiment, have.config_hash, r.name
        )));
    }
    let whole = |c: &&Cell| c.rounds.len() == r.config.rounds as usize;
    Ok(have.cells.iter().filter(whole).cloned().collect())
}

/// Hash of all events up to the end of each simulated cell, by the cell's key.
pub type Traces = BTreeMap<String, String>;

/// The traces of results.
pub fn traces(r: &Results) -> Traces {
    let of = |c: &Cell| Some((c.key(), c.sim.as_ref()?.trace_hash.clone()));
    r.cells.iter().filter_map(of).collect()
}

/// Cells with different traces, or with a trace on one side only, in the order of their keys.
pub fn differing(a: &Traces, b: &Traces) -> Vec<String> {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    keys.into_iter().filter(|k| a.get(*k) != b.get(*k)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let traces = |list: &[(&str, &str)]| -> Traces {
            list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let a = traces(&[("x", "1"), ("y", "2")]);
        assert!(differing(&a, &a).is_empty());
        assert_eq!(differing(&a, &traces(&[("x", "1"), ("y", "3")])), ["y"]);
        assert_eq!(differing(&a, &traces(&[("y", "2")])), ["x"]);
    }
}
