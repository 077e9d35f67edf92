//! A client: the view that one fabric slot has of the index.

use dmtree_parts::blink::Way;
use dmtree_parts::published::Client;

use crate::node::ShermanNode;

/// A Sherman (or FG) client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its
/// operations.
#[derive(Debug)]
pub struct Sherman {
    pub(crate) client: Client<ShermanNode>,
    pub(crate) way: Way,
}

dmtree_parts::begins_with!(Sherman => Client<ShermanNode>, client);
