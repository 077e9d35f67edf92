//! A test kit for the crates that bring indexes. Such a crate states as data what its systems are,
//! how they are configured, what their operations cost and which defects they have ([`Peer`]);
//! [`crate::peer_tests!`] makes tests of it:
//!
//! | test | what it runs |
//! |---|---|
//! | `local` | the conformance suite on every system, in every geometry ([`rows`]) |
//! | `apart` | the suite with every node a process of its own, and the same verbs as in one |
//! | `interleaved` | histories of coroutines, key by key ([`workloads::interleaved`]) |
//! | `adversarial` | seeds on the adversarial fabric that must find nothing ([`defects`]) |
//! | `defects` | seeds that must find a defect, and find nothing once it is repaired |
//! | `costs` | operations one by one, against the table of costs ([`costs`]) |
//! | `tables` (ignored) | prints the costs and the defects as Markdown |

pub mod costs;
pub mod defects;
pub mod rows;
#[cfg(test)]
mod tests;
pub mod toy;
pub mod workloads;

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmtree_fabric::local::Tearing;
use dmtree_parts::RangeIndex;
use dmtree_parts::peer::Below;

pub use costs::Budget;
pub use defects::{Defect, Repair, Setting};
pub use rows::Row;

/// What the tests of a crate use.
pub mod prelude {
    pub use super::costs::{
        BYTES, Cost, KINDS, Sheet, Side, TRIPS, VERBS, broken, cost, means, row,
    };
    pub use super::defects::{EVERYTHING, KIND, NOTHING, READONLY, crowd};
    pub use super::rows::{
        Site, chips, fills, full, load, model, of_any_length, of_one_length, on_all_memory_nodes,
        random_fill, three_memory_nodes,
    };
    pub use super::{Budget, Defect, Peer, Repair, Row, Setting, passes};
    pub use crate::conformance::Keys;
    pub use dmtree_fabric::Capabilities;
    pub use dmtree_fabric::local::Tearing;
}

use crate::verdict::panic_text;

/// Which options something holds for.
pub type Which<O> = fn(&O) -> bool;

/// The systems of a crate that share an index type.
pub struct Peer<I: RangeIndex> {
    /// Name and options of each system.
    pub systems: Vec<(&'static str, I::Options)>,
    /// The smallest cache with which an index works.
    pub least_cache: fn(&I::Options) -> u64,
    /// Options of a seed.
    pub drawn: fn(&I::Options, Below<'_>) -> I::Options,
    /// The length of all values, where there is one only.
    pub value_bytes: Option<fn(&I::Options) -> u32>,
    /// Whether one client posts the same verbs in every run: each verb is awaited.
    pub repeats: Which<I::Options>,
    /// How verbs may be torn where histories of concurrent clients must be linearizable, and
    /// whether scans are; `None`: nowhere.
    pub interleaved: Option<(Tearing, Which<I::Options>)>,
    /// The conformance suite in one process.
    pub local: Vec<Row<I>>,
    /// Settings under which these seeds find nothing.
    pub sound: Vec<(Setting<I::Options>, std::ops::Range<u64>)>,
    /// Published defects.
    pub defects: Vec<Defect<I::Options>>,
    /// Tables of costs.
    pub budgets: Vec<Budget<I>>,
}

impl<I: RangeIndex> Peer<I> {
    /// Systems that await all of their verbs; what is to be checked of them is added.
    pub fn new(
        systems: Vec<(&'static str, I::Options)>,
        least_cache: fn(&I::Options) -> u64,
        drawn: fn(&I::Options, Below<'_>) -> I::Options,
    ) -> Self {
        Self {
            systems,
            least_cache,
            drawn,
            value_bytes: None,
            repeats: |_| true,
            interleaved: None,
            local: Vec::new(),
            sound: Vec::new(),
            defects: Vec::new(),
            budgets: Vec::new(),
        }
    }
}

/// Runs a check on many items, on all processors. Returns what failed; a panic is a failure.
pub(crate) fn each<T: Sync>(
    items: &[T],
    check: impl Fn(&T) -> Result<(), String> + Sync,
) -> Vec<String> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = catch_unwind(AssertUnwindSafe(|| check(item)));
            if let Err(why) = result.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
                failed.lock().expect("no panic under this lock").push(why);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|s| (0..workers).for_each(|_| _ = s.spawn(work)));
    failed.into_inner().expect("no panic under this lock")
}

/// Whether a list with commas, or `*`, has a name.
fn listed(list: &str, name: &str) -> bool {
    list == "*" || list.split(", ").any(|n| n == name)
}

/// Names the item that a check failed on.
pub(crate) fn named(name: &str, check: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(check))
        .map_err(|panic| format!("{name}: {}", panic_text(&*panic)))
}

/// Fails a test with all failures.
///
/// # Panics
/// If there are any.
#[track_caller]
pub fn passes(failures: &[String]) {
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// The Markdown tables of a peer: its costs, and its defects with the number of seeds that show
/// each.
pub fn tables<I: RangeIndex>(peer: &Peer<I>) -> String {
    let costs = peer.budgets.iter().map(|b| costs::measure(b).markdown());
    costs.chain([defects::markdown(peer)]).collect::<Vec<_>>().join("\n")
}

/// The tests of peers: each line is a module of tests, and an expression that makes its peer.
#[macro_export]
macro_rules! peer_tests {
    ($($name:ident: $peer:expr;)*) => {$(
        mod $name {
            use super::*;
            use $crate::peer;

            #[test]
            fn local() {
                peer::passes(&peer::rows::local(&$peer));
            }

            #[test]
            fn apart() {
                peer::passes(&peer::rows::apart(&$peer));
            }

            #[test]
            fn interleaved() {
                peer::passes(&peer::workloads::interleaved(&$peer));
            }

            #[test]
            fn adversarial() {
                peer::passes(&peer::defects::sound(&$peer));
            }

            #[test]
            fn defects() {
                peer::passes(&peer::defects::found(&$peer));
            }

            #[test]
            fn costs() {
                peer::passes(&peer::costs::check(&$peer));
            }

            #[test]
            #[ignore = "prints the tables of costs and defects"]
            #[expect(clippy::disallowed_macros, reason = "it prints")]
            fn tables() {
                println!("{}", peer::tables(&$peer));
            }
        }
    )*};
}
