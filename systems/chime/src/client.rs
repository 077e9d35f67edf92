//! A client: the view that one fabric slot has of the index.

use std::cell::Cell;

use dmtree_parts::blink::Way;
use dmtree_parts::published::Client;

use crate::node::ChimeNode;

/// A CHIME client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
#[derive(Debug)]
pub struct Chime {
    pub(crate) client: Client<ChimeNode>,
    pub(crate) way: Way,
    /// The vacancy word that it wrote last, of whatever leaf.
    pub(crate) last_word: Cell<u64>,
}

dmtree_parts::begins_with!(Chime => Client<ChimeNode>, client);
