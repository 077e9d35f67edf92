//! What the crate of an index says of its systems.
//!
//! A *system* is an index type with creation options: a preset that can be measured, checked and
//! compared. Its crate describes it here, and exports all of its systems by one function:
//!
//! ```text
//! pub fn systems() -> Vec<SystemSpec>
//! ```
//!
//! The benchmark, the checker and the tools know a system by its description alone: they name no
//! option, and its index type is behind the vtable of its [`AnyOptions`].

mod defect;

use dmtree_fabric::mark::Reached;
use serde_json::Value;

use crate::any::AnyOptions;
use crate::options::Range;

pub use crate::any::{typed, value};
pub use defect::{
    ANY, Clients, Defect, EVERYTHING, KIND, NOTHING, NodeFaultSet, READONLY, Repair, Setting, merge,
};

/// A source of numbers below a bound.
pub type Below<'a> = &'a mut dyn FnMut(u64) -> u64;

/// The data that creation options must fit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fit {
    /// Length of the longest key, bytes.
    pub key_bytes: u32,
    /// Length of the longest value, bytes.
    pub value_bytes: u32,
    /// Every byte of a key is one of ten symbols at most.
    pub ten_symbols: bool,
    /// Size of a page or leaf, for systems with pages of a chosen size.
    pub page_bytes: Option<u32>,
    /// Size of a chunk of tables, for systems that place tables by chunks.
    pub table_chunk_bytes: Option<u64>,
}

/// Options for a checked run, and what the run must know about them.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Creation options.
    pub options: Value,
    /// The smallest useful cache budget, bytes.
    pub least_cache_bytes: u64,
    /// The only length of values, bytes; `None` when any length will do.
    pub value_bytes: Option<u32>,
}

/// A system as its crate describes it.
#[derive(Clone, Debug)]
pub struct SystemSpec {
    /// Its name, unique.
    pub name: &'static str,
    /// Its family; the first system of a family represents it.
    pub family: &'static str,
    /// Description, one line.
    pub description: &'static str,
    /// Whether it is "as published": layouts, verbs and unsoundness included.
    pub published: bool,
    /// Whether checked runs find nothing in it, with nothing granted and without node faults.
    pub sound: bool,
    /// Whether it recovers from crashes of nodes.
    pub recovers: bool,
    /// Whether it names the steps of its operations that take CPU time (`stage_cost`), so that a
    /// simulator can price them. The code of one that does not is timed instead.
    pub charges_cpu: bool,
    /// Its creation options, and its index type.
    pub options: AnyOptions,
    /// The ranges of numbers among its options.
    pub ranges: &'static [Range],
    /// Its options, changed to fit data.
    pub fit: fn(&Value, &Fit) -> Value,
    /// Bytes of memory nodes that a key takes with these options, nodes half full; keys and values
    /// of the lengths of [`Fit`].
    pub bytes_per_key: fn(&Value, &Fit) -> u64,
    /// Options for a checked run: these, with a geometry that is drawn.
    pub draw: fn(&Value, Below<'_>) -> Value,
    /// The smallest useful cache budget with these options, bytes.
    pub least_cache_bytes: fn(&Value) -> u64,
    /// The only length of values with these options, bytes; `None` when any length will do.
    pub value_bytes: fn(&Value) -> Option<u32>,
    /// Options of the small index of the conformance suite: without what its presets are known to
    /// get wrong when several processes change the index in turn.
    pub conforming: fn(&Value) -> Value,
    /// Whether fingerprint tables, with these options, lie on memory nodes.
    pub has_tables_on_memory_nodes: bool,
    /// The rare branches of its code, with the number of times that this process took each.
    pub marks: fn() -> Vec<Reached>,
    /// Its mutants.
    pub mutants: Vec<Mutant>,
    /// Enables the mutants of these names for everything that this process opens from then on, and
    /// disables all others: for checkers.
    pub enable: fn(&[&str]),
    /// Its published defects.
    pub defects: Vec<Defect>,
}

/// A mutant of a system: a step that is left out, or executed too early, so that a check has
/// something to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// How few seeds find it, for those that show it soon.
    pub soon: Option<Soon>,
}

