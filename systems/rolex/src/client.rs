//! A client: the view that one fabric slot has of the index.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use dmtree_fabric::GlobalAddr;
use dmtree_parts::published::Client;

use crate::directory::Directory;
use crate::node::RolexNode;

/// A ROLEX client: one fabric slot. [`dmtree_parts::RangeIndex`] documents its operations.
#[derive(Debug)]
pub struct Rolex {
    pub(crate) client: Client<RolexNode>,
    /// The directory that it has used last.
    pub(crate) directory: RefCell<Option<Arc<Directory>>>,
    /// Synonyms by their leaves. As published every client has its own, and forgets none.
    pub(crate) synonyms: RefCell<BTreeMap<GlobalAddr, GlobalAddr>>,
}

dmtree_parts::begins_with!(Rolex => Client<RolexNode>, client);
