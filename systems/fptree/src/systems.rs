//! The systems of this crate: FPTree, and its steps to DMTree as published.

use dmtree_parts::peer::{Below, Drawn, Fit, SystemSpec, Visitor, typed, value};
use serde_json::Value;

use crate::client::FpTree;
use crate::format::Geometry;
use crate::node::FpNode;
use crate::options::{Options, Tables};

/// Bytes of a table chunk in the conformance suite: small, so that tables spread over all compute
/// nodes.
const CONFORMING_CHUNK_BYTES: u64 = 4 << 10;

/// Every system of this crate.
pub fn systems<V: Visitor>(v: &V) -> Vec<V::Out> {
    let of_family = |name, family, description, options| {
        v.visit::<FpTree>(spec((name, family), description, &options))
    };
    let fptree = |name, description, options| of_family(name, "fptree", description, options);
    vec![
        fptree("fptree", "FPTree: fingerprint tables and locks on memory nodes", Options::fptree()),
        fptree("fptree-rtc", "FPTree with round trips combined", Options::fptree_rtc()),
        fptree("fptree-cache", "and tables on compute nodes with mirrors", Options::fptree_cache()),
        fptree(
            "fptree-locking",
            "and locks on compute nodes: every published technique",
            Options::fptree_locking(),
        ),
        of_family(
            "dmtree-published",
            "dmtree-published",
            "DMTree as its artifact does it: every verb awaited",
            Options::dmtree_published(),
        ),
    ]
}

fn spec(
    names: (&'static str, &'static str),
    description: &'static str,
    options: &Options,
) -> SystemSpec {
    SystemSpec {
        published: true,
        fit,
        draw,
        conforming: |options| {
            value(&Options { table_chunk_bytes: CONFORMING_CHUNK_BYTES, ..typed(options) })
        },
        has_tables_on_memory_nodes: options.tables == Tables::Memory,
        ..SystemSpec::of::<FpTree>(names, description, options)
    }
}

fn fit(options: &Value, fit: &Fit) -> Value {
    let o: Options = typed(options);
    let table_chunk_bytes = fit.table_chunk_bytes.unwrap_or(o.table_chunk_bytes);
    let (key_bytes, value_bytes) = (fit.key_bytes, fit.value_bytes);
    value(&Options { key_bytes, value_bytes, table_chunk_bytes, ..o })
}

fn draw(options: &Value, below: Below<'_>) -> Drawn {
    let o = typed::<Options>(options).drawn(below);
    let least_cache_bytes = FpNode::least_cache_bytes(&Geometry::new(&o));
    Drawn { options: value(&o), least_cache_bytes, value_bytes: Some(o.value_bytes) }
}
