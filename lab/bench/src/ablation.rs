//! The ablation of DMTree: the engine with one technique left out.

use dmtree_engine::systems::spec;
use dmtree_engine::{Options, Tables, Techniques};
use dmtree_parts::peer::SystemSpec;

/// Every system of the ablation.
pub fn systems() -> Vec<SystemSpec> {
    let t = Techniques::default;
    let all = [
        (
            "dmtree-no-mirrors",
            "without copies of fingerprint tables in the cache",
            Techniques { mirrors: false, ..t() },
        ),
        (
            "dmtree-tables-on-mn",
            "fingerprint tables and locks on memory nodes",
            Techniques { tables: Tables::Memory, ..t() },
        ),
        (
            "dmtree-no-delegation",
            "readers of one key do not share a READ",
            Techniques { delegation: false, ..t() },
        ),
        (
            "dmtree-no-combining",
            "writers of one key do not share a WRITE",
            Techniques { combining: false, ..t() },
        ),
        (
            "dmtree-fixed-capacity",
            "leaves never grow, whatever the cache has room for",
            Techniques { adaptive_capacity: false, ..t() },
        ),
        (
            "dmtree-no-rtc",
            "lock, table and unlock in round trips of their own",
            Techniques { round_trip_combining: false, ..t() },
        ),
    ];
    let of = |(name, description, techniques)| {
        spec((name, "dmtree"), description, &Options { techniques, ..Options::default() })
    };
    all.into_iter().map(of).collect()
}
