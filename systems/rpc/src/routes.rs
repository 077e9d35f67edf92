//! Cached routes of a compute node: which leaf has the keys of a range. A leaf keeps its lower
//! fence for ever and is never used for anything else, so a route that is out of date leads to a
//! leaf to the left, and the header there says so.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, RwLock};

use dmtree_fabric::GlobalAddr;
use dmtree_fabric::sync::locked;
use dmtree_parts::CacheStats;

/// Bytes of a route beside its fences.
const ROUTE_BYTES: u64 = 96;

/// A leaf, and where its range ended when the route was learned.
#[derive(Clone, Debug)]
struct Route {
    leaf: GlobalAddr,
    end: Option<Vec<u8>>,
}

impl Route {
    fn bytes(&self, low: &[u8]) -> u64 {
        ROUTE_BYTES + (low.len() + self.end.as_ref().map_or(0, Vec::len)) as u64
    }
}

#[derive(Debug, Default)]
struct Known {
    routes: BTreeMap<Vec<u8>, Route>,
    bytes: u64,
    evictions: u64,
}

/// The routes.
#[derive(Debug)]
pub(crate) struct Routes {
    budget: u64,
    known: RwLock<Known>,
    /// The lower fence at which the next eviction begins.
    hand: Mutex<Vec<u8>>,
}

impl Routes {
    pub(crate) fn new(budget: u64) -> Self {
        Self { budget, known: RwLock::default(), hand: Mutex::default() }
    }

    /// The leaf of a key, as far as this node knows.
    pub(crate) fn find(&self, key: &[u8]) -> Option<GlobalAddr> {
        let known = self.known.read().expect("no panic under this lock");
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let (_, route) = known.routes.range::<[u8], _>(up_to).next_back()?;
        let is_inside = route.end.as_ref().is_none_or(|end| key < &end[..]);
        is_inside.then_some(route.leaf)
    }

    /// Learns leaves with their lower fences, in order, and where the last one ends.
    pub(crate) fn learn(&self, leaves: Vec<(Vec<u8>, GlobalAddr)>, end: Option<Vec<u8>>) {
        let mut known = self.known.write().expect("no panic under this lock");
        let ends: Vec<_> = leaves.iter().skip(1).map(|(low, _)| Some(low.clone())).collect();
        for ((low, leaf), end) in leaves.into_iter().zip(ends.into_iter().chain([end])) {
            let route = Route { leaf, end };
            known.bytes += route.bytes(&low);
            if let Some(old) = known.routes.insert(low.clone(), route) {
                known.bytes -= old.bytes(&low);
            }
        }
        let mut hand = locked(&self.hand);
        while known.bytes > self.budget {
            let from =
                known.routes.range::<[u8], _>((Bound::Excluded(&hand[..]), Bound::Unbounded));
            let next = from.map(|(low, _)| low.clone()).next();
            let Some(low) = next.or_else(|| known.routes.keys().next().cloned()) else { break };
            if let Some(old) = known.routes.remove(&low) {
                known.bytes -= old.bytes(&low);
                known.evictions += 1;
            }
            *hand = low;
        }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let known = self.known.read().expect("no panic under this lock");
        CacheStats {
            budget_bytes: self.budget,
            used_bytes: known.bytes,
            nodes: known.routes.len() as u64,
            evictions: known.evictions,
            ..CacheStats::default()
        }
    }
}
