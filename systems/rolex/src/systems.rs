//! The systems of this crate.

use dmtree_parts::peer::{Fit, SystemSpec, typed, value};
use serde_json::Value;

use crate::defects::defects;
use crate::index::Rolex;
use crate::options::Options;
use crate::sound;

/// Every system of this crate; the first of the sound ones represents the family.
pub fn systems() -> Vec<SystemSpec> {
    let sound =
        |name, about, options| dmtree_engine::systems::spec((name, "rolex"), about, &options);
    let step = |name, about, options| published(name, about, &options);
    let about = "ROLEX made sound: every operation, retraining, crash recovery";
    let foretold = "ROLEX as benchmarked: trained on the keys to come, too";
    let unforetold = "the same, trained on loaded keys: fails where a synonym is full";
    vec![
        sound("rolex", about, sound::options()),
        sound("rolex-no-retraining", "its models are trained once", sound::without_retraining()),
        sound("rolex-coarse", "and a search reads the likeliest leaf", sound::coarse()),
        step("rolex-published", foretold, Options::published()),
        step("rolex-unforetold", unforetold, Options::unforetold()),
        step("rolex-hopscotch", "and leaves that are hopscotch tables", Options::hopscotch()),
        step("rolex-vacancy", "and vacancy words beside the locks", Options::vacancy()),
        step("rolex-replicas", "and replicas of a leaf's head", Options::replicas()),
    ]
}

dmtree_parts::any_options! { Options => Rolex }

fn published(name: &'static str, description: &'static str, options: &Options) -> SystemSpec {
    SystemSpec {
        published: true,
        ranges: Options::RANGES,
        fit,
        bytes_per_key: |o, fit| {
            // A trained key, and its share of a leaf and of the leaf behind each segment.
            let o: Options = typed(o);
            let slot = u64::from(fit.key_bytes + fit.value_bytes) + 2;
            let leaf = slot * u64::from(o.span) + u64::from(o.lock_bytes) + 32;
            16 + leaf * 5 / 4 / u64::from(o.span)
        },
        draw: |options, below| value(&typed::<Options>(options).drawn(below)),
        least_cache_bytes: |_| 0,
        value_bytes: |o| Some(typed::<Options>(o).value_bytes),
        // As published a put changes no key that exists, an update of an absent key stops all
        // writers of the key, and keys that were not foretold find no room: with one client, too.
        conforming: |options| {
            let o: Options = typed(options);
            value(&Options {
                foretold: true,
                upsert: true,
                scoped_release: true,
                whole_window: true,
                ..o
            })
        },
        defects: defects(name),
        ..SystemSpec::of((name, "rolex"), description, options)
    }
}

fn fit(options: &Value, fit: &Fit) -> Value {
    let o: Options = typed(options);
    value(&Options { key_bytes: fit.key_bytes, value_bytes: fit.value_bytes, ..o })
}
