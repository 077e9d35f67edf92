//! The systems of this crate: the sound CHIME, and the steps from a tree of sorted leaves to CHIME
//! as published.

use dmtree_parts::peer::{Fit, SystemSpec, typed, value};
use dmtree_parts::published::Published;
use serde_json::Value;

use crate::defects::defects;
use crate::index::Chime;
use crate::options::Options;
use crate::sound;

/// Every system of this crate; the sound one represents the family.
pub fn systems() -> Vec<SystemSpec> {
    let step = |name, description, options| published(name, description, &options);
    let about = "CHIME made sound: every operation, crash recovery";
    vec![
        dmtree_engine::systems::spec(("chime", "chime"), about, &sound::options()),
        step("chime-published", "CHIME with every published technique", Options::published()),
        step("chime-base", "a B-link tree with versions in every line", Options::base()),
        step("chime-hopscotch", "and hopscotch leaves", Options::hopscotch()),
        step("chime-vacancy", "and vacancy words beside the locks", Options::vacancy()),
        step("chime-replicas", "and replicas of a leaf's metadata", Options::replicas()),
        step("chime-sibling", "and siblings instead of fence keys", Options::sibling()),
    ]
}

dmtree_parts::any_options! { Options => Chime }

fn published(name: &'static str, description: &'static str, options: &Options) -> SystemSpec {
    SystemSpec {
        published: true,
        ranges: Options::RANGES,
        fit,
        bytes_per_key: |_, fit| {
            // Leaves half full, with metadata and line versions, and an inner node for 16 leaves.
            let slot = u64::from(fit.key_bytes + fit.value_bytes) + 8;
            2 * slot * 18 / 16 + 8
        },
        draw: |options, below| value(&typed::<Options>(options).drawn(below)),
        least_cache_bytes: |o| Chime::least_cache(&typed(o)),
        value_bytes: |o| Some(typed::<Options>(o).value_bytes),
        // As published, a key that is inserted again can be there twice, with one client too. The
        // suite covers everything else.
        conforming: |options| value(&Options { whole_neighbourhood: true, ..typed(options) }),
        defects: defects(name),
        ..SystemSpec::of((name, "chime"), description, options)
    }
}

fn fit(options: &Value, fit: &Fit) -> Value {
    let o: Options = typed(options);
    value(&Options { key_bytes: fit.key_bytes, value_bytes: fit.value_bytes, ..o })
}
