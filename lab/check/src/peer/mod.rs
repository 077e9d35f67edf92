//! A test kit for the crates that bring indexes. Such a crate describes its systems with their
//! defects and mutants ([`dmtree_parts::peer`]), and states as data how they are configured and
//! what their operations cost ([`Peer`]); [`crate::peer_tests!`] makes tests of it:
//!
//! | test | what it runs |
//! |---|---|
//! | `ranges` | options just outside of their ranges, which are refused ([`rows::ranges`]) |
//! | `local` | the conformance suite on every system, in every geometry ([`rows`]) |
//! | `apart` | the suite with every node a process of its own, and the same verbs as in one |
//! | `interleaved` | histories of coroutines, key by key ([`workloads::interleaved`]) |
//! | `adversarial` | seeds on the adversarial fabric that must find nothing ([`defects`]) |
//! | `defects` | seeds that must show a defect, and find nothing once it is repaired |
//! | `costs` | operations one by one, against the table of costs ([`costs`]) |
//! | `tables` (ignored) | prints the costs as Markdown |

pub mod costs;
pub mod defects;
pub mod mutants;
pub mod rows;
pub mod toy;
pub mod workloads;

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use dmtree_fabric::local::Tearing;
use dmtree_parts::AnyOptions;
use dmtree_parts::peer::{Setting, SystemSpec, typed};
use serde::de::DeserializeOwned;

pub use costs::Budget;
pub use rows::Row;

/// What the tests of a crate use.
pub mod prelude {
    pub use super::costs::{
        BYTES, Cost, KINDS, Sheet, Side, TRIPS, VERBS, broken, cost, means, row,
    };
    pub use super::rows::{
        Geometries, Site, chips, few_locks, fills, full, load, model, of_any_length, of_one_length,
        random_fill, snapshots_and_batches, three_memory_nodes, trees,
    };
    pub use super::{Budget, Peer, Row, passes, which};
    pub use crate::conformance::{EmptyLeaves, Keys};
    pub use dmtree_fabric::Capabilities;
    pub use dmtree_fabric::local::Tearing;
    pub use dmtree_parts::peer::{Clients, EVERYTHING, KIND, NOTHING, READONLY, Setting};
}

use crate::checked::System;
use crate::verdict::caught;

/// Which options something holds for.
pub type Which = Box<dyn Fn(&AnyOptions) -> bool + Send + Sync>;

/// What holds for options of a type.
pub fn which<O: DeserializeOwned + 'static>(holds: fn(&O) -> bool) -> Which {
    Box::new(move |o| holds(&typed(o)))
}

/// The systems of a crate that share an index type.
pub struct Peer {
    /// The systems. The first one draws the options of seeds.
    pub subjects: Vec<System>,
    /// Name and options of each system of the conformance suite.
    pub systems: Vec<(&'static str, AnyOptions)>,
    /// Whether one client posts the same verbs in every run: each verb is awaited.
    pub repeats: Which,
    /// How verbs may be torn where histories of concurrent clients must be linearizable, and
    /// whether scans are; `None`: nowhere.
    pub interleaved: Option<(Tearing, Which)>,
    /// The conformance suite in one process.
    pub local: Vec<Row>,
    /// Settings of systems under which these seeds find nothing.
    pub sound: Vec<(&'static str, Setting, std::ops::Range<u64>)>,
    /// Tables of costs.
    pub budgets: Vec<Budget>,
}

impl Peer {
    /// Systems that await all of their verbs; what is to be checked of them beside their defects is
    /// added.
    pub fn of(systems: impl IntoIterator<Item = SystemSpec>) -> Self {
        let subjects: Vec<System> = systems.into_iter().map(System).collect();
        let conforming = |s: &System| (s.name, s.options.with((s.conforming)(&s.options)));
        Self {
            systems: subjects.iter().map(conforming).collect(),
            subjects,
            repeats: Box::new(|_| true),
            interleaved: None,
            local: Vec::new(),
            sound: Vec::new(),
            budgets: Vec::new(),
        }
    }

    /// A system by name.
    ///
    /// # Panics
    /// If there is none.
    pub fn subject(&self, name: &str) -> &System {
        self.subjects.iter().find(|s| s.name == name).expect("a system of this crate")
    }

    /// Name and options of each system, as they are.
    pub fn presets(&self) -> Vec<(&'static str, AnyOptions)> {
        self.subjects.iter().map(|s| (s.name, s.options.clone())).collect()
    }

    /// The smallest cache with which an index works.
    pub fn least_cache(&self, o: &AnyOptions) -> u64 {
        (self.subjects[0].least_cache_bytes)(o)
    }
}

/// Runs a check on many items, on all processors. Returns what failed; a panic is a failure.
pub fn each<T: Sync>(items: &[T], check: impl Fn(&T) -> Result<(), String> + Sync) -> Vec<String> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(why) = caught(|| check(item)).and_then(|checked| checked) {
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
    caught(check).map_err(|panic| format!("{name}: {panic}"))
}

/// Fails a test with all failures.
///
/// # Panics
/// If there are any.
#[track_caller]
pub fn passes(failures: &[String]) {
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// The Markdown tables of the costs of a peer.
pub fn tables(peer: &Peer) -> String {
    peer.budgets.iter().map(|b| costs::measure(b).markdown()).collect::<Vec<_>>().join("\n")
}

/// The tests of peers: each line is a module of tests, and an expression that makes its peer.
#[macro_export]
macro_rules! peer_tests {
    ($($name:ident: $peer:expr;)*) => {$(
        mod $name {
            use super::*;
            use $crate::peer;

            $crate::peer_tests! { @ ranges peer::rows::ranges(&$peer) }
            $crate::peer_tests! { @ local peer::rows::local(&$peer) }
            $crate::peer_tests! { @ apart peer::rows::apart(&$peer) }
            $crate::peer_tests! { @ interleaved peer::workloads::interleaved(&$peer) }
            $crate::peer_tests! { @ adversarial peer::defects::sound(&$peer) }
            $crate::peer_tests! { @ defects peer::defects::found(&$peer.subjects) }
            $crate::peer_tests! { @ costs peer::costs::check(&$peer) }

            #[test]
            #[ignore = "prints the tables of costs"]
            #[expect(clippy::disallowed_macros, reason = "it prints")]
            fn tables() {
                println!("{}", peer::tables(&$peer));
            }
        }
    )*};
    (@ $test:ident $failures:expr) => {
        #[test]
        fn $test() {
            $crate::peer::passes(&$failures);
        }
    };
}
