//! The system of this crate, and what presets of its engine have in common.

use dmtree_parts::peer::{self, Below, Drawn, Fit, SystemSpec, Visitor, typed, value};
use serde_json::Value;

use crate::client::DmTree;
use crate::format::Geometry;
use crate::marks::Mark;
use crate::node::DmNode;
use crate::options::{Options, Tables};

/// Every system of this crate.
pub fn systems<V: Visitor>(v: &V) -> Vec<V::Out> {
    let spec = spec("dmtree", "DMTree with every technique on", &Options::default());
    vec![v.visit::<DmTree>(SystemSpec { draw: draw_all, ..spec })]
}

/// A system of this engine with some options, for the crates that give presets of it.
pub fn spec(name: &'static str, description: &'static str, options: &Options) -> SystemSpec {
    SystemSpec {
        recovers: true,
        fit,
        draw: |options, below| draw(options, false, below),
        has_tables_on_memory_nodes: options.techniques.tables == Tables::Memory,
        marks: || [Mark::reached(), dmtree_pool::Mark::reached()].concat(),
        ..SystemSpec::of::<DmTree>((name, "dmtree"), description, options)
    }
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
fn draw_all(options: &Value, below: Below<'_>) -> Drawn {
    draw(options, true, below)
}

fn draw(options: &Value, techniques: bool, below: Below<'_>) -> Drawn {
    let o = typed::<Options>(options).drawn(techniques, below);
    let least_cache_bytes = DmNode::least_cache_bytes(&o.geometry());
    Drawn { options: value(&o), least_cache_bytes, value_bytes: None }
}
