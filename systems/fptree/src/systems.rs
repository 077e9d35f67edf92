//! The systems of this crate: FPTree, and its steps to DMTree as published.

use dmtree_fabric::Capabilities;
use dmtree_parts::peer::{
    Defect, EVERYTHING, Fit, KIND, NOTHING, READONLY, Repair, Setting, SystemSpec, typed, value,
};
use dmtree_parts::published::Published;
use serde_json::Value;

use crate::client::FpTree;
use crate::options::{Options, Tables};

/// Bytes of a table chunk in the conformance suite: small, so that tables spread over all compute
/// nodes.
const CONFORMING_CHUNK_BYTES: u64 = 4 << 10;

/// Every system of this crate.
pub fn systems() -> Vec<SystemSpec> {
    let fptree = |name, description, options| spec((name, "fptree"), description, &options);
    let about = "DMTree as its artifact does it: every verb awaited";
    let artifact =
        spec(("dmtree-published", "dmtree-published"), about, &Options::dmtree_published());
    vec![
        fptree("fptree", "FPTree: fingerprint tables and locks on memory nodes", Options::fptree()),
        fptree("fptree-rtc", "FPTree with round trips combined", Options::fptree_rtc()),
        fptree("fptree-cache", "and tables on compute nodes with mirrors", Options::fptree_cache()),
        fptree(
            "fptree-locking",
            "and locks on compute nodes: every published technique",
            Options::fptree_locking(),
        ),
        SystemSpec { defects: defects(), ..artifact },
    ]
}

dmtree_parts::any_options! { Options => FpTree }

fn spec(
    names: (&'static str, &'static str),
    description: &'static str,
    options: &Options,
) -> SystemSpec {
    SystemSpec {
        published: true,
        ranges: Options::RANGES,
        fit,
        draw: |options, below| value(&typed::<Options>(options).drawn(below)),
        least_cache_bytes: |o| FpTree::least_cache(&typed(o)),
        value_bytes: |o| Some(typed::<Options>(o).value_bytes),
        conforming: |options| {
            value(&Options { table_chunk_bytes: CONFORMING_CHUNK_BYTES, ..typed(options) })
        },
        has_tables_on_memory_nodes: options.tables == Tables::Memory,
        ..SystemSpec::of(names, description, options)
    }
}

fn fit(options: &Value, fit: &Fit) -> Value {
    let o: Options = typed(options);
    let table_chunk_bytes = fit.table_chunk_bytes.unwrap_or(o.table_chunk_bytes);
    let (key_bytes, value_bytes) = (fit.key_bytes, fit.value_bytes);
    value(&Options { key_bytes, value_bytes, table_chunk_bytes, ..o })
}

/// What `lab/check/README.md` lists of DMTree as published.
fn defects() -> Vec<Defect> {
    let of = |name, grants, seed, repair| {
        Defect::new(name, Setting::new(&Options::dmtree_published(), grants), seed, repair)
    };
    let whole = Capabilities { whole_write_bytes: 4096, ..READONLY };
    let lock = of("a lock is lost", NOTHING, 1, Repair::Grants(READONLY));
    let key = of("a key is lost", whole, 28, Repair::Grants(KIND)).seeds(26..40, 26..32);
    let torn = of("a torn entry is read", EVERYTHING, 18, Repair::System("dmtree"));
    vec![
        Defect { beside: &["torn", "history"], ..lock.found(&["failed", "hung"]) },
        torn.found(&["torn"]),
        Defect { beside: &["torn"], ..key },
    ]
}
