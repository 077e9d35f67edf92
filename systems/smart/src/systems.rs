//! The systems of this crate: the sound SMART, and the steps from ART to SMART as published.

use dmtree_parts::peer::{Fit, Mutant, NodeFaultSet, Soon, SystemSpec, inline_bytes, typed, value};
use dmtree_parts::published::Published;
use serde_json::Value;

use crate::defects::defects;
use crate::index::Smart;
use crate::options::Options;
use crate::sound;

/// Slots of the largest node over keys of ten symbols.
const TEN_SYMBOLS: u32 = 16;
/// A cache with room for one node of the sound SMART, bytes.
const LEAST_SOUND_CACHE_BYTES: u64 = 300;

/// Every system of this crate; the sound one represents the family.
pub fn systems() -> Vec<SystemSpec> {
    let step = |name, description, options, published| {
        let spec = spec(name, description, &options);
        SystemSpec { published, sound: !published, ..spec }
    };
    vec![
        sound_spec(),
        step("smart-published", "SMART with every published technique", Options::published(), true),
        step("art", "the radix tree that SMART starts from, sound", Options::art(), false),
        step(
            "smart-lock-free",
            "ART with homogeneous nodes without locks, as published",
            Options::lock_free(),
            true,
        ),
        step("smart-in-place", "and leaves updated in place", Options::in_place(), true),
        step("smart-rear-lock", "and locks at the end of leaves", Options::rear_lock(), true),
        step("smart-delegation", "and readers that share a READ", Options::delegation(), true),
    ]
}

dmtree_parts::any_options! { Options => Smart, sound::Options => sound::Smart }

fn spec(name: &'static str, description: &'static str, options: &Options) -> SystemSpec {
    SystemSpec {
        ranges: Options::RANGES,
        fit,
        bytes_per_key: |options, fit| {
            let o: Options = typed(options);
            let record = u64::from(fit.key_bytes + fit.value_bytes + 25);
            let leaf = record.next_multiple_of(u64::from(o.leaf_step.max(1)));
            leaf + inner_bytes_per_key(u64::from(o.largest_node))
        },
        draw: |options, below| value(&typed::<Options>(options).drawn(below)),
        least_cache_bytes: |o| Smart::least_cache(&typed(o)),
        value_bytes: |o| Some(typed::<Options>(o).value_bytes),
        // As published, operations miss keys that copies of another process lack. The suite covers
        // everything else.
        conforming: |options| {
            value(&Options { cached_scans: false, recheck_absent: true, ..typed(options) })
        },
        defects: defects(name),
        ..SystemSpec::of((name, "smart"), description, options)
    }
}

/// A node with room for `slots` slots for every second key.
fn inner_bytes_per_key(slots: u64) -> u64 {
    (16 + 8 * slots) / 2
}

fn fit(options: &Value, fit: &Fit) -> Value {
    let o: Options = typed(options);
    let largest_node = if fit.ten_symbols { TEN_SYMBOLS } else { o.largest_node };
    let (key_bytes, value_bytes) = (fit.key_bytes, fit.value_bytes);
    value(&Options { key_bytes, value_bytes, largest_node, ..o })
}

fn sound_spec() -> SystemSpec {
    let soon = |node_faults, seeds, kind| Soon { node_faults, seeds, kind };
    let soon = [
        ("SlotBeforeNode", soon(NodeFaultSet::All, 1300, "history")),
        ("RetireNamed", soon(NodeFaultSet::None, 20, "structure")),
        ("CloseUnfrozen", soon(NodeFaultSet::None, 60, "history")),
    ];
    SystemSpec {
        sound: true,
        recovers: true,
        ranges: sound::Options::RANGES,
        fit: |options, fit| {
            let (_, value_inline_bytes) = inline_bytes(fit);
            value(&sound::Options { value_inline_bytes, ..typed(options) })
        },
        bytes_per_key: |_, fit| {
            let (_, inline) = inline_bytes(fit);
            let key = u64::from(fit.key_bytes).next_multiple_of(8);
            let leaf = (32 + key + 2 * u64::from(inline)).next_multiple_of(64);
            let is_long = fit.value_bytes > inline;
            let block = if is_long { u64::from(fit.value_bytes) + 64 } else { 0 };
            leaf + block + inner_bytes_per_key(257)
        },
        draw: |options, below| value(&typed::<sound::Options>(options).drawn(below)),
        least_cache_bytes: |_| LEAST_SOUND_CACHE_BYTES,
        mutants: Mutant::list(sound::Mutant::ALL.iter().map(|m| m.name()), &soon),
        enable: sound::Mutant::enable_named,
        ..SystemSpec::of(
            ("smart", "smart"),
            "SMART made sound: every operation, crash recovery",
            sound::Options::default(),
        )
    }
}
