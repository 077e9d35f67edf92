//! A client: the view that one fabric slot has of the index, and its memory allocation.

use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::published::{Client, Spare};

use crate::node::SmartNode;

/// A SMART (or ART) client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
#[derive(Debug)]
pub struct Smart {
    pub(crate) client: Client<SmartNode>,
    /// Leaves that were written and never linked; later operations use them.
    pub(crate) spare_leaves: Spare,
    /// Nodes likewise. Only their first four slots were written, and the next use overwrites these.
    pub(crate) spare_nodes: Spare,
}

dmtree_parts::begins_with!(Smart => Client<SmartNode>, client);

impl Smart {
    pub(crate) async fn new_leaf(&self) -> Result<GlobalAddr> {
        self.take(&self.spare_leaves, &self.node.leaves, self.node.g.leaf_footprint()).await
    }

    /// Memory for a node of any type. Memory that was never written is zero.
    pub(crate) async fn new_node(&self) -> Result<GlobalAddr> {
        self.take(&self.spare_nodes, &self.node.nodes, self.node.g.node_footprint()).await
    }
}