impl Mutant {
    /// Mutants by their names, and those among them that few seeds find.
    pub fn list(names: impl Iterator<Item = &'static str>, soon: &[(&str, Soon)]) -> Vec<Self> {
        let of = |name| soon.iter().find(|(n, _)| *n == name).map(|(_, soon)| *soon);
        names.map(|name| Self { name, soon: of(name) }).collect()
    }
}

/// Seeds that find a mutant: one of the first `seeds` with these faults of nodes, as a finding of
/// this kind. The limit is ten times the mean number of seeds to a finding: what a seed does
/// changes with every change of a protocol, and the search ends at the first finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soon {
    /// The faults of nodes.
    pub node_faults: NodeFaultSet,
    /// The number of seeds.
    pub seeds: u64,
    /// The kind of the finding.
    pub kind: &'static str,
}

impl SystemSpec {
    /// A system with these options: as they are, whatever the data.
    pub fn of(
        (name, family): (&'static str, &'static str),
        description: &'static str,
        options: impl Into<AnyOptions>,
    ) -> Self {
        Self {
            name,
            family,
            description,
            published: false,
            sound: false,
            recovers: false,
            charges_cpu: false,
            options: options.into(),
            ranges: &[],
            fit: |options, _| options.clone(),
            bytes_per_key: |_, fit| leaf_bytes_per_key(fit),
            draw: |options, _| options.clone(),
            least_cache_bytes: |_| 1 << 20,
            value_bytes: |_| None,
            conforming: Value::clone,
            has_tables_on_memory_nodes: false,
            marks: Vec::new,
            mutants: Vec::new(),
            enable: |_| {},
            defects: Vec::new(),
        }
    }

    /// Draws options for a checked run: these, or those of the system.
    pub fn drawn(&self, options: Option<&Value>, below: Below<'_>) -> Drawn {
        let options = (self.draw)(options.unwrap_or(&self.options), below);
        let least_cache_bytes = (self.least_cache_bytes)(&options);
        Drawn { value_bytes: (self.value_bytes)(&options), options, least_cache_bytes }
    }
}

/// Inline bytes of keys and values, large enough for them if possible.
pub fn inline_bytes(fit: &Fit) -> (u32, u32) {
    let value = fit.value_bytes;
    let value = if value <= 1024 { value.next_multiple_of(8) } else { 16 };
    (fit.key_bytes.next_multiple_of(8).clamp(8, 256), value)
}

/// Bytes of memory nodes that a key takes in a tree of leaves: its entry in a half-full leaf, its
/// share of inner nodes, and blocks for keys and values that are too long to be inline.
pub fn leaf_bytes_per_key(fit: &Fit) -> u64 {
    let (inline_key, inline_value) = inline_bytes(fit);
    let entry = u64::from(inline_key + inline_value + 40);
    let block = |bytes: u32, inline: u32| match bytes > inline {
        true => 2 * (u64::from(bytes) + 64),
        false => 0,
    };
    entry * 5 / 2 + 16 + block(fit.key_bytes, inline_key) + block(fit.value_bytes, inline_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(key_bytes: u32, value_bytes: u32) -> Fit {
        Fit { key_bytes, value_bytes, ..Fit::default() }
    }

    #[test]
    fn inline_sizes_fit_common_records() {
        assert_eq!(inline_bytes(&fit(24, 8)), (24, 8));
        assert_eq!(inline_bytes(&fit(20, 100)), (24, 104));
        assert_eq!(inline_bytes(&fit(1000, 1 << 20)), (256, 16));
        assert_eq!(inline_bytes(&fit(1, 0)), (8, 0));
    }

    #[test]
    fn longer_records_need_more() {
        assert!(leaf_bytes_per_key(&fit(24, 8)) < leaf_bytes_per_key(&fit(24, 100)));
        assert!(leaf_bytes_per_key(&fit(24, 1000)) < leaf_bytes_per_key(&fit(24, 2000)));
    }
}
