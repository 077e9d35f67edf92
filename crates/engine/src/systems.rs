//! The system of this crate, and what presets of its engine have in common.

use dmtree_parts::peer::{self, Below, Fit, NodeFaultSet, Soon, SystemSpec, typed, value};
use serde_json::Value;

use crate::format::Geometry;
use crate::{DmNode, DmTree, Mark, Mutant, Options, Tables};

/// Every system of this crate.
pub fn systems() -> Vec<SystemSpec> {
    let spec = spec("dmtree", "DMTree with every technique on", &Options::default());
    vec![SystemSpec { draw: draw_all, ..spec }]
}

dmtree_parts::any_options! { Options => DmTree }

/// A system of this engine with some options, for the crates that give presets of it.
pub fn spec(name: &'static str, description: &'static str, options: &Options) -> SystemSpec {
    SystemSpec {
        sound: true,
        recovers: true,
        fit,
        draw: |options, below| draw(options, false, below),
        least_cache_bytes: |o| DmNode::least_cache_bytes(&typed::<Options>(o).geometry()),
        has_tables_on_memory_nodes: options.techniques.tables == Tables::Memory,
        marks: || [Mark::reached(), dmtree_pool::Mark::reached()].concat(),
        mutants: mutants(options.techniques.tables == Tables::None),
        enable: Mutant::enable_named,
        ..SystemSpec::of((name, "dmtree"), description, options)
    }
}

/// The mutants of indexes with lock words beside leaves, or of those with fingerprint tables.
fn mutants(lock_words: bool) -> Vec<peer::Mutant> {
    let soon = |node_faults, seeds, kind| Soon { node_faults, seeds, kind };
    let soon = [
        ("RetireMergedEarly", soon(NodeFaultSet::None, 3, "access")),
        // Few writes are judged, because one beside another write of its leaf is not: of seeds
        // 0..800 none shows the mutant with a write.
        ("StopForDeath", soon(NodeFaultSet::Crash, 500, "slow")),
        ("WordBesideEntry", soon(NodeFaultSet::None, 6, "history")),
    ];
    let names = Mutant::ALL.iter().map(|m| m.name());
    peer::Mutant::list(names.filter(|name| name.starts_with("Word") == lock_words), &soon)
}

/// Inline areas that hold keys and values where possible. Without tables a leaf is read whole: it
/// is a page.
fn fit(options: &Value, fit: &Fit) -> Value {
    let mut o: Options = typed(options);
    (o.key_inline_bytes, o.value_inline_bytes) = peer::inline_bytes(fit);
    if let (Some(page), Tables::None) = (fit.page_bytes, o.techniques.tables) {
        let g = Geometry {
            k: o.key_inline_bytes as usize,
            v: o.value_inline_bytes as usize,
            fanout: 0,
        };
        let slots = (page as usize).saturating_sub(g.header()) / g.entry();
        o.leaf_capacity = slots.clamp(4, 128) as u32;
    }
    value(&o)
}

/// Of the family's first system the techniques are drawn, too.
fn draw_all(options: &Value, below: Below<'_>) -> Value {
    draw(options, true, below)
}

fn draw(options: &Value, techniques: bool, below: Below<'_>) -> Value {
    value(&typed::<Options>(options).drawn(techniques, below))
}
