//! The system of this crate, and what presets of its engine have in common.

use dmtree_parts::peer::{self, Below, Fit, NodeFaultSet, Soon, SystemSpec, typed, value};
use serde_json::Value;

use crate::format::Geometry;
use crate::options::RANGES;
use crate::{DmTree, Mark, Models, Mutant, Options, Tables};

/// The share of the cache budget for images where a system has any.
const IMAGES: f64 = 0.5;
/// KiB of each compute node's log where a system has one.
const LOG_KIB: u32 = 1 << 10;

/// Every system of this crate.
pub fn systems() -> Vec<SystemSpec> {
    let about = "DMTree with every technique on";
    let all = spec(("dmtree", "dmtree"), about, &Options::default());
    let images = Options { images: IMAGES, ..Options::default() };
    let about = "DMTree with images of leaves at their owners";
    let images = spec(("dmtree-images", "dmtree"), about, &images);
    let log = Options { images: IMAGES, log_kib: LOG_KIB, ..Options::default() };
    let about = "DMTree with images of leaves, and writes that are durable in a log";
    let log = spec(("dmtree-log", "dmtree"), about, &log);
    vec![SystemSpec { draw: draw_all, ..all }, images, log]
}

dmtree_parts::any_options! { Options => DmTree }

/// A system of this engine with some options, for the crates that give presets of it: name and
/// family, and a description.
pub fn spec(
    names: (&'static str, &'static str),
    description: &'static str,
    options: &Options,
) -> SystemSpec {
    SystemSpec {
        sound: true,
        recovers: true,
        ranges: RANGES,
        fit,
        draw: |options, below| draw(options, false, below),
        least_cache_bytes: |o| typed::<Options>(o).least_cache_bytes(),
        has_tables_on_memory_nodes: options.techniques.tables == Tables::Memory,
        marks: || [Mark::reached(), dmtree_pool::Mark::reached()].concat(),
        mutants: mutants(options),
        enable: Mutant::enable_named,
        ..SystemSpec::of(names, description, options)
    }
}

/// The mutants of what an index has: models, hopscotch leaves, lock words, or fingerprint tables.
fn mutants(o: &Options) -> Vec<peer::Mutant> {
    let soon = |node_faults, seeds, kind| Soon { node_faults, seeds, kind };
    let soon = [
        ("RetireMergedEarly", soon(NodeFaultSet::None, 20, "access")),
        // Few writes are judged, because one beside another write of its leaf is not: of seeds
        // 0..800 none shows the mutant with a write.
        ("StopForDeath", soon(NodeFaultSet::Crash, 600, "slow")),
        ("WordBesideEntry", soon(NodeFaultSet::None, 32, "history")),
        ("LearnFencesUnchecked", soon(NodeFaultSet::None, 20, "answer")),
        ("LearnLeftBorder", soon(NodeFaultSet::None, 32, "structure")),
        // An image without a lease is a lease test's (`tests/suite/crash/leases.rs`).
        ("ImagedAckEarly", soon(NodeFaultSet::None, 20, "history")),
        ("ImagedFirst", soon(NodeFaultSet::None, 60, "access")),
        ("ImagedLeafRead", soon(NodeFaultSet::Crash, 6000, "history")),
        ("ImagedNotClosed", soon(NodeFaultSet::Crash, 320, "history")),
        ("ImagedBoundKept", soon(NodeFaultSet::None, 20, "history")),
        ("ImagedSlotTrusted", soon(NodeFaultSet::All, 20, "history")),
        ("LogAckEarly", soon(NodeFaultSet::None, 20, "structure")),
        ("LogForgotten", soon(NodeFaultSet::None, 20, "structure")),
        ("LogOldRecords", soon(NodeFaultSet::None, 20, "structure")),
        ("LogCutEarly", soon(NodeFaultSet::Crash, 400, "structure")),
        ("LogCountKept", soon(NodeFaultSet::Crash, 200, "structure")),
        ("LogBehindIgnored", soon(NodeFaultSet::All, 20, "history")),
        ("LogUnmarked", soon(NodeFaultSet::Crash, 40, "history")),
    ];
    let own = match (o.techniques.tables, o.neighbourhood, o.techniques.models) {
        _ if o.log_kib > 0 => Some("Log"),
        _ if o.images > 0.0 => Some("Imaged"),
        (Tables::None, 0, Models::None) => Some("Word"),
        (Tables::None, 0, _) => Some("Learn"),
        (Tables::None, ..) => Some("Hop"),
        _ => None,
    };
    // A window of one leaf has no borders that could be wrong.
    let borders = ["LearnLeftBorder", "LearnWindowShort"];
    let is_coarse = o.techniques.models == Models::Likeliest;
    let is_own = |name: &&str| match own {
        Some(own) => name.starts_with(own) && !(is_coarse && borders.contains(name)),
        None => ["Word", "Hop", "Learn", "Imaged", "Log"].iter().all(|of| !name.starts_with(of)),
    };
    peer::Mutant::list(Mutant::ALL.iter().map(|m| m.name()).filter(is_own), &soon)
}

/// Inline areas that hold keys and values where possible. Without tables, neighbourhoods and
/// models a leaf is read alone and whole: it is a page.
fn fit(options: &Value, fit: &Fit) -> Value {
    let mut o: Options = typed(options);
    (o.key_inline_bytes, o.value_inline_bytes) = peer::inline_bytes(fit);
    let is_page = o.techniques.tables == Tables::None
        && o.neighbourhood == 0
        && o.techniques.models == Models::None;
    if let (Some(page), true) = (fit.page_bytes, is_page) {
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
