//! A client: the view that one fabric slot has of the index.

use std::ops::Deref;
use std::sync::Arc;

use dmtree_fabric::Endpoint;
use dmtree_parts::blink::Way;
use dmtree_parts::published::Client;

use crate::node::ShermanNode;

/// A Sherman (or FG) client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its
/// operations.
#[derive(Debug)]
pub struct Sherman {
    client: Client<ShermanNode>,
    pub(crate) way: Way,
}

impl Deref for Sherman {
    type Target = Client<ShermanNode>;

    fn deref(&self) -> &Client<ShermanNode> {
        &self.client
    }
}

impl Sherman {
    /// The client of one slot.
    pub fn new(ep: Endpoint, node: Arc<ShermanNode>) -> Self {
        Self { client: Client::new(ep, node), way: Way::default() }
    }
}
