//! Compares two runs of simulations, event by event.

use std::collections::BTreeMap;

use crate::results::Results;

/// Hash of all events up to the end of each simulated cell, by the cell's key.
pub type Traces = BTreeMap<String, String>;

/// The traces of results.
pub fn traces(r: &Results) -> Traces {
    let of = |c: &crate::results::Cell| Some((c.key(), c.sim.as_ref()?.trace_hash.clone()));
    r.cells.iter().filter_map(of).collect()
}

/// Cells with different traces, or with a trace on one side only, in the order of their keys.
pub fn differing(a: &Traces, b: &Traces) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
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
