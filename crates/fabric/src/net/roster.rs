//! Who is where: the nodes of a pool, their addresses, and the sizes of their regions.

use serde::{Deserialize, Serialize};

use crate::addr::NodeId;
use crate::membership::Member;

/// A node in its newest life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Who.
    pub member: Member,
    /// Where it listens: host and port. Empty for the first memory node, which everybody has found by an address of his own.
    pub address: String,
    /// Bytes of its region.
    pub region_bytes: u64,
}

/// All nodes, in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    places: Vec<Place>,
}

impl Roster {
    /// All of them.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Where a node is.
    pub fn find(&self, node: NodeId) -> Option<&Place> {
        let i = self.places.binary_search_by_key(&node, |p| p.member.node).ok()?;
        self.places.get(i)
    }

    /// Adds a node, or replaces its former life.
    pub(super) fn put(&mut self, place: Place) {
        match self.places.binary_search_by_key(&place.member.node, |p| p.member.node) {
            Ok(i) => self.places[i] = place,
            Err(i) => self.places.insert(i, place),
        }
    }
}
