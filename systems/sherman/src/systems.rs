//! The systems of this crate: the sound Sherman, and the steps from FG to Sherman as published.

use dmtree_parts::peer::{Fit, SystemSpec, typed, value};
use dmtree_parts::published::Published;
use serde_json::Value;

use crate::defects::defects;
use crate::index::Sherman;
use crate::options::Options;
use crate::sound;

/// Every system of this crate; the sound one represents the family.
pub fn systems() -> Vec<SystemSpec> {
    let step = |name, description, options| published(name, description, &options);
    let about = "Sherman made sound: every operation, crash recovery";
    vec![
        dmtree_engine::systems::spec(("sherman", "sherman"), about, &sound::options()),
        step("sherman-published", "Sherman with every published technique", Options::published()),
        step("fg", "FG with Sherman's cache: every verb awaited", Options::fg()),
        step("fg-combine", "FG with a page and its unlock together", Options::combine()),
        step("fg-on-chip", "and locks in the NIC's memory", Options::on_chip()),
        step("fg-hierarchical", "and local locks with hand-over", Options::hierarchical()),
    ]
}

dmtree_parts::any_options! { Options => Sherman }

fn published(name: &'static str, description: &'static str, options: &Options) -> SystemSpec {
    SystemSpec {
        published: true,
        ranges: Options::RANGES,
        // Checksums show every torn page, and every verb is awaited.
        sound: name == "fg",
        fit,
        draw: |options, below| value(&typed::<Options>(options).drawn(below)),
        least_cache_bytes: |o| Sherman::least_cache(&typed(o)),
        value_bytes: |o| Some(typed::<Options>(o).value_bytes),
        defects: defects(name),
        ..SystemSpec::of((name, "sherman"), description, options)
    }
}

fn fit(options: &Value, fit: &Fit) -> Value {
    let o: Options = typed(options);
    let page_bytes = fit.page_bytes.unwrap_or(o.page_bytes);
    let (key_bytes, value_bytes) = (fit.key_bytes, fit.value_bytes);
    value(&Options { key_bytes, value_bytes, page_bytes, ..o })
}
