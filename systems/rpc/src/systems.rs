//! The systems of this crate: one tree, read in four ways.

use dmtree_parts::peer::{Fit, Mutant, NodeFaultSet, Soon, SystemSpec, inline_bytes, typed, value};

use crate::options::{Options, Reads};
use crate::{Rpc, node};

/// A cache with room for a few routes, bytes.
const LEAST_CACHE_BYTES: u64 = 4096;

/// Every system of this crate. Memory nodes of this process have their service from then on.
pub fn systems() -> Vec<SystemSpec> {
    node::provide_service();
    vec![
        spec("rpc", "memory nodes execute every operation", Reads::Call),
        spec(
            "rpc-hybrid",
            "a call finds the leaf, a READ gets it; writes are calls",
            Reads::Hybrid,
        ),
        spec("rpc-farm", "READs of leaves that cached routes name; writes are calls", Reads::Farm),
        spec("rpc-cell", "READs or calls, whichever were faster; writes are calls", Reads::Cell),
    ]
}

dmtree_parts::any_options! { Options => Rpc }

fn spec(name: &'static str, about: &'static str, reads: Reads) -> SystemSpec {
    let soon = |seeds, kind| Soon { node_faults: NodeFaultSet::None, seeds, kind };
    let soon: &[(&str, Soon)] = match reads {
        Reads::Farm => {
            &[("UncheckedRange", soon(30, "history")), ("MixedVersions", soon(1500, "history"))]
        }
        Reads::Hybrid => &[("UncheckedRange", soon(150, "history"))],
        Reads::Call | Reads::Cell => &[],
    };
    let names = crate::Mutant::ALL.iter().map(|m| m.name());
    SystemSpec {
        sound: true,
        recovers: true,
        ranges: Options::RANGES,
        fit: |options, fit| value(&fitted(typed(options), fit)),
        draw: |options, below| value(&typed::<Options>(options).drawn(below)),
        least_cache_bytes: |_| LEAST_CACHE_BYTES,
        mutants: Mutant::list(names, soon),
        enable: crate::Mutant::enable_named,
        ..SystemSpec::of((name, "rpc"), about, Options::reading(reads))
    }
}

fn fitted(o: Options, fit: &Fit) -> Options {
    let (key_inline_bytes, value_inline_bytes) = inline_bytes(fit);
    Options { key_inline_bytes, value_inline_bytes: value_inline_bytes.max(8), ..o }
}
